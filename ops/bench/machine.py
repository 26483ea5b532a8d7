"""What the figures were measured on: processor, memory, system, and the versions of everything that takes part."""

from __future__ import annotations

import os
import platform
import re
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Final

import coord
from coord.runtime.embedded import EmbeddedRedisError, find_redis_server
from ops.bench.results import Scalar

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("falcon", "gunicorn", "granian", "hiredis", "msgspec", "redis")
DEBIAN: Final = ("etcd", "wrk")
LOOK_S: Final = 10


def facts() -> dict[str, Scalar | None]:
    """Give what a reader must know of the machine; None where it does not tell."""
    return {
        "cpu": _field("/proc/cpuinfo", "model name"),
        "cores": len(os.sched_getaffinity(0)),
        "memory_mb": _memory_mb(),
        "system": f"{platform.system()} {platform.release()}",
        "load_at_start": round(os.getloadavg()[0], 2),
        "python": platform.python_version(),
        "coord": coord.__version__,
        "commit": _said("git", "-C", str(ROOT), "describe", "--always", "--dirty"),
        "redis_server": _redis_version(),
        **{name: _debian(name) for name in DEBIAN},
        **{name: _package(name) for name in PACKAGES},
    }


def load_core() -> int:
    """Give the core that load generators are pinned to: the last one. Servers are left free to use it too on small machines."""
    return max(os.sched_getaffinity(0))


def pinned(command: list[str]) -> list[str]:
    """Give a load generator's command line, pinned to its core."""
    return ["taskset", "--cpu-list", str(load_core()), *command]


def _field(file: str, name: str) -> str | None:
    try:
        found = re.search(rf"^{name}\s*:\s*(.+)$", Path(file).read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        return None
    return found[1] if found else None


def _memory_mb() -> int | None:
    total = _field("/proc/meminfo", "MemTotal")
    return int(total.split()[0]) // 1024 if total else None


def _package(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _debian(name: str) -> str | None:
    """Give the first line that a fetched program says of its version; None before it is fetched."""
    said = _said(str(ROOT / ".cache" / "bench" / "bin" / name), "--version")
    return said.splitlines()[0] if said else None


def _redis_version() -> str | None:
    try:
        said = _said(str(find_redis_server()), "--version")
    except EmbeddedRedisError:
        return None
    found = re.search(r"\bv=(\S+)", said or "")
    return found[1] if found else None


def _said(*command: str) -> str | None:
    try:
        ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=LOOK_S)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return ran.stdout.strip() or None
