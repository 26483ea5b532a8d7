"""The connections of this process to one server.

As many as threads need at once, at most `max_connections`, each used by one at a time. After a fork the child starts with none
of its parent's. One failure drops every idle connection: what broke one has most likely broken all, and each would cost its next
user a timeout.
"""

from __future__ import annotations

import os
import time
import weakref
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from threading import Semaphore

from coord.combining import Abandoned, Combiner, Overdue
from coord.rediscommands.errors import Busy, RedisFault, Unreachable
from coord.rediscommands.link import Link, Reply, remaining
from coord.rediscommands.settings import Address, RedisSettings

TOGETHER_MAX = 256
"""How many commands of threads that wait together go out before their replies are read."""

_alive: weakref.WeakSet[Links] = weakref.WeakSet()


class Links:
    """Lends connections to one server. `greet` looks at each new connection before it is used, and raises to refuse it."""

    def __init__(self, settings: RedisSettings, *, greet: Callable[[Link, float], None] | None = None) -> None:
        self._settings = settings
        self._greet = greet
        self._is_retired = False
        self._start()
        _alive.add(self)

    def _start(self) -> None:
        self._idle: deque[Link] = deque()
        self._places = Semaphore(self._settings.max_connections)
        self._together: Combiner[bytes, Reply] = Combiner(self._exchange, most=TOGETHER_MAX, expected=(Unreachable,))

    @property
    def address(self) -> Address:
        """Where the server listens, as reached from here."""
        return Address(self._settings.host, self._settings.port)

    @contextmanager
    def lend(self, *, deadline: float) -> Iterator[Link]:
        """Lend a connection, waiting for a free one until `deadline`; Unreachable (nothing sent) when none is to be had."""
        places, idle = self._places, self._idle
        if not places.acquire(timeout=remaining(deadline)):
            message = f"all {self._settings.max_connections} connections to Redis at {self._settings.endpoint} are in use"
            raise Busy(message)
        try:
            link = self._quiet(idle) or self._opened(deadline)
            try:
                yield link
            finally:
                if link.is_open:
                    idle.append(link)
                if self._is_retired:
                    self.drop()
        except Unreachable:
            self.drop()
            raise
        finally:
            places.release()

    def together(self, packed: bytes, *, deadline: float) -> Reply:
        """Send a packed command in one pipeline with those of other threads that wait for this server; give its reply.

        Error replies come as `Refused` values. One slow round trip delays those that share it, none longer than its deadline.
        """
        try:
            return self._together.submit((packed,), wait_s=remaining(deadline))[0]
        except Overdue as overdue:
            message = f"Redis at {self._settings.endpoint} gave no answer in time"
            raise Unreachable(message, sent=overdue.is_under_way) from overdue
        except Abandoned as abandoned:
            message = f"a pipeline to Redis at {self._settings.endpoint} failed: {abandoned}"
            raise Unreachable(message, sent=True) from abandoned

    def _exchange(self, commands: Sequence[bytes]) -> list[Reply]:
        deadline = deadline_after(self._settings.timeout_ms)
        with self.lend(deadline=deadline) as link:
            return link.exchange(b"".join(commands), replies=len(commands), deadline=deadline)

    def _opened(self, deadline: float) -> Link:
        link = Link(self._settings, deadline=deadline)
        if self._greet is not None:
            try:
                self._greet(link, deadline)
            except RedisFault as error:
                link.close()
                raise Unreachable(f"Redis at {self._settings.endpoint}: {error}", sent=False) from error
        return link

    @staticmethod
    def _quiet(idle: deque[Link]) -> Link | None:
        """Take the idle connection used last; those that have ended, or hold an unread reply, are closed on the way."""
        while True:
            try:
                link = idle.pop()
            except IndexError:
                return None
            if link.is_quiet():
                return link
            link.close()

    def drop(self) -> None:
        """Close every idle connection; lent ones go on until they come back."""
        idle = self._idle
        while idle:
            try:
                idle.pop().close()
            except IndexError:
                return

    def retire(self) -> None:
        """Close every idle connection, and from now on each one that comes back: nobody will come here again."""
        self._is_retired = True
        self.drop()

    def after_fork(self) -> None:
        """Start afresh in a child process: the parent's sockets are closed here only, its locks left behind."""
        inherited = self._idle
        self._start()
        for link in inherited:
            link.close()


def _after_fork() -> None:
    for links in list(_alive):
        links.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def deadline_after(timeout_ms: float) -> float:
    """Give the monotonic time (s) at which a call that may take `timeout_ms` must have ended."""
    return time.monotonic() + timeout_ms / 1000
