"""The `sticky` assignor: minimal movement first, then balance.

Each member ends with floor(S/M) or ceil(S/M) shards, and no assignment with that property moves fewer shards from where
they were: every member keeps min(what it had, its quota), and the S mod M larger quotas go first to those who had that
many. Where that leaves a choice, a shard stays with whoever holds it: one that was on its way to a member that has gone
turns back. Deterministic; ties by memberId, then by shard. Source: design page `protocol.md`, "Target assignment".

It looks at whole members by their number of shards, and at single shards only where they move: one that comes or goes costs
a pass over the members, not over the shards (and one comparison of the read set with what has a target, at C's speed).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from typing import NamedTuple

from coord.events.catalog import Shards
from coord.projections.group import Hold


class Moves(NamedTuple):
    """What turns one target into another. `gained`: member -> ascending shards that are new to it; `unassigned`, ascending."""

    gained: dict[str, Shards]
    unassigned: Shards


class Before(NamedTuple):
    """A target, by shard and by member, the two in agreement."""

    by_shard: Mapping[int, str]
    by_member: Mapping[str, frozenset[int]]


def sticky_moves(read_set: Sequence[int], members: Sequence[str], before: Before, ownership: Mapping[int, Hold]) -> Moves:
    """Give the moves that turn `before` into a target of `read_set` (ascending) for `members` (ascending).

    `ownership`: who holds each shard, whoever should.
    """
    if not members:
        return Moves({}, tuple(sorted(before.by_shard)))
    had, free, unassigned = _kept(read_set, members, before)
    low, extra = divmod(len(read_set), len(members))
    turning_back = Counter(ownership[shard].member_id for shard in free if shard in ownership) if ownership else Counter()
    wanting: list[tuple[str, int]] = []
    for load, quota, alike in _quotas(members, had, low=low, extra=extra, turning_back=turning_back):
        if load < quota:
            wanting += [(member, quota - load) for member in alike]
        elif load > quota:
            free += chain.from_iterable(sorted(had[member])[quota:] for member in alike)
    free.sort()
    wanting.sort()
    return Moves(_handed_out(free, dict(wanting), ownership), unassigned)


def _kept(
    read_set: Sequence[int], members: Sequence[str], before: Before
) -> tuple[Mapping[str, frozenset[int]], list[int], Shards]:
    """Give what each member had of the read set; what is in it and was none of theirs; what has left it."""
    had, targeted = before.by_member, before.by_shard.keys()
    if not targeted:
        return had, list(read_set), ()
    gone = had.keys() - set(members)
    if len(read_set) == len(targeted) and all(map(before.by_shard.__contains__, read_set)):
        return had, [shard for member in gone for shard in had[member]], ()
    readable = set(read_set)
    free = [*(readable - targeted), *(shard for member in gone for shard in had[member] if shard in readable)]
    return {member: shards & readable for member, shards in had.items()}, free, tuple(sorted(targeted - readable))


def _quotas(
    members: Sequence[str], had: Mapping[str, frozenset[int]], *, low: int, extra: int, turning_back: Mapping[str, int]
) -> Iterator[tuple[int, int, list[str]]]:
    """Yield (load, quota, members) for all who had as many shards and shall have as many.

    `extra` quotas are larger by one. They go to those who had most; of those alike, to whom most can turn back; then by id.
    """
    by_load: dict[int, list[str]] = {}
    for member in members:
        load = len(had[member]) if member in had else 0
        if load in by_load:
            by_load[load].append(member)
        else:
            by_load[load] = [member]
    for load, alike in sorted(by_load.items(), reverse=True):
        if 0 < extra < len(alike) and turning_back:
            alike.sort(key=lambda member: -turning_back.get(member, 0))
        yield load, low + 1, alike[:extra]
        yield load, low, alike[extra:]
        extra = max(extra - len(alike), 0)


def _handed_out(free: list[int], wanting: dict[str, int], ownership: Mapping[int, Hold]) -> dict[str, Shards]:
    """Give the free shards to who wants some: first to their holders, then in order."""
    gained: dict[str, list[int]] = {}
    if ownership:
        left: list[int] = []
        for shard in free:
            holder = ownership[shard].member_id if shard in ownership else ""
            if wanting.get(holder, 0) > 0:
                gained.setdefault(holder, []).append(shard)
                wanting[holder] -= 1
            else:
                left.append(shard)
        free = left
    start = 0
    for member, count in wanting.items():
        if count:
            gained.setdefault(member, []).extend(free[start : start + count])
            start += count
    return {member: tuple(sorted(shards)) for member, shards in gained.items()}
