"""The invariants of a group held to along its log, at a cost that does not grow with the group.

After each revision, what its events touched is checked: the members that they name, or take a shard or a target from; the
shards that they name, and all that a member holds when its state changed; the counters; and, when the target or the set of
ACTIVE members changed, that the target covers the read set, within one of balance. All of `coord.core.invariants` is checked
after an event of any other kind, and whenever the caller asks (`whole`): an invariant that breaks where no event pointed
shows then.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Final, TypeAlias, cast, get_args

from coord.core.invariants import AHEAD, NOT_COVERED, broken, broken_member, broken_shard, counters, fallen
from coord.events import catalog as fact
from coord.events.catalog import Event
from coord.projections.group import NO_SHARDS, Group, MemberState

_OfMember: TypeAlias = (
    fact.MemberJoined
    | fact.MemberRejoined
    | fact.MemberLeaving
    | fact.MemberExpired
    | fact.MemberFenced
    | fact.MemberPruned
    | fact.MemberUpdated
    | fact.OwnershipReported
    | fact.CorrectionAcknowledged
)
_OfShards: TypeAlias = fact.RevocationRequested | fact.ShardsFreed | fact.ShardsGranted
_OF_MEMBER: Final = frozenset(get_args(_OfMember))
_OF_SHARDS: Final = frozenset(get_args(_OfShards))


class Watch:
    """What was last seen of a group, and what the events of the present revision touch. A group that begins has a new one."""

    def __init__(self) -> None:
        self._whole = True
        self._target_moved = False
        self._members: set[str] = set()
        self._shards: set[int] = set()
        self._counters = (0, 0, 0, 0, 0)
        self._seen: dict[str, tuple[MemberState, int]] = {}
        self._loads: dict[str, int] = {}
        self._balance: Counter[int] = Counter()
        self._readable: frozenset[int] = frozenset()

    def touch(self, group: Group, event: Event) -> None:
        """Note what an event touches that is about to be applied to the group."""
        kind = type(event)
        if kind in _OF_MEMBER:
            self._members.add(cast(_OfMember, event).member_id)
            if isinstance(event, fact.MemberRejoined):
                self._shards.update(event.abandoned)
        elif kind in _OF_SHARDS:
            of_shards, ownership = cast(_OfShards, event), group.ownership
            self._members.add(of_shards.member_id)
            self._shards.update(of_shards.shards)
            self._members.update(ownership[shard].member_id for shard in of_shards.shards if shard in ownership)
        elif isinstance(event, fact.TargetComputed):
            self._target_moved = True
            self._members.update(event.moves)
            for shards in (event.unassigned, *event.moves.values()):
                self._shards.update(shards)
                self._members.update(group.target[shard] for shard in shards if shard in group.target)
        else:
            self._whole = True

    def broken(self, group: Group) -> Iterator[str]:
        """Yield what the events since the last call have broken."""
        if self._whole:
            yield from self.whole(group)
            return
        yield from self._counted(group)
        if max(group.group_epoch, group.assignment_epoch) > group.epoch:
            yield AHEAD
        for member_id in self._members:
            yield from self._member(group, member_id)
        indexed = self._indexed(group)
        for shard in self._shards:
            yield from self._shard(group, shard, indexed.get(shard, []))
        if self._target_moved:
            yield from self._target(group)
        self._begin()

    def whole(self, group: Group) -> Iterator[str]:
        """Yield everything that is broken, and every number that fell since it was last seen."""
        yield from broken(group)
        yield from self._counted(group)
        for member_id, member in group.members.items():
            yield from self._epoch_fallen(member_id, member.member_epoch)
        self._seen = {member_id: (member.state, member.member_epoch) for member_id, member in group.members.items()}
        self._loads = {member_id: len(group.targeted.get(member_id, NO_SHARDS)) for member_id in group.active()}
        self._balance = Counter(self._loads.values())
        self._readable = frozenset(group.read_set)
        self._begin()

    def _begin(self) -> None:
        self._whole = self._target_moved = False
        self._members.clear()
        self._shards.clear()

    def _counted(self, group: Group) -> Iterator[str]:
        now = counters(group)
        yield from fallen(self._counters, now)
        self._counters = now

    def _epoch_fallen(self, member_id: str, epoch: int) -> Iterator[str]:
        if member_id in self._seen and epoch < self._seen[member_id][1]:
            yield f"member epoch of {member_id} fell from {self._seen[member_id][1]} to {epoch}"

    def _member(self, group: Group, member_id: str) -> Iterator[str]:
        member = group.members.get(member_id)
        state, _ = self._seen.get(member_id, (None, 0))
        if member is None:
            self._seen.pop(member_id, None)
            now = None
        else:
            yield from broken_member(group, member)
            yield from self._epoch_fallen(member_id, member.member_epoch)
            self._seen[member_id] = (member.state, member.member_epoch)
            now = member.state
        targeted = len(group.targeted.get(member_id, NO_SHARDS))
        if now != state:
            self._target_moved = True
            self._shards |= group.shards_of(member_id)
        if now != "ACTIVE" and targeted:
            yield f"shards are targeted at members that are not ACTIVE: {[member_id]}"
        self._load(member_id, targeted if now == "ACTIVE" else None)

    def _load(self, member_id: str, load: int | None) -> None:
        """Keep how many ACTIVE members have how many shards as their target."""
        before = self._loads.get(member_id)
        if load == before:
            return
        if before is not None:
            del self._loads[member_id]
            self._balance[before] -= 1
            if not self._balance[before]:
                del self._balance[before]
        if load is not None:
            self._loads[member_id] = load
            self._balance[load] += 1

    def _indexed(self, group: Group) -> dict[int, list[str]]:
        """Give the touched members that the index of holders names for each touched shard."""
        indexed: dict[int, list[str]] = {}
        for member_id in self._members:
            for shard in group.held.get(member_id, NO_SHARDS) & self._shards:
                indexed.setdefault(shard, []).append(member_id)
        return indexed

    def _shard(self, group: Group, shard: int, indexed: list[str]) -> Iterator[str]:
        hold = group.ownership.get(shard)
        if hold is not None:
            yield from broken_shard(group, shard, hold)
            if shard not in group.shards_of(hold.member_id):
                yield f"shard {shard} is on record for {hold.member_id}, which the index of holders does not say"
        if wrong := [member_id for member_id in indexed if hold is None or member_id != hold.member_id]:
            yield f"shard {shard} is indexed for {sorted(wrong)}, without being on record for them"
        if shard in group.target and shard not in self._readable:
            yield NOT_COVERED

    def _target(self, group: Group) -> Iterator[str]:
        if not self._balance:
            if group.target:
                yield "there is a target but no ACTIVE member"
        elif len(group.target) != len(self._readable):
            yield NOT_COVERED
        if self._balance and max(self._balance) - min(self._balance) > 1:
            yield f"the target is out of balance: members have {sorted(self._balance)} shards"
