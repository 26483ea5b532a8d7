"""When time alone will next change a group: the counterpart of what a `Tick` does, apart from leases, which the store watches.

A group need not be ticked before that, since every decision has settled it. Source: design page `protocol.md`, "Time".
"""

from __future__ import annotations

from collections.abc import Iterator

from coord.core.decision import Policy
from coord.projections.group import Group, Hold

FENCEABLE = ("ACTIVE", "LEAVING")
"""States in which a member may be turned away."""


def next_deadline(group: Group, policy: Policy) -> int | None:
    """Give the time (ms, store clock) from which a tick may change this group although no lease lapses; None: never.

    It holds for this revision of the group, and while the store is the one that it was last written under.
    """
    return min(_deadlines(group, policy), default=None)


def _deadlines(group: Group, policy: Policy) -> Iterator[int]:
    """1. The end of a round.  2. Grants that a new life had to wait for.  3. Late revocations, late reporters.  4. Pruning."""
    if group.correction is not None:
        yield group.correction.until + 1
    if group.updated_at <= group.grants_from and group.target.keys() - group.ownership.keys():
        yield group.grants_from + 1
    for shard, hold in group.ownership.items():
        if hold.phase == "REVOKING" and group.members[hold.member_id].state in FENCEABLE:
            yield revoked_by(group, policy, shard, hold)
    for member_id in group.reporters:
        member = group.members[member_id]
        if member.state in FENCEABLE:
            yield member.foreign_since + policy.rebalance_timeout_ms + 1
    for member in group.members.values():
        if member.state == "EXPIRED":
            yield member.state_since + policy.stale_member_retention_ms


def revoked_by(group: Group, policy: Policy, shard: int, hold: Hold) -> int:
    """Give when a shard must be let go: its holder gets its whole time from when it may be freed at all.

    What an elder process may still read is not freed before that one's lease is over; a shorter rebalance timeout would fence the
    holder, which would join again, for ever.
    """
    member = group.members[hold.member_id]
    if shard not in member.elder:
        return hold.deadline_at
    return max(hold.deadline_at, member.elder_until + policy.rebalance_timeout_ms)
