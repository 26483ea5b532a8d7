"""The clients of a worker: one connection each, and where connections wait."""

from __future__ import annotations

import io
import socket
import ssl
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from typing import Any, Final

from gunicorn.http import get_parser

from coord.http.engines.arrival import Arrival
from coord.http.errors import error_body
from coord.http.together import Foreseeing
from coord.refusals import Code, Refused

HELD_BYTES_MAX: Final = 65_536
_REASON: Final = {Code.INVALID_REQUEST: "400 Bad Request", Code.INTERNAL_ERROR: "500 Internal Server Error"}
WOULD_BLOCK: Final = (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError)


class WholeRequest:
    """What the parser reads from: one request; behind it the stream ends, so that a thread never waits for a client to speak."""

    def __init__(self) -> None:
        self._data = io.BytesIO()

    def give(self, data: bytes) -> None:
        """Let this be read next."""
        self._data = io.BytesIO(data)

    def rewind(self) -> None:
        """Let the same be read once more."""
        self._data.seek(0)

    def recv(self, size: int) -> bytes:
        """Give at most `size` bytes; none at the end."""
        return self._data.read(size)

    def parser(self, cfg: Any, client: Any) -> Any:
        """Make the parser that reads from this, one request after another."""
        return get_parser(cfg, self, client)


def read_to_its_end(parser: Any, request: WholeRequest) -> bool:
    """Read what the app left of a request, and say whether its parser saw it end where the next one begins."""
    return bool(parser.finish_body()) and not parser.unreader.buf.getvalue() and not request.recv(1)


class Output:
    """A socket that never blocks, for the thread that answers on it.

    Head and body of an answer leave together, at `flush` or once `HELD_BYTES_MAX` are held. Almost always they fit into the
    socket's buffer at once; only else the thread waits, and no longer than `seconds` each time.
    """

    def __init__(self, sock: socket.socket, seconds: float) -> None:
        self._sock = sock
        self._seconds = seconds
        self._held: list[bytes] = []
        self._held_bytes = 0
        self.foreseeing: Foreseeing | None = None

    def sendall(self, data: bytes) -> None:
        """Send this, now or at the flush. Raises OSError: TimeoutError when the client does not take it in time."""
        self._hold(data)
        if self._held_bytes > HELD_BYTES_MAX and self.foreseeing is None:
            self.flush()

    def discard(self) -> None:
        """Throw away what is held."""
        self._held.clear()
        self._held_bytes = 0

    def flush(self) -> None:
        """Send what is held. Raises OSError as `sendall`."""
        if self.offer():
            return
        rest = b"".join(self._held)
        self.discard()
        self._sock.settimeout(self._seconds)
        try:
            self._sock.sendall(rest)
        finally:
            self._sock.setblocking(False)

    def offer(self) -> bool:
        """Send as much of what is held as fits at once; says whether that was all. Raises OSError."""
        if not self._held:
            return True
        data = b"".join(self._held)
        self.discard()
        try:
            sent = self._sock.send(data)
        except WOULD_BLOCK:
            sent = 0
        if sent < len(data):
            self._hold(data[sent:])
        return sent == len(data)

    def _hold(self, data: bytes) -> None:
        self._held.append(data)
        self._held_bytes += len(data)

    def __getattr__(self, name: str) -> Any:
        """Be the socket in all else."""
        return getattr(self._sock, name)


class Connection:
    """One client. `sock`, `client`, `server` and `parser` are what gunicorn's worker asks of its own connections.

    `input`: the socket, which never blocks. `is_served`: a thread has it. `ends_after_answer`: where the next request would
    begin is unknown. `kept_bytes`: what its arrival counts for in the sum of its worker. `watched_by`: what the poller calls, for
    the events `watched_for`; None when it is not registered.
    """

    def __init__(self, cfg: Any, sock: socket.socket, client: Any, server: Any, *, max_body_bytes: int, answer_s: float) -> None:
        self._cfg = cfg
        self.client = client
        self.server = server
        self.arrival = Arrival(max_body_bytes)
        self._request = WholeRequest()
        self.parser = self._request.parser(cfg, client)
        self._answer_s = answer_s
        self.use(sock)
        self.is_served = False
        self.ends_after_answer = False
        self.was_told_to_continue = False
        self.kept_bytes = 0
        self.thrown_away_bytes = 0
        self.watched_by: Callable[[Connection], None] | None = None
        self.watched_for = 0
        self.is_closed = False

    def use(self, sock: socket.socket) -> None:
        """Read and write here, on a socket that does not block."""
        self.input = sock
        self.sock = Output(sock, self._answer_s)

    def take_request(self) -> bytes:
        """Hand the request that is whole to the parser, and give it."""
        self.ends_after_answer = self.arrival.is_cut
        self.was_told_to_continue = False
        request = self.arrival.take()
        self._request.give(request)
        return request

    def begin_again(self) -> None:
        """Hand the same request to a parser once more, as though nothing had been answered."""
        self.sock.discard()
        self._request.rewind()
        self.parser = self._request.parser(self._cfg, self.client)

    def was_read_to_its_end(self) -> bool:
        """Say whether the next request can follow the one that was answered."""
        return read_to_its_end(self.parser, self._request)


class Waiting:
    """Connections in the order of their deadlines: all wait equally long."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._deadline_s: OrderedDict[Connection, float] = OrderedDict()

    def __len__(self) -> int:
        return len(self._deadline_s)

    def __iter__(self) -> Iterator[Connection]:
        return iter(self._deadline_s)

    def add(self, conn: Connection) -> None:
        """Let a connection wait; one that waits already keeps its deadline."""
        self._deadline_s.setdefault(conn, time.monotonic() + self._seconds)

    def remove(self, conn: Connection) -> None:
        """Let it wait no longer, if it does."""
        self._deadline_s.pop(conn, None)

    def cap(self, deadline_s: float) -> None:
        """Let none of them wait beyond a time."""
        for conn, own_s in self._deadline_s.items():
            self._deadline_s[conn] = min(own_s, deadline_s)

    def first(self) -> Connection:
        """Give the one whose time comes first."""
        return next(iter(self._deadline_s))

    def expired(self) -> list[Connection]:
        """Give those whose time has come."""
        now_s = time.monotonic()
        found: list[Connection] = []
        for conn, deadline_s in self._deadline_s.items():
            if deadline_s > now_s:
                break
            found.append(conn)
        return found


def last_answer(refused: Refused, request_id: str) -> bytes:
    """Give the bytes of an answer, to a request that never reached the app, after which the connection ends."""
    body = error_body(refused, request_id)
    head = (
        f"HTTP/1.1 {_REASON[refused.code]}\r\nConnection: close\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(body)}\r\nX-Request-Id: {request_id}\r\n\r\n"
    )
    return head.encode("ascii") + body
