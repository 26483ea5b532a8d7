"""The real Redis store under simulated time: the scripts as shipped, but for where they read the clock and the identity.

Those two are pieces of their own in `lua/shared/`; here they are read from keys that the simulation sets. Falling back is done by
putting back an earlier copy of every key.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import redis

from coord.rediscommands import scripts
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.settings import from_url
from coord.store.redis.store import RedisStore

CLOCK_KEY: Final = "simulated:clock"
IDENTITY_KEY: Final = "simulated:identity"
PIECES: Final = {
    "shared/clock": f"""
local function now_ms()
  return tonumber(redis.call('GET', '{CLOCK_KEY}'))
end
local function whole(number)
  return string.format('%d', number)
end
""",
    "shared/identity": f"""
local function identity(source)
  return redis.call('GET', '{IDENTITY_KEY}')
end
""",
}


@contextmanager
def simulated_scripts() -> Iterator[None]:
    """Let the scripts be loaded with the simulation's clock and identity, inside the block only."""
    shipped = scripts._read
    scripts._read = lambda name: PIECES[name] if name in PIECES else shipped(name)
    scripts.script.cache_clear()
    try:
        yield
    finally:
        scripts._read = shipped
        scripts.script.cache_clear()


class SimulatedRedis(RedisStore):
    """A Redis store whose clock and identity are the simulation's. The server is the test's own and is wiped."""

    def __init__(self, url: str) -> None:
        super().__init__(RedisCommands(from_url(url, timeout_ms=10_000)))
        self._redis = redis.Redis.from_url(url)
        self._redis.flushall()
        self.store_identity = "store-0"

    @property
    def store_identity(self) -> str:
        """The identity that the scripts see."""
        return self._identity

    @store_identity.setter
    def store_identity(self, identity: str) -> None:
        self._identity = identity
        self._redis.set(IDENTITY_KEY, identity)

    def set_clock(self, ms: int) -> None:
        """Set the time that the scripts see."""
        self._redis.set(CLOCK_KEY, ms)

    def _keys(self) -> list[bytes]:
        return [key for key in self._redis.keys("*") if isinstance(key, bytes) and not key.startswith(b"simulated:")]

    def dump(self) -> dict[bytes, bytes]:
        """Give a copy of every key."""
        keys = self._keys()
        with self._redis.pipeline(transaction=True) as pipeline:
            for key in keys:
                pipeline.dump(key)
            return dict(zip(keys, pipeline.execute(), strict=True))

    def restore(self, state: dict[bytes, bytes]) -> None:
        """Put a copy back; every other key goes."""
        now = self._keys()
        with self._redis.pipeline(transaction=True) as pipeline:
            for key in now:
                pipeline.delete(key)
            for key, value in state.items():
                pipeline.restore(key, 0, value)
            pipeline.execute()

    def close(self) -> None:
        """Give up all connections."""
        super().close()
        self._redis.close()
