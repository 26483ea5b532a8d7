"""Aggregates that cannot be read are found by reading anything, and by a walk whose steps are bounded."""

from __future__ import annotations

from dataclasses import replace

import pytest

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.corruption import FOUND_MAX, READ_AT_ONCE, CorruptionWalk, CorruptKeys
from coord.store.base import CorruptAggregate, Loaded, StoreUnavailable
from tests.world import World

KEY = GroupKey("orders", "g")


def bend(world: World, key: AggregateKey, *, back: bool = False) -> None:
    """Make what is stored unreadable, or readable again; no revision moves."""
    metadata = world.store.state.records[key].metadata
    assert metadata is not None
    bent = metadata.aggregate[1:] if not back else b"{" + metadata.aggregate
    world.store.state.records[key].metadata = replace(metadata, aggregate=bent)


def walk_of(world: World) -> CorruptionWalk:
    services = world.start("walker")
    return CorruptionWalk(world.store, services.executor.aggregates)


def test_a_step_reads_all_of_a_small_store_and_a_repair_is_noticed_in_the_next() -> None:
    world = World()
    world.create(shards=1)
    world.create(shards=1, stream="payments")
    walk = walk_of(world)
    assert walk.step() == ()
    bend(world, KEY)
    bend(world, StreamKey("payments"))
    assert walk.step() == ("orders/g", "payments")
    bend(world, KEY, back=True)
    assert walk.step() == ("payments",)


def test_what_is_gone_is_not_corrupt() -> None:
    world = World()
    world.create(shards=1)
    walk = walk_of(world)
    bend(world, KEY)
    assert walk.step() == ("orders/g",)
    del world.store.state.records[KEY]
    assert walk.step() == ()


def test_a_step_is_bounded_and_the_next_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for number in range(READ_AT_ONCE + 5):
        world.create(shards=1, group=f"g{number:03}")
    last = GroupKey("orders", f"g{READ_AT_ONCE + 4:03}")
    bend(world, last)
    walk, load, read = walk_of(world), world.store.load, list[AggregateKey]()

    def count(key: AggregateKey) -> Loaded:
        read.append(key)
        return load(key)

    monkeypatch.setattr(world.store, "load", count)
    assert walk.step() == ()
    assert len(read) == READ_AT_ONCE
    assert walk.step() == (str(last),)
    assert len(read) == READ_AT_ONCE + 6
    assert walk.step(lambda: False) == (str(last),)
    assert len(read) == READ_AT_ONCE + 6
    world.store.is_away = True
    with pytest.raises(StoreUnavailable):
        walk.step()
    world.store.is_away = False
    assert walk.step() == (str(last),)


def test_the_walk_pushes_nothing_out_of_the_cache() -> None:
    world = World()
    world.create(shards=1)
    services = world.start("walker")
    CorruptionWalk(world.store, services.executor.aggregates).step()
    assert services.executor.aggregates.cached(KEY) is None


def test_what_anybody_reads_is_told_by_the_next_health() -> None:
    world = World()
    world.create(shards=1)
    bend(world, KEY)
    services = world.start("fresh")
    with pytest.raises(CorruptAggregate):
        services.executor.aggregates.load(KEY)
    health = services.health()
    assert health.unhealthy_groups == ("orders/g",)
    assert health.status == "DEGRADED"


def test_no_more_are_kept_than_a_bound() -> None:
    keys = CorruptKeys()
    for number in range(FOUND_MAX + 10):
        keys.found(GroupKey("orders", f"{number}"))
    assert len(keys.all()) == FOUND_MAX
