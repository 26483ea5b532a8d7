"""The heartbeat table, row by row, in order. Source: design page `protocol.md`, "A heartbeat, in order".

Each row records on the course what it changes; the answer is read off the settled state afterwards. Rows 0 (cannot be decided
now) and 3 (the group is registered first) belong to the shell; what decides row 3 is `may_register`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coord.core.commands import Heartbeat
from coord.core.correction import acknowledge, open_by_report
from coord.core.course import GroupCourse
from coord.core.decision import HeartbeatReply, Policy
from coord.core.membership import fence, join, leave, rejoin, report
from coord.events.catalog import Shards
from coord.names import JOIN, LEAVE
from coord.projections.group import Group, Member
from coord.projections.stream import Stream
from coord.wire import PROTOCOL_VERSION, HeartbeatStatus

STATUS: Final[Mapping[int, HeartbeatStatus]] = {
    0: "RETRY",
    1: "UNSUPPORTED_PROTOCOL",
    2: "INVALID_REQUEST",
    3: "OK",
    4: "UNKNOWN_MEMBER_ID",
    5: "SYNC_METADATA",
    6: "OK",
    7: "RETRY",
    8: "OK",
    9: "UNKNOWN_MEMBER_ID",
    10: "FENCED_MEMBER_EPOCH",
    11: "FENCED_MEMBER_EPOCH",
    12: "OK",
    13: "FENCED_MEMBER_EPOCH",
    14: "SYNC_METADATA",
    15: "FENCED_MEMBER_EPOCH",
    16: "FENCED_MEMBER_EPOCH",
    17: "OK",
}
"""What each row answers, no round being open."""
RENEWS: Final = frozenset({5, 6, 8, 12, 14, 17})
"""Rows that renew the lease."""
JOINS: Final = frozenset({6, 8})
ECHOES: Final = frozenset({0, 1, 2, 4, 7, 9})
"""Rows that know no epoch of the member, or may not tell it, and echo the request's."""


def may_register(command: Heartbeat, stream: Stream | None, *, was_deleted: bool, policy: Policy) -> bool:
    """Row 3: tell whether a heartbeat for a group that does not exist brings it into being."""
    return (
        command.member_epoch == JOIN
        and stream is not None
        and not was_deleted
        and policy.auto_register
        and len(stream.groups) < policy.groups_per_stream
    )


def without_group(command: Heartbeat) -> int:
    """Rows 1, 2 and 4: there is no such group."""
    return _unserved(command) or 4


def heartbeat(course: GroupCourse, command: Heartbeat) -> int:
    """Give the row that fires for a heartbeat of an existing group, recording what it changes."""
    member = course.group.members.get(command.member_id)
    if row := _unserved(command):
        return row
    if command.member_epoch == JOIN:
        return _joining(course, command, member)
    if member is None:
        return 9
    if _knows_more(course.group, member, command):
        open_by_report(course, reason=f"{member.member_id} reported a newer epoch or metadata version")
        acknowledge(course, member.member_id, command)
        return 5
    if member.state in ("EXPIRED", "FENCED"):
        return 10
    if command.member_epoch == LEAVE:
        if command.metadata_version < member.joined_metadata_version:
            return 11
        leave(course, command, member)
        return 12
    return _present(course, command, member)


def answer(group: Group | None, command: Heartbeat, row: int) -> HeartbeatReply:
    """Read the answer of a row off the settled group.

    While a round is open a member keeps what it holds and starts nothing [R]: it is shown only what it named as owned.
    """
    if group is None:
        return HeartbeatReply(row=row, status=STATUS[row], member_epoch=command.member_epoch)
    status, epoch = STATUS[row], command.member_epoch
    if row not in ECHOES and command.member_id in group.members:
        epoch = group.members[command.member_id].member_epoch
    assigned: Shards = ()
    pending: Shards = ()
    if row in RENEWS and command.member_epoch != LEAVE:
        assigned, pending = group.view(command.member_id)
        if status == "OK" and group.correction is not None:
            status = "REVOKE_PENDING"
        if status != "OK":
            owned = frozenset() if row in JOINS else command.owned
            assigned, pending = tuple(shard for shard in assigned if shard in owned), ()
    return HeartbeatReply(
        row=row,
        status=status,
        member_epoch=LEAVE if row == 12 else epoch,  # noqa: PLR2004  the row's number
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        metadata_version=group.metadata_version,
        assigned=assigned,
        pending=pending,
        renews=row in RENEWS,
    )


def _unserved(command: Heartbeat) -> int:
    """Rows 1 and 2: what is refused whatever the group; 0 when neither fires."""
    if command.protocol_version != PROTOCOL_VERSION:
        return 1
    if command.path_member_id != command.member_id or command.member_epoch < LEAVE:
        return 2
    return 0


def _knows_more(group: Group, member: Member, command: Heartbeat) -> bool:
    """Row 5: an ACTIVE member holds an epoch or a version that this store never issued."""
    return (
        command.member_epoch > JOIN
        and member.state == "ACTIVE"
        and (command.metadata_version > group.metadata_version or command.member_epoch > member.member_epoch)
    )


def _joining(course: GroupCourse, command: Heartbeat, member: Member | None) -> int:
    """Rows 6 to 8: epoch 0."""
    lease = course.moment.leases.get(command.member_id) or 0
    lease_runs = course.now <= lease
    if member is None:
        join(course, command)
        return 8
    if member.state == "ACTIVE" and lease_runs:
        if command.request_id == member.join_request_id:
            return 6
        if member.rejoined_at and course.now - member.rejoined_at < 2 * course.policy.member_lease_ttl_ms:
            return 7
    rejoin(course, command, member, running_until=lease if lease_runs else 0)
    return 8


def _present(course: GroupCourse, command: Heartbeat, member: Member) -> int:
    """Rows 13 to 17: a member reports under an epoch that it was issued."""
    group = course.group
    if member.state == "LEAVING":
        return 13
    if group.correction is not None and command.member_epoch < group.correction.base:
        acknowledge(course, member.member_id, command)
        return 14
    if command.member_epoch < max(member.acked_epoch, member.join_epoch):
        return 15
    if not command.owned <= group.shards_of(member.member_id):
        fence(course, member, reason="UNKNOWN_OWNERSHIP", named=command.owned | command.draining)
        return 16
    report(course, command, member)
    return 17
