"""The metadata correction round: what a store that may have lost acknowledged writes is treated with.

The store stays the truth; nothing is rebuilt from clients, and no number of a client is taken over. Source: design page
`protocol.md`, "Metadata correction".
"""

from __future__ import annotations

from coord.core.commands import Heartbeat
from coord.core.course import GroupCourse
from coord.core.ownership import foreign_to
from coord.events.catalog import CorrectionAcknowledged, CorrectionEnded, CorrectionStarted

MICROSECONDS_PER_MS = 1_000


def keep_up(course: GroupCourse) -> None:
    """Open a round when the store is another one than the group was last written under [R]; end one whose time is over."""
    if course.moment.identity != course.group.identity:
        _open(course, reason="store identity changed", by_report=False)
    elif course.group.correction is not None and course.now > course.group.correction.until:
        course.record(CorrectionEnded(base=course.group.correction.base))


def open_by_report(course: GroupCourse, reason: str) -> None:
    """Open a round because a member knows more than the store: none while one is open, at most one in two leases."""
    quiet_ms = 2 * course.policy.member_lease_ttl_ms
    if course.group.correction is None and course.now - course.group.report_round_at > quiet_ms:
        _open(course, reason=reason, by_report=True)


def acknowledge(course: GroupCourse, member_id: str, command: Heartbeat) -> None:
    """SYNC_METADATA: a fresh epoch, and the report kept as an observation; nothing is freed.

    Whoever is told this takes over the member id, whatever epoch it had: a twin that joined before it is the elder from now
    on, and may read for as long as a lease can run [R].
    """
    held = course.group.shards_of(member_id)
    member = course.group.members[member_id]
    foreign = foreign_to(course, member, command.owned | command.draining)
    course.record(
        CorrectionAcknowledged(
            member_id=member_id,
            member_epoch=course.epoch_for(member_id),
            owned=tuple(sorted(command.owned & held)),
            foreign=foreign,
            elder=tuple(sorted(held.union(foreign))),
            elder_until=course.now + course.policy.member_lease_ttl_ms,
        )
    )


def _open(course: GroupCourse, *, reason: str, by_report: bool) -> None:
    """Jump past every number of a lost future: its clock in microseconds is above any epoch or version ever issued [R]."""
    clock = course.now * MICROSECONDS_PER_MS
    course.record(
        CorrectionStarted(
            base=max(course.group.epoch + 1, clock),
            metadata_version=max(course.group.metadata_version + 1, clock),
            until=course.now + course.policy.member_lease_ttl_ms + course.policy.failover_grace_ms,
            reason=reason,
            identity=course.moment.identity,
            by_report=by_report,
        )
    )
    course.renew_all = True
