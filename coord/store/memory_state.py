"""What the memory store holds of an aggregate, and how a commit is judged against it and changes it: no lock, no clock."""

from __future__ import annotations

import copy
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace

from coord.events.chain import GENESIS
from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.store.base import (
    EMPTY_HEAD,
    LAYOUT_VERSION,
    SCHEMA_VERSION,
    CorruptAggregate,
    Head,
    LeaseChanges,
)
from coord.store.reading import TAIL_FREE_BYTES, check_head, check_versions, tombstone

REQUESTS_MAX = 10_000
"""How many audit entries that belong to no aggregate are kept."""


@dataclass(frozen=True, slots=True)
class Metadata:
    """What stands beside the log: the aggregate and its head."""

    aggregate: bytes
    head: Head
    schema_version: int = SCHEMA_VERSION
    layout_version: int = LAYOUT_VERSION


@dataclass(frozen=True, slots=True)
class Logged:
    """A log entry; `commit_id` is "" for one that was appended."""

    entry: Entry
    commit_id: str


@dataclass(slots=True)
class Record:
    """All of one aggregate."""

    metadata: Metadata | None = None
    log: list[Logged] = field(default_factory=list)
    leases: dict[str, int] = field(default_factory=dict)
    reports: dict[str, bytes] = field(default_factory=dict)
    looked_at: int = 0
    grace_until: int = 0

    @property
    def last(self) -> Entry | None:
        """The log's last entry."""
        return self.log[-1].entry if self.log else None

    @property
    def revision(self) -> int:
        """The revision that is stored, 0 for none."""
        if self.metadata is not None:
            return self.metadata.head.revision
        return self.log[-1].entry.revision if self.log else 0


@dataclass(slots=True)
class State:
    """All that the store holds."""

    records: dict[AggregateKey, Record] = field(default_factory=dict)
    index: set[str] = field(default_factory=set)
    requests: deque[bytes] = field(default_factory=lambda: deque(maxlen=REQUESTS_MAX))
    requests_made: int = 0
    readers: dict[str, tuple[int, int]] = field(default_factory=dict)
    ticker: str = ""
    ticked_at: int = 0


def copy_of(state: State) -> State:
    """Copy all that can change; entries, heads and bodies cannot."""
    records = {
        key: replace(record, log=list(record.log), leases=dict(record.leases), reports=dict(record.reports))
        for key, record in state.records.items()
    }
    return replace(state, records=records, index=set(state.index), requests=copy.copy(state.requests))


def head_of(key: AggregateKey, record: Record) -> tuple[Head, Entry | None]:
    """Give the head and, where there is no aggregate, the tombstone; CorruptAggregate for a contradiction."""
    metadata, last = record.metadata, record.last
    if metadata is not None:
        check_versions(key, metadata.schema_version, metadata.layout_version)
        check_head(key, metadata.head, last=last, highest=(last.revision, last.index) if last else (0, 0))
        return metadata.head, None
    if last is None:
        return EMPTY_HEAD, None
    committed = [logged for logged in record.log if logged.entry.revision == last.revision and logged.commit_id]
    deletion = tombstone(key, [logged.entry for logged in committed], last=last)
    place = (last.revision, last.index)
    return Head(exists=False, revision=last.revision, commit_id=committed[0].commit_id, last=place, chain=last.chain), deletion


def tail_since(record: Record, seen: Head, limit: int) -> tuple[Entry, ...] | None:
    """Give the log's entries since a head; None when it is not in the log, or the whole aggregate serves better."""
    assert record.metadata is not None
    after = bisect_right(record.log, seen.last, key=lambda logged: (logged.entry.revision, logged.entry.index))
    if after == 0:
        return None
    last_seen = record.log[after - 1].entry
    entries = tuple(logged.entry for logged in record.log[after : after + limit + 1])
    if (last_seen.revision, last_seen.index) != seen.last or last_seen.chain != seen.chain or len(entries) > limit:
        return None
    if sum(len(entry.body) for entry in entries) > len(record.metadata.aggregate) + TAIL_FREE_BYTES:
        return None
    return entries


def stored_head(record: Record) -> Head:
    """Give the head that stands beside the log, the empty one where there is no aggregate."""
    return EMPTY_HEAD if record.metadata is None else record.metadata.head


def is_as_seen(key: AggregateKey, record: Record, expected: Head) -> bool:
    """Tell whether a writer's head is the stored one; CorruptAggregate when the log contradicts the head that both agree on."""
    last = record.last
    place, chain = ((last.revision, last.index), last.chain) if last else ((0, 0), GENESIS)
    if record.metadata is None:
        return not expected.exists and (place, chain) == (expected.last, expected.chain)
    if record.metadata.head != expected:
        return False
    if place != expected.last:
        raise CorruptAggregate(key, f"the log ends at {place}, not at {expected.last}")
    return True


def commit_at(record: Record, first: Entry) -> str | None:
    """Give the id of the commit that wrote the log entry with this one's id."""
    for logged in reversed(record.log):
        if (logged.entry.revision, logged.entry.index) == (first.revision, first.index):
            return logged.commit_id
    return None


def change(changes: LeaseChanges, record: Record, now: int) -> None:
    """Change leases and reports as a commit says."""
    for member in changes.remove:
        record.leases.pop(member, None)
        record.reports.pop(member, None)
    deadline = now + changes.ttl_ms
    for member in changes.renew:
        renew(record, member, deadline)
    if changes.renew_all:
        for member in record.leases:
            renew(record, member, deadline)
    record.reports.update(changes.reports)


def renew(record: Record, member: str, deadline: int) -> None:
    """Give a member a deadline, never an earlier one."""
    record.leases[member] = max(deadline, record.leases.get(member, 0))
