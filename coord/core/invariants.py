"""What must hold after every event that ends a revision; used by tests, the simulator, the monitoring API and `coord verify`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias

from coord.projections.aggregate import Aggregate
from coord.projections.group import Group, Hold, Member
from coord.projections.stream import Stream

COUNTERS: Final = ("store_revision", "epoch", "group_epoch", "assignment_epoch", "metadata_version")
Counters: TypeAlias = tuple[int, int, int, int, int]
AHEAD: Final = "the group or assignment epoch is ahead of the counter"
NOT_COVERED: Final = "the target does not cover the read set exactly"


def broken(state: Aggregate | None) -> Iterator[str]:
    """Yield each invariant that the state breaks, in words; an empty iterator is health."""
    if isinstance(state, Group):
        yield from _broken_group(state)
    elif isinstance(state, Stream):
        yield from _broken_stream(state)


def backwards(before: Aggregate | None, after: Aggregate | None) -> Iterator[str]:
    """Yield each number that fell between two states of one aggregate; deletions keep theirs in the tombstone."""
    if isinstance(before, Group) and isinstance(after, Group):
        yield from fallen(counters(before), counters(after))
        for member_id, member in before.members.items():
            now = after.members.get(member_id)
            if now is not None and now.member_epoch < member.member_epoch:
                yield f"member epoch of {member_id} fell from {member.member_epoch} to {now.member_epoch}"
    if isinstance(before, Stream) and isinstance(after, Stream):
        for name in ("store_revision", "topology_revision", "metadata_version"):
            if getattr(after, name) < getattr(before, name):
                yield f"{name} fell from {getattr(before, name)} to {getattr(after, name)}"


def counters(group: Group) -> Counters:
    """Give the numbers of a group that never fall, in the order of `COUNTERS`."""
    return (group.store_revision, group.epoch, group.group_epoch, group.assignment_epoch, group.metadata_version)


def fallen(before: Counters, after: Counters) -> Iterator[str]:
    """Yield each counter of a group that fell."""
    for name, then, now in zip(COUNTERS, before, after, strict=True):
        if now < then:
            yield f"{name} fell from {then} to {now}"


def _broken_group(group: Group) -> Iterator[str]:
    yield from _ordered("read set", group.read_set)
    if not set(range(group.shard_count)) <= set(group.read_set):
        yield f"the read set {list(group.read_set)} does not contain the write set of {group.shard_count}"
    if max(group.group_epoch, group.assignment_epoch) > group.epoch:
        yield AHEAD
    if not _indexes(group.held, {shard: hold.member_id for shard, hold in group.ownership.items()}):
        yield "the index of holders differs from ownership"
    if not _indexes(group.targeted, group.target):
        yield "the index of targets differs from the target"
    for shard, hold in group.ownership.items():
        yield from broken_shard(group, shard, hold)
    yield from _broken_target(group)
    for member in group.members.values():
        yield from broken_member(group, member)


def _indexes(index: dict[str, frozenset[int]], owners: dict[int, str]) -> bool:
    """Tell whether an index names each shard once, for its owner."""
    named = {shard: member_id for member_id, shards in index.items() for shard in shards}
    return named == owners and sum(map(len, index.values())) == len(owners)


def broken_shard(group: Group, shard: int, hold: Hold) -> Iterator[str]:
    """Yield what is wrong with a shard on record."""
    member = group.members.get(hold.member_id)
    if member is None:
        yield f"shard {shard} is on record for {hold.member_id}, which is no member"
    elif member.state == "EXPIRED":
        yield f"shard {shard} is on record for {hold.member_id}, which is EXPIRED"
    elif hold.since_epoch > member.member_epoch:
        yield f"shard {shard} is on record since epoch {hold.since_epoch}, which {hold.member_id} was never told"
    elif hold.phase == "ASSIGNED" and (member.state != "ACTIVE" or group.target.get(shard) != hold.member_id):
        yield f"shard {shard} is ASSIGNED to {hold.member_id} against the target"
    if hold.phase == "REVOKING" and hold.deadline_at <= 0:
        yield f"shard {shard} is REVOKING without a deadline"


def _broken_target(group: Group) -> Iterator[str]:
    active = group.active()
    if stray := set(group.target.values()) - set(active):
        yield f"shards are targeted at members that are not ACTIVE: {sorted(stray)}"
    if active and set(group.target) != set(group.read_set):
        yield NOT_COVERED
    if not active and group.target:
        yield "there is a target but no ACTIVE member"
    if active:
        loads = Counter(group.target.values())
        counts = [loads[member_id] for member_id in active]
        if max(counts) - min(counts) > 1:
            yield f"the target is out of balance: {dict(sorted(loads.items()))}"


def broken_member(group: Group, member: Member) -> Iterator[str]:
    """Yield what is wrong with a member's record."""
    who = member.member_id
    if member.member_epoch > group.epoch:
        yield f"{who} is ahead of the group's counter"
    if member.acked_epoch > member.member_epoch or member.join_epoch > member.member_epoch:
        yield f"{who} acknowledged or joined at an epoch that it was never issued"
    if not set(member.current_assignment) <= group.shards_of(who):
        yield f"{who} is recorded as owning shards that are not on record for it"
    if bool(member.foreign) != (member.foreign_since > 0) or bool(member.foreign) != (who in group.reporters):
        yield f"{who}: foreign shards, their time and their index disagree"
    if set(member.abandoned) - group.shards_of(who):
        yield f"{who}: shards that an earlier life abandoned are not on record for it"


def _broken_stream(stream: Stream) -> Iterator[str]:
    yield from _ordered("read set", stream.read_set)
    if not set(range(stream.shard_count)) <= set(stream.read_set):
        yield f"the read set {list(stream.read_set)} does not contain the write set of {stream.shard_count}"
    allowed = {*range(stream.shard_count), *stream.reopened}
    active = stream.resharding
    if active is not None:
        if active.state in ("DEPRECATED", "ROLLED_BACK"):
            yield f"resharding {active.resharding_id} is {active.state} and still active"
        if not active.drained:
            allowed |= set(active.leaving)
        expected = active.from_shard_count if active.state in ("PREPARING", "ROLLING_BACK") else active.to_shard_count
        if stream.shard_count != expected:
            yield f"in state {active.state} the write set is {stream.shard_count}, not {expected}"
    if stray := set(stream.read_set) - allowed:
        yield f"shards {sorted(stray)} are in the read set for no reason"
    if stream.topology_revision > stream.store_revision:
        yield "the topology revision is ahead of the store revision"
    if any(int(shard) < stream.shard_count for shard in stream.retired):
        yield "a shard is retired and in the write set"


def _ordered(what: str, shards: tuple[int, ...]) -> Iterator[str]:
    if list(shards) != sorted(set(shards)):
        yield f"the {what} is not an ascending set: {list(shards)}"
