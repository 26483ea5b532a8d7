"""Which aggregates cannot be read, as far as this process has found out: by reading them anyway, and by a slow walk.

The walk reads a bounded number of aggregates at a time and goes on from there the next time, so that it costs the same
however many there are. What a process has not come to yet, it does not know.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Final

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.aggregate import Aggregate
from coord.projections.stream import Stream
from coord.store.base import CorruptAggregate, Store, StoreError

if TYPE_CHECKING:
    from coord.runtime.cache import Aggregates

FOUND_MAX: Final = 1_000
READ_AT_ONCE: Final = 50


class CorruptKeys:
    """The aggregates that could not be read when this process last read them; bounded, what is found beyond is not kept."""

    def __init__(self) -> None:
        self._keys: set[AggregateKey] = set()
        self._lock = threading.Lock()

    def found(self, key: AggregateKey) -> None:
        """Take note that an aggregate cannot be read."""
        with self._lock:
            if len(self._keys) < FOUND_MAX:
                self._keys.add(key)

    def is_sound(self, key: AggregateKey) -> None:
        """Take note that an aggregate was read, or is gone."""
        if self._keys:  # without the lock: this is said of every aggregate that is read
            with self._lock:
                self._keys.discard(key)

    def all(self) -> list[AggregateKey]:
        """Give them, by name."""
        with self._lock:
            return sorted(self._keys, key=str)


class CorruptionWalk:
    """Reads all aggregates, some at a time, for ever; `Aggregates.read` takes note of what it finds."""

    def __init__(self, store: Store, aggregates: Aggregates) -> None:
        self._store = store
        self._aggregates = aggregates
        self._way = self._walk()

    def step(self, goes_on: Callable[[], bool] = lambda: True) -> tuple[str, ...]:
        """Read what was found corrupt again, and go on with the walk, while `goes_on`; names what cannot be read now.

        A step ends with a round: what is small is read once in each. Raises StoreUnavailable.
        """
        for key in self._aggregates.corrupt.all()[:READ_AT_ONCE]:
            if goes_on():
                self._read(key)
        try:
            for _ in range(READ_AT_ONCE):
                if not goes_on() or next(self._way):
                    break
        except StoreError:
            self._way = self._walk()
            raise
        return tuple(str(key) for key in self._aggregates.corrupt.all())

    def _walk(self) -> Iterator[bool]:
        """Read one aggregate after another; gives whether that was a round."""
        while True:
            for prefix in self._store.streams():
                stream = self._read(StreamKey(prefix))
                yield False
                for name in sorted(stream.groups) if isinstance(stream, Stream) else ():
                    self._read(GroupKey(prefix, name))
                    yield False
            yield True

    def _read(self, key: AggregateKey) -> Aggregate | None:
        try:
            return self._aggregates.read(key).state
        except CorruptAggregate:
            return None
