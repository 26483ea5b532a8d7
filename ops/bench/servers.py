"""The programs that are measured: `coord serve` on either engine, and stand-ins of it, each a process of its own."""

from __future__ import annotations

import importlib.util
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal, TypeAlias

import urllib3

from coord.runtime.embedded import free_port
from ops.bench.results import AbsentError

ROOT: Final = Path(__file__).parents[2]
BASE: Final = "/coord/v1"
READY_TIMEOUT_S: Final = 30.0
STOP_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.01
HOUR: Final = "1h"

Engine: TypeAlias = Literal["gunicorn", "granian"]
Heartbeats: TypeAlias = Literal["coord", "floor", "baseline"]
"""Who answers heartbeats: the coordinator, or one of the stand-ins of `ops.bench.standins`."""

PATIENT: Final[Mapping[str, object]] = {
    "member-lease-ttl": HOUR,
    "rebalance-timeout": HOUR,
    "streams": {"provisioning-enabled": False},
}
"""Members of a load generator heartbeat when it is their turn, so nothing may lapse. Costs nothing: a lease is a number."""


@dataclass(frozen=True, slots=True)
class Serving:
    """A running server. `pid` is the master's."""

    port: int
    pid: int

    @property
    def origin(self) -> str:
        """Scheme, host and port."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def api(self) -> str:
        """The base URL of the API."""
        return self.origin + BASE

    def workers(self) -> list[int]:
        """Give the pids of the processes that answer requests."""
        listed = Path(f"/proc/{self.pid}/task/{self.pid}/children").read_text(encoding="ascii")
        children = [int(pid) for pid in listed.split()]
        return [pid for pid in children if "resource_tracker" not in _command_line(pid)] or [self.pid]


@contextmanager
def serving(
    folder: Path,
    redis_url: str,
    *,
    engine: Engine = "gunicorn",
    heartbeats: Heartbeats = "coord",
    settings: Mapping[str, object] = PATIENT,
    key_prefix: str = "bench",
    workers: int | None = None,
) -> Iterator[Serving]:
    """Run `coord serve` until the block ends. `settings`: the configuration over the defaults.

    Raises AbsentError saying why it does not start.
    """
    if engine == "granian" and importlib.util.find_spec("granian") is None:
        raise AbsentError("granian is not installed")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    server = {"engine": engine, "port": port, **({} if workers is None else {"workers": workers})}
    config = {**settings, "server": server, "store": {"type": "redis", "key-prefix": key_prefix}}
    (folder / "coordinator.yaml").write_text(json.dumps({"coordinator": config}), encoding="utf-8")
    command = [sys.executable, "-m", "coord", "serve", "--config", str(folder / "coordinator.yaml"), "--log-level", "warning"]
    with (folder / "serve.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, env=_environment(redis_url, heartbeats), stdout=log, stderr=log)
    try:
        told = await_ready(process, port, folder / "serve.log")
        if engine != "gunicorn" and "gunicorn" in told:
            raise AbsentError(f"coord serve runs {told} where server.engine is {engine}")
        yield Serving(port=port, pid=process.pid)
    finally:
        end(process)


def _environment(redis_url: str, heartbeats: Heartbeats) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("COORDINATOR_", "REDIS_"))}
    path = [str(ROOT)]
    if heartbeats != "coord":
        path.insert(0, str(Path(__file__).parent / "site"))
        own["COORD_BENCH_STANDIN"] = heartbeats
    return {**own, "PYTHONPATH": os.pathsep.join(path), "REDIS_URL": redis_url}


def await_ready(process: subprocess.Popen[bytes], port: int, log: Path) -> str:
    """Wait until a server answers `/readyz`; gives its name for itself.

    Raises AbsentError with the end of its log when it does not answer.
    """
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with urllib3.PoolManager(retries=False, timeout=1.0) as http:
        while time.monotonic() < deadline_s and process.poll() is None:
            with suppress(urllib3.exceptions.HTTPError):
                answer = http.request("GET", f"http://127.0.0.1:{port}/readyz")
                if answer.status == 200:  # noqa: PLR2004  HTTP's own word
                    return answer.headers.get("Server", "")
            time.sleep(POLL_S)
    said = [line.strip() for line in log.read_text(encoding="utf-8", errors="replace").splitlines() if line.strip()]
    raise AbsentError(f"coord serve did not start: {' / '.join(said[-3:])[-300:]}")


def end(process: subprocess.Popen[bytes]) -> None:
    """End a child in order, and kill it when it takes too long."""
    if process.poll() is not None:
        return
    process.send_signal(signal.SIGTERM)
    try:
        process.wait(STOP_TIMEOUT_S)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(STOP_TIMEOUT_S)


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
