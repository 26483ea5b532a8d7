"""Real servers and patience for tests: a private Redis on a free port, and waiting with a bound.

A test that wants its own server uses `private_redis()`; one that only wants a clean database asks for the fixture `redis_url`.
Servers are ended by the process that started them; if that is killed, the kernel ends them.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import redis

from coord.runtime.embedded import EmbeddedRedis, Fsync, free_port

__all__ = ["free_port", "private_redis", "wait_until", "wipe"]

T = TypeVar("T")


@contextmanager
def private_redis(
    *,
    state_dir: Path | None = None,
    port: int | None = None,
    append_fsync: Fsync | None = None,
    settings: Mapping[str, str] | None = None,
) -> Iterator[EmbeddedRedis]:
    """Run a Redis of one's own; DEBUG is allowed in it. It may be killed and stopped inside the block."""
    allowed = {"enable-debug-command": "yes", **(settings or {})}
    with EmbeddedRedis.start(state_dir=state_dir, port=port, append_fsync=append_fsync, settings=allowed) as server:
        yield server


def wipe(server: EmbeddedRedis) -> None:
    """Empty a server that the tests themselves started: data and scripts. Who changes settings runs a `private_redis`."""
    with redis.Redis(host="127.0.0.1", port=server.port, socket_timeout=10) as client:
        if client.info("server")["process_id"] != server.pid:
            raise AssertionError(f"port {server.port} is not our server's: nothing was wiped")
        client.flushall()
        client.script_flush()


def wait_until(predicate: Callable[[], T], *, timeout_s: float = 60.0, what: str, poll_s: float = 0.02) -> T:
    """Return the first true answer of `predicate`; raises AssertionError naming `what` when none came in time."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        if answer := predicate():
            return answer
        if time.monotonic() >= deadline_s:
            raise AssertionError(f"waited {timeout_s} s in vain: {what} (last answer: {answer!r})")
        time.sleep(poll_s)
