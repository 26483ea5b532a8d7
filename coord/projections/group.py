"""The group aggregate: members, target assignment, ownership, correction round.

In memory a `Group` is a private draft of whoever folds it: `Group.draft()` copies it shallowly (the values inside are
immutable), so that deciding on a copy costs little and replay runs on one draft. What is stored is `StoredGroup`
(`coord.projections.stored`). Source: design page `protocol.md`, "The record, per group".
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import dataclass, field, fields
from typing import Final, Literal, NamedTuple, TypeAlias

from msgspec import Struct

from coord.events.catalog import FollowedMigration, Shards

MemberState: TypeAlias = Literal["ACTIVE", "LEAVING", "EXPIRED", "FENCED"]
Phase: TypeAlias = Literal["ASSIGNED", "REVOKING"]

NO_SHARDS: frozenset[int] = frozenset()


class Member(Struct, frozen=True, gc=False):
    """One member on record. Times in ms of the store's clock, 0 for never.

    `memberEpoch`: latest issued; `ackedEpoch`: highest echoed; `currentAssignment`: what it last reported as owned (an
    observation, never authority); `foreign`: shards of its last report that are not on record for it, since `foreignSince`;
    `elder`: shards on record, or foreign, when it joined again, which an earlier life may read until `elderUntil`;
    `abandoned`: those that were REVOKING then; `stateSince`: when `state` last changed.
    """

    member_id: str
    member_name: str
    state: MemberState
    member_epoch: int
    acked_epoch: int
    join_epoch: int
    join_request_id: str
    joined_metadata_version: int
    joined_at: int
    rejoined_at: int
    elder_until: int
    runtime_max_concurrency: int
    state_since: int
    foreign_since: int
    elder: Shards = ()
    abandoned: Shards = ()
    current_assignment: Shards = ()
    foreign: Shards = ()


class Hold(NamedTuple):
    """Who a shard is on record for. `since_epoch`: the member epoch at which the holder was told of the present phase."""

    member_id: str
    phase: Phase
    since_epoch: int
    deadline_at: int


class Correction(Struct, frozen=True, rename="camel", kw_only=True):
    """An open metadata correction round; `base` is its first epoch."""

    base: int
    until: int
    reason: str
    started_at: int


@dataclass(slots=True, kw_only=True)
class Group:
    """A group's folded state. `target` and `ownership` are the truth; `targeted` and `held` index them by member.

    Either index is changed only with what it indexes, by the methods below, and names no member without shards.
    """

    stream_prefix: str
    consumer_group: str
    store_revision: int
    epoch: int
    group_epoch: int
    assignment_epoch: int
    metadata_version: int
    registration: int
    stream_revision: int
    shard_count: int
    read_set: Shards
    migration: FollowedMigration | None
    grants_from: int
    identity: str
    report_round_at: int
    created_at: int
    updated_at: int
    correction: Correction | None = None
    members: dict[str, Member] = field(default_factory=dict)
    target: dict[int, str] = field(default_factory=dict)
    targeted: dict[str, frozenset[int]] = field(default_factory=dict)
    ownership: dict[int, Hold] = field(default_factory=dict)
    held: dict[str, frozenset[int]] = field(default_factory=dict)
    reporters: frozenset[str] = frozenset()

    def draft(self) -> Group:
        """Give a copy that may be evolved without changing this one."""
        twin: Group = object.__new__(Group)
        for name in _FIELDS:
            setattr(twin, name, getattr(self, name))
        twin.members = self.members.copy()
        twin.target = self.target.copy()
        twin.targeted = self.targeted.copy()
        twin.ownership = self.ownership.copy()
        twin.held = self.held.copy()
        return twin

    # -- reading

    def shards_of(self, member_id: str) -> frozenset[int]:
        """Give the shards on record for a member, in either phase."""
        return self.held.get(member_id, NO_SHARDS)

    def in_phase(self, member_id: str, phase: Phase) -> frozenset[int]:
        """Give the shards on record for a member in one phase."""
        return frozenset(s for s in self.shards_of(member_id) if self.ownership[s].phase == phase)

    def active(self) -> list[str]:
        """Give the ids of ACTIVE members, ascending."""
        return sorted(m.member_id for m in self.members.values() if m.state == "ACTIVE")

    def quarantined(self, shard: int, member_id: str) -> bool:
        """Tell whether another member, not EXPIRED, named this shard in its last report without holding it.

        A shard that has meanwhile gone on record for its reporter is no longer foreign to it.
        """
        for other in self.reporters:
            if other != member_id and shard in self.members[other].foreign and shard not in self.shards_of(other):
                return True
        return False

    def view(self, member_id: str) -> tuple[Shards, Shards]:
        """Give (assigned, pending) as the member may see them, a correction round left aside."""
        member = self.members[member_id]
        mine = self.in_phase(member_id, "ASSIGNED")
        if self.reporters:
            mine = frozenset(s for s in mine if s in member.current_assignment or not self.quarantined(s, member_id))
        return tuple(sorted(mine)), tuple(sorted(self.targeted.get(member_id, NO_SHARDS) - mine))

    def strays(self) -> dict[str, frozenset[int]]:
        """Give member -> shards on record for it, in either phase, that should be elsewhere or nowhere; a pass over the members.

        That is what its target does not name, and everything when it is not ACTIVE.
        """
        strays: dict[str, frozenset[int]] = {}
        for member_id, shards in self.held.items():
            here = self.targeted.get(member_id, NO_SHARDS) if self.members[member_id].state == "ACTIVE" else NO_SHARDS
            if not shards <= here:
                strays[member_id] = shards - here
        return strays

    def lacks(self) -> dict[str, frozenset[int]]:
        """Give member -> shards of its target that are not on record for it; a pass over the members."""
        held = self.held
        return {
            member_id: shards - held.get(member_id, NO_SHARDS)
            for member_id, shards in self.targeted.items()
            if not shards <= held.get(member_id, NO_SHARDS)
        }

    # -- changing (a draft)

    def hold(self, shards: Iterable[int], hold: Hold) -> None:
        """Put free shards, or shards of the same member, on record."""
        shards = tuple(shards)
        for shard in shards:
            self.ownership[shard] = hold
        _add(self.held, hold.member_id, shards)

    def free(self, member_id: str, shards: Iterable[int]) -> None:
        """Take shards of a member off the record."""
        gone = frozenset(shards) & self.shards_of(member_id)
        for shard in gone:
            del self.ownership[shard]
        _take(self.held, member_id, gone)

    def aim(self, member_id: str, shards: Shards) -> None:
        """Make a member the target of shards, whoever was."""
        self._forget_target(shards)
        self.target.update(dict.fromkeys(shards, member_id))
        _add(self.targeted, member_id, shards)

    def aim_nowhere(self, shards: Shards) -> None:
        """Leave shards without a target."""
        self._forget_target(shards)
        for shard in shards:
            self.target.pop(shard, None)

    def _forget_target(self, shards: Shards) -> None:
        former: dict[str, list[int]] = {}
        for shard in shards:
            if shard in self.target:
                former.setdefault(self.target[shard], []).append(shard)
        for member_id, gone in former.items():
            _take(self.targeted, member_id, gone)

    def put(self, member: Member) -> None:
        """Replace or add a member's record."""
        self.members[member.member_id] = member
        if bool(member.foreign) != (member.member_id in self.reporters):
            self.reporters ^= {member.member_id}


def _add(index: dict[str, frozenset[int]], member_id: str, shards: Collection[int]) -> None:
    if shards:
        index[member_id] = index.get(member_id, NO_SHARDS).union(shards)


def _take(index: dict[str, frozenset[int]], member_id: str, shards: Collection[int]) -> None:
    left = index.get(member_id, NO_SHARDS).difference(shards)
    if left:
        index[member_id] = left
    else:
        index.pop(member_id, None)


_FIELDS: Final = tuple(each.name for each in fields(Group))
"""Named once: `dataclasses.replace` looks at all of them again on every draft."""
