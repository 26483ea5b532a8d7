"""sticky: total, balanced within one, no assignment with that property moves less, and it knows no order but ids."""

from __future__ import annotations

from collections import Counter
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from coord.core.assignors import Assignor, Before, sticky_moves
from coord.projections.group import Hold
from tests.assigned import sticky

MEMBERS = ("a", "b", "c", "d")
small_shards = st.frozensets(st.integers(0, 7), max_size=6)
small_members = st.frozensets(st.sampled_from(MEMBERS[:3]), min_size=1)
befores = st.dictionaries(st.integers(0, 7), st.sampled_from(MEMBERS), max_size=8)


def moves(target: dict[int, str], before: dict[int, str]) -> int:
    return sum(before.get(shard) != member for shard, member in target.items())


def is_balanced(target: dict[int, str], members: frozenset[str]) -> bool:
    loads = Counter(target.values())
    counts = [loads[member] for member in members]
    return max(counts) - min(counts) <= 1


def fewest_moves(shards: list[int], members: list[str], before: dict[int, str]) -> int:
    """The naive twin: try every assignment."""
    tried = (dict(zip(shards, owners, strict=True)) for owners in product(members, repeat=len(shards)))
    return min(moves(target, before) for target in tried if is_balanced(target, frozenset(members)))


@given(small_shards, small_members, befores, befores)
def test_no_balanced_assignment_moves_fewer_shards(
    shards: frozenset[int], members: frozenset[str], before: dict[int, str], held: dict[int, str]
) -> None:
    """Whoever holds what."""
    target = sticky(sorted(shards), sorted(members), before, held)
    assert target.keys() == shards
    assert set(target.values()) <= members
    assert is_balanced(target, members)
    assert moves(target, before) == fewest_moves(sorted(shards), sorted(members), before)


@given(st.frozensets(st.integers(0, 300)), st.frozensets(st.integers(0, 60).map(str)), st.data())
def test_it_is_total_balanced_and_the_same_each_time(
    shards: frozenset[int], members: frozenset[str], data: st.DataObject
) -> None:
    before = data.draw(st.dictionaries(st.sampled_from(sorted(shards) or [0]), st.integers(0, 70).map(str)))
    target = sticky(sorted(shards), sorted(members), before)
    assert target == sticky(sorted(shards), sorted(members), dict(reversed(before.items())))
    if not members:
        assert target == {}
        return
    assert target.keys() == shards
    assert is_balanced(target, members)
    assert sticky(sorted(shards), sorted(members), target) == target  # what is balanced stays


@given(small_shards, small_members, befores)
def test_names_matter_only_by_their_order(shards: frozenset[int], members: frozenset[str], before: dict[int, str]) -> None:
    """Renaming members without changing their order renames the assignment, and nothing else."""
    target = sticky(sorted(shards), sorted(members), before)
    renamed = sticky(sorted(shards), [f"x{m}" for m in sorted(members)], {s: f"x{m}" for s, m in before.items()})
    assert renamed == {shard: f"x{member}" for shard, member in target.items()}


@given(st.integers(1, 12), st.integers(1, 5), st.data())
def test_who_comes_and_goes_moves_nothing(shards: int, count: int, data: st.DataObject) -> None:
    """A member joins and leaves before anybody has let go of anything: all is as it was."""
    members = [f"m{place}" for place in range(count)]
    owners = data.draw(st.permutations([members[place % count] for place in range(shards)]))
    held = dict(enumerate(owners))
    visited = sticky(range(shards), sorted([*members, data.draw(st.sampled_from(["a", "m0a", "z"]))]), held, held)
    assert sticky(range(shards), members, visited, held) == held


def test_it_is_an_assignor() -> None:
    assignor: Assignor = sticky_moves
    nothing = Before({}, {})
    assert assignor([0, 1, 2], ["a", "b"], nothing, {}) == ({"a": (0, 1), "b": (2,)}, ())
    held = {0: Hold("b", "ASSIGNED", 1, 0), 1: Hold("gone", "REVOKING", 1, 9)}
    assert assignor([0, 1, 2], ["a", "b"], nothing, held) == ({"a": (1,), "b": (0, 2)}, ())
    before = Before({0: "a", 1: "a", 7: "a"}, {"a": frozenset({0, 1, 7})})
    assert assignor([0, 1, 2], ["a", "b"], before, {}) == ({"b": (2,)}, (7,))
    assert assignor([0, 1, 2], [], before, {}) == ({}, (0, 1, 7))
