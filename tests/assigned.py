"""The `sticky` assignor's whole target, from a target by shard alone; its moves are held to what every moves must be."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from coord.core.assignors import Before, sticky_moves
from coord.projections.group import Hold


def sticky(
    shards: Sequence[int], members: Sequence[str], before: Mapping[int, str], held: Mapping[int, str] | None = None
) -> dict[int, str]:
    """Give the whole target; the moves to it are nothing but moves."""
    had: dict[str, set[int]] = {}
    for shard, member in before.items():
        had.setdefault(member, set()).add(shard)
    ownership = {shard: Hold(member, "ASSIGNED", 1, 0) for shard, member in (held or {}).items()}
    by_member = {member: frozenset(shards) for member, shards in had.items()}
    gained, unassigned = sticky_moves(shards, members, Before(before, by_member), ownership)
    assert list(unassigned) == sorted(before.keys() - set(shards) if members else before)
    assert all(moved and list(moved) == sorted(moved) for moved in gained.values())
    new = {shard: member for member, moved in gained.items() for shard in moved}
    assert len(new) == sum(map(len, gained.values()))
    assert all(before.get(shard) != member for shard, member in new.items())
    return {shard: member for shard, member in before.items() if shard not in unassigned} | new
