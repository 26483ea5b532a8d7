"""Taking over a group that another coordinator ran: its members keep their epochs, and go on without joining again.

Every shard that a live member may read there is on record for one member here [R]; nothing free is granted in the same step.
Where two members name one shard, it is on record for who reports it as owned, before who drains it, before who was granted it
and has not reported it; the other one's next report that owns it fences it, as any report of what is not on record. Source:
design page `protocol.md`, "The promise".
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from coord.core.commands import Topology
from coord.core.course import GroupCourse
from coord.core.decision import Accepted, Done, Leases, Moment
from coord.core.invariants import broken
from coord.core.membership import UNDER_LEASE
from coord.core.ownership import revoke_misplaced
from coord.events.catalog import (
    AdoptedMember,
    DrainStarted,
    Event,
    GroupAdopted,
    GroupRegistered,
    ReshardingRequested,
    RollbackRequested,
    Shards,
    StreamAdopted,
    TopologyActivated,
)
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import evolve
from coord.projections.group import Group
from coord.projections.stream import Stream

ForeignState: TypeAlias = Literal["ACTIVE", "STARTING", "LEAVING", "EXPIRED", "FENCED"]
ForeignPhase: TypeAlias = Literal["PREPARING", "ACTIVE", "DRAINING", "ROLLING_BACK"]
START: Final = "$"
"""The groups' Redis consumer groups are there already; one that is lost is healed from the beginning of its shard."""
HOW: Final = "adopt"


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignMember:
    """A member as the other coordinator had it.

    `current`: shards that it last reported as owned; `granted`: those that it was given; `revoking`: those that it is to give up;
    `target`: those that it should have. `lease_until`: as written there, "" for none.
    """

    member_id: str
    member_name: str
    state: ForeignState
    member_epoch: int
    metadata_version: int
    runtime_max_concurrency: int
    current: frozenset[int]
    granted: frozenset[int]
    revoking: frozenset[int]
    target: frozenset[int]
    lease_until: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForeignResharding:
    """A resharding that is under way."""

    resharding_id: str
    from_shard_count: int
    to_shard_count: int
    phase: ForeignPhase


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptStream:
    """Begin a stream around groups that are taken over; its version starts above `metadata_version_floor`."""

    shard_count: int
    resharding: ForeignResharding | None
    groups: tuple[str, ...]
    metadata_version_floor: int
    requested_by: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptGroup:
    """Begin a group as it stands in another coordinator's `source_key`."""

    source_key: str
    registration: int
    topology: Topology
    group_epoch: int
    assignment_epoch: int
    metadata_version: int
    members: tuple[ForeignMember, ...]


def adopt_stream(command: AdoptStream, moment: Moment, key: StreamKey) -> Accepted:
    """Begin a stream that does not exist, in the phase of its resharding, its groups registered: one revision."""
    past = moment.past.metadata_version if moment.past else 0
    active = command.resharding
    before = command.shard_count if active is None else active.from_shard_count
    events: list[Event] = [
        StreamAdopted(
            shard_count=before,
            metadata_version=max(past, command.metadata_version_floor) + 1,
            identity=moment.identity,
            requested_by=command.requested_by,
        )
    ]
    if active is not None:
        events += _resumed(active, command.requested_by)
    events += [GroupRegistered(consumer_group=name, start_from=START, how=HOW) for name in command.groups]
    state: Stream | None = None
    for event in events:
        evolved = evolve(state, event, key=key, revision=moment.revision, at=moment.now)
        assert isinstance(evolved, Stream)
        state = evolved
    return Accepted(events=tuple(events), reply=Done(), after=state)


def _resumed(active: ForeignResharding, requested_by: str) -> list[Event]:
    """Give the steps that lead to where the resharding stands."""
    both = tuple(range(max(active.from_shard_count, active.to_shard_count)))
    requested = ReshardingRequested(
        resharding_id=active.resharding_id,
        from_shard_count=active.from_shard_count,
        to_shard_count=active.to_shard_count,
        requested_by=requested_by,
    )
    if active.phase == "PREPARING":
        return [requested]
    activated = TopologyActivated(resharding_id=active.resharding_id, shard_count=active.to_shard_count, read_set=both)
    if active.phase == "ACTIVE":
        return [requested, activated]
    if active.phase == "DRAINING":
        return [requested, activated, DrainStarted(resharding_id=active.resharding_id)]
    turned = RollbackRequested(
        resharding_id=active.resharding_id,
        state="ROLLING_BACK",
        shard_count=active.from_shard_count,
        read_set=both,
        requested_by=requested_by,
    )
    return [requested, activated, turned]


def adopt_group(command: AdoptGroup, moment: Moment, key: GroupKey) -> Accepted:
    """Begin a group that does not exist. Live members get a whole lease from now; nothing free is granted yet."""
    read_set = frozenset(command.topology.read_set)
    holders = _holders(command.members)
    targets = _targets(command.members, read_set)
    epochs = (command.group_epoch, command.assignment_epoch, *(each.member_epoch for each in command.members))
    versions = (command.metadata_version, *(each.metadata_version for each in command.members))
    event = GroupAdopted(
        source_key=command.source_key,
        registration=command.registration,
        stream_revision=command.topology.stream_revision,
        shard_count=command.topology.shard_count,
        read_set=command.topology.read_set,
        epoch=max(epochs),
        group_epoch=command.group_epoch,
        assignment_epoch=command.assignment_epoch,
        metadata_version=max(versions) + 1,
        revoke_deadline_at=moment.now + moment.policy.rebalance_timeout_ms,
        identity=moment.identity,
        members=tuple(_adopted(each, holders, targets) for each in command.members),
        migration=command.topology.migration,
    )
    begun = evolve(None, event, key=key, revision=moment.revision, at=moment.now)
    assert isinstance(begun, Group)
    course = GroupCourse(begun, moment)
    revoke_misplaced(course)
    if any(broken(course.group)):
        course.wants_target("the target that was taken over does not cover the shards evenly")
        revoke_misplaced(course)
    live = tuple(each.member_id for each in course.group.members.values() if each.state in UNDER_LEASE)
    return Accepted(events=(event, *course.events), reply=Done(), after=course.group, leases=Leases(renew=live))


def _holders(members: Iterable[ForeignMember]) -> Mapping[int, str]:
    """Give shard -> the one member that it is on record for [R]."""
    claims: dict[int, list[tuple[int, bool, str]]] = {}
    for member in members:
        if member.state == "EXPIRED":
            continue
        for strength, shards in enumerate((member.current - member.revoking, member.revoking, member.granted)):
            for shard in shards:
                claims.setdefault(shard, []).append((strength, shard not in member.target, member.member_id))
    return {shard: min(named)[2] for shard, named in claims.items()}


def _targets(members: Iterable[ForeignMember], read_set: frozenset[int]) -> Mapping[int, str]:
    """Give shard -> the one ACTIVE member that should have it."""
    targets: dict[int, str] = {}
    for member in members:
        if _state(member) == "ACTIVE":
            for shard in member.target & read_set:
                targets.setdefault(shard, member.member_id)
    return targets


def _adopted(member: ForeignMember, holders: Mapping[int, str], targets: Mapping[int, str]) -> AdoptedMember:
    """Give a member's record; of what a member that is not ACTIVE holds, everything is to be given up."""
    held = {shard for shard in member.current | member.granted | member.revoking if holders.get(shard) == member.member_id}
    assigned = held - member.revoking if _state(member) == "ACTIVE" else frozenset[int]()
    return AdoptedMember(
        member_id=member.member_id,
        member_name=member.member_name,
        state=_state(member),
        member_epoch=member.member_epoch,
        runtime_max_concurrency=member.runtime_max_concurrency,
        current_assignment=_ascending(member.current & held) if _state(member) == "ACTIVE" else (),
        target=_ascending(shard for shard, name in targets.items() if name == member.member_id),
        assigned=_ascending(assigned),
        revoking=_ascending(held - assigned),
    )


def _state(member: ForeignMember) -> str:
    return "ACTIVE" if member.state == "STARTING" else member.state


def _ascending(shards: Iterable[int]) -> Shards:
    return tuple(sorted(shards))
