"""A port beside the store: how many mutations a principal made to a stream or group in the present window.

Kept where the store is, so that all workers (and instances, with a store that they share) count together. What is counted
lives for one window: losing it costs no more than that. Source: design page `api.md`; scenarios L1, L3.
"""

from __future__ import annotations

from typing import Protocol

from coord.names import AggregateKey


class Windows(Protocol):
    """Counts in fixed windows, aligned to the store's clock. Safe for threads, bounded in time and memory."""

    def take(self, key: AggregateKey, principal: str, *, limit: int, window_ms: int) -> int:
        """Count one, unless the window is full: 0, or how many ms are left of it (at least 1). May raise StoreUnavailable.

        Counting and judging are one atomic step; what was turned away is not counted.
        """
