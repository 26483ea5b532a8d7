"""Walks through everything that can go wrong, a few dozen seeds; and the walk itself finds what is planted."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from coord.core import heartbeat, membership, ownership
from coord.core.course import GroupCourse
from coord.events.catalog import ShardsFreed
from coord.projections.group import Member
from tests.property.walk import VARIANTS, Variant, Walk

SEEDS = 6
SEEDS_UNTIL_FOUND = 60


@pytest.mark.parametrize("name", VARIANTS)
def test_no_shard_has_two_readers_and_none_is_left(name: str) -> None:
    for seed in range(SEEDS):
        violation = Walk(seed, VARIANTS[name]).run()
        assert violation is None, f"Walk({seed}, VARIANTS[{name!r}]): {violation}"


def first_found(variant: Variant) -> str | None:
    """The first violation in a bounded number of walks. A state that the code itself calls broken is one, too."""
    for seed in range(SEEDS_UNTIL_FOUND):
        try:
            violation = Walk(seed, variant).run()
        except AssertionError as error:
            violation = f"broken: {error}"
        if violation:
            return violation
    return None


def test_a_fence_that_frees_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fenced is not stopped: a shard that goes at once is read by two."""
    fence = membership.fence

    def fence_and_free(course: GroupCourse, member: Member, *, reason: str, named: frozenset[int] | None = None) -> None:
        fence(course, member, reason=reason, named=named)
        if held := course.group.shards_of(member.member_id):
            course.record(ShardsFreed(member_id=member.member_id, shards=tuple(sorted(held)), reason="REPORTED"))

    monkeypatch.setattr(membership, "fence", fence_and_free)
    monkeypatch.setattr(heartbeat, "fence", fence_and_free)
    assert "touched" in str(first_found(VARIANTS["a drain that never ends"]))


def test_a_release_that_ignores_drains_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    free = ownership._free

    def free_drained(course: GroupCourse, member: Member, shards: list[int], *, kept: frozenset[int], reason: str) -> None:
        free(course, member, shards, kept=frozenset(), reason=reason)

    monkeypatch.setattr(ownership, "_free", free_drained)
    assert "touched" in str(first_found(VARIANTS["plain"]))


def test_a_release_under_an_elder_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    free = ownership._free

    def free_at_once(course: GroupCourse, member: Member, shards: list[int], *, kept: frozenset[int], reason: str) -> None:
        free(course, replace(member, elder=()), shards, kept=kept, reason=reason)

    monkeypatch.setattr(ownership, "_free", free_at_once)
    assert "touched" in str(first_found(VARIANTS["one id in two processes"]))
