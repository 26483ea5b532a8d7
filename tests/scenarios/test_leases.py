"""Scenarios of the section on leases, clocks and stalls."""

from __future__ import annotations

from random import Random

import pytest

from coord.events.catalog import MemberExpired
from coord.names import GroupKey
from tests.world import World

KEY = GroupKey("orders", "g")
LEASE_MS = 15_000
MEMBERS = tuple(f"m{place}" for place in range(10))


def ten_members() -> World:
    world = World()
    world.create(shards=20)
    world.settle(*MEMBERS)
    world.run(6_000, *MEMBERS)
    return world


@pytest.mark.parametrize("stall", ["the workers are stopped", "the store is away"])
def test_c1_a_stall_of_the_coordinator_expires_nobody(stall: str) -> None:
    """Three leases in which nobody was heard: those who come back within a lease keep everything; a dead one goes within two."""
    world = ten_members()
    before = world.group()
    told = dict(world.told)
    if stall == "the store is away":
        world.store.is_away = True
        for _ in range(15):
            world.sleep(3_000)
            assert {world.heartbeat(member).reply.status for member in MEMBERS} == {"RETRY"}
        world.store.is_away = False
    else:
        world.sleep(3 * LEASE_MS)
    world.tick()
    assert world.events(MemberExpired) == []
    for place, member in enumerate(MEMBERS[:-1]):  # the last was killed meanwhile
        world.sleep(1_000)
        world.tick()
        was = told[KEY, member]
        reply = world.heartbeat(member, epoch=was.epoch, owned=was.owned, mv=was.metadata_version).reply
        assert (reply.status, reply.assigned) == ("OK", was.owned), place
    assert world.group().group_epoch == before.group_epoch
    world.run(2 * LEASE_MS - 9_000, *MEMBERS[:-1])
    assert [event.member_id for event in world.events(MemberExpired)] == [MEMBERS[-1]]


@pytest.mark.parametrize("seed", range(3))
def test_c2_a_cold_start_after_a_long_outage(seed: int) -> None:
    """Ten minutes without any coordinator: nobody is judged by what was seen before; the order of return does not matter."""
    world = ten_members()
    world.sleep(600_000)
    world.restart()
    world.tick()
    back = list(MEMBERS)
    Random(seed).shuffle(back)
    for member in back:
        world.heartbeat(member)
        world.sleep(1_000)
        world.tick()
        assert world.events(MemberExpired) == []
    world.settle(*MEMBERS)
    assert len(set(world.owners().values())) == len(MEMBERS)


def test_c5_two_coordinators_two_clocks() -> None:
    """Five seconds ahead and five behind: leases are written and judged by the store's clock alone."""
    world = World()
    world.create(shards=4)
    ahead, behind = world.start("ahead", ahead_ms=5_000), world.start("behind", ahead_ms=-5_000)
    for hears, ticks in ((ahead, behind), (behind, ahead)):
        for second in range(60):
            world.sleep(1_000)
            if second % 3 == 0:
                for member in "ab":
                    world.heartbeat(member, services=hears)
            ticks.ticker.tick()
    assert world.events(MemberExpired) == []
    died_at = world.clock.now_ms - 2_000  # its last heartbeat
    while not world.events(MemberExpired):
        world.sleep(1_000)
        world.heartbeat("a", services=behind)
        ahead.ticker.tick()
        assert world.clock.now_ms <= died_at + LEASE_MS + 2_000
    assert [event.member_id for event in world.events(MemberExpired)] == ["b"]
    assert world.clock.now_ms > died_at + LEASE_MS
