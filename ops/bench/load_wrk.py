"""Full load from wrk: as many requests as are answered, over 64 connections that stay open."""

from __future__ import annotations

import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

import msgspec

from ops.bench.machine import ROOT, pinned
from ops.bench.results import AbsentError

SCRIPT: Final = Path(__file__).parent / "lua" / "replay.lua"
CONNECTIONS: Final = 64
MARK: Final = "BENCH "
FETCH_TIMEOUT_S: Final = 300
SLACK_S: Final = 60
"""wrk ends by itself; this long after its time it is stuck."""


@dataclass(frozen=True, slots=True)
class Request:
    """A POST of a JSON body to a path."""

    path: str
    body: bytes


class _Said(msgspec.Struct):
    requests: int
    microseconds: int
    errors: int
    wrong: int
    p50: int
    p99: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """One run: answers per second, how many were errors or not as expected, latencies."""

    per_second: float
    answered: int
    wrong: int
    p50_ms: float
    p99_ms: float


@cache
def tool(name: str) -> Path:
    """Give a program of Debian's, fetched at the first time; raises AbsentError saying why it cannot be had."""
    try:
        ran = subprocess.run(
            [ROOT / "ops" / "setup" / "bench_tools.sh"], check=False, capture_output=True, text=True, timeout=FETCH_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        raise AbsentError(f"{name} could not be fetched in time") from None
    if ran.returncode != 0:
        raise AbsentError(f"{name} is not there: {(ran.stderr.strip().splitlines() or ['unknown'])[-1]}")
    return Path(ran.stdout.strip()) / name


def write_requests(file: Path, requests: Iterable[Request]) -> Path:
    """Write what wrk is to send, a line each."""
    file.write_bytes(b"".join(b"%s\t%s\n" % (request.path.encode(), request.body) for request in requests))
    return file


def run(origin: str, requests: Path, *, seconds: int, expect: str | None = None, connections: int = CONNECTIONS) -> Run:
    """Load a server with the requests of a file; with `expect` each answer is held to be 200 and to hold that text."""
    command = [str(tool("wrk")), "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", "30s", "-s", str(SCRIPT), origin]
    arguments: Sequence[str] = [str(requests)] if expect is None else [str(requests), expect]
    ran = subprocess.run(
        pinned([*command, "--", *arguments]), check=False, capture_output=True, text=True, timeout=seconds + SLACK_S
    )
    told = [line.removeprefix(MARK) for line in ran.stdout.splitlines() if line.startswith(MARK)]
    if not told:
        raise RuntimeError(f"wrk failed: {ran.stdout[-300:]} {ran.stderr[-300:]}")
    said = msgspec.json.decode(told[-1], type=_Said)
    return Run(
        per_second=said.requests / (said.microseconds / 1e6),
        answered=said.requests,
        wrong=said.errors + said.wrong,
        p50_ms=said.p50 / 1000,
        p99_ms=said.p99 / 1000,
    )
