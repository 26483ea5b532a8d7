"""Logs and groups made by the real rules without a server: what replay is measured on, and what thousands of groups are made of.

`History` is one group's: each command goes through `decide`, as a server would decide it, and its events are kept.
`plant` writes many groups of one shape into a store, each by one commit of the store's own.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Final

import msgspec

from coord.core.commands import CreateGroup, CreateStream, Heartbeat, RegisterGroup, StreamCommand, Topology
from coord.core.decide import decide
from coord.core.decision import Accepted, Moment, Policy
from coord.events import codec
from coord.events.catalog import Event, GroupCreated
from coord.events.chain import GENESIS
from coord.events.envelope import Actor, Cause, Entry
from coord.names import JOIN, LEAVE, AggregateKey, GroupKey, StreamKey
from coord.projections.aggregate import encode
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.store.base import EMPTY_HEAD, Commit, Committed, LeaseChanges, Store
from coord.wire import PROTOCOL_VERSION, HeartbeatRequest, Shard
from ops.bench.load_wrk import Request
from ops.bench.members import CAPACITY, heartbeat_path

HOUR_MS: Final = 3_600_000
POLICY: Final = Policy(member_lease_ttl_ms=HOUR_MS, rebalance_timeout_ms=HOUR_MS, groups_per_stream=100_000)
STEP_MS: Final = 5
"""Time between two commands of a history."""
BEGINNING_MS: Final = 1_750_000_000_000
CAUSE: Final = Cause(command_id="bench", actor=Actor("bench", ("MEMBER",)), request_id="bench", coordinator_id="bench")
BY: Final = "bench"


@dataclass(frozen=True, slots=True)
class Revision:
    """The events of one command, at `at` ms."""

    number: int
    at: int
    events: tuple[Event, ...]


class History:
    """A group from its creation on. `revisions`: all that happened; `group`: where it stands."""

    def __init__(self, key: GroupKey, *, shards: int, identity: str) -> None:
        self.key = key
        self.revisions: list[Revision] = []
        self._identity = identity
        self._now = BEGINNING_MS
        topology = Topology(stream_revision=1, shard_count=shards, read_set=tuple(range(shards)), migration=None)
        self._group: Group | None = None
        self._say(CreateGroup(registration=2, topology=topology, how="create", requested_by=BY))

    @property
    def group(self) -> Group:
        """Where it stands."""
        assert self._group is not None, "it was created first"
        return self._group

    @property
    def events(self) -> int:
        """How many events there are."""
        return sum(len(revision.events) for revision in self.revisions)

    def join(self, member_id: str) -> None:
        """A member joins."""
        self._beat(member_id, epoch=JOIN, owned=frozenset())

    def leave(self, member_id: str) -> None:
        """A member leaves; it has drained all it held."""
        self._beat(member_id, epoch=LEAVE, owned=frozenset())

    def settle(self) -> None:
        """Let those members heartbeat that have something to say, until none has."""
        while speakers := [member for member in self.group.active() if self._has_news(member)]:
            for member_id in speakers:
                assigned, _ = self.group.view(member_id)
                self._beat(member_id, epoch=self.group.members[member_id].member_epoch, owned=frozenset(assigned))

    def until(self, events: int, tell: Callable[[str], None]) -> None:
        """Let members come and go until there are so many events. The one who has been there longest leaves."""
        newcomers = 0
        while self.events < events:
            newcomers += 1
            self.turn_over(newcomers)
            tell(f"{self.events:,} of {events:,} events decided")

    def turn_over(self, number: int) -> None:
        """Let the member who has been there longest leave, and a new one join."""
        self.leave(self.group.active()[0])
        self.settle()
        self.join(f"newcomer-{number:07}")
        self.settle()

    def entries(self) -> list[Entry]:
        """Seal the log as a server would."""
        return sealed(self.revisions, prev=GENESIS)

    def _has_news(self, member_id: str) -> bool:
        member = self.group.members[member_id]
        assigned = self.group.in_phase(member_id, "ASSIGNED")
        return member.acked_epoch != member.member_epoch or assigned != frozenset(member.current_assignment)

    def _beat(self, member_id: str, *, epoch: int, owned: frozenset[int]) -> None:
        known = self.group.members.get(member_id)
        self._say(
            Heartbeat(
                path_member_id=member_id,
                member_id=member_id,
                member_name=member_id,
                request_id=f"{member_id}-join",
                protocol_version=PROTOCOL_VERSION,
                member_epoch=epoch,
                metadata_version=self.group.metadata_version if known else 0,
                runtime_max_concurrency=CAPACITY.runtime_max_concurrency,
                owned=owned,
                draining=frozenset(),
                revoked=frozenset(),
            )
        )

    def _say(self, command: CreateGroup | Heartbeat) -> None:
        self._now += STEP_MS
        number = 1 if self._group is None else self._group.store_revision + 1
        decision = decide(self._group, command, _moment(self._now, number, self._identity), key=self.key)
        assert isinstance(decision, Accepted), decision
        if decision.events:
            self.revisions.append(Revision(number, self._now, decision.events))
            assert isinstance(decision.after, Group)
            self._group = decision.after


def settled_group(members: int, *, shards: int, identity: str) -> History:
    """Give a group of so many members in which nothing moves."""
    history = History(GroupKey("stream", "group"), shards=shards, identity=identity)
    for place in range(members):
        history.join(f"member-{place:05}")
    history.settle()
    return history


def plant(store: Store, shape: History, names: Sequence[GroupKey], tell: Callable[[str], None]) -> None:
    """Write groups of this shape, and their streams with all of them registered, into an empty store."""
    streams: dict[StreamKey, list[GroupKey]] = {}
    for name in names:
        streams.setdefault(name.stream, []).append(name)
    written = 0
    for key, groups in streams.items():
        registrations = _plant_stream(store, key, groups, shape)
        store.index_add(key)
        for group in groups:
            _plant_group(store, group, shape, registration=registrations[group.consumer_group])
            written += 1
            if written % 100 == 0:
                tell(f"{written:,} of {len(names):,} groups written")


def heartbeats(shape: History) -> list[HeartbeatRequest]:
    """Give the steady heartbeat of each member."""
    group = shape.group
    return [
        HeartbeatRequest(
            protocol_version=PROTOCOL_VERSION,
            request_id=f"bench-{member_id}",
            member_id=member_id,
            member_name=member_id,
            member_epoch=group.members[member_id].member_epoch,
            metadata_version=group.metadata_version,
            runtime_consumer_capacity=CAPACITY,
            owned_shards=tuple(Shard(shard_index=shard) for shard in group.view(member_id)[0]),
            revoking_shards=(),
            shard_progress=(),
        )
        for member_id in group.active()
    ]


def requests_of(shape: History, names: Sequence[GroupKey]) -> list[Request]:
    """Give the steady heartbeats of all members of planted groups, those of one member id next to each other."""
    bodies = [(body.member_id, msgspec.json.encode(body)) for body in heartbeats(shape)]
    return [Request(heartbeat_path(name, member), body) for member, body in bodies for name in names]


def _plant_stream(store: Store, key: StreamKey, groups: Iterable[GroupKey], shape: History) -> dict[str, int]:
    """Create a stream and register its groups; gives the registration of each."""
    identity, shards = store.identity(), shape.group.shard_count
    commands: list[StreamCommand] = [CreateStream(shard_count=shards, start_from="$", requested_by=BY)]
    commands += [
        RegisterGroup(consumer_group=each.consumer_group, start_from="$", how="create", limit=100_000) for each in groups
    ]
    state: Stream | None = None
    revisions: list[Revision] = []
    for number, command in enumerate(commands, 1):
        at = BEGINNING_MS + number
        decision = decide(state, command, _moment(at, number, identity), key=key)
        assert isinstance(decision, Accepted), decision
        assert isinstance(decision.after, Stream)
        state = decision.after
        revisions.append(Revision(number, at, decision.events))
    assert state is not None, "a stream was created"
    commit_log(store, key, revisions, encode(state), ())
    return {name: registered.registered_revision for name, registered in state.groups.items()}


def _plant_group(store: Store, key: GroupKey, shape: History, *, registration: int) -> None:
    created = shape.revisions[0]
    own = tuple(
        msgspec.structs.replace(event, registration=registration) if isinstance(event, GroupCreated) else event
        for event in created.events
    )
    group = replace(shape.group, stream_prefix=key.stream_prefix, consumer_group=key.consumer_group, registration=registration)
    revisions = [replace(created, events=own), *shape.revisions[1:]]
    commit_log(store, key, revisions, encode(group), tuple(group.members))


def commit_log(
    store: Store, key: AggregateKey, revisions: Iterable[Revision], aggregate: bytes, members: tuple[str, ...]
) -> None:
    """Write a whole log and the aggregate that it folds into, by one commit; these members get leases."""
    outcome = store.commit(
        Commit(
            key=key,
            expected=EMPTY_HEAD,
            identity=store.identity(),
            commit_id=f"bench-{key}",
            entries=tuple(sealed(revisions, prev=GENESIS)),
            aggregate=aggregate,
            leases=LeaseChanges(ttl_ms=HOUR_MS, renew=members),
        )
    )
    assert isinstance(outcome, Committed), outcome


def sealed(revisions: Iterable[Revision], *, prev: str) -> list[Entry]:
    """Give the stored entries of some revisions; `prev`: the chain value before them."""
    entries: list[Entry] = []
    for revision in revisions:
        entries += codec.seal(revision.events, revision=revision.number, first=0, at=revision.at, cause=CAUSE, prev=prev)
        prev = entries[-1].chain
    return entries


def _moment(now: int, revision: int, identity: str) -> Moment:
    return Moment(now=now, identity=identity, revision=revision, policy=POLICY)
