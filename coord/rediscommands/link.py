"""One connection to one Redis server.

redis-py opens it (TLS, AUTH, SELECT; no retries: `Retry(NoBackoff(), 0)`); commands then go over its socket by hiredis
directly, because redis-py's own way costs several times the round trip and bounds each read rather than the whole call.
A link that failed once, for whatever reason, is closed: an unread reply never meets another command.
"""

from __future__ import annotations

import math
import select
import socket
import struct
import time
from typing import Any, TypeAlias

import hiredis
from redis.backoff import NoBackoff
from redis.connection import Connection, SSLConnection
from redis.exceptions import RedisError
from redis.retry import Retry

from coord.rediscommands.errors import Refused, Unreachable
from coord.rediscommands.settings import RedisSettings

Reply: TypeAlias = Any
"""A RESP2 reply: bytes, int, None, a list of replies, or (nested only) a `Refused`."""
Argument: TypeAlias = str | bytes | int

READ_SIZE = 65536
QUIET_FOR_S = 0.05
"""So long after an answer nothing unasked can have come in but the end of the connection."""
_TCP_ESTABLISHED = 1
AT_ONCE_BYTES_MAX = 65536
"""So much goes out in one piece or nearly so; more may have to wait for its reader often, each time for as long as allowed."""
BOUND_SLACK_S = 0.005
"""A bound that is right within this is left as it is."""
_TIMEVAL = struct.Struct("ll")
_NOT_YET = object()


def remaining(deadline: float) -> float:
    """Give the seconds until `deadline` (monotonic), at least a millisecond: a timeout of 0 would mean non-blocking."""
    return max(deadline - time.monotonic(), 0.001)


class _Plain(Connection):
    """A redis-py connection whose connecting, over all addresses of the host, ends at `deadline`."""

    opened: socket.socket
    deadline: float

    def _connect(self) -> socket.socket:
        failure: OSError = OSError(f"{self.host} has no address")
        for family, kind, protocol, _, address in socket.getaddrinfo(self.host, self.port, 0, socket.SOCK_STREAM):
            sock = socket.socket(family, kind, protocol)
            try:
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
                sock.settimeout(remaining(self.deadline))
                sock.connect(address)
                sock.settimeout(remaining(self.deadline))
            except OSError as error:
                sock.close()
                failure = error
            else:
                self.opened = sock
                return sock
        raise failure


class _Tls(SSLConnection, _Plain):
    """The same over TLS; the class order lets redis-py wrap the socket that `_Plain` opened."""

    def _connect(self) -> socket.socket:
        self.opened = super()._connect()  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
        return self.opened


def _connection(settings: RedisSettings) -> Any:
    """Give an unopened `_Plain` or `_Tls` that never repeats, checks or announces anything by itself."""
    plain: Any = _Plain
    secured: Any = _Tls
    options: dict[str, Any] = {
        "host": settings.host,
        "port": settings.port,
        "db": settings.db,
        "username": settings.username,
        "password": settings.password,
        "protocol": 2,
        "retry": Retry(NoBackoff(), 0),
        "retry_on_timeout": False,
        "health_check_interval": 0,
        "driver_info": None,
        "socket_timeout": settings.timeout_ms / 1000,
        "socket_connect_timeout": settings.timeout_ms / 1000,
    }
    if settings.tls is None:
        return plain(**options)
    verify = settings.tls.verify
    return secured(
        ssl_ca_certs=settings.tls.ca_file,
        ssl_certfile=settings.tls.cert_file,
        ssl_keyfile=settings.tls.key_file,
        ssl_cert_reqs="required" if verify else "none",
        ssl_check_hostname=verify,
        **options,
    )


class Link:
    """An open connection. Not for use by two threads at once."""

    def __init__(self, settings: RedisSettings, *, deadline: float) -> None:
        self._endpoint = settings.endpoint
        self._connection = _connection(settings)
        self._connection.deadline = deadline
        try:
            self._connection.connect()
        except (RedisError, OSError, UnicodeError) as error:  # UnicodeError: a host name that cannot be one
            self._connection.disconnect()
            message = f"cannot connect to Redis at {self._endpoint}: {error}"
            raise Unreachable(message, sent=False) from error
        self._socket: socket.socket = self._connection.opened
        self._reader = hiredis.Reader(replyError=Refused, notEnoughData=_NOT_YET)
        self._poll = select.poll()
        self._poll.register(self._socket, select.POLLIN)
        self._is_kernels = settings.tls is None
        if self._is_kernels:
            self._socket.settimeout(None)
        self._bound_s = math.inf  # as yet the kernel waits for ever: no bound that is asked for may count as set
        self._answered_at_s = 0.0
        self.is_open = True

    def is_quiet(self) -> bool:
        """Tell whether nothing waits to be read: neither the end of the connection nor a reply that nobody asked for."""
        if not self.is_open:
            return False
        if self._is_kernels and time.monotonic() - self._answered_at_s < QUIET_FOR_S:
            return self._socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 1)[0] == _TCP_ESTABLISHED
        return not self._poll.poll(0)

    def exchange(self, packed: bytes, *, replies: int, deadline: float) -> list[Reply]:
        """Send packed commands and give their replies, error replies as `Refused` values. Any failure closes the link."""
        finished = False
        try:
            self._send(packed, deadline)
            answers = self._read(replies, deadline)
            finished = not self._reader.has_data()
            self._answered_at_s = time.monotonic()
        except (TimeoutError, BlockingIOError) as error:
            message = f"Redis at {self._endpoint} gave no answer in time"
            raise Unreachable(message, sent=True) from error
        except (OSError, hiredis.HiredisError) as error:
            message = f"the connection to Redis at {self._endpoint} broke: {error}"
            raise Unreachable(message, sent=True) from error
        finally:
            if not finished:
                self.close()
        return answers

    def _send(self, packed: bytes, deadline: float) -> None:
        if self._is_kernels and len(packed) > AT_ONCE_BYTES_MAX:
            self._socket.settimeout(remaining(deadline))
            self._socket.sendall(packed)
            self._socket.settimeout(None)
        else:
            self._bound(deadline)
            self._socket.sendall(packed)

    def _read(self, replies: int, deadline: float) -> list[Reply]:
        answers: list[Reply] = []
        while len(answers) < replies:
            reply = self._reader.gets()
            if reply is not _NOT_YET:
                answers.append(reply)
                continue
            self._bound(deadline)
            chunk = self._socket.recv(READ_SIZE)
            if not chunk:
                message = "closed by the server"
                raise ConnectionError(message)
            self._reader.feed(chunk)
        return answers

    def _bound(self, deadline: float) -> None:
        """Let the next call on the socket end by `deadline`.

        The kernel counts where it can: Python's own time-out gives the interpreter away to another thread at four more system
        calls an exchange, and each time this one waits to have it back. A TLS socket would wait on without it.
        """
        left = remaining(deadline)
        if not self._is_kernels:
            self._socket.settimeout(left)
            return
        if abs(left - self._bound_s) < BOUND_SLACK_S:
            return
        self._bound_s = left
        time_value = _TIMEVAL.pack(int(left), int(left % 1 * 1_000_000))
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVTIMEO, time_value)
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_SNDTIMEO, time_value)

    def close(self) -> None:
        """Close the connection; in a forked child only its own descriptor."""
        self.is_open = False
        self._connection.disconnect()


def pack(*arguments: Argument) -> bytes:
    """Give the bytes of one command."""
    packed: bytes = hiredis.pack_command(arguments)  # type: ignore[arg-type]  # its stub names a tuple of one
    return packed


def checked(reply: Reply) -> Reply:
    """Give a reply, or raise it when it is an error."""
    if isinstance(reply, Refused):
        raise reply
    return reply
