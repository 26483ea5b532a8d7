"""A group comes into being, follows its stream, and is deleted. Source: design page `protocol.md`."""

from __future__ import annotations

from dataclasses import replace

from coord.core.commands import CreateGroup, DeleteGroup, Follow, Topology
from coord.core.correction import MICROSECONDS_PER_MS
from coord.core.course import GroupCourse
from coord.core.decision import Accepted, Decision, Done, Leases, Moment
from coord.events.catalog import GroupCreated, GroupDeleted, TopologyFollowed
from coord.names import GroupKey
from coord.projections.aggregate import evolve
from coord.projections.group import Group
from coord.refusals import Code, Refused


def create_group(state: Group | None, command: CreateGroup, moment: Moment, key: GroupKey) -> Decision:
    """Create a group that does not exist.

    Numbers go on from its tombstone, and nothing is granted before that one's last lease has lapsed. Where the store may have
    lost an earlier life of it, they jump to the store's clock, and nothing is granted for a lease and a grace from then [R].
    """
    if state is not None:
        return Refused(Code.GROUP_ALREADY_EXISTS, f"group {key} exists already")
    past = moment.past
    epoch = past.epoch + 1 if past else 1
    metadata_version = past.metadata_version + 1 if past else 1
    grants_from = past.latest_lease if past else 0
    if command.store_changed_at:
        clock = moment.now * MICROSECONDS_PER_MS
        epoch, metadata_version = max(epoch, clock), max(metadata_version, clock)
        lease_and_grace_ms = moment.policy.member_lease_ttl_ms + moment.policy.failover_grace_ms
        grants_from = max(grants_from, command.store_changed_at + lease_and_grace_ms)
    event = GroupCreated(
        registration=command.registration,
        stream_revision=command.topology.stream_revision,
        shard_count=command.topology.shard_count,
        read_set=command.topology.read_set,
        migration=command.topology.migration,
        epoch=epoch,
        metadata_version=metadata_version,
        grants_from=grants_from,
        identity=moment.identity,
        how=command.how,
        requested_by=command.requested_by,
        reason=command.reason,
    )
    after = evolve(None, event, key=key, revision=moment.revision, at=moment.now)
    return Accepted(events=(event,), reply=Done(), after=after)


def delete_group(state: Group, command: DeleteGroup, moment: Moment) -> Decision:
    """Delete a group: refused while a shard is on record or a lease runs, unless forced."""
    live = sorted(state.held) or ([] if moment.latest_lease < moment.now else ["a lease that still runs"])
    if live and not command.force:
        return Refused(
            Code.GROUP_HAS_ACTIVE_MEMBERS,
            f"group {state.stream_prefix}/{state.consumer_group} has live members: {', '.join(live[:5])}",
            details=tuple(live),
        )
    event = GroupDeleted(
        registration=state.registration,
        epoch=state.epoch,
        metadata_version=state.metadata_version,
        latest_lease=max(moment.latest_lease, state.grants_from),
        requested_by=command.requested_by,
        reason=command.reason,
        forced=bool(live),
    )
    leases = Leases(latest_at_most=moment.latest_lease) if live else Leases(none_running=True)
    return Accepted(events=(event,), reply=Done(), after=None, leases=leases)


def follows(group: Group, topology: Topology) -> bool:
    """Tell whether a group is where the stream is.

    The revision alone is no proof, since a store that fell back issues it again.
    """
    return (
        group.stream_revision == topology.stream_revision
        and group.shard_count == topology.shard_count
        and group.read_set == topology.read_set
        and group.migration == topology.migration
    )


def follow(course: GroupCourse, command: Follow) -> None:
    """Take over the stream's topology when the group is behind it.

    When the stream lost the revision that the group had followed, the group keeps the union of both read sets: what it may
    have read from must stay readable until it is drained.
    """
    group, topology = course.group, command.topology
    if command.lost:
        topology = replace(topology, read_set=tuple(sorted({*topology.read_set, *group.read_set})))
    if follows(group, topology) or (topology.stream_revision < group.stream_revision and not command.lost):
        return
    moved = topology.read_set != group.read_set
    course.record(
        TopologyFollowed(
            stream_revision=topology.stream_revision,
            shard_count=topology.shard_count,
            read_set=topology.read_set,
            migration=topology.migration,
        )
    )
    if moved:
        course.wants_target("the stream's shards changed")
