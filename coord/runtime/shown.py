"""Aggregates as the HTTP contract shows them; one derivation for API, CLI and dashboards."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import UTC, datetime

from coord.core.decision import Policy
from coord.core.invariants import broken
from coord.projections.group import Group, Member
from coord.projections.stored import by_member
from coord.projections.stream import Resharding, Stream
from coord.store.base import Soft
from coord.streams.shards import shard_key, slot_of
from coord.wire import (
    AssignmentsResponse,
    GroupResponse,
    GroupState,
    MemberMetadata,
    Migration,
    ProducerRoutingResponse,
    RevokeProgress,
    Shard,
    ShardProgress,
    ShardRoute,
    StreamCreateResponse,
    StreamScaleResponse,
    StreamSummary,
    shard,
)


def iso(ms: int) -> str:
    """Give ISO-8601 UTC with milliseconds."""
    return datetime.fromtimestamp(ms / 1000, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def shards(indices: Iterable[int]) -> tuple[Shard, ...]:
    """Give shards as the wire has them, ascending."""
    return tuple(map(shard, sorted(indices)))


def group_state(group: Group) -> GroupState:
    """Give the group's state; the first that matches."""
    if not any(member.state == "ACTIVE" for member in group.members.values()):
        return "EMPTY"
    if group.correction is not None or any(hold.phase == "REVOKING" for hold in group.ownership.values()):
        return "RECONCILING"
    if any(shard not in group.ownership for shard in group.target):
        return "ASSIGNING"
    return "STABLE"


def group(state: Group, stream_state: Stream | None) -> GroupResponse:
    """Give a group's summary; its active migration is the stream's."""
    active = stream_state.resharding if stream_state is not None else None
    members = Counter(member.state for member in state.members.values())
    current = Counter(hold.member_id for hold in state.ownership.values())
    return GroupResponse(
        stream_prefix=state.stream_prefix,
        consumer_group=state.consumer_group,
        state=group_state(state),
        group_epoch=state.group_epoch,
        assignment_epoch=state.assignment_epoch,
        metadata_version=state.metadata_version,
        shard_count=state.shard_count,
        active_migration=migration(active) if active is not None else None,
        target_assignment_summary=dict(sorted(Counter(state.target.values()).items())),
        current_assignment_summary=dict(sorted(current.items())),
        read_shard_count=len(state.read_set),
        store_revision=state.store_revision,
        active_members=members["ACTIVE"],
        expired_members=members["EXPIRED"],
        revoking_shards=sum(hold.phase == "REVOKING" for hold in state.ownership.values()),
    )


def migration(resharding: Resharding, blockers: tuple[str, ...] = ()) -> Migration:
    """Give a resharding as a group sees it."""
    return Migration(
        resharding_id=resharding.resharding_id,
        from_shard_count=resharding.from_shard_count,
        to_shard_count=resharding.to_shard_count,
        state=resharding.state,
        created_at=iso(resharding.created_at),
        updated_at=iso(resharding.updated_at),
        drain_blockers=blockers,
        requested_by=resharding.requested_by,
        reason=resharding.reason,
    )


def created(state: Stream) -> StreamCreateResponse:
    """Give a stream as it was made."""
    return StreamCreateResponse(
        stream_prefix=state.stream_prefix, shard_count=state.shard_count, metadata_version=state.metadata_version
    )


def scaled(state: Stream, resharding: Resharding) -> StreamScaleResponse:
    """Give a scale's answer: one migration a group."""
    groups = tuple(sorted(state.groups))
    return StreamScaleResponse(
        stream_prefix=state.stream_prefix,
        target_shard_count=resharding.to_shard_count,
        affected_consumer_groups=groups,
        migrations=tuple(migration(resharding) for _ in groups),
    )


def stream(state: Stream) -> StreamSummary:
    """Give a stream's summary; its state is that of its resharding, else STABLE."""
    return StreamSummary(
        stream_prefix=state.stream_prefix,
        shard_count=state.shard_count,
        read_shard_count=len(state.read_set),
        metadata_version=state.metadata_version,
        store_revision=state.store_revision,
        state=state.resharding.state if state.resharding is not None else "STABLE",
        active_resharding_id=state.resharding.resharding_id if state.resharding is not None else None,
        consumer_groups=tuple(sorted(state.groups)),
    )


def routing(state: Stream, consumer_group: str | None) -> ProducerRoutingResponse:
    """Give the write set for producers."""
    keys = [shard_key(state.stream_prefix, index) for index in range(state.shard_count)]
    return ProducerRoutingResponse(
        stream_prefix=state.stream_prefix,
        metadata_version=state.metadata_version,
        shard_count=state.shard_count,
        stream_key_pattern=f"{state.stream_prefix}:{{shardIndex}}",
        shards=tuple(ShardRoute(shard_index=index, stream_key=key, redis_slot=slot_of(key)) for index, key in enumerate(keys)),
        consumer_group=consumer_group,
    )


def member(
    state: Group,
    record: Member,
    soft: Soft,
    policy: Policy,
    *,
    free: int | None,
    progress: tuple[ShardProgress, ...],
) -> MemberMetadata:
    """Give one member. The last heartbeat is what the lease was renewed by."""
    deadline = soft.leases.get(record.member_id)
    revoking = state.in_phase(record.member_id, "REVOKING")
    deadlines = [state.ownership[shard].deadline_at for shard in revoking]
    return MemberMetadata(
        member_id=record.member_id,
        member_name=record.member_name,
        state=record.state,
        member_epoch=record.member_epoch,
        metadata_version=state.metadata_version,
        runtime_max_concurrency=record.runtime_max_concurrency,
        active_consumer_workers=None if free is None else max(record.runtime_max_concurrency - free, 0),
        current_assignment=shards(record.current_assignment),
        granted_assignment=shards(state.in_phase(record.member_id, "ASSIGNED")),
        revoking=shards(revoking),
        last_heartbeat_at=None if deadline is None else iso(deadline - policy.member_lease_ttl_ms),
        member_lease_expires_at=None if deadline is None else iso(deadline),
        rebalance_timeout_ms=policy.rebalance_timeout_ms,
        rebalance_deadline_at=iso(min(deadlines)) if deadlines else None,
        shard_progress=progress,
    )


def assignments(state: Group) -> AssignmentsResponse:
    """Give where each shard should be, where it is, and what is broken."""
    revoking = sorted((shard, hold) for shard, hold in state.ownership.items() if hold.phase == "REVOKING")
    return AssignmentsResponse(
        target_assignment={member_id: shards(owned) for member_id, owned in sorted(by_member(state.target).items())},
        current_assignments={member_id: shards(owned) for member_id, owned in sorted(state.held.items())},
        revoke_progress=tuple(
            RevokeProgress(member_id=hold.member_id, shard=Shard(shard_index=shard), deadline_at=iso(hold.deadline_at))
            for shard, hold in revoking
        ),
        invariant_violations=tuple(broken(state)),
    )
