"""The mutexes of aggregates, kept in Redis beside them: a token with a time to live."""

from __future__ import annotations

from coord.names import AggregateKey
from coord.rediscommands.commands import RedisCommands
from coord.store.redis.faults import told


class RedisMutexes:
    """Takes, keeps and releases mutexes by token. Each call is one script, bounded, and may raise StoreUnavailable."""

    def __init__(self, commands: RedisCommands) -> None:
        self._commands = commands

    def take(self, key: AggregateKey, token: str, *, ttl_ms: int) -> bool:
        """Take the mutex unless another token holds it; taking it again under the same token begins a new time to live."""
        with told():
            return bool(self._commands.take_mutex(self._commands.keys.aggregate(key), token, ttl_ms=ttl_ms))

    def keep(self, key: AggregateKey, token: str, *, ttl_ms: int) -> bool:
        """Begin a new time to live; False when the mutex was lost."""
        with told():
            return bool(self._commands.keep_mutex(self._commands.keys.aggregate(key), token, ttl_ms=ttl_ms))

    def release(self, key: AggregateKey, token: str) -> bool:
        """Give the mutex back; False when it had been lost."""
        with told():
            return bool(self._commands.release_mutex(self._commands.keys.aggregate(key), token))
