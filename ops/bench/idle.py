"""How long heartbeats wait while 200 connections are idle and 50 clients send one byte a second.

`python -m ops.bench.idle [gunicorn|granian]` starts a coordinator of its own on the memory store, at its default settings,
and prints one line. The goal of design page `performance.md`: no heartbeat is delayed by a second.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from coord.runtime.embedded import free_port

Engine = Literal["gunicorn", "granian"]

HOST: Final = "127.0.0.1"
BASE: Final = "/coord/v1"
BEAT_EVERY_S: Final = 0.05
BYTE_EVERY_S: Final = 1.0
PATIENCE_S: Final = 60.0
"""A heartbeat that is not answered within this time ends the run."""
START_S: Final = 30.0
MS_PER_S: Final = 1000
ROOT: Final = Path(__file__).parents[2]
_ADMIN: Final = "Authorization: Basic YWRtaW46cGFzc3dvcmQ="
_BODY: Final = json.dumps(
    {
        "protocolVersion": 1,
        "requestId": "bench",
        "memberId": "quick",
        "memberEpoch": 0,
        "metadataVersion": 0,
        "runtimeConsumerCapacity": {"runtimeMaxConcurrency": 4, "availableConcurrency": 4},
    }
).encode()
"""A joining heartbeat: the same request again is answered with the same epoch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class IdleResult:
    """What was measured. Delays in ms, each from the time at which the heartbeat was due."""

    engine: str
    idle: int
    slow: int
    heartbeats: int
    median_ms: float
    p99_ms: float
    max_ms: float


class Crowd:
    """Clients that cost a server nothing but patience: idle ones, and ones that send a request byte by byte.

    Half of the idle ones have had an answer before, half never send a byte; half of the slow ones are in the head of their
    request, half in its body.
    """

    def __init__(self, port: int, *, idle: int, slow: int) -> None:
        self._port = port
        self._stopped = threading.Event()
        self._slow: list[socket.socket] = []
        self._idle: list[socket.socket] = []
        for index in range(slow):
            self._slow.append(self._slow_client(in_the_body=index % 2 == 1))
        for index in range(idle):
            self._idle.append(self._idle_client(had_an_answer=index % 2 == 1))
        self._thread = threading.Thread(target=self._send_bytes, name="slow clients", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Let all connections go."""
        self._stopped.set()
        self._thread.join()
        for each in (*self._slow, *self._idle):
            each.close()

    def _slow_client(self, *, in_the_body: bool) -> socket.socket:
        client = socket.create_connection((HOST, self._port))
        head = f"POST {BASE}/streams/orders/groups/g/members/slow/heartbeat HTTP/1.1\r\nHost: bench\r\n"
        client.sendall(head.encode())
        if in_the_body:
            client.sendall(b"Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{")
        else:
            client.sendall(b"X-Slow: ")
        return client

    def _idle_client(self, *, had_an_answer: bool) -> socket.socket:
        client = socket.create_connection((HOST, self._port))
        if had_an_answer:  # it may come late: the connection is idle for the client, whatever the server makes of it
            client.sendall(b"GET /livez HTTP/1.1\r\nHost: bench\r\n\r\n")
        return client

    def _send_bytes(self) -> None:
        while not self._stopped.wait(BYTE_EVERY_S):
            for client in self._slow:
                with contextlib.suppress(OSError):  # a server may end what takes too long
                    client.sendall(b"x")


def measure(port: int, *, engine: str, idle: int = 200, slow: int = 50, seconds: float = 10.0) -> IdleResult:
    """Measure against a running coordinator, which needs no credentials for heartbeats; makes a stream and a group there.

    Heartbeats are due every 50 ms; every second one comes on a connection of its own.
    """
    for path in (f"{BASE}/streams/orders", f"{BASE}/streams/orders/groups/g"):
        _post(port, path, {"initialShardCount": 4, "requestedBy": "bench", "reason": "bench"})
    crowd = Crowd(port, idle=idle, slow=slow)
    try:
        delays_s = sorted(_heartbeats(port, seconds))
    finally:
        crowd.close()
    return IdleResult(
        engine=engine,
        idle=idle,
        slow=slow,
        heartbeats=len(delays_s),
        median_ms=_quantile(delays_s, 0.5) * MS_PER_S,
        p99_ms=_quantile(delays_s, 0.99) * MS_PER_S,
        max_ms=delays_s[-1] * MS_PER_S,
    )


def run(engine: Engine, *, idle: int = 200, slow: int = 50, seconds: float = 10.0) -> IdleResult:
    """Start a coordinator on the given engine, measure, and stop it."""
    with serving(engine) as port:
        return measure(port, engine=engine, idle=idle, slow=slow, seconds=seconds)


@contextlib.contextmanager
def serving(engine: Engine) -> Iterator[int]:
    """Run a coordinator on the memory store until the block ends; gives its port. Raises RuntimeError when it does not start."""
    port = free_port()
    with tempfile.TemporaryDirectory() as folder:
        log = Path(folder) / "serve.log"
        own = {name: value for name, value in os.environ.items() if not name.startswith(("COORDINATOR_", "REDIS_"))}
        settings = {"COORDINATOR_STORE_TYPE": "memory", "COORDINATOR_SERVER_ENGINE": engine}
        with log.open("wb") as output:
            process = subprocess.Popen(
                [sys.executable, "-m", "coord", "serve", "--port", str(port)],
                cwd=folder,
                env={**own, **settings, "PYTHONPATH": str(ROOT)},
                stdout=output,
                stderr=subprocess.STDOUT,
            )
        try:
            _wait_for(port, process, log)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(PATIENCE_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()


def _wait_for(port: int, process: subprocess.Popen[bytes], log: Path) -> None:
    deadline_s = time.monotonic() + START_S
    while True:
        with contextlib.suppress(OSError), socket.create_connection((HOST, port), timeout=1):
            return
        if process.poll() is not None or time.monotonic() > deadline_s:
            raise RuntimeError(f"the coordinator did not start:\n{log.read_text(encoding='utf-8')}")
        time.sleep(0.05)


def _heartbeats(port: int, seconds: float) -> Iterator[float]:
    kept = socket.create_connection((HOST, port), timeout=PATIENCE_S)
    began_s = time.monotonic()
    with kept:
        for number in range(math.ceil(seconds / BEAT_EVERY_S)):
            due_s = began_s + number * BEAT_EVERY_S
            time.sleep(max(0.0, due_s - time.monotonic()))
            if number % 2:
                with socket.create_connection((HOST, port), timeout=PATIENCE_S) as own:
                    _beat(own)
            else:
                _beat(kept)
            yield time.monotonic() - due_s


def _beat(connection: socket.socket) -> None:
    head = f"POST {BASE}/streams/orders/groups/g/members/quick/heartbeat HTTP/1.1\r\nHost: bench\r\nContent-Length: {len(_BODY)}"
    connection.sendall(f"{head}\r\n\r\n".encode() + _BODY)
    _status(connection)


def _post(port: int, path: str, body: object) -> None:
    data = json.dumps(body).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: bench\r\n{_ADMIN}\r\nConnection: close\r\nContent-Length: {len(data)}"
    with socket.create_connection((HOST, port), timeout=PATIENCE_S) as connection:
        connection.sendall(f"{head}\r\n\r\n".encode() + data)
        _status(connection)


def _status(connection: socket.socket) -> None:
    """Read one answer. Raises RuntimeError when it is no success."""
    answer = b""
    while b"\r\n\r\n" not in answer:
        answer += _received(connection)
    head, _, body = answer.partition(b"\r\n\r\n")
    fields = dict(line.lower().split(b":", 1) for line in head.split(b"\r\n")[1:])
    while len(body) < int(fields[b"content-length"]):
        body += _received(connection)
    if head.split()[1] not in {b"200", b"201"}:
        raise RuntimeError(f"the coordinator answered {answer!r}")


def _received(connection: socket.socket) -> bytes:
    data = connection.recv(65_536)
    if not data:
        raise RuntimeError("the coordinator closed the connection instead of answering")
    return data


def _quantile(ordered: Sequence[float], share: float) -> float:
    return ordered[min(len(ordered) - 1, math.ceil(share * len(ordered)) - 1)]


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("engine", nargs="?", choices=("gunicorn", "granian"), default="gunicorn")
    parser.add_argument("--idle", type=int, default=200)
    parser.add_argument("--slow", type=int, default=50)
    parser.add_argument("--seconds", type=float, default=10.0)
    chosen = parser.parse_args()
    print(run(chosen.engine, idle=chosen.idle, slow=chosen.slow, seconds=chosen.seconds))


if __name__ == "__main__":
    main()
