"""Scenarios of the section on assignment and rebalance."""

from __future__ import annotations

import time
from collections import Counter
from dataclasses import replace
from itertools import permutations
from pathlib import Path
from random import Random

import pytest
from msgspec import json

from coord.config import ConfigurationError, load
from coord.core.invariants import broken
from coord.events.catalog import MemberExpired, MemberFenced, RevocationRequested, ShardsFreed, ShardsGranted
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import decode
from coord.runtime.requests import Result
from coord.runtime.shown import group_state
from tests.assigned import sticky
from tests.world import World

KEY = GroupKey("orders", "g")


@pytest.mark.parametrize("holder_of_the_extra", range(3))
def test_b1_a_balanced_group_does_not_move(holder_of_the_extra: int) -> None:
    """Whoever has the extra of 7 shards keeps it."""
    members = ["a", "b", "c"]
    first = members[holder_of_the_extra]
    order = [first, *[member for member in members if member != first]]
    before = dict(enumerate([*(order[place % 3] for place in range(6)), first]))
    assert sticky(range(7), members, before) == before


@pytest.mark.parametrize("order", list(permutations("abc")))
def test_b1_a_recompute_moves_nothing(order: tuple[str, ...]) -> None:
    """A member that joins and leaves before anything was acknowledged, a restart, a new name."""
    world = World()
    world.create(shards=7)
    world.settle(*order)
    before = world.owners()
    world.heartbeat("x")
    world.heartbeat("x", epoch=-1, owned=[])
    world.settle(*order)
    assert world.owners() == before
    world.restart()
    world.heartbeat("a", name="alpha")
    world.heartbeat("b", epoch=0)
    world.run(30_000, *order)
    assert world.owners() == before
    assert Counter(before.values()).most_common()[0][1] == 3


def test_b2_who_leaves_or_joins_moves_no_others_shards() -> None:
    world = World()
    world.create(shards=12)
    world.settle("a", "b", "c", "d")
    before = world.owners()
    world.heartbeat("d", epoch=-1, owned=[])
    world.settle("a", "b", "c")
    moved = [shard for shard, owner in world.owners().items() if owner != before[shard]]
    assert len(moved) == 3
    assert {before[shard] for shard in moved} == {"d"}


def test_b2_a_newcomer_takes_its_share_and_no_more() -> None:
    world = World()
    world.create(shards=10)
    world.settle("a", "b")
    before = world.owners()
    world.settle("a", "b", "c")
    moved = {shard: owner for shard, owner in world.owners().items() if owner != before[shard]}
    assert len(moved) == 3
    assert set(moved.values()) == {"c"}


def test_b4_the_assignor_always_ends() -> None:
    """Two thousand random histories: quick, balanced, and members without a shard where there are too few."""
    random = Random(4)
    for _ in range(2_000):
        before: dict[int, str] = {}
        for _ in range(random.randint(1, 5)):
            members = sorted(random.sample([f"m{place}" for place in range(70)], random.randint(0, 60)))
            shards = sorted(random.sample(range(400), random.randint(0, 300)))
            began = time.process_time()
            before = sticky(shards, members, before)
            assert time.process_time() - began < 1
            loads = Counter(before.values())
            counts = [loads[member] for member in members] or [0]
            assert max(counts) - min(counts) <= 1
            assert sorted(before) == (shards if members else [])


@pytest.mark.parametrize(("members", "shards"), [(2, 5), (8, 32)])
def test_b5_no_ping_pong_without_a_change(members: int, shards: int) -> None:
    """Heartbeats as irregular as 60 % of the lease, two coordinators whose clocks differ by two seconds, ten minutes."""
    world = World()
    world.create(shards=shards)
    names = [f"m{place}" for place in range(members)]
    world.settle(*names)
    two = world.start("two", ahead_ms=2_000)
    random, epoch, next_beat = Random(5), world.group().assignment_epoch, dict.fromkeys(names, 0)
    for second in range(600):
        world.sleep(1_000)
        for name in names:
            if second >= next_beat[name]:
                world.heartbeat(name, services=random.choice([world.services, two]))
                next_beat[name] = second + random.randint(1, 9)
        (two if second % 40 < 20 else world.services).ticker.tick()
    assert world.group().assignment_epoch == epoch
    assert world.events(MemberExpired) == []


@pytest.mark.parametrize(
    ("overrides", "named"),
    [
        ({"member-lease-ttl": "3s", "heartbeat-interval": "3s"}, "member-lease-ttl"),
        ({"member-lease-ttl": "1s", "heartbeat-interval": "3s"}, "member-lease-ttl"),
        ({"member-lease-ttl": "0s"}, "member-lease-ttl"),
        ({"member-lease-ttl": "-5s"}, "member-lease-ttl"),
        ({"coordination.state-mutex.ttl-ms": 100, "redis.timeout-ms": 2000}, "state-mutex.ttl-ms"),
    ],
)
def test_b6_timings_that_cannot_work_are_refused(overrides: dict[str, object], named: str, tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError) as refused:
        load(overrides=overrides, environ={}, directory=tmp_path)
    assert any(named in problem.key for problem in refused.value.problems)


@pytest.mark.parametrize("variation", ["silent", "after DRAINING", "all killed", "the coordinator too"])
def test_b7_a_dead_owner_never_blocks_a_shard(variation: str) -> None:
    """A shard on its way from a to b, a dies, b goes, c comes: c has it within a lease and five ticks."""
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.heartbeat("b")
    if variation == "after DRAINING":
        world.heartbeat("a", draining=[1])
    world.sleep(1_000)
    world.tick()
    if variation != "all killed":
        world.heartbeat("b", epoch=-1, owned=[])
    if variation == "the coordinator too":
        world.restart()
    world.run(15_000 + 5_000, "c")
    assert world.owners() == {0: "c", 1: "c"}
    assert group_state(world.group()) == "STABLE"


def test_b9_a_drain_has_the_time_that_was_announced() -> None:
    """Not less, not more, and a restart of the coordinator starts no new one."""
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.heartbeat("b")
    began = world.clock.now_ms
    world.drains["a"] = (1,)
    world.run(30_000, "a", "b")
    world.restart()
    world.run(29_000, "a", "b")
    assert world.events(MemberFenced) == []
    world.run(2_000, "a", "b")
    fenced = [entry.at for entry in world.log(KEY) if isinstance(entry.event, MemberFenced)]
    assert [began + 60_000 <= at <= began + 62_000 for at in fenced] == [True]
    assert world.events(RevocationRequested)[0].deadline_at == began + world.services.policy.rebalance_timeout_ms


def test_b9_a_drain_that_ends_in_time_is_no_reason_and_a_wait_is_none() -> None:
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.heartbeat("b")
    world.drains["a"] = (1,)
    world.run(54_000, "a", "b")
    world.drains.clear()
    world.run(6_000, "a", "b")
    assert world.owners() == {0: "a", 1: "b"}
    world.drains["b"] = (1,)
    world.heartbeat("b", epoch=-1, owned=[])
    world.run(1_000)
    assert world.group().ownership[1].deadline_at >= world.clock.now_ms + 58_000  # a whole time of its own
    for _ in range(60):  # b drains for three times the timeout and is fenced; a, who only waits, is not
        world.heartbeat("b", epoch=-1, owned=[], mv=10**6)
        world.run(3_000, "a")
    assert {event.member_id for event in world.events(MemberFenced)} == {"b"}


def test_b10_only_the_holder_releases_and_only_with_nothing_in_flight() -> None:
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.heartbeat("b")
    world.heartbeat("c")
    holder = world.owners()
    assert set(holder.values()) == {"a"}
    world.heartbeat("b", owned=[], revoked=[1])
    world.heartbeat("c", owned=[], revoked=[1])
    world.heartbeat("a", draining=[1])  # REVOKED with something in flight is a drain
    world.heartbeat("a", draining=[1], revoked=[999])
    world.heartbeat("a", draining=[1], revoked=[0])
    assert world.owners() == holder
    assert world.heartbeat("b", owned=[]).reply.pending == (1,)
    world.heartbeat("a", revoked=[1])
    assert world.heartbeat("b", owned=[]).reply.assigned == (1,)
    revision = world.group().store_revision
    for _ in range(2):
        world.heartbeat("a", revoked=[1])
    assert world.group().store_revision == revision
    assert world.owners() == {0: "a", 1: "b"}


@pytest.mark.parametrize("seed", range(4))
def test_b12_no_orphan_is_left(seed: int) -> None:
    """Random joins, leaves, scales and blips of half a lease to one and a half; then rest."""
    world = World()
    world.create(shards=6)
    random, names = Random(seed), [f"m{place}" for place in range(6)]
    live: set[str] = {"m0"}
    admin = world.services.admin
    for _ in range(50):
        match random.randint(0, 3):
            case 0:
                live.add(random.choice(names))
            case 1 if len(live) > 1:
                gone = random.choice(sorted(live))
                live.discard(gone)
                world.heartbeat(gone, epoch=-1, owned=[], mv=10**9)
            case 2:
                target = random.randint(1, 8)
                admin.scale_stream(StreamKey("orders"), target_shard_count=target, info=world.request("scale"))
            case _:
                world.run(random.randint(7_500, 22_500))
        world.run(3_000, *sorted(live))
    world.run(15_000 + 60_000 + 5_000, *sorted(live))
    group = world.group()
    assert set(group.ownership) == set(group.read_set)
    assert {group.members[owner].state for owner in world.owners().values()} == {"ACTIVE"}
    assert group_state(group) == "STABLE"
    assert list(broken(group)) == []
    world.verify()


def test_b12_a_shard_without_an_owner_finds_one_at_the_next_tick() -> None:
    """Whatever lost it: the aggregate, bent by hand, has nobody on record for shard 3."""
    world = World()
    world.create(shards=4)
    world.settle("a", "b")
    metadata = world.store.state.records[KEY].metadata
    assert metadata is not None
    stored = json.decode(metadata.aggregate)
    for member in stored["members"].values():
        member["target"] = [shard for _, shards in member["assigned"] for shard in shards]
        member["assigned"] = [[since, [shard for shard in shards if shard != 3]] for since, shards in member["assigned"]]
    bent = json.encode(stored)
    decode(KEY, bent)
    world.store.state.records[KEY].metadata = replace(metadata, aggregate=bent)
    world.restart()
    assert 3 not in world.owners()
    world.run(4_000)  # the first turn of the new process
    assert world.owners() == {0: "a", 1: "a", 2: "b", 3: "b"}


def test_b14_retries_do_not_stop_a_rebalance() -> None:
    """64 members heartbeat without a pause while one joins again and again: epochs grow with real changes only."""
    world = World()
    world.create(shards=64)
    names = [f"m{place:02}" for place in range(64)]
    for name in names:
        world.heartbeat(name)
    for _ in range(4):
        for name in names:
            world.heartbeat(name)
            world.heartbeat("m00", epoch=0)
            world.sleep(10)
        world.tick()
    group = world.group()
    assert set(group.ownership) == set(range(64))
    settled = group.epoch
    began = time.process_time()
    for _ in range(10):
        for name in names[1:]:
            world.heartbeat(name)
        assert world.heartbeat("m00", epoch=0).reply.row in {7, 8}
        world.tick()
    scaled = world.services.admin.scale_stream(StreamKey("orders"), target_shard_count=65, info=world.request("scale"))
    assert isinstance(scaled, Result)
    assert time.process_time() - began < 5
    assert world.group().epoch <= settled + 4


def test_b15_a_planned_move_is_never_a_theft() -> None:
    """40 shards, from two members to four: every shard that moves was released by its owner before it was granted."""
    world = World()
    world.create(shards=40)
    world.settle("a", "b")
    before, from_here = world.owners(), (world.group().store_revision, 10**6)
    world.settle("a", "b", "c", "d")
    moved = {shard for shard, owner in world.owners().items() if owner != before[shard]}
    assert len(moved) == 20
    released: dict[int, str] = {}
    for entry in world.log(KEY, from_here):
        match entry.event:
            case ShardsFreed(member_id=owner, shards=shards, reason=reason):
                assert reason == "REPORTED"
                released.update(dict.fromkeys(shards, owner))
            case ShardsGranted(shards=shards):
                assert all(released[shard] == before[shard] for shard in shards)
            case _:
                pass
    assert released.keys() == moved
    assert not world.events(MemberFenced)
    assert not world.events(MemberExpired)
