"""The store's clock, as this process knows it: what the store last said, plus monotonic time since.

Leases are judged by the store's clock inside its scripts; this estimate only feeds decisions, which the scripts check again.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final

from coord.names import AggregateKey

NS_PER_MS = 1_000_000
JUMP_TOLERANCE_MS: Final = 1_000
"""A smaller jump of a store's clock is not noticed."""
TIMES_MAX: Final = 50_000
"""More than aggregates that are cached, so that what is cached has its time."""


class StoreClock:
    """One time an aggregate, since the nodes of a cluster have clocks of their own; bounded, the longest unseen go first.

    `monotonic_ns` is this process's own measure of time.
    """

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns) -> None:
        self.monotonic_ns = monotonic_ns
        self._seen: OrderedDict[AggregateKey, tuple[int, int]] = OrderedDict()
        self._lock = threading.Lock()

    def observe(self, key: AggregateKey, store_now_ms: int) -> None:
        """Take note of a time that the store just told with an aggregate."""
        with self._lock:
            self._seen[key] = (store_now_ms, self.monotonic_ns())
            self._seen.move_to_end(key)
            while len(self._seen) > TIMES_MAX:
                self._seen.popitem(last=False)

    def knows(self, key: AggregateKey) -> bool:
        """Tell whether the time of an aggregate is known: strangers' names may have pushed it out."""
        return key in self._seen

    def now(self, key: AggregateKey) -> int:
        """Give the store's time for an aggregate, ms. Needs an observation; every load makes one."""
        seen = self._seen.get(key)
        if seen is None:
            message = f"the store has not told its time for {key} yet"
            raise AssertionError(message)
        store_now_ms, at_ns = seen
        return store_now_ms + (self.monotonic_ns() - at_ns) // NS_PER_MS


class JumpDetector:
    """Notices that the store's clock moved otherwise than monotonic time did between two looks."""

    def __init__(self, monotonic_ns: Callable[[], int] = time.monotonic_ns, *, tolerance_ms: int = JUMP_TOLERANCE_MS) -> None:
        self._monotonic_ns = monotonic_ns
        self._tolerance_ms = tolerance_ms
        self._last: tuple[int, int] | None = None

    @property
    def has_looked(self) -> bool:
        """Whether there was a look at all."""
        return self._last is not None

    def jumped(self, store_now_ms: int) -> bool:
        """Tell whether the store's clock jumped by more than the tolerance since the last look."""
        monotonic_ms = self._monotonic_ns() // NS_PER_MS
        last, self._last = self._last, (store_now_ms, monotonic_ms)
        if last is None:
            return False
        drift_ms = (store_now_ms - last[0]) - (monotonic_ms - last[1])
        return abs(drift_ms) > self._tolerance_ms
