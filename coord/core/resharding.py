"""The resharding of a stream, which its groups follow: one rule a step.

PREPARING -> ACTIVE -> DRAINING -> DEPRECATED, or back: ROLLED_BACK at once from PREPARING, by ROLLING_BACK from ACTIVE. Every
step is one event on the stream's log, and each may be taken by anybody who reads the record: a crash between two of them
leaves nothing to repair. Source: design page `protocol.md`, "Streams, groups and resharding".
"""

from __future__ import annotations

from coord.core.commands import (
    Activate,
    Complete,
    EndResharding,
    ProveDrain,
    ReopenShards,
    Rollback,
    Scale,
    StartDrain,
)
from coord.core.course import StreamCourse
from coord.events import catalog as fact
from coord.events.catalog import Shards
from coord.projections.stream import Resharding, Stream
from coord.refusals import Code, Refused

NOOP_ID = "noop"


def scale(course: StreamCourse, command: Scale) -> Resharding | Refused:
    """Begin a resharding (PREPARING); the same target while PREPARING is the same one, the same count is none."""
    stream, active = course.stream, course.stream.resharding
    if active is not None:
        if active.state == "PREPARING" and active.to_shard_count == command.target_shard_count:
            return active
        return Refused(
            Code.ACTIVE_MIGRATION_EXISTS,
            f"stream {stream.stream_prefix} is in resharding {active.resharding_id} "
            f"({active.from_shard_count} to {active.to_shard_count}, {active.state})",
        )
    if command.target_shard_count == stream.shard_count:
        return _noop(course, command)
    course.record(
        fact.ReshardingRequested(
            resharding_id=command.resharding_id,
            from_shard_count=stream.shard_count,
            to_shard_count=command.target_shard_count,
            requested_by=command.requested_by,
            reason=command.reason,
        )
    )
    return _current(course)


def _noop(course: StreamCourse, command: Scale) -> Resharding:
    """Same count: a migration that never was, for the answer only."""
    return Resharding(
        resharding_id=NOOP_ID,
        from_shard_count=course.stream.shard_count,
        to_shard_count=course.stream.shard_count,
        state="DEPRECATED",
        created_at=course.moment.now,
        updated_at=course.moment.now,
        activated_at=0,
        drained=True,
        forced_by=None,
        blockers_passed=False,
        requested_by=command.requested_by,
        reason=command.reason,
    )


def activate(course: StreamCourse, command: Activate) -> Resharding | Refused | None:
    """Flip the write set (ACTIVE), now that every new shard has every registered group's Redis consumer group."""
    active = course.stream.resharding
    if active is None or active.resharding_id != command.resharding_id or active.state != "PREPARING":
        return active
    if missing := sorted(course.stream.groups.keys() - command.provisioned):
        return Refused(Code.STATE_VERSION_CONFLICT, f"groups were registered meanwhile: {', '.join(missing)}")
    course.record(
        fact.TopologyActivated(
            resharding_id=active.resharding_id,
            shard_count=active.to_shard_count,
            read_set=_union(course.stream, max(active.from_shard_count, active.to_shard_count)),
        )
    )
    return _current(course)


def start_drain(course: StreamCourse, command: StartDrain) -> Resharding | None:
    """Begin to drain (DRAINING), once the routing grace has passed since the flip."""
    active = course.stream.resharding
    grace_ms = course.moment.policy.routing_grace_ms
    if (
        active is not None
        and active.resharding_id == command.resharding_id
        and active.state == "ACTIVE"
        and course.moment.now - active.activated_at >= grace_ms
    ):
        course.record(fact.DrainStarted(resharding_id=active.resharding_id))
    return course.stream.resharding


def prove(course: StreamCourse, command: ProveDrain) -> Resharding | None:
    """Take shards out of the read set that were seen drained twice, a routing grace apart.

    A late producer would have written between the two looks.
    """
    stream, active = course.stream, course.stream.resharding
    seen_apart = course.moment.now - command.first_seen_at >= course.moment.policy.routing_grace_ms
    if command.resharding_id is None:
        drained = tuple(s for s in command.shards if s in stream.reopened)
        if drained and seen_apart:
            _drained(course, None, drained, command.first_seen_at)
        return active
    if active is None or active.resharding_id != command.resharding_id or active.drained:
        return active
    if active.state not in ("DRAINING", "ROLLING_BACK"):
        return active
    leaving = tuple(active.leaving)
    if not leaving or (seen_apart and set(leaving) <= set(command.shards)):
        _drained(course, active.resharding_id, leaving, command.first_seen_at)
    return course.stream.resharding


def _drained(
    course: StreamCourse,
    resharding_id: str | None,
    shards: Shards,
    first_seen_at: int,
    forced_by: str | None = None,
    blockers: tuple[str, ...] = (),
) -> None:
    course.record(
        fact.DrainProved(
            resharding_id=resharding_id,
            shards=shards,
            read_set=tuple(s for s in course.stream.read_set if s not in shards),
            first_seen_at=first_seen_at,
            forced_by=forced_by,
            blockers=blockers,
        )
    )


def end(course: StreamCourse, command: EndResharding) -> Resharding | None:
    """End it (DEPRECATED, ROLLED_BACK): its shards are drained, and on record nowhere. They are watched from now on."""
    active = course.stream.resharding
    if active is None or active.resharding_id != command.resharding_id or not active.drained:
        return active
    course.record(
        fact.ReshardingEnded(
            resharding_id=active.resharding_id,
            state="ROLLED_BACK" if active.state == "ROLLING_BACK" else "DEPRECATED",
            retired=tuple(active.leaving),
            watch_until=course.moment.now + (0 if active.blockers_passed else course.moment.policy.watch_retired_ms),
            forced_by=active.forced_by,
        )
    )
    return active


def roll_back(course: StreamCourse, command: Rollback) -> Resharding | Refused:
    """Turn back from PREPARING (at once) or ACTIVE (by draining what was added); asked again, the record again."""
    stream = course.stream
    migration = stream.migration(command.resharding_id)
    if migration is None:
        return _no_migration(stream, command.resharding_id)
    if migration.state in ("ROLLING_BACK", "ROLLED_BACK"):
        return migration
    if migration.state not in ("PREPARING", "ACTIVE"):
        return Refused(
            Code.ROLLBACK_NOT_ALLOWED,
            f"resharding {migration.resharding_id} is {migration.state}; only PREPARING or ACTIVE roll back",
        )
    was_active = migration.state == "ACTIVE"
    course.record(
        fact.RollbackRequested(
            resharding_id=migration.resharding_id,
            state="ROLLING_BACK" if was_active else "ROLLED_BACK",
            shard_count=migration.from_shard_count,
            read_set=_union(stream, max(migration.from_shard_count, migration.to_shard_count)) if was_active else stream.read_set,
            requested_by=command.requested_by,
            reason=command.reason,
        )
    )
    return migration


def complete(course: StreamCourse, command: Complete) -> Resharding | Refused:
    """Take an operator's word for a drain that cannot be proved; with `force` past named blockers."""
    stream = course.stream
    migration = stream.migration(command.resharding_id)
    if migration is None:
        return _no_migration(stream, command.resharding_id)
    if migration.state not in ("DRAINING", "ROLLING_BACK"):
        return Refused(
            Code.COMPLETION_NOT_ALLOWED,
            f"resharding {migration.resharding_id} is {migration.state}; only DRAINING or ROLLING_BACK can be completed",
        )
    if migration.drained:
        return migration
    if command.blockers and not command.force:
        return Refused(
            Code.COMPLETION_NOT_ALLOWED, f"blockers remain: {'; '.join(command.blockers[:5])}", details=command.blockers
        )
    _drained(
        course,
        migration.resharding_id,
        tuple(migration.leaving),
        course.moment.now,
        forced_by=command.requested_by,
        blockers=command.blockers,
    )
    return migration


def reopen(course: StreamCourse, command: ReopenShards) -> None:
    """Put shards back into the read set, because something unread was found on them."""
    found = tuple(s for s in command.shards if s not in course.stream.read_set)
    if found:
        read_set = tuple(sorted({*course.stream.read_set, *found}))
        course.record(fact.ShardReopened(shards=found, read_set=read_set, reason=command.reason))


def _union(stream: Stream, count: int) -> Shards:
    """The read set while a resharding is under way: both write sets, and what is reopened."""
    return tuple(sorted({*range(count), *stream.reopened}))


def _current(course: StreamCourse) -> Resharding:
    assert course.stream.resharding is not None
    return course.stream.resharding


def _no_migration(stream: Stream, resharding_id: str) -> Refused:
    return Refused(Code.MIGRATION_NOT_FOUND, f"stream {stream.stream_prefix} has no resharding {resharding_id}")
