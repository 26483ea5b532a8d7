"""Streams: creation, deletion, the list of groups, and the way of each command that changes one.

Source: design page `protocol.md`, "Streams, groups and resharding".
"""

from __future__ import annotations

from typing import assert_never

from coord.core import resharding
from coord.core.commands import (
    Activate,
    Complete,
    CreateStream,
    DeleteStream,
    EndResharding,
    ForgetRetiredShard,
    ObserveIdentity,
    ProveDrain,
    RegisterGroup,
    RemoveGroup,
    ReopenShards,
    Rollback,
    Scale,
    StartDrain,
    StreamCommand,
)
from coord.core.correction import MICROSECONDS_PER_MS
from coord.core.course import StreamCourse
from coord.core.decision import Accepted, Decision, Done, Moment
from coord.events import catalog as fact
from coord.names import StreamKey
from coord.projections.aggregate import evolve
from coord.projections.stream import Resharding, Stream
from coord.refusals import Code, Refused


def create_stream(state: Stream | None, command: CreateStream, moment: Moment, key: StreamKey) -> Decision:
    """Create a stream, or adopt one whose shard keys exist; its version goes on from a tombstone's."""
    if state is not None:
        return Refused(Code.STREAM_PREFIX_ALREADY_EXISTS, f"stream {key} exists already")
    version = max(moment.past.metadata_version if moment.past else 0, command.metadata_version_floor) + 1
    event: fact.StreamCreated | fact.StreamAdopted
    if command.adopted:
        event = fact.StreamAdopted(
            shard_count=command.shard_count,
            metadata_version=version,
            identity=moment.identity,
            requested_by=command.requested_by,
            reason=command.reason,
        )
    else:
        event = fact.StreamCreated(
            shard_count=command.shard_count,
            metadata_version=version,
            identity=moment.identity,
            start_from=command.start_from,
            requested_by=command.requested_by,
            reason=command.reason,
        )
    after = evolve(None, event, key=key, revision=moment.revision, at=moment.now)
    return Accepted(events=(event,), reply=Done(), after=after)


def delete_stream(state: Stream, command: DeleteStream) -> Decision:
    """Delete a stream without groups; its shard keys stay."""
    if state.groups:
        names = sorted(state.groups)
        return Refused(
            Code.STREAM_HAS_GROUPS, f"stream {state.stream_prefix} has groups: {', '.join(names[:5])}", details=tuple(names)
        )
    event = fact.StreamDeleted(metadata_version=state.metadata_version, requested_by=command.requested_by, reason=command.reason)
    return Accepted(events=(event,), reply=Done(), after=None)


def change_stream(state: Stream, command: StreamCommand, moment: Moment) -> Decision:
    """Carry out a command on a stream that exists. A change of the store's identity is noted before anything else."""
    course = StreamCourse(state, moment)
    if moment.identity != state.identity:
        version = max(state.metadata_version + 1, moment.now * MICROSECONDS_PER_MS)
        course.record(fact.StreamIdentityChanged(identity=moment.identity, metadata_version=version))
    outcome = _change(course, command)
    if isinstance(outcome, Refused):
        return outcome
    migration = outcome
    if migration is not None:
        migration = course.stream.migration(migration.resharding_id) or migration
    return Accepted(events=tuple(course.events), reply=Done(migration=migration), after=course.stream)


def _change(course: StreamCourse, command: StreamCommand) -> Resharding | Refused | None:  # noqa: C901, PLR0911, PLR0912 one case a command
    match command:
        case RegisterGroup():
            return _register(course, command)
        case RemoveGroup():
            registered = course.stream.groups.get(command.consumer_group)
            if registered is not None and registered.registered_revision == command.registration:
                course.record(fact.GroupRemoved(consumer_group=command.consumer_group))
            return None
        case Scale():
            return resharding.scale(course, command)
        case Activate():
            return resharding.activate(course, command)
        case StartDrain():
            return resharding.start_drain(course, command)
        case ProveDrain():
            return resharding.prove(course, command)
        case EndResharding():
            return resharding.end(course, command)
        case Rollback():
            return resharding.roll_back(course, command)
        case Complete():
            return resharding.complete(course, command)
        case ReopenShards():
            resharding.reopen(course, command)
            return None
        case ForgetRetiredShard():
            if str(command.shard) in course.stream.retired and command.shard not in course.stream.read_set:
                course.record(fact.RetiredShardDeleted(shard=command.shard))
            return None
        case ObserveIdentity():
            return None
        case CreateStream() | DeleteStream():
            message = "creation and deletion are decided apart"
            raise AssertionError(message)
        case _:
            assert_never(command)


def _register(course: StreamCourse, command: RegisterGroup) -> Refused | None:
    groups = course.stream.groups
    if command.consumer_group in groups:
        return None
    if len(groups) >= command.limit:
        return Refused(Code.GROUP_LIMIT_REACHED, f"stream {course.stream.stream_prefix} has {len(groups)} groups already")
    course.record(fact.GroupRegistered(consumer_group=command.consumer_group, start_from=command.start_from, how=command.how))
    return None
