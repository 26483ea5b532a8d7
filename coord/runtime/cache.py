"""Folded aggregates that this process has seen, each with the head that it was current at.

A cached aggregate is never trusted by itself: a touch or a commit compares its head with the store. One that turned out to be
behind catches up by the log's tail, when that chains to what was seen without a gap; else the whole is read. Bounded; the least
recently used goes first. Cleared in a forked child (`coord.bootstrap`).
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from coord.combining import Abandoned, Combiners, Overdue
from coord.core.commands import Heartbeat
from coord.core.decision import HeartbeatReply, Past
from coord.events import chain, codec
from coord.events.catalog import GroupDeleted, StreamDeleted
from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.projections.aggregate import Aggregate, decode, fold
from coord.projections.stored import MalformedAggregate
from coord.runtime.clock import StoreClock
from coord.runtime.corruption import CorruptKeys
from coord.store.base import CorruptAggregate, Head, Loaded, Store, StoreError, StoreUnavailable, Tail

AGGREGATES_MAX: Final = 20_000
READERS_MAX: Final = 1_000
"""So many threads may be given what one of them has read."""
READ_WAIT_S: Final = 5.0
"""How long one waits for others who read the same."""
TAIL_MAX: Final = 256
"""How many log entries an aggregate is caught up by, before it is read as a whole."""


@dataclass(slots=True)
class SteadyAnswer:
    """The answer to a heartbeat that changes nothing, and to every one that is like it. `encoded` is the edge's to fill."""

    command: Heartbeat
    reply: HeartbeatReply
    encoded: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Cached:
    """An aggregate (None: there is none), the head it was read or written at, and the store identity seen then.

    `past`: the tombstone's counters, when the aggregate was deleted.
    """

    state: Aggregate | None
    head: Head
    identity: str
    past: Past | None = None
    steady: dict[str, SteadyAnswer] = field(default_factory=dict, compare=False)
    """By member: the answer to a heartbeat that changed nothing here, for as long as nothing else counts (see `heartbeats`)."""


class Aggregates:
    """Reads aggregates from the store, and keeps those that exist."""

    def __init__(self, store: Store, clock: StoreClock) -> None:
        self.corrupt = CorruptKeys()
        self._store = store
        self._clock = clock
        self._cached: OrderedDict[AggregateKey, Cached] = OrderedDict()
        self._behind: set[AggregateKey] = set()
        self._readings = Combiners(self._load, most=READERS_MAX, expected=(StoreError,))
        self._lock = threading.Lock()

    def cached(self, key: AggregateKey) -> Cached | None:
        """Give what this process last saw, if anything, and if it still knows the time to decide on it."""
        with self._lock:
            if key in self._behind:
                return None
            found = self._cached.get(key) if self._clock.knows(key) else None
            if found is not None:
                self._cached.move_to_end(key)
            return found

    def load(self, key: AggregateKey) -> Cached:
        """Give the aggregate as the store has it now, and keep it; `CorruptAggregate` when what is stored contradicts itself.

        Of threads that ask while one reads, one reads next, for all of them: what each is given is no older than its question.
        """
        try:
            return self._readings.submit(key, (None,), wait_s=READ_WAIT_S)[0]
        except (Overdue, Abandoned) as error:
            raise StoreUnavailable(f"{key} is being read: {error}") from error

    def _load(self, key: AggregateKey, asked: Sequence[None]) -> list[Cached]:
        seen = self._cached.get(key)
        read = self._caught_up(key, seen) if seen is not None and seen.head.exists else None
        if read is None:
            read = self.read(key)
        if read.state is not None:
            self.keep(key, read)
        else:
            self.forget(key)
        return [read] * len(asked)

    def latest(self, key: AggregateKey) -> Cached:
        """Give it as `load` does; one that nobody in this process has asked for yet is not kept."""
        return self.load(key) if key in self._cached else self.read(key)

    def read(self, key: AggregateKey) -> Cached:
        """Read the whole from the store, for who looks at all there are: what is kept for others stays as it is."""
        with self._told(key):
            return self._of(key, self._store.load(key))

    @contextmanager
    def _told(self, key: AggregateKey) -> Iterator[None]:
        """Take note of what is corrupt."""
        try:
            yield
        except CorruptAggregate:
            self.corrupt.found(key)
            raise

    def _caught_up(self, key: AggregateKey, seen: Cached) -> Cached | None:
        """Fold what went on since; None when that does not lead to the head that the store has."""
        with self._told(key):
            found = self._store.catch_up(key, seen=seen.head, limit=TAIL_MAX)
            if isinstance(found, Loaded):
                return self._of(key, found)
        self._clock.observe(key, found.now)
        if not found.entries and found.identity == seen.identity:
            return seen
        state = fold_tail(key, seen, found)
        return None if state is None else Cached(state=state, head=found.head, identity=found.identity)

    def _of(self, key: AggregateKey, loaded: Loaded) -> Cached:
        self._clock.observe(key, loaded.now)
        read = _read(key, loaded)
        self.corrupt.is_sound(key)
        return read

    def keep(self, key: AggregateKey, cached: Cached) -> None:
        """Remember an aggregate that was just read or written."""
        with self._lock:
            self._cached[key] = cached
            self._cached.move_to_end(key)
            self._behind.discard(key)
            while len(self._cached) > AGGREGATES_MAX:
                dropped, _ = self._cached.popitem(last=False)
                self._behind.discard(dropped)

    def doubt(self, key: AggregateKey, seen: Cached) -> None:
        """Take note that the store has moved on from what was seen; another thread may have read on since."""
        with self._lock:
            if self._cached.get(key) is seen:
                self._behind.add(key)

    def forget(self, key: AggregateKey) -> None:
        """Drop what is known of an aggregate: it is gone, or nobody knows what it is now."""
        with self._lock:
            self._cached.pop(key, None)
            self._behind.discard(key)

    def clear(self) -> None:
        """Drop everything."""
        with self._lock:
            self._cached.clear()
            self._behind.clear()


def fold_tail(key: AggregateKey, seen: Cached, tail: Tail) -> Aggregate | None:
    """Give what was seen with the tail folded into it; None unless that is without a gap and leads to the tail's head."""
    last, end = seen.head.last, seen.head.chain
    for entry in tail.entries:
        place = entry.revision, entry.index
        if not chain.continues(last, place) or chain.link(end, entry.body) != entry.chain:
            return None
        last, end = place, entry.chain
    if (last, end) != (tail.head.last, tail.head.chain):
        return None
    try:
        state = fold(seen.state, [codec.decode(entry) for entry in tail.entries], key=key)
    except codec.MalformedEntry:
        return None
    return state if state is not None and state.store_revision == tail.head.revision else None


def _read(key: AggregateKey, loaded: Loaded) -> Cached:
    if loaded.aggregate is None:
        return Cached(state=None, head=loaded.head, identity=loaded.identity, past=_past(key, loaded.tombstone))
    try:
        state = decode(key, loaded.aggregate)
    except MalformedAggregate as error:
        raise CorruptAggregate(key, str(error)) from error
    if state.store_revision != loaded.head.revision:
        raise CorruptAggregate(
            key, f"the hash is at revision {loaded.head.revision}, the aggregate in it at {state.store_revision}"
        )
    return Cached(state=state, head=loaded.head, identity=loaded.identity)


def _past(key: AggregateKey, tombstone: Entry | None) -> Past | None:
    if tombstone is None:
        return None
    try:
        event = codec.decode(tombstone).event
    except codec.MalformedEntry as error:
        raise CorruptAggregate(key, str(error)) from error
    match event:
        case GroupDeleted():
            return Past(
                epoch=event.epoch,
                metadata_version=event.metadata_version,
                latest_lease=event.latest_lease,
                registration=event.registration,
            )
        case StreamDeleted():
            return Past(epoch=0, metadata_version=event.metadata_version)
        case _:
            raise CorruptAggregate(key, "there is a log without an aggregate, and it does not end with a deletion")
