"""The shards' Redis as a client uses it: one command on one key, or a batch of them, each sent at most once.

Nothing here repeats a command that Redis may have run: a repeated read could outlive the lease it was checked for, a repeated
XADD doubles a record. What a server surely did not run (MOVED, ASK) may be sent on by the cluster's plane.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, Protocol, TypeAlias, cast

import redis
from redis.backoff import NoBackoff
from redis.exceptions import RedisError, ResponseError
from redis.retry import Retry

Word: TypeAlias = str | bytes | int | float
Command: TypeAlias = tuple[Word, ...]
NO_MASTER: Final = ("NOREPLICAS", "READONLY", "MASTERDOWN", "LOADING", "UNBLOCKED force")
"""What a server says that is no master any more, or may have been cut off. It ran nothing."""


class DataPlane(Protocol):
    """Safe for threads. Make it after a fork, not before. Connects on first use."""

    def prepare(self) -> None:
        """Find out what must be known before a command can be sent without delay; touches no key. Raises redis.RedisError."""

    def call(self, key: str, *command: Word) -> object:
        """Send a command on `key`; gives the raw reply (RESP2). Raises redis.RedisError."""

    def batch(self, commands: Sequence[tuple[str, Command]]) -> list[object]:
        """Send commands, each with the key that it is about, in order per server; gives a reply or a RedisError for each."""

    def close(self) -> None:
        """Close all connections."""


def never() -> Retry:
    """Give a policy under which redis-py repeats nothing."""
    return Retry(NoBackoff(), 0)


def raw(client: redis.Redis) -> redis.Redis:
    """Have a client give replies as they came."""
    client.response_callbacks.clear()
    return client


def pipelined(client: redis.Redis, commands: Sequence[Command]) -> list[object]:
    """Send commands over one connection; when it fails, that is the answer to all of them."""
    pipeline = client.pipeline(transaction=False)
    append = cast("Callable[..., object]", pipeline.execute_command)
    for command in commands:
        append(*command)
    try:
        return list(pipeline.execute(raise_on_error=False))
    except RedisError as error:
        return [error] * len(commands)


class ServerPlane:
    """One server, or the master behind Sentinels, which are asked at every new connection."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = raw(client)
        self._execute = cast("Callable[..., object]", client.execute_command)

    def prepare(self) -> None:
        """Know all there is to know."""

    def call(self, key: str, *command: Word) -> object:
        """Send a command."""
        del key
        try:
            return self._execute(*command)
        except ResponseError as error:
            self._judge(error)
            raise

    def batch(self, commands: Sequence[tuple[str, Command]]) -> list[object]:
        """Send commands over one connection."""
        replies = pipelined(self._client, [command for _, command in commands])
        for reply in replies:
            if isinstance(reply, ResponseError):
                self._judge(reply)
        return replies

    def _judge(self, error: ResponseError) -> None:
        """Leave what is no master, so that a new connection finds the one that is."""
        if str(error).startswith(NO_MASTER) or isinstance(error, redis.ReadOnlyError):
            self._client.connection_pool.disconnect(inuse_connections=False)

    def close(self) -> None:
        """Close all connections."""
        self._client.close()
