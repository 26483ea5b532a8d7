"""Windows in Redis, beside the aggregate that they are about."""

from __future__ import annotations

from coord.names import AggregateKey
from coord.rediscommands.commands import RedisCommands
from coord.store.redis.faults import told


class RedisWindows:
    """`coord.store.windows.Windows` on Redis: one script, on Redis's clock; nothing outlives its window."""

    def __init__(self, commands: RedisCommands) -> None:
        self._commands = commands

    def take(self, key: AggregateKey, principal: str, *, limit: int, window_ms: int) -> int:
        """Count one, unless the window is full."""
        with told():
            return int(self._commands.take_window(self._commands.keys.windows(key), principal, limit=limit, window_ms=window_ms))
