"""decide: state and command to decision. Pure: everything that a decision depends on is an argument.

The same command decided twice on the same state gives the same events; decided again on the state that it made, it changes
nothing more (a repeated request is harmless).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import assert_never

from coord.core import streams
from coord.core.commands import (
    Command,
    CreateGroup,
    CreateStream,
    DeleteGroup,
    DeleteStream,
    Follow,
    GroupCommand,
    Heartbeat,
    StreamCommand,
    Tick,
)
from coord.core.correction import keep_up
from coord.core.course import GroupCourse
from coord.core.decision import Accepted, Decision, Done, Heard, Leases, Moment
from coord.core.heartbeat import JOINS, RENEWS, answer, heartbeat, without_group
from coord.core.lifecycle import create_group, delete_group, follow
from coord.core.membership import expire, fence_late, prune
from coord.core.ownership import settle
from coord.names import AggregateKey, GroupKey
from coord.projections.aggregate import Aggregate
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.refusals import Code, Refused


def decide(state: Aggregate | None, command: Command, moment: Moment, *, key: AggregateKey) -> Decision:
    """Decide a command on an aggregate (None: it does not exist). The aggregate is left as it was."""
    if isinstance(key, GroupKey):
        assert isinstance(command, GroupCommand)
        assert not isinstance(state, Stream)
        return _decide_group(state, command, moment, key)
    assert isinstance(command, StreamCommand)
    assert not isinstance(state, Group)
    if isinstance(command, CreateStream):
        return streams.create_stream(state, command, moment, key)
    if state is None:
        return Refused(Code.STREAM_NOT_FOUND, f"stream {key} does not exist")
    if isinstance(command, DeleteStream):
        return streams.delete_stream(state, command)
    return streams.change_stream(state, command, moment)


def decide_heartbeats(state: Group | None, commands: Sequence[Heartbeat], moment: Moment) -> Heard:
    """Decide heartbeats of different members of one group together, as if they came at one moment in this order.

    1. Open or end a round.  2. The row that fires, for each.  3. One target and one settling for all.  4. The answers, read off
    the settled state. That nothing is settled in between delays a grant by no more than this decision, and frees nothing.
    """
    assert len({command.member_id for command in commands}) == len(commands), "a member may be heard once in a decision"
    if state is None:
        return Heard(
            events=(), origins=(), replies=tuple(answer(None, each, without_group(each)) for each in commands), after=None
        )
    course = GroupCourse(state, moment)
    known = [command.member_id in state.members for command in commands]
    keep_up(course)
    rows = []
    for course.serving, command in enumerate(commands):
        rows.append(heartbeat(course, command))
    if course.events:
        settle(course)
    leases = Leases(
        renew=tuple(command.member_id for command, row in zip(commands, rows, strict=True) if row in RENEWS),
        unchanged={
            command.member_id: moment.leases.get(command.member_id)
            for command, row, was_known in zip(commands, rows, known, strict=True)
            if was_known and row in JOINS
        },
        renew_all=course.renew_all,
    )
    return Heard(
        events=tuple(course.events),
        origins=tuple(course.origins),
        replies=tuple(answer(course.group, command, row) for command, row in zip(commands, rows, strict=True)),
        after=course.group,
        leases=leases,
    )


def _decide_group(state: Group | None, command: GroupCommand, moment: Moment, key: GroupKey) -> Decision:
    if isinstance(command, CreateGroup):
        return create_group(state, command, moment, key)
    if isinstance(command, Heartbeat):
        heard = decide_heartbeats(state, (command,), moment)
        return Accepted(events=heard.events, reply=heard.replies[0], after=heard.after, leases=heard.leases)
    if state is None:
        return Refused(Code.GROUP_NOT_FOUND, f"group {key} does not exist")
    match command:
        case DeleteGroup():
            if state.correction is not None or moment.identity != state.identity:
                return Refused(Code.METADATA_SYNC_IN_PROGRESS, f"group {key} is in a metadata correction round")
            return delete_group(state, command, moment)
        case Tick():
            return _tick(GroupCourse(state, moment), command)
        case Follow():
            course = GroupCourse(state, moment)
            keep_up(course)
            follow(course, command)
            if course.events:
                settle(course)
            return _accepted(course, Done(), Leases())
        case _:
            assert_never(command)


def _tick(course: GroupCourse, command: Tick) -> Decision:
    """1. Open or end a round.  2. Expire.  3. Fence the late.  4. Prune.  5. Settle, for what only time had held back."""
    keep_up(course)
    opens_round = course.renew_all  # every lease runs for a whole one from now [R]
    expired = () if opens_round else expire(course, command.lapsed)
    if not command.grace:
        fence_late(course)
    pruned = prune(course)
    settle(course)
    return _accepted(course, Done(), Leases(lapsed=expired, remove=(*expired, *pruned)))


def _accepted(course: GroupCourse, reply: Done, leases: Leases) -> Accepted:
    if course.renew_all:
        leases = replace(leases, renew_all=True)
    return Accepted(events=tuple(course.events), reply=reply, after=course.group, leases=leases)
