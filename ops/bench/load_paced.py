"""Load that wrk cannot make: members that each heartbeat at their own time, and members that join all at once.

Runs as a process of its own, on the load generators' core: `python -m ops.bench.load_paced ORDER`, where ORDER is the file of an
`Order`; prints a `Report` as JSON. Each member has a connection of its own, opened beforehand.

A paced heartbeat is due at a time fixed in advance, and its latency is counted from then: an answer that comes late makes
the next heartbeat of that member late too, and that lateness counts.
"""

from __future__ import annotations

import asyncio
import gc
import resource
import subprocess
import sys
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Final, Literal

import msgspec
from msgspec import Struct

from ops.bench.load_wrk import Request
from ops.bench.machine import ROOT, pinned

HOST: Final = "127.0.0.1"
GOOD: Final = b'"status":"OK"'
OK_LINE: Final = b"HTTP/1.1 200"
REPEAT_S: Final = 0.05
"""A join that was answered otherwise than OK is repeated after this time, as the client's first pause."""
BURST_S_MAX: Final = 120.0
LAST_ANSWERS_S_MAX: Final = 10.0
"""What is not answered so long after the last heartbeat was sent counts as an error."""
SPARE_FILES: Final = 64
OPENED_TOGETHER: Final = 50
SLACK_S: Final = 60


class Order(Struct, kw_only=True):
    """What to send. `paced`: all requests once in each period, evenly spread, for so many seconds. `burst`: all at once."""

    kind: Literal["paced", "burst"]
    port: int
    requests: list[tuple[str, str]]
    period_s: float = 3.0
    seconds: float = 0.0


class Report(Struct, kw_only=True):
    """What came of it. Latencies in ms; `late_p99_ms`: how late this generator itself sent; `seconds`: until the last OK."""

    answered: int
    errors: int
    seconds: float
    p50_ms: float
    p99_ms: float
    max_ms: float
    late_p99_ms: float


class Connection(asyncio.Protocol):
    """One member's connection. Heartbeats that fall due while one is under way wait, and their lateness counts."""

    def __init__(self, request: bytes, done: Callable[[Connection, float, bool], None]) -> None:
        self._request = request
        self._done = done
        self._transport: asyncio.Transport | None = None
        self._due: deque[float] = deque()
        self._received = bytearray()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Be open."""
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def send(self, due: float) -> None:
        """Send the request, or do so once the one under way is answered."""
        self._due.append(due)
        if self._transport is None:
            self._answered(good=False)
        elif len(self._due) == 1:
            self._transport.write(self._request)

    def data_received(self, data: bytes) -> None:
        """Take what came; an answer may come in parts."""
        self._received += data
        head, blank, body = bytes(self._received).partition(b"\r\n\r\n")
        if not blank or len(body) < _content_length(head):
            return
        self._received.clear()
        self._answered(good=head.startswith(OK_LINE) and GOOD in body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Count what is still to be answered as errors."""
        del exc
        self._transport = None
        while self._due:
            self._answered(good=False)

    def close(self) -> None:
        """Close it, with nothing more to be counted."""
        self._due.clear()
        if self._transport is not None:
            self._transport.close()

    def _answered(self, *, good: bool) -> None:
        if not self._due:
            return
        due = self._due.popleft()
        if self._due and self._transport is not None:
            self._transport.write(self._request)
        self._done(self, due, good)


async def paced(order: Order) -> Report:
    """Send each request once a period; the first period warms up and is not counted."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    lateness: list[float] = []
    errors = 0
    counts_from = float("inf")

    def done(_: Connection, due: float, good: bool) -> None:  # noqa: FBT001  a callback
        nonlocal errors
        if due >= counts_from:
            latencies.append((loop.time() - due) * 1000)
            errors += not good

    connections = await _opened(order, done)
    started = loop.time() + 0.1
    counts_from = started + order.period_s
    beats = round((order.period_s + order.seconds) / order.period_s * len(connections))
    for beat in range(beats):
        due = started + beat * order.period_s / len(connections)
        if (pause := due - loop.time()) > 0:
            await asyncio.sleep(pause)
        if due >= counts_from:
            lateness.append((loop.time() - due) * 1000)
        connections[beat % len(connections)].send(due)
    expected = len(lateness)
    deadline = loop.time() + LAST_ANSWERS_S_MAX
    # An event for each answer would disturb what is measured, looking now and then does not.
    while len(latencies) < expected and loop.time() < deadline:  # noqa: ASYNC110  bounded by the deadline
        await asyncio.sleep(0.01)
    for connection in connections:
        connection.close()
    return _report(latencies, errors + expected - len(latencies), seconds=loop.time() - counts_from, lateness=lateness)


async def burst(order: Order) -> Report:
    """Send all requests at once, each again until it is answered OK."""
    loop = asyncio.get_running_loop()
    latencies: list[float] = []
    errors = 0
    finished = asyncio.Event()

    def done(connection: Connection, due: float, good: bool) -> None:  # noqa: FBT001  a callback
        nonlocal errors
        if good:
            latencies.append((loop.time() - due) * 1000)
            if len(latencies) == len(order.requests):
                finished.set()
        else:
            errors += 1
            loop.call_later(REPEAT_S, connection.send, due)

    connections = await _opened(order, done)
    started = loop.time()
    for connection in connections:
        connection.send(started)
    await asyncio.wait_for(finished.wait(), BURST_S_MAX)
    seconds = loop.time() - started
    for connection in connections:
        connection.close()
    return _report(latencies, errors, seconds=seconds, lateness=[])


async def _opened(order: Order, done: Callable[[Connection, float, bool], None]) -> list[Connection]:
    _allow_files(len(order.requests) + SPARE_FILES)
    loop = asyncio.get_running_loop()
    connections: list[Connection] = []
    for first in range(0, len(order.requests), OPENED_TOGETHER):
        made = [Connection(_http(*request), done) for request in order.requests[first : first + OPENED_TOGETHER]]
        await asyncio.gather(*(loop.create_connection(partial(_itself, each), HOST, order.port) for each in made))
        connections += made
    return connections


def _itself(connection: Connection) -> Connection:
    return connection


def _http(path: str, body: str) -> bytes:
    data = body.encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
    return head.encode() + data


def _content_length(head: bytes) -> int:
    for line in head.split(b"\r\n")[1:]:
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            return int(value)
    return 0


def _allow_files(wanted: int) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted if hard == resource.RLIM_INFINITY else min(wanted, hard), hard))


def _report(latencies: Sequence[float], errors: int, *, seconds: float, lateness: Sequence[float]) -> Report:
    return Report(
        answered=len(latencies),
        errors=errors,
        seconds=seconds,
        p50_ms=percentile(latencies, 0.5),
        p99_ms=percentile(latencies, 0.99),
        max_ms=max(latencies, default=0.0),
        late_p99_ms=percentile(lateness, 0.99),
    )


def percentile(values: Sequence[float], share: float) -> float:
    """Give the value that this share of all values does not exceed; 0 for none."""
    return sorted(values)[max(0, -int(-share * len(values) // 1) - 1)] if values else 0.0


def send(file: Path, requests: Sequence[Request], *, kind: Literal["paced", "burst"], port: int, seconds: float = 0.0) -> Report:
    """Run the generator as a process of its own, and give what it reports."""
    pairs = [(request.path, request.body.decode()) for request in requests]
    file.write_bytes(msgspec.json.encode(Order(kind=kind, port=port, requests=pairs, seconds=seconds)))
    ran = subprocess.run(
        pinned([sys.executable, "-m", "ops.bench.load_paced", str(file)]),
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=seconds + BURST_S_MAX + SLACK_S,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"the load generator failed: {ran.stderr.strip()[-500:]}")
    return msgspec.json.decode(ran.stdout, type=Report)


def main() -> None:
    """Carry out the order that the first argument names."""
    order = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Order)
    gc.disable()  # a pause of the generator's own would be taken for one of the server's
    report = asyncio.run(paced(order) if order.kind == "paced" else burst(order))
    sys.stdout.buffer.write(msgspec.json.encode(report))


if __name__ == "__main__":
    main()
