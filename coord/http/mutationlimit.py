"""How many mutations a principal may make to one stream or group in a minute.

A fixed window, aligned to the store's clock: up to twice the limit fits around the edge of two windows. Counted where the store
is, see `coord.store.windows`. Source: design page `api.md`; scenarios L1, L3.
"""

from __future__ import annotations

from typing import Final

from coord.names import AggregateKey
from coord.store.windows import Windows

WINDOW_MS: Final = 60_000
_MS_PER_S: Final = 1000


class MutationLimit:
    """Counts mutations and says who has to wait."""

    def __init__(self, windows: Windows, *, per_minute: int) -> None:
        self._windows = windows
        self.per_minute = per_minute

    def wait_s(self, key: AggregateKey, principal: str) -> int:
        """Count a mutation: 0, or after how many whole seconds the next window has begun. Raises StoreUnavailable."""
        left_ms = self._windows.take(key, principal, limit=self.per_minute, window_ms=WINDOW_MS)
        return -(-left_ms // _MS_PER_S)
