"""`coord serve` as a process, and raw HTTP over a socket."""

from __future__ import annotations

import base64
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Self

from tests.servers import free_port, wait_until

BASE = "/coord/v1"
ADMIN = "Authorization: Basic " + base64.b64encode(b"admin:password").decode()
ROOT = Path(__file__).parents[2]
ENGINES = ("gunicorn", "granian")
COMMAND = "from coord.cli.serve import serve; serve()"


@dataclass
class Answer:
    """One HTTP answer as it came over the wire."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def code(self) -> tuple[int, str]:
        """Status and errorCode, having held the error body to its shape."""
        told = self.json
        assert set(told) == {"status", "errorCode", "message", "requestId", "details"}, told
        assert self.headers["content-type"] == "application/json"
        assert self.headers["x-request-id"] == told["requestId"]
        return self.status, told["errorCode"]


class Wire:
    """One connection; what is sent is sent as it is."""

    def __init__(self, port: int, *, timeout_s: float = 60.0) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=timeout_s)
        self.stream = self.socket.makefile("rb")

    def send(self, data: bytes) -> None:
        self.socket.sendall(data)

    def receive(self, *, without_body: bool = False) -> Answer:
        """Read one answer; raises ConnectionError when the other side closed instead."""
        line = self.stream.readline()
        if not line:
            raise ConnectionError("closed without an answer")
        headers: dict[str, str] = {}
        while (header := self.stream.readline().rstrip(b"\r\n")) != b"":
            name, _, value = header.decode("latin-1").partition(":")
            headers[name.lower()] = value.strip()
        length = 0 if without_body else int(headers.get("content-length", "0"))
        return Answer(status=int(line.split()[1]), headers=headers, body=self.stream.read(length))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stream.close()
        self.socket.close()


@dataclass
class Served:
    """A running `coord serve`. Its output is in `log`."""

    process: subprocess.Popen[bytes]
    port: int
    log: Path
    engine: str

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        credentials: bool = True,
        headers: tuple[str, ...] = (),
        timeout_s: float = 60.0,
    ) -> Answer:
        """Send one request on a connection of its own; the path goes out as it is."""
        data = b"" if body is None else json.dumps(body).encode()
        lines = [f"{method} {path} HTTP/1.1", "Host: test", "Connection: close", *headers]
        lines += [ADMIN] if credentials else []
        lines += ["Content-Type: application/json", f"Content-Length: {len(data)}"] if body is not None else []
        with Wire(self.port, timeout_s=timeout_s) as connection:
            connection.send("\r\n".join([*lines, "", ""]).encode("latin-1") + data)
            return connection.receive(without_body=method == "HEAD")

    def raw(self, data: bytes) -> Answer:
        """Send bytes and give the answer."""
        with Wire(self.port) as connection:
            connection.send(data)
            return connection.receive()

    def lives(self) -> bool:
        try:
            return self.ask("GET", "/livez", timeout_s=5).status == 200
        except OSError:
            return False

    def workers(self) -> set[int]:
        """Give the pids of the worker processes: its children that run Python."""
        listed = Path(f"/proc/{self.process.pid}/task/{self.process.pid}/children").read_text(encoding="ascii")
        pids = (int(pid) for pid in listed.split())
        return {pid for pid in pids if _is_worker(pid)}

    @contextmanager
    def only(self, index: int, *, is_free: Callable[[], bool] = lambda: True) -> Iterator[None]:
        """Let one worker alone answer; the others are stopped at a moment at which `is_free`, so that they hold no lock."""
        others = [pid for number, pid in enumerate(sorted(self.workers())) if number != index]

        def are_stopped() -> bool:
            for pid in others:
                os.kill(pid, signal.SIGSTOP)
            wait_until(lambda: all(_stands_still(pid) for pid in others), what="the others stand still")
            if is_free():
                return True
            for pid in others:
                os.kill(pid, signal.SIGCONT)
            return False

        try:
            wait_until(are_stopped, what="the others hold nothing while they stand still")
            yield
        finally:
            for pid in others:
                os.kill(pid, signal.SIGCONT)

    def text(self) -> str:
        return self.log.read_text(encoding="utf-8")


@contextmanager
def serving(
    folder: Path,
    *arguments: str,
    config: str = "",
    environ: Mapping[str, str] | None = None,
    ready: bool = True,
    engine: str = "gunicorn",
    changed: str = "",
) -> Iterator[Served]:
    """Run `coord serve` on a free port until the block ends; what it printed is shown when it did not start.

    `changed`: Python that runs before it in its process, such as a shorter time limit.
    """
    port = free_port()
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "coordinator.yaml").write_text(config or "coordinator: {}", encoding="utf-8")
    log = folder / "serve.log"
    own = {name: value for name, value in os.environ.items() if not name.startswith(("COORDINATOR_", "REDIS_"))}
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-c", f"{changed}\n{COMMAND}", "--port", str(port), *arguments],
            cwd=folder,
            env={**own, "PYTHONPATH": str(ROOT), "COORDINATOR_SERVER_ENGINE": engine, **(environ or {})},
            stdout=output,
            stderr=subprocess.STDOUT,
        )
    served = Served(process=process, port=port, log=log, engine=engine)
    try:
        if ready:
            wait_until(lambda: served.lives() or process.poll() is not None, timeout_s=60, what="coord serve answers")
            assert process.poll() is None, served.text()
        yield served
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            try:
                process.wait(60)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait(60)


def _stands_still(pid: int) -> bool:
    """Tell whether every thread of a stopped process has come to its halt: until then one may still take a connection."""
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return all(") T " in (task / "stat").read_text(encoding="utf-8") for task in tasks)


def _is_worker(pid: int) -> bool:
    """Tell a worker from an embedded Redis, and from what has just ended."""
    try:
        return "redis" not in Path(f"/proc/{pid}/comm").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
