"""Walks an aggregate's log: the chain, the fold, the invariants after each revision, and the stored aggregate at its end.

A stream's invariants are all checked after each revision. A group's are checked where the revision's events touched it
(`coord.core.watch`); all of them after an event that concerns the whole group, every `WHOLE_EVERY` revisions, and at the end.
The same decoding and the same `evolve` as the server's. A log that was trimmed begins with its first snapshot. Reads only.
Source: design page `architecture.md`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from coord.core.invariants import backwards, broken
from coord.core.watch import Watch
from coord.events import chain, codec
from coord.events.catalog import Snapshot
from coord.events.envelope import Entry, Envelope
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.aggregate import Aggregate, decode, encode, evolve
from coord.projections.group import Group
from coord.projections.stored import MalformedAggregate
from coord.projections.stream import Stream
from coord.store.base import CorruptAggregate, Store

PAGE: Final = 1_000
FINDINGS_MAX: Final = 20
WHOLE_EVERY: Final = 5_000
"""After how many revisions a group is looked at as a whole, and not only where events pointed."""


@dataclass(slots=True, kw_only=True)
class Report:
    """What was found of one aggregate. `findings` is empty when all holds; `revision`: the last one read."""

    key: AggregateKey
    entries: int = 0
    revision: int = 0
    first_revision: int = 0
    findings: list[str] = field(default_factory=list)

    @property
    def holds(self) -> bool:
        """Whether nothing was found."""
        return not self.findings

    def add(self, finding: str) -> None:
        """Note a finding, up to a bound."""
        if len(self.findings) < FINDINGS_MAX:
            self.findings.append(finding)


@dataclass(slots=True)
class _Walk:
    """Where a walk along a log has come to."""

    report: Report
    state: Aggregate | None = None
    chain: str = chain.GENESIS
    last: tuple[int, int] = (0, 0)
    begun: bool = False
    before: Aggregate | None = None
    watch: Watch = field(default_factory=Watch)
    until_whole: int = WHOLE_EVERY


def entries_of(store: Store, key: AggregateKey, after: tuple[int, int] = (0, 0)) -> Iterator[Entry]:
    """Read a log page by page, oldest first."""
    while page := store.tail(key, after=after, limit=PAGE):
        yield from page
        after = (page[-1].revision, page[-1].index)


def verify_aggregate(store: Store, key: AggregateKey) -> Report:
    """Verify one aggregate's log against itself and against what is stored. Raises StoreUnavailable.

    A commit that lands while the log is being read is read too: the stored aggregate is compared at the end, after the log
    has been read up to its head.
    """
    report = Report(key=key)
    walk = _Walk(report)
    try:
        _walk_on(store, walk)
        loaded = store.load(key)
        while loaded.head.last != walk.last and report.holds:
            before = walk.last
            _walk_on(store, walk)
            loaded = store.load(key)
            if walk.last == before and loaded.head.last != walk.last:
                report.add(f"the head is {loaded.head.last}, the log ends at {walk.last}")
    except CorruptAggregate as error:
        report.add(error.why)
        return report
    if report.holds:
        _compare(walk, loaded.aggregate, loaded.head.chain)
    return report


def verify_all(store: Store) -> Iterator[Report]:
    """Verify every stream of the index, and each of its groups."""
    for prefix in store.streams():
        key = StreamKey(prefix)
        yield verify_aggregate(store, key)
        for group in groups_of(store, key):
            yield verify_aggregate(store, group)


def groups_of(store: Store, key: StreamKey) -> list[GroupKey]:
    """Give the groups of a stream; none where it cannot be read, which its own report says."""
    try:
        loaded = store.load(key)
        state = decode(key, loaded.aggregate) if loaded.aggregate is not None else None
    except (CorruptAggregate, MalformedAggregate):
        return []
    return [GroupKey(key.stream_prefix, name) for name in sorted(state.groups)] if isinstance(state, Stream) else []


def _walk_on(store: Store, walk: _Walk) -> None:
    """Read on from where the walk stands, a revision at a time; a group is looked at as a whole at the end."""
    revision = walk.last[0]
    for entry in entries_of(store, walk.report.key, walk.last):
        if entry.revision != revision:
            _end_revision(walk, revision)
            revision = entry.revision
        if not _step(walk, entry):
            return
    _end_revision(walk, revision, whole=True)


def _end_revision(walk: _Walk, revision: int, *, whole: bool = False) -> None:
    """Check the state at the end of a revision: a stream all of it; a group what was touched, or now and then all of it."""
    state = walk.state
    if isinstance(state, Group):
        walk.until_whole -= 1
        whole = whole or walk.until_whole <= 0
        for what in walk.watch.whole(state) if whole else walk.watch.broken(state):
            walk.report.add(f"revision {revision}: {what}")
        if whole:
            walk.until_whole = WHOLE_EVERY
        return
    walk.watch = Watch()
    for what in (*broken(state), *backwards(walk.before, state)):
        walk.report.add(f"revision {revision}: {what}")
    walk.before = state


def _step(walk: _Walk, entry: Entry) -> bool:
    """Check and apply one entry; False when nothing after it can be judged."""
    report = walk.report
    try:
        envelope = codec.decode(entry)
    except codec.MalformedEntry as error:
        report.add(str(error))
        return False
    if not walk.begun:
        if not _begin(walk, envelope):
            return False
    elif not chain.continues(walk.last, (entry.revision, entry.index)):
        report.add(f"entry {entry.entry_id}: follows {walk.last[0]}-{walk.last[1]}: entries are missing")
        return False
    if envelope.prev != walk.chain or chain.link(walk.chain, entry.body) != entry.chain:
        report.add(f"entry {entry.entry_id}: the chain is broken")
        return False
    walk.chain, walk.last = entry.chain, (entry.revision, entry.index)
    report.entries += 1
    report.revision = entry.revision
    event = envelope.event
    if type(event) is Snapshot:
        return _check_snapshot(walk, event, f"entry {entry.entry_id}")
    try:
        if type(walk.state) is Group:
            walk.watch.touch(walk.state, event)
        walk.state = evolve(walk.state, event, key=report.key, revision=entry.revision, at=envelope.at)
    except (ValueError, KeyError) as error:
        report.add(f"entry {entry.entry_id}: cannot be applied: {error}")
        return False
    return True


def _begin(walk: _Walk, envelope: Envelope) -> bool:
    """A whole log begins at revision 1; a trimmed one with a snapshot, whose chain value it continues."""
    walk.begun = True
    walk.report.first_revision = envelope.revision
    if envelope.revision == 1 and envelope.index == 0:
        return True
    if isinstance(envelope.event, Snapshot):
        walk.chain = envelope.event.chain
        return True
    walk.report.add(f"the log begins at {envelope.entry_id}, which is no snapshot: revision {envelope.revision - 1} is missing")
    return False


def _check_snapshot(walk: _Walk, snapshot: Snapshot, where: str) -> bool:
    """Compare a snapshot with the fold, or start from it where the log before it is gone."""
    if walk.state is None and walk.report.entries == 1:
        try:
            walk.state = decode(walk.report.key, bytes(snapshot.aggregate))
        except MalformedAggregate as error:
            walk.report.add(f"{where}: {error}")
            return False
        return True
    try:
        folded = encode(walk.state) if walk.state is not None else None
    except ValueError as error:
        walk.report.add(f"{where}: {error}")
        return False
    if folded != bytes(snapshot.aggregate):
        walk.report.add(f"{where}: the snapshot differs from the fold: {_difference(bytes(snapshot.aggregate), folded)}")
    return True


def _compare(walk: _Walk, stored: bytes | None, stored_chain: str) -> None:
    folded = encode(walk.state) if walk.state is not None else None
    if folded != stored:
        walk.report.add(f"the fold differs from the stored aggregate: {_difference(stored, folded)}")
    if stored_chain != walk.chain:
        walk.report.add("the stored chain value is not that of the log")


def _difference(stored: bytes | None, folded: bytes | None) -> str:
    """Show where two texts part."""
    if stored is None or folded is None:
        return (
            f"stored: {'nothing' if stored is None else 'an aggregate'}; fold: {'nothing' if folded is None else 'an aggregate'}"
        )
    at = next((i for i, (a, b) in enumerate(zip(stored, folded, strict=False)) if a != b), min(len(stored), len(folded)))
    around = slice(max(at - 40, 0), at + 40)
    return f"at byte {at}: stored …{stored[around].decode(errors='replace')}…, fold …{folded[around].decode(errors='replace')}…"
