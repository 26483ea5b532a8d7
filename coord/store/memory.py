"""The store in plain Python: the reference for what every store does, and the world's store in simulations.

One lock makes each method one atomic step. `dump` gives a copy of all that is stored, and a simulated store can fall back
to it (`restore`).
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import islice
from threading import Lock

from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.store.base import (
    Commit,
    Committed,
    Conflict,
    Due,
    Head,
    Loaded,
    Soft,
    Standing,
    StoreError,
    Tail,
    Touch,
    Touched,
    Turn,
)
from coord.store.memory_answers import MemoryAnswers
from coord.store.memory_state import (
    Logged,
    Metadata,
    Record,
    State,
    change,
    commit_at,
    copy_of,
    head_of,
    is_as_seen,
    renew,
    stored_head,
    tail_since,
)
from coord.store.memory_windows import MemoryWindows
from coord.store.reading import attempted, check_append, check_commit, leases_allow


class MemoryStore:
    """`coord.store.base.Store` in this process. `clock` gives ms; `store_identity` may be set, as a failover would."""

    def __init__(self, clock: Callable[[], int], *, identity: str = "memory") -> None:
        self._clock = clock
        self.store_identity = identity
        self._lock = Lock()
        self.state = State()
        self.windows = MemoryWindows(clock)
        self.answers = MemoryAnswers(clock)

    def dump(self) -> State:
        """Give a copy of all that is stored."""
        with self._lock:
            return copy_of(self.state)

    def restore(self, state: State) -> None:
        """Go back to a state given by `dump`; leases, index and turn included."""
        with self._lock:
            self.state = copy_of(state)

    # -- an aggregate

    def load(self, key: AggregateKey) -> Loaded:
        """Read aggregate, head, clock and identity in one atomic step."""
        with self._lock:
            return self._load(key, self.state.records.get(key, Record()))

    def _load(self, key: AggregateKey, record: Record) -> Loaded:
        head, deletion = head_of(key, record)
        aggregate = None if record.metadata is None else record.metadata.aggregate
        return Loaded(head=head, aggregate=aggregate, tombstone=deletion, identity=self.store_identity, now=self._clock())

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        """Read the log's tail together with the head that it leads to, or the whole."""
        with self._lock:
            record = self.state.records.get(key, Record())
            entries = None if record.metadata is None else tail_since(record, seen, limit)
            if record.metadata is None or entries is None:
                return self._load(key, record)
            head, _ = head_of(key, record)
            return Tail(head=head, entries=entries, identity=self.store_identity, now=self._clock())

    def tail(self, key: AggregateKey, *, after: tuple[int, int], limit: int) -> Sequence[Entry]:
        """Read log entries after an id, oldest first."""
        with self._lock:
            record = self.state.records.get(key, Record())
            first = bisect_right(record.log, after, key=lambda logged: (logged.entry.revision, logged.entry.index))
            return [logged.entry for logged in record.log[first : first + limit]]

    def latest(self, key: AggregateKey, *, before: tuple[int, int] | None, limit: int) -> Sequence[Entry]:
        """Read log entries before an id, newest first."""
        with self._lock:
            log = self.state.records.get(key, Record()).log
            end = len(log)
            if before is not None:
                end = bisect_left(log, before, key=lambda logged: (logged.entry.revision, logged.entry.index))
            return [logged.entry for logged in reversed(log[max(end - limit, 0) : end])]

    def commit(self, commit: Commit) -> Committed | Conflict:
        """Write, or not, atomically."""
        check_commit(commit)
        with self._lock:
            record, now = self.state.records.get(commit.key, Record()), self._clock()
            if not is_as_seen(commit.key, record, commit.expected):
                if commit_at(record, commit.entries[0]) == commit.commit_id:
                    return Committed(head=commit.head_after, now=now, already=True)
                return self._conflict("head", record, now)
            if self.store_identity != commit.identity:
                return self._conflict("identity", record, now)
            if not leases_allow(commit.guards, record.leases, now=now):
                return self._conflict("lease", record, now)
            self.state.records[commit.key] = record
            record.log.extend(Logged(entry, commit.commit_id) for entry in commit.entries)
            if commit.aggregate is None:
                self.state.records[commit.key] = Record(log=record.log)
            else:
                record.metadata = Metadata(commit.aggregate, commit.head_after)
                change(commit.leases, record, now)
            return Committed(head=commit.head_after, now=now)

    def append(self, key: AggregateKey, *, expected: Head, entries: tuple[Entry, ...]) -> Head | None:
        """Write entries of the same revision."""
        check_append(expected, entries)
        with self._lock:
            record = self.state.records.get(key, Record())
            if not is_as_seen(key, record, expected):
                return None
            head = replace(expected, last=(entries[-1].revision, entries[-1].index), chain=entries[-1].chain)
            record.log.extend(Logged(entry, "") for entry in entries)
            if record.metadata is not None:
                record.metadata = replace(record.metadata, head=head)
            return head

    # -- soft state

    def touch(self, touch: Touch) -> Touched:
        """Check a cached aggregate, renew and report."""
        with self._lock:
            record, now = self.state.records.get(touch.key, Record()), self._clock()
            head = stored_head(record)
            cached = (touch.identity, touch.revision, touch.commit_id)
            is_current = head.exists and cached == (self.store_identity, head.revision, head.commit_id)
            if is_current:
                for member_id in touch.renew:
                    renew(record, member_id, now + touch.ttl_ms)
                record.reports.update(touch.reports)
            return Touched(current=is_current, revision=head.revision, identity=self.store_identity, now=now)

    def touch_many(self, touches: Sequence[Touch]) -> list[Touched | StoreError]:
        """Touch one after another."""
        return [attempted(self.touch, touch) for touch in touches]

    def lease(self, key: GroupKey, member_id: str) -> tuple[int | None, int]:
        """Give a member's deadline and the clock."""
        with self._lock:
            return self.state.records.get(key, Record()).leases.get(member_id), self._clock()

    def soft(self, key: GroupKey) -> Soft:
        """Read all leases and reports."""
        with self._lock:
            record = self.state.records.get(key, Record())
            return Soft(leases=dict(record.leases), reports=dict(record.reports), now=self._clock())

    def due_many(self, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        """Look at each group at one moment; nothing here can fail."""
        with self._lock:
            return [self._due(key, lease_ttl_ms=lease_ttl_ms, grace=grace) for key in keys]

    def standings(self, keys: Sequence[AggregateKey]) -> list[Standing | StoreError]:
        """Tell where each aggregate stands at one moment."""
        with self._lock:
            now = self._clock()
            heads = [stored_head(self.state.records.get(key, Record())) for key in keys]
        return [
            Standing(revision=head.revision, commit_id=head.commit_id, identity=self.store_identity, now=now) for head in heads
        ]

    def grant_missing_leases(self, key: GroupKey, members: Sequence[str], *, ttl_ms: int) -> None:
        """Give a whole lease to those without an entry; nothing where the group does not exist."""
        with self._lock:
            record, now = self.state.records.get(key, Record()), self._clock()
            if record.metadata is not None:
                for member in members:
                    record.leases.setdefault(member, now + ttl_ms)

    # -- what belongs to no aggregate

    def streams(self) -> Sequence[str]:
        """Give the index, sorted."""
        with self._lock:
            return sorted(self.state.index)

    def index_add(self, key: StreamKey) -> None:
        """Put a stream into the index."""
        with self._lock:
            self.state.index.add(key.stream_prefix)

    def index_remove(self, key: StreamKey) -> None:
        """Take a stream out of the index."""
        with self._lock:
            self.state.index.discard(key.stream_prefix)

    def take_turn(self, instance: str, *, takeover_ms: int) -> Turn:
        """Ask to tick; a clock that went back keeps nobody from it."""
        with self._lock:
            now, ticked_at = self._clock(), self.state.ticked_at
            is_mine = self.state.ticker == instance or ticked_at == 0 or abs(now - ticked_at) >= takeover_ms
            if is_mine:
                self.state.ticker, self.state.ticked_at = instance, now
            return Turn(mine=is_mine, ticked_at=ticked_at, now=now)

    def announce(self, instance: str, *, reads: int, within_ms: int) -> int:
        """Note what an instance reads, and give the lowest level of all that were heard of lately."""
        with self._lock:
            now = self._clock()
            kept = {name: note for name, note in self.state.readers.items() if abs(now - note[1]) <= within_ms}
            self.state.readers = kept | {instance: (reads, now)}
            return min(level for level, _ in self.state.readers.values())

    def last_tick(self) -> tuple[int, int]:
        """Give when anybody ticked last, and the clock."""
        with self._lock:
            return self.state.ticked_at, self._clock()

    def append_request(self, entry: bytes) -> None:
        """Keep an audit entry; the oldest go."""
        with self._lock:
            self.state.requests.append(entry)
            self.state.requests_made += 1

    def requests(self, *, before: str | None, limit: int) -> Sequence[tuple[str, bytes]]:
        """Read the kept entries, newest first; an entry's place is its number since the beginning."""
        with self._lock:
            end = self.state.requests_made + 1 if before is None else int(before)
            numbered = zip(range(self.state.requests_made, 0, -1), reversed(self.state.requests), strict=False)
            return list(islice(((str(number), entry) for number, entry in numbered if number < end), limit))

    def identity(self) -> str:
        """Give the identity as set."""
        return self.store_identity

    def ping(self) -> int:
        """Give the clock."""
        return self._clock()

    def after_fork(self) -> None:
        """Make the lock anew; what is stored is this process's own from here on."""
        self._lock = Lock()

    def close(self) -> None:
        """Nothing to give up."""

    def _due(self, key: GroupKey, *, lease_ttl_ms: int, grace: bool) -> Due:
        record, now = self.state.records.get(key, Record()), self._clock()
        looked_at = record.looked_at if record.metadata is not None else 0
        if record.metadata is None:
            record = Record()
        else:
            record.looked_at = now
            if grace or looked_at == 0 or abs(now - looked_at) > lease_ttl_ms / 2:
                record.grace_until = max(record.grace_until, now + lease_ttl_ms)
            if record.grace_until <= now:
                record.grace_until = 0
        head = stored_head(record)
        lapsed = {} if record.grace_until else {member: at for member, at in record.leases.items() if at < now}
        return Due(
            lapsed=lapsed,
            grace_until=record.grace_until,
            entries=len(record.leases),
            earliest=min(record.leases.values(), default=0),
            looked_at=looked_at,
            revision=head.revision,
            commit_id=head.commit_id,
            identity=self.store_identity,
            now=now,
        )

    def _conflict(self, what: str, record: Record, now: int) -> Conflict:
        return Conflict(what=what, revision=record.revision, identity=self.store_identity, now=now)
