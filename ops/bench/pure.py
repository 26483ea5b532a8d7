"""What the pure parts cost: the assignor, folding and verifying a log, the stored bytes of a large group.

Nothing here opens a connection or waits, so that all times are those of the processor: what else runs on the machine does not
count. `python -m ops.bench.pure` prints a table; each function measures one thing and gives its
figures.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass

from msgspec import Raw
from msgspec.structs import replace as changed

from coord.core.assignors import Before, sticky_moves
from coord.core.commands import Heartbeat
from coord.core.decide import decide
from coord.core.decision import Accepted, Moment, Policy
from coord.events import chain, codec
from coord.events.catalog import AdoptedMember, Event, GroupAdopted, OwnershipReported, Snapshot
from coord.events.envelope import Actor, Cause, Entry
from coord.names import GroupKey
from coord.projections.aggregate import decode, encode, evolve, fold
from coord.projections.group import Group, Hold
from coord.runtime.history import state_at
from coord.runtime.verify import verify_aggregate
from coord.store.base import Head
from coord.store.memory import MemoryStore
from coord.store.memory_state import Logged, Metadata, Record

KEY = GroupKey("orders", "billing")
CAUSE = Cause(command_id="0" * 32, actor=Actor("member"), request_id="0" * 32, coordinator_id="coordinator-0")
NOW_MS = 1_700_000_000_000
REPEATS = 15


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignorTimes:
    """Milliseconds, medians: a first assignment, one member more, one member less."""

    members: int
    shards: int
    first_ms: float
    join_ms: float
    leave_ms: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplayRates:
    """Events a second over one log: folded alone, decoded from stored bytes and folded, verified from a store."""

    members: int
    events: int
    fold_per_s: float
    decode_and_fold_per_s: float
    verify_per_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistoryTime:
    """Seconds to give the state at a revision in the middle of a log, as far from its snapshot as can be; the store in memory."""

    events: int
    snapshot_every: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageCost:
    """The stored aggregate of a group at rest: bytes, and milliseconds (medians) to write and to read it."""

    members: int
    shards: int
    bytes: int
    encode_ms: float
    decode_ms: float
    draft_ms: float


def assignor_times(members: int = 10_000, shards: int = 100_000, *, repeats: int = REPEATS) -> AssignorTimes:
    """Time the `sticky` assignor; whoever is the target of a shard holds it."""
    names, read_set, nothing = names_of(members), tuple(range(shards)), Before({}, {})
    gained, _ = sticky_moves(read_set, names, nothing, {})
    before = Before(
        {shard: name for name, its in gained.items() for shard in its}, {name: frozenset(its) for name, its in gained.items()}
    )
    ownership = {shard: Hold(name, "ASSIGNED", 1, 0) for shard, name in before.by_shard.items()}
    more, fewer = [*names, "member-new"], names[:-1]
    return AssignorTimes(
        members=members,
        shards=shards,
        first_ms=_median_ms(lambda: sticky_moves(read_set, names, nothing, {}), repeats),
        join_ms=_median_ms(lambda: sticky_moves(read_set, more, before, ownership), repeats),
        leave_ms=_median_ms(lambda: sticky_moves(read_set, fewer, before, ownership), repeats),
    )


def replay_rates(members: int, *, events: int = 50_000, repeats: int = 3) -> ReplayRates:
    """Time folds of a log of restarting members; best of a few."""
    log = sealed_log(members, events=events)
    envelopes = [codec.decode(entry) for entry in log.entries]
    store = store_of(log)

    def verify() -> None:
        report = verify_aggregate(store, KEY)
        assert report.holds, report.findings

    def rate(timed: Callable[[], object]) -> float:
        return len(log.entries) / min(_seconds(timed) for _ in range(repeats))

    return ReplayRates(
        members=members,
        events=len(log.entries),
        fold_per_s=rate(lambda: fold(None, envelopes, key=KEY)),
        decode_and_fold_per_s=rate(lambda: fold(None, map(codec.decode, log.entries), key=KEY)),
        verify_per_s=rate(verify),
    )


def storage_cost(members: int = 1_000, shards: int = 4_000, *, repeats: int = 5 * REPEATS) -> StorageCost:
    """Time writing and reading a group whose members have joined and reported."""
    group = settled_group(members, shards)
    data = encode(group)
    return StorageCost(
        members=members,
        shards=shards,
        bytes=len(data),
        encode_ms=_median_ms(lambda: encode(group), repeats),
        decode_ms=_median_ms(lambda: decode(KEY, data), repeats),
        draft_ms=_median_ms(group.draft, repeats),
    )


def history_time(events: int = 1_000_000, *, members: int = 100, snapshot_every: int = 1_000) -> HistoryTime:
    """Time going back to the revision before a snapshot, in a log of so many entries that members report what they hold."""
    author = _Author()
    author.adopt(members, 4 * members)
    names = names_of(members)
    while len(author.entries) < events:
        assert author.group is not None
        member = author.group.members[names[author.revision % members]]
        owned = () if member.current_assignment else tuple(sorted(author.group.shards_of(member.member_id)))
        author.append(OwnershipReported(member_id=member.member_id, epoch=member.member_epoch, owned=owned, foreign=()))
        if author.revision % snapshot_every == 0:
            author.snapshot()
    assert author.group is not None
    store = store_of(SealedLog(author.entries, author.group, author.revision))
    revision = (author.revision // 2 // snapshot_every) * snapshot_every - 1
    seconds = min(_seconds(lambda: state_at(store, KEY, revision)) for _ in range(3))
    return HistoryTime(events=len(author.entries), snapshot_every=snapshot_every, seconds=seconds)


@dataclass(slots=True)
class SealedLog:
    """Entries of a log, and the state that they fold into."""

    entries: list[Entry]
    group: Group
    revision: int


class _Author:
    """Writes the log of one group by deciding commands."""

    def __init__(self) -> None:
        self.entries: list[Entry] = []
        self.revision = 0
        self.now = NOW_MS
        self.group: Group | None = None

    def commit(self, events: tuple[Event, ...], after: Group) -> None:
        """Seal one revision."""
        self.revision += 1
        prev = self.entries[-1].chain if self.entries else chain.GENESIS
        self.entries += codec.seal(events, revision=self.revision, first=0, at=self.now, cause=CAUSE, prev=prev)
        self.group = after

    def append(self, event: Event) -> None:
        """Seal one event as a revision, and apply it to the group in place."""
        after = evolve(self.group, event, key=KEY, revision=self.revision + 1, at=self.now)
        assert isinstance(after, Group)
        self.commit((event,), after)

    def snapshot(self) -> None:
        """Write a snapshot at the end of the revision."""
        assert self.group is not None
        last = self.entries[-1]
        event = Snapshot(revision=self.revision, chain=last.chain, aggregate=Raw(encode(self.group)))
        first = last.index + 1
        self.entries += codec.seal((event,), revision=self.revision, first=first, at=self.now, cause=CAUSE, prev=last.chain)

    def adopt(self, members: int, shards: int) -> None:
        """Begin with a group in which everybody has what is theirs: the shards dealt out in turn."""
        adopted = tuple(
            AdoptedMember(
                member_id=name, member_name=name, state="STABLE", member_epoch=place + 1, runtime_max_concurrency=1,
                current_assignment=mine, target=mine, assigned=mine, revoking=(),
            )
            for place, name in enumerate(names_of(members))
            for mine in [tuple(range(place, shards, members))]
        )  # fmt: skip
        event = GroupAdopted(
            source_key="redis-stream:coord:{orders:billing}:metadata", registration=1, stream_revision=1, shard_count=shards,
            read_set=tuple(range(shards)), epoch=members, group_epoch=members, assignment_epoch=members,
            metadata_version=members, revoke_deadline_at=0, identity="redis-0", members=adopted,
        )  # fmt: skip
        begun = evolve(None, event, key=KEY, revision=1, at=self.now)
        assert isinstance(begun, Group)
        self.commit((event,), begun)

    def heartbeat(self, member_id: str, epoch: int, owned: tuple[int, ...]) -> None:
        """Decide a heartbeat; what changes nothing is not recorded."""
        assert self.group is not None
        self.now += 3
        command = Heartbeat(
            path_member_id=member_id, member_id=member_id, member_name=None, request_id=f"{self.now:032x}",
            protocol_version=1, member_epoch=epoch, metadata_version=self.group.metadata_version, runtime_max_concurrency=1,
            owned=frozenset(owned), draining=frozenset(), revoked=frozenset(),
        )  # fmt: skip
        moment = Moment(now=self.now, identity="redis-0", revision=self.revision + 1, policy=Policy())
        decision = decide(self.group, command, moment, key=KEY)
        assert isinstance(decision, Accepted)
        if decision.events:
            assert isinstance(decision.after, Group)
            self.commit(decision.events, decision.after)

    def report_all(self) -> None:
        """Let everybody report what they are shown, until nobody is told anything new."""
        assert self.group is not None
        while behind := [m for m in self.group.members.values() if m.state == "ACTIVE" and m.acked_epoch != m.member_epoch]:
            for member in behind:
                assigned, _ = self.group.view(member.member_id)
                self.heartbeat(member.member_id, self.group.members[member.member_id].member_epoch, assigned)

    def restart(self, member_id: str) -> None:
        """Let a member leave and come back, and the others take over in between."""
        self.heartbeat(member_id, -1, ())
        self.report_all()
        self.heartbeat(member_id, 0, ())
        self.report_all()


def names_of(members: int) -> list[str]:
    """Give member ids, ascending."""
    return [f"member-{place:05}" for place in range(members)]


def sealed_log(members: int, *, shards_each: int = 4, events: int = 50_000) -> SealedLog:
    """Write a log of at least `events` entries: members of a settled group restart, one after another."""
    author = _Author()
    author.adopt(members, members * shards_each)
    author.report_all()
    names, place = names_of(members), 0
    while len(author.entries) < events:
        author.restart(names[place % members])
        place += 1
    assert author.group is not None
    return SealedLog(author.entries, author.group, author.revision)


def settled_group(members: int, shards: int) -> Group:
    """Give a group as it stands when everybody has joined and reported; an adopted member lacks the ids of a join."""
    author = _Author()
    author.adopt(members, shards)
    author.report_all()
    group = author.group
    assert group is not None
    draft = group.draft()
    for place, member in enumerate(group.members.values()):
        draft.members[member.member_id] = changed(
            member, join_request_id=f"{place:032x}", join_epoch=place + 1, joined_metadata_version=group.metadata_version - place
        )
    return draft


def store_of(log: SealedLog) -> MemoryStore:
    """Give a store that holds this log and its aggregate."""
    store = MemoryStore(lambda: NOW_MS)
    last = log.entries[-1]
    head = Head(exists=True, revision=log.revision, commit_id="c", last=(last.revision, last.index), chain=last.chain)
    record = Record(log=[Logged(entry, "c") for entry in log.entries], metadata=Metadata(encode(log.group), head))
    store.state.records[KEY] = record
    return store


def _seconds(timed: Callable[[], object]) -> float:
    began = time.process_time()
    timed()
    return time.process_time() - began


def _median_ms(timed: Callable[[], object], repeats: int) -> float:
    timed()
    return 1_000 * statistics.median(_seconds(timed) for _ in range(repeats))


def main() -> None:
    """Print all figures."""
    print(assignor_times())
    print(storage_cost())
    for members in (100, 1_000):
        print(replay_rates(members))
    print(history_time())


if __name__ == "__main__":
    main()
