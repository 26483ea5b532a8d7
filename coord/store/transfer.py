"""A port beside the store, for carrying all of it to another one: what is stored is read and written as it stands.

Nothing is decided, folded or sealed here: an entry keeps its id, bytes, chain value and the id of the commit that wrote it, an
aggregate its bytes and its guard. A log is written before the aggregate that it makes, so that one that is carried half is one
whose log contradicts it, and no coordinator touches it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Protocol

from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.store.base import Head

Place = tuple[int, int]
INDEX_MAX: Final = 2**31 - 1
"""Above any index of an entry within its revision."""


@dataclass(frozen=True, slots=True)
class Record:
    """A log entry as stored; `commit_id` is "" for one that was appended."""

    entry: Entry
    commit_id: str

    @property
    def place(self) -> Place:
        """Its (revision, index)."""
        return self.entry.revision, self.entry.index


@dataclass(frozen=True, slots=True, kw_only=True)
class Guard:
    """What stands beside an aggregate: who wrote it last. `last`: place of the log's last entry; `updated_at`: ms."""

    revision: int
    commit_id: str
    last: Place
    identity: str
    updated_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """An answer that is remembered for a keyed mutation. `at`: when it was put, ms; `left_ms`: how long it is kept yet."""

    digest: bytes
    body: bytes
    at: int
    left_ms: int


@dataclass(frozen=True, slots=True, order=True)
class Request:
    """An audit entry of no aggregate: when it was written (ms, and the number within that ms), and its bytes."""

    at: int
    n: int
    entry: bytes


class Transfer(Protocol):
    """Reads and writes what is stored. Every method is bounded in time and may raise StoreUnavailable or CorruptAggregate."""

    def aggregates(self) -> Sequence[AggregateKey]:
        """Give every aggregate of which anything is stored, deleted ones included, sorted; streams before their groups."""

    def records(self, key: AggregateKey, *, after: Place, limit: int) -> Sequence[Record]:
        """Read up to `limit` log entries after that place, oldest first."""

    def end(self, key: AggregateKey) -> Record | None:
        """Give the log's last entry."""

    def guard(self, key: AggregateKey) -> Guard | None:
        """Give what stands beside an aggregate; None where there is none, be it deleted or not carried whole yet."""

    def put_records(self, key: AggregateKey, records: Sequence[Record], *, after: Record | None) -> bool:
        """Write entries where the log ends with `after` (None: it has none), all or none; False where it ends elsewhere."""

    def put_aggregate(self, key: AggregateKey, head: Head, aggregate: bytes | None, guard: Guard) -> bool:
        """Put an aggregate (None: it is deleted) beside a log that ends with `head`; False where it ends elsewhere."""

    def answers(self, key: AggregateKey) -> Sequence[Answered]:
        """Give the answers that are remembered for an aggregate, the oldest first."""

    def put_answers(self, key: AggregateKey, answers: Sequence[Answered]) -> None:
        """Remember answers, in place of all that were remembered."""

    def requests(self) -> Sequence[Request]:
        """Give the audit entries of no aggregate, oldest first."""

    def put_requests(self, requests: Sequence[Request]) -> None:
        """Add audit entries, all of them later than any that is there."""

    def close(self) -> None:
        """Close all connections."""


def before(place: Place) -> Place:
    """Give a place that nothing but `place` follows directly."""
    revision, index = place
    return (revision, index - 1) if index else (revision - 1, INDEX_MAX)


def in_order(keys: Mapping[AggregateKey, None] | set[AggregateKey]) -> list[AggregateKey]:
    """Sort aggregates, streams before their groups."""
    return sorted(keys, key=lambda key: (key.stream_prefix, getattr(key, "consumer_group", "")))
