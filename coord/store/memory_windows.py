"""Windows of one process, for the memory store."""

from __future__ import annotations

from collections.abc import Callable
from threading import Lock
from typing import Final

from coord.names import AggregateKey

COUNTS_MAX: Final = 10_000
"""Counts of a window that are kept one by one."""
SHARED_COUNTS: Final = 64
"""Counts that all further callers of a window share: who comes late to a full table has less, never more."""


class MemoryWindows:
    """`coord.store.windows.Windows` in this process. `clock` gives ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._began = -1
        self._taken: dict[tuple[AggregateKey, str] | int, int] = {}

    def take(self, key: AggregateKey, principal: str, *, limit: int, window_ms: int) -> int:
        """Count one, unless the window is full."""
        with self._lock:
            now = self._clock()
            began = now - now % window_ms
            if began != self._began:
                self._began, self._taken = began, {}
            place: tuple[AggregateKey, str] | int = (key, principal)
            if place not in self._taken and len(self._taken) >= COUNTS_MAX:
                place = hash(place) % SHARED_COUNTS
            if self._taken.get(place, 0) >= limit:
                return began + window_ms - now
            self._taken[place] = self._taken.get(place, 0) + 1
            return 0
