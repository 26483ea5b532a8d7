"""Joining, joining again, reporting, leaving, fencing, expiring, pruning. Source: design page `protocol.md`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from coord.core.commands import Heartbeat
from coord.core.course import GroupCourse
from coord.core.deadlines import FENCEABLE, revoked_by
from coord.core.ownership import foreign_to, free_all, free_left, free_reported
from coord.events.catalog import (
    MemberExpired,
    MemberFenced,
    MemberJoined,
    MemberLeaving,
    MemberPruned,
    MemberRejoined,
    MemberUpdated,
    OwnershipReported,
)
from coord.projections.group import Member

UNDER_LEASE: Final = ("ACTIVE", "LEAVING", "FENCED")
"""States in which a process of that id may still touch shards."""


def join(course: GroupCourse, command: Heartbeat) -> None:
    """Row 8, a member that is not on record."""
    course.record(
        MemberJoined(
            member_id=command.member_id,
            member_name=command.member_name or command.member_id,
            member_epoch=course.epoch_for(command.member_id),
            request_id=command.request_id,
            runtime_max_concurrency=command.runtime_max_concurrency,
        )
    )
    course.wants_target(f"{command.member_id} joined")


def rejoin(course: GroupCourse, command: Heartbeat, member: Member, *, running_until: int) -> None:
    """Row 8, a known member: its shards stay on record [R].

    An elder process may read them, and what it was last heard to drain, until `running_until` (0: none).
    """
    held = course.group.shards_of(member.member_id)
    elder_runs = member.state in UNDER_LEASE and running_until > 0
    course.record(
        MemberRejoined(
            member_id=member.member_id,
            member_name=command.member_name or member.member_name,
            member_epoch=course.epoch_for(member.member_id),
            request_id=command.request_id,
            runtime_max_concurrency=command.runtime_max_concurrency,
            elder_until=max(member.elder_until, running_until) if elder_runs else 0,
            elder=tuple(sorted(held.union(member.foreign))) if elder_runs else (),
            foreign=member.foreign if elder_runs else (),
            abandoned=tuple(sorted(course.group.in_phase(member.member_id, "REVOKING"))),
            revoke_deadline_at=course.now + course.policy.rebalance_timeout_ms,
            damped=member.state == "ACTIVE" and running_until > 0,
        )
    )
    if member.state != "ACTIVE":
        course.wants_target(f"{member.member_id} joined again")


def report(course: GroupCourse, command: Heartbeat, member: Member) -> None:
    """Row 17: what the member echoes and holds, and what its report frees."""
    owned = tuple(sorted(command.owned))
    foreign = foreign_to(course, member, command.draining)
    if command.member_epoch != member.acked_epoch or owned != member.current_assignment or foreign != member.foreign:
        course.record(OwnershipReported(member_id=member.member_id, epoch=command.member_epoch, owned=owned, foreign=foreign))
    name = command.member_name or member.member_name
    if name != member.member_name or command.runtime_max_concurrency != member.runtime_max_concurrency:
        course.record(
            MemberUpdated(member_id=member.member_id, member_name=name, runtime_max_concurrency=command.runtime_max_concurrency)
        )
    free_reported(course, member, epoch=command.member_epoch, owned=command.owned, draining=command.draining)


def leave(course: GroupCourse, command: Heartbeat, member: Member) -> None:
    """Row 12: what is owned or drained is kept, the rest goes.

    What is reported REVOKED goes even when it is also named as owned.
    """
    kept = command.draining | (command.owned - command.revoked)
    foreign = foreign_to(course, member, kept)
    was_active = member.state == "ACTIVE"
    if was_active:
        course.record(MemberLeaving(member_id=member.member_id, foreign=foreign))
    elif foreign != member.foreign:
        course.record(OwnershipReported(member_id=member.member_id, epoch=member.acked_epoch, owned=(), foreign=foreign))
    free_left(course, member, kept=kept)
    if was_active:
        course.wants_target(f"{member.member_id} left")


def fence(course: GroupCourse, member: Member, *, reason: str, named: frozenset[int] | None = None) -> None:
    """Turn a member away; its shards stay on record, REVOKING, until it reports after a rejoin or its lease lapses [R].

    `reason`: UNKNOWN_OWNERSHIP, REBALANCE_TIMEOUT or FOREIGN_SHARDS. `named`: the shards of the report, None to keep what is
    recorded.
    """
    foreign = member.foreign if named is None else foreign_to(course, member, named)
    course.record(
        MemberFenced(member_id=member.member_id, member_epoch=course.epoch_for(member.member_id), reason=reason, foreign=foreign)
    )
    if member.state == "ACTIVE":
        course.wants_target(f"{member.member_id} was fenced")


def expire(course: GroupCourse, lapsed: Mapping[str, int]) -> tuple[str, ...]:
    """Expire the members whose lease has lapsed (member -> deadline); give those that were. Their shards are free."""
    expired: list[str] = []
    was_active = False
    for member_id, deadline_at in sorted(lapsed.items()):
        member = course.group.members.get(member_id)
        if member is None or member.state not in UNDER_LEASE or course.now <= deadline_at:
            continue
        course.record(
            MemberExpired(
                member_id=member_id,
                member_epoch=course.epoch_for(member_id),
                lease_deadline_at=deadline_at,
                last_heartbeat_at=deadline_at - course.policy.member_lease_ttl_ms,
            )
        )
        free_all(course, member_id, "EXPIRED")
        was_active |= member.state == "ACTIVE"
        expired.append(member_id)
    if was_active:
        course.wants_target(f"{', '.join(expired)} expired")
    return tuple(expired)


def fence_late(course: GroupCourse) -> None:
    """Fence holders with a shard past its deadline, and reporters whose foreign shards are older than the rebalance timeout."""
    group = course.group
    late = {
        hold.member_id: "REBALANCE_TIMEOUT"
        for shard, hold in group.ownership.items()
        if hold.phase == "REVOKING" and course.now >= revoked_by(group, course.policy, shard, hold)
    }
    for member_id in group.reporters:
        if course.now - group.members[member_id].foreign_since > course.policy.rebalance_timeout_ms:
            late.setdefault(member_id, "FOREIGN_SHARDS")
    for member_id, reason in sorted(late.items()):
        member = course.group.members[member_id]
        if member.state in FENCEABLE:
            fence(course, member, reason=reason)


def prune(course: GroupCourse) -> tuple[str, ...]:
    """Forget EXPIRED members that hold nothing, after their retention; give their ids."""
    retention_ms = course.policy.stale_member_retention_ms
    stale = sorted(
        member.member_id
        for member in course.group.members.values()
        if member.state == "EXPIRED" and course.now - member.state_since >= retention_ms
    )
    for member_id in stale:
        course.record(MemberPruned(member_id=member_id))
    return tuple(stale)
