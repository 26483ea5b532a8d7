"""An aggregate as it was at a past revision: the newest snapshot at or before it, and a fold of what follows.

A snapshot is looked for backwards from the revision, in spans that double: an entry's id begins with its revision, so that a
span is read directly, and what is read is bound by the distance to the snapshot, not by the length of the log. A log without
a snapshot before the revision is folded from its beginning.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import takewhile
from typing import Final

from coord.events import codec
from coord.events.catalog import Snapshot
from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.projections.aggregate import Aggregate, decode, evolve
from coord.projections.stored import MalformedAggregate
from coord.runtime.verify import entries_of
from coord.store.base import CorruptAggregate, Store

SPAN_FIRST: Final = 1_000
INDEX_MAX: Final = 2**31 - 1
"""Above any index of an entry within its revision."""
_SNAPSHOT: Final = b'{"type":"Snapshot",'
"""How the canonical body of a snapshot begins."""


class NoSuchRevision(LookupError):
    """The revision is not in the log: not written yet, or trimmed away."""


def state_at(store: Store, key: AggregateKey, revision: int) -> Aggregate | None:
    """Give the aggregate at the end of a revision; None when it did not exist then.

    Raises NoSuchRevision, StoreUnavailable, CorruptAggregate.
    """
    if revision < 1:
        raise NoSuchRevision(f"{key}: there is no revision {revision}")
    try:
        return _folded(store, key, revision)
    except (codec.MalformedEntry, MalformedAggregate) as error:
        raise CorruptAggregate(key, str(error)) from error


def _folded(store: Store, key: AggregateKey, revision: int) -> Aggregate | None:
    state: Aggregate | None = None
    last = 0
    after = (0, 0)
    if found := _snapshot(store, key, revision):
        envelope = codec.decode(found)
        assert isinstance(envelope.event, Snapshot)
        state, last, after = decode(key, bytes(envelope.event.aggregate)), found.revision, (found.revision, found.index)
    for entry in _until(store, key, after, revision):
        if entry.revision > last + 1:
            raise NoSuchRevision(f"{key}: revision {last + 1}, from which revision {revision} follows, is not in the log")
        envelope = codec.decode(entry)
        state = evolve(state, envelope.event, key=key, revision=entry.revision, at=envelope.at)
        last = entry.revision
    if last != revision:
        raise NoSuchRevision(f"{key}: revision {revision} is not in the log, which ends at {last}")
    return state


def _snapshot(store: Store, key: AggregateKey, revision: int) -> Entry | None:
    """Find the newest snapshot at or before the revision."""
    end, span = revision, SPAN_FIRST
    while end > 0:
        begin = max(end - span, 0)
        newest = None
        for entry in _until(store, key, (begin, INDEX_MAX), end):
            if entry.body.startswith(_SNAPSHOT):
                newest = entry
        if newest is not None:
            return newest
        end, span = begin, 2 * span
    return None


def _until(store: Store, key: AggregateKey, after: tuple[int, int], revision: int) -> Iterator[Entry]:
    return takewhile(lambda entry: entry.revision <= revision, entries_of(store, key, after))
