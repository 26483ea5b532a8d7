"""A tap on a TCP line, for tests: between a client and a server it passes, delays, cuts, or loses what goes through.

It behaves as a real network may: bytes of one connection are never lost from the middle. A connection that lost bytes is dead
for good (it stays open and silent, or is reset), and a later connection starts clean.

    with Tap(server.port) as tap:
        client = redis.Redis(port=tap.port)
        tap.drop_replies(containing=b"XADD", times=1, then_cut=True)   # done by the server, the answer lost
        ...
        tap.pass_through()
"""

from __future__ import annotations

import contextlib
import select
import socket
import struct
import threading
import time
from dataclasses import dataclass, field
from enum import Enum
from types import TracebackType
from typing import Self

CONNECTIONS_MAX = 256
CHUNK_BYTES = 65536
POLL_S = 0.02
CONNECT_TIMEOUT_S = 5.0
WRITE_TIMEOUT_S = 10.0
CLOSE_TIMEOUT_S = 10.0
_RESET_ON_CLOSE = struct.pack("ii", 1, 0)


class _Mode(Enum):
    PASS = "pass"
    CUT = "cut"
    BLACKHOLE = "blackhole"


@dataclass(frozen=True, slots=True, kw_only=True)
class _Plan:
    """What happens now to what goes through; replaced as a whole, never changed."""

    mode: _Mode = _Mode.PASS
    delay_s: float = 0.0
    drops: bool = False
    needle: bytes = b""
    then_cut: bool = False


@dataclass(slots=True)
class _Line:
    """One connection through the tap; only its own thread touches its sockets."""

    client: socket.socket
    server: socket.socket | None = None
    is_deaf: bool = False
    """Bytes were lost: nothing more reaches the client."""
    cuts_on_reply: bool = False
    seen: bytes = b""
    """The end of the request so far, for a needle that lies across two reads."""
    thread: threading.Thread | None = field(default=None, repr=False)


class Tap:
    """Listens on a free port of 127.0.0.1 and hands on to `upstream_port`; a context manager.

    Attributes:
        port: where clients connect.
        connections: how many connections were accepted so far.
        dropped: how many replies `drop_replies` has lost so far.
    """

    def __init__(self, upstream_port: int, *, upstream_host: str = "127.0.0.1") -> None:
        self.connections = 0
        self.dropped = 0
        self._upstream = (upstream_host, upstream_port)
        self._plan = _Plan()
        self._drops_left: int | None = None
        self._lines: list[_Line] = []
        self._changed = threading.Condition()
        self._closing = threading.Event()
        self._listener = socket.create_server(("127.0.0.1", 0), backlog=128)
        self._listener.settimeout(POLL_S)
        self.port: int = self._listener.getsockname()[1]
        self._acceptor = threading.Thread(target=self._accept, name=f"tap-{self.port}", daemon=True)
        self._acceptor.start()

    @property
    def open_connections(self) -> int:
        """How many connections are open now."""
        with self._changed:
            return len(self._lines)

    # ---- what a test says

    def pass_through(self) -> None:
        """Hand everything on; connections that lost bytes are reset."""
        self._set(_Plan())
        self._await_none([line for line in self._snapshot() if line.is_deaf])

    def delay(self, seconds: float) -> None:
        """Hold back each piece that the server sends for `seconds`."""
        self._set(_Plan(delay_s=seconds))

    def cut(self) -> None:
        """Reset every connection and each new one; returns when those that were open are gone."""
        self._set(_Plan(mode=_Mode.CUT))
        self._await_none(self._snapshot())

    def blackhole(self) -> None:
        """Accept connections and swallow what either side says; nobody is told."""
        self._set(_Plan(mode=_Mode.BLACKHOLE))

    def drop_replies(self, *, containing: bytes = b"", times: int | None = None, then_cut: bool = False) -> None:
        """Hand requests on, but lose the answer of each that holds `containing` (empty: of every one), at most `times` times.

        The connection is deaf from then on; with `then_cut` it is reset as soon as the server has answered.
        """
        with self._changed:
            self._drops_left = times
            for line in self._lines:
                line.seen = b""
        self._set(_Plan(drops=True, needle=containing, then_cut=then_cut))

    def close(self) -> None:
        """Reset what is open and stop listening; bounded in time."""
        self._closing.set()
        self._acceptor.join(CLOSE_TIMEOUT_S)
        self._listener.close()
        for line in self._snapshot():
            if line.thread is not None:
                line.thread.join(CLOSE_TIMEOUT_S)
        if self._acceptor.is_alive() or self._snapshot():
            raise AssertionError(f"the tap on port {self.port} did not close in time")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.close()

    # ---- inside

    def _set(self, plan: _Plan) -> None:
        with self._changed:
            self._plan = plan

    def _snapshot(self) -> list[_Line]:
        with self._changed:
            return list(self._lines)

    def _await_none(self, gone: list[_Line]) -> None:
        """Wait until none of these lines is open."""
        with self._changed:
            if not self._changed.wait_for(lambda: not any(line in self._lines for line in gone), CLOSE_TIMEOUT_S):
                raise AssertionError(f"connections of the tap on port {self.port} did not close in time")

    def _accept(self) -> None:
        while not self._closing.is_set():
            try:
                client, _ = self._listener.accept()
            except TimeoutError:
                continue
            line = _Line(client)
            line.thread = threading.Thread(target=self._serve, args=(line,), name=f"tap-{self.port}-line", daemon=True)
            with self._changed:
                is_full = len(self._lines) >= CONNECTIONS_MAX
                if not is_full:
                    self._lines.append(line)
                    self.connections += 1
            if is_full:
                _reset(client)
            else:
                line.thread.start()

    def _serve(self, line: _Line) -> None:
        """Run one connection until a side closes, the plan cuts it, or the tap closes."""
        is_orderly = False
        try:
            is_orderly = self._pump(line)
        except OSError:
            pass  # a side reset the line, or is not there: the other side gets a reset too
        finally:
            for end in (line.client, line.server):
                if end is not None:
                    _close(end) if is_orderly else _reset(end)
            with self._changed:
                self._lines.remove(line)
                self._changed.notify_all()

    def _pump(self, line: _Line) -> bool:
        """Move bytes; True when a side closed in order, False when the line is to be reset."""
        while not self._is_to_be_cut(line):
            if line.server is None and self._plan.mode is _Mode.PASS:
                line.server = socket.create_connection(self._upstream, CONNECT_TIMEOUT_S)
                line.server.settimeout(WRITE_TIMEOUT_S)
                line.client.settimeout(WRITE_TIMEOUT_S)
            ends = [end for end in (line.client, line.server) if end is not None]
            readable, _, _ = select.select(ends, [], [], POLL_S)
            for end in readable:
                data = end.recv(CHUNK_BYTES)
                if not data:
                    return True
                if end is line.client:
                    self._from_client(line, data)
                elif not self._from_server(line, data):
                    return False
        return False

    def _is_to_be_cut(self, line: _Line) -> bool:
        plan = self._plan
        is_healed = line.is_deaf and plan.mode is _Mode.PASS and not plan.drops
        return self._closing.is_set() or plan.mode is _Mode.CUT or is_healed

    def _from_client(self, line: _Line, data: bytes) -> None:
        plan = self._plan
        if plan.mode is not _Mode.PASS or line.server is None:
            line.is_deaf = True
            return
        if plan.drops and not line.is_deaf:
            # Deaf before the request goes on, so that no answer can be quicker.
            self._choose_drop(line, plan, data)
        line.server.sendall(data)

    def _choose_drop(self, line: _Line, plan: _Plan, data: bytes) -> None:
        seen = line.seen + data
        line.seen = seen[-(len(plan.needle) - 1) :] if len(plan.needle) > 1 else b""
        if plan.needle not in seen:
            return
        with self._changed:
            if self._drops_left == 0:
                return
            if self._drops_left is not None:
                self._drops_left -= 1
            self.dropped += 1
        line.is_deaf = True
        line.cuts_on_reply = plan.then_cut

    def _from_server(self, line: _Line, data: bytes) -> bool:
        """Hand an answer on, or lose it; False when the line is to be reset."""
        plan = self._plan
        if plan.mode is not _Mode.PASS:
            line.is_deaf = True
        if line.is_deaf:
            return not line.cuts_on_reply
        until_s = time.monotonic() + plan.delay_s
        while (left_s := until_s - time.monotonic()) > 0 and not self._is_to_be_cut(line):
            self._closing.wait(min(left_s, POLL_S))
        if self._is_to_be_cut(line):
            return False
        line.client.sendall(data)
        return True


def _close(end: socket.socket) -> None:
    """Close in order (FIN)."""
    with contextlib.suppress(OSError):
        end.shutdown(socket.SHUT_RDWR)
    end.close()


def _reset(end: socket.socket) -> None:
    """Close with a reset (RST)."""
    with contextlib.suppress(OSError):
        end.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET_ON_CLOSE)
    end.close()
