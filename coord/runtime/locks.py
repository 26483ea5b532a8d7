"""One lock an aggregate, so that threads of one process do not waste work on each other."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from weakref import WeakValueDictionary

from coord.names import AggregateKey
from coord.store.base import StoreUnavailable


class KeyLocks:
    """One lock an aggregate, kept only while somebody uses it."""

    def __init__(self, wait_s: float) -> None:
        self._wait_s = wait_s
        self._guard = threading.Lock()
        self._locks: WeakValueDictionary[AggregateKey, _Lock] = WeakValueDictionary()

    @contextmanager
    def held(self, key: AggregateKey) -> Iterator[None]:
        """Hold the lock of an aggregate. Who waited while the holder found the store away is not made to find out for itself."""
        with self._guard:
            lock = self._locks.setdefault(key, _Lock())
        began = time.monotonic()
        if not lock.lock.acquire(timeout=self._wait_s):
            message = f"{key} is busy"
            raise StoreUnavailable(message)
        try:
            if lock.store_away_at >= began:
                message = f"{key}: the store is away"
                raise StoreUnavailable(message)
            yield
        except StoreUnavailable:
            lock.store_away_at = time.monotonic()
            raise
        finally:
            lock.lock.release()


class _Lock:
    """A lock that can be referenced weakly, and when (monotonic s) a holder last found the store away."""

    __slots__ = ("__weakref__", "lock", "store_away_at")

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.store_away_at = float("-inf")
