"""Who should hold a shard, who does, and the only ways in which one changes into the other.

Rules marked [R] carry the promise that no shard is read by two live members. Source: design page `protocol.md`, "Settle",
"Freeing by a report", "Quarantine".
"""

from __future__ import annotations

from coord.core.assignors import Before, sticky_moves
from coord.core.course import GroupCourse
from coord.events.catalog import RevocationRequested, Shards, ShardsFreed, ShardsGranted, TargetComputed
from coord.projections.group import Member

REASONS_TOLD = 5
"""How many of the reasons for a new target its event names."""


def _retarget(course: GroupCourse) -> None:
    """Compute a new target for all that asked for one."""
    group = course.group
    reasons, course.target_reasons = course.target_reasons, []
    more = len(reasons) - REASONS_TOLD
    reason = ", ".join(reasons[:REASONS_TOLD]) + (f" and {more} more" if more > 0 else "")
    moves = sticky_moves(group.read_set, group.active(), Before(group.target, group.targeted), group.ownership)
    course.record(TargetComputed(epoch=group.epoch + 1, reason=reason, moves=moves.gained, unassigned=moves.unassigned))


def settle(course: GroupCourse) -> None:
    """Move ownership towards the target, as far as it goes without asking anybody.

    1. The target is computed anew where something asked for that.
    2. What is on record for a member that is not its target, or not ACTIVE, becomes REVOKING.
    3. What is free goes on record for its target, unless a correction round is open [R], the shard is quarantined [R], or
       leases of a deleted predecessor may still run [R].
    """
    revoke_misplaced(course)
    if course.group.correction is None and course.now > course.group.grants_from:
        _grant_free(course)


def revoke_misplaced(course: GroupCourse) -> None:
    """Carry out the first two steps of settling: nothing is granted."""
    if course.target_reasons:
        _retarget(course)
    deadline_at = course.now + course.policy.rebalance_timeout_ms
    ownership = course.group.ownership
    for member_id, strays in sorted(course.group.strays().items()):
        if shards := tuple(sorted(shard for shard in strays if ownership[shard].phase == "ASSIGNED")):
            course.record(
                RevocationRequested(
                    member_id=member_id, member_epoch=course.epoch_for(member_id), shards=shards, deadline_at=deadline_at
                )
            )


def _grant_free(course: GroupCourse) -> None:
    group = course.group
    free: dict[str, Shards] = {}
    for member_id, lacking in sorted(group.lacks().items()):
        if shards := tuple(sorted(s for s in lacking if s not in group.ownership and not group.quarantined(s, member_id))):
            free[member_id] = shards
    for member_id, shards in free.items():
        course.record(ShardsGranted(member_id=member_id, member_epoch=course.epoch_for(member_id), shards=shards))


def foreign_to(course: GroupCourse, member: Member, named: frozenset[int]) -> Shards:
    """Give the shards that a report names without their being on record for the member.

    While an elder process under the same id may still run, so are those that this one had named: it may be draining them yet [R].
    """
    elder = frozenset(member.elder) if course.now <= member.elder_until else frozenset()
    return tuple(sorted((named | elder) - course.group.shards_of(member.member_id)))


def free_reported(course: GroupCourse, member: Member, *, epoch: int, owned: frozenset[int], draining: frozenset[int]) -> None:
    """Free what a report at `epoch` gives up [R].

    That is a shard that is REVOKING, of which the holder was told at or before that epoch, which it neither owns nor drains.
    """
    ownership = course.group.ownership
    given_up = [
        shard
        for shard in course.group.shards_of(member.member_id)
        if ownership[shard].phase == "REVOKING" and epoch >= ownership[shard].since_epoch and shard not in owned
    ]
    _free(course, member, given_up, kept=draining, reason="REPORTED")


def free_left(course: GroupCourse, member: Member, *, kept: frozenset[int]) -> None:
    """Free what a leaving member does not keep: a leave frees without having been told of a revocation."""
    _free(course, member, list(course.group.shards_of(member.member_id)), kept=kept, reason="LEFT")


def free_all(course: GroupCourse, member_id: str, reason: str) -> None:
    """Free everything that a member holds: its lease has lapsed."""
    if shards := course.group.shards_of(member_id):
        course.record(ShardsFreed(member_id=member_id, shards=tuple(sorted(shards)), reason=reason))


def _free(course: GroupCourse, member: Member, shards: list[int], *, kept: frozenset[int], reason: str) -> None:
    """Free those shards that may be [R].

    Not while an elder process under the same id, which held the shard before this one joined, may still read it; not while it
    is `kept`, unless it was REVOKING when the member joined again: epoch 0 said that its drain had ended.
    """
    elder_runs = course.now <= member.elder_until
    freed = tuple(
        sorted(
            shard
            for shard in shards
            if not (elder_runs and shard in member.elder) and (shard not in kept or shard in member.abandoned)
        )
    )
    if freed:
        course.record(ShardsFreed(member_id=member.member_id, shards=freed, reason=reason))
