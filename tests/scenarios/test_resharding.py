"""Scenarios of the section on resharding, rollback and producer routing."""

from __future__ import annotations

import threading
from pathlib import Path
from random import Random

import pytest

from coord.events.catalog import ReshardingEnded, RollbackRequested, ShardReopened, ShardsGranted
from coord.names import GroupKey, StreamKey
from coord.refusals import Code, Refused
from coord.runtime.requests import Result
from coord.store.base import Commit
from coord.wire import Migration, StreamScaleResponse
from tests.world import Crashed, World

KEY = GroupKey("orders", "g")
STREAM = StreamKey("orders")


def scale(world: World, count: int) -> str | None:
    """Scale, and give the id; None when the process died in it."""
    try:
        scaled = world.services.admin.scale_stream(STREAM, target_shard_count=count, info=world.request("scale"))
    except Crashed:
        return None
    assert isinstance(scaled, Result), scaled
    assert isinstance(scaled.value, StreamScaleResponse)
    return scaled.value.migrations[0].resharding_id


def rollback(world: World, name: str) -> Refused | Result[Migration]:
    return world.services.admin.rollback(KEY, name, info=world.request("rollback"))


def run(world: World, ms: int, *members: str) -> bool:
    """Let time pass; tells whether the process died."""
    try:
        world.run(ms, *members)
    except Crashed:
        return True
    return False


def die_after(world: World, steps: int) -> None:
    """The process dies after so many commits, or shards made, counted together."""
    left = steps

    def step(what: object) -> None:
        nonlocal left
        left -= 1
        if left == 0:
            raise Crashed(str(what))

    world.store.after_commit = step
    world.shards.after_made = step


def start(shards: int, *members: str) -> World:
    world = World()
    world.create(shards=shards)
    world.settle(*members)
    return world


def test_h1_a_late_record_on_a_shard_that_left_is_read() -> None:
    """8 to 4; a producer with the old table publishes: what was accepted is readable, and monitoring shows it."""
    world = start(8, "a", "b")
    scale(world, 4)
    world.run(40_000, "a", "b")
    assert world.stream().read_set == (0, 1, 2, 3)
    published = Random(1)
    for _ in range(100):
        world.shards.publish(f"orders:{published.randint(0, 7)}")
    world.run(6_000, "a", "b")
    assert world.stream().reopened == (4, 5, 6, 7)
    assert {event.shards for event in world.events(ShardReopened, None)} == {(4,), (5,), (6,), (7,)}
    assert set(world.owners()) == set(range(8))
    for shard in range(8):
        world.shards.consume(f"orders:{shard}", "g")
    world.run(40_000, "a", "b")
    assert world.stream().read_set == (0, 1, 2, 3)
    assert set(world.owners()) == {0, 1, 2, 3}


@pytest.mark.parametrize("variant", ["goes on", "rolls back"])
@pytest.mark.parametrize(("before", "after"), [(2, 4), (4, 2)])
def test_h4_another_process_takes_over_anywhere(before: int, after: int, variant: str) -> None:
    """It died after the n-th commit or shard, for every n until nothing is left to die in."""
    for steps in range(1, 40):
        world = start(before, "a", "b")
        die_after(world, steps)
        name = scale(world, after)
        died = name is None or run(world, 60_000, "a", "b")
        world.restart()
        active = world.stream().resharding
        wanted = after
        if variant == "rolls back" and active is not None and active.state in ("PREPARING", "ACTIVE"):
            assert isinstance(rollback(world, active.resharding_id), Result)
            wanted = before
        world.run(80_000, "a", "b")
        stream = world.stream()
        assert (stream.shard_count, stream.resharding) == (wanted, None), steps
        assert stream.read_set == tuple(range(wanted))
        assert set(world.owners()) == set(range(wanted))
        assert (
            len(world.events(ReshardingEnded, None))
            + len([event for event in world.events(RollbackRequested, None) if event.state == "ROLLED_BACK"])
            == 1
        )
        world.verify()
        assert scale(world, 6) is not None
        if not died:
            assert steps > 6
            return
    pytest.fail("it never came to its end")


def test_h5_a_rollback_keeps_the_data() -> None:
    """4 to 8, records all the while, back: no key and no group goes, and what is on 4 to 7 is read until it is gone."""
    world = start(4, "a", "b")
    name = scale(world, 8)
    assert name is not None
    for shard in range(8):
        world.shards.publish(f"orders:{shard}", 50)
    world.run(5_000, "a", "b")
    assert isinstance(rollback(world, name), Result)
    for shard in range(4, 8):
        world.shards.publish(f"orders:{shard}", 3)  # producers that have not heard of it
    world.run(30_000, "a", "b")
    stream = world.stream()
    assert stream.shard_count == 4
    assert stream.read_set == tuple(range(8))
    assert set(world.owners()) == set(range(8))
    listed = world.services.views.migrations(STREAM)
    assert isinstance(listed, Result)
    assert {blocker.split(":")[1] for blocker in listed.value.migrations[0].drain_blockers} == {"4", "5", "6", "7"}
    for shard in range(8):
        world.shards.consume(f"orders:{shard}", "g")
    world.run(40_000, "a", "b")
    assert world.stream().read_set == (0, 1, 2, 3)
    assert len(world.shards.keys) == 8
    assert all("g" in shard.groups for shard in world.shards.keys.values())


def test_h6_a_rollback_that_stops_anywhere_is_asked_for_again() -> None:
    for steps in range(1, 30):
        world = start(2, "a")
        name = scale(world, 4)
        assert name is not None
        world.run(2_000, "a")
        die_after(world, steps)
        try:
            rollback(world, name)
            died = run(world, 50_000, "a")
        except Crashed:
            died = True
        world.restart()
        assert isinstance(rollback(world, name), Result)
        world.run(60_000, "a")
        assert (world.stream().shard_count, world.stream().resharding) == (2, None)
        assert [migration.state for migration in world.stream().ended] == ["ROLLED_BACK"]
        assert isinstance(rollback(world, name), Result)  # of one already rolled back: the record again
        world.verify()
        if not died:
            assert steps > 4
            return
    pytest.fail("it never came to its end")


def test_h6_a_rollback_asked_for_twice_at_once_is_one() -> None:
    world = start(2, "a")
    name = scale(world, 4)
    assert name is not None
    answers: list[Refused | Result[Migration]] = []
    threads = [threading.Thread(target=lambda: answers.append(rollback(world, name))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert [type(answer) for answer in answers] == [Result] * 8
    assert len(world.events(RollbackRequested, None)) == 1
    world.verify()


def test_h6_a_rollback_too_late_or_of_nothing_is_refused() -> None:
    world = start(2, "a")
    name = scale(world, 4)
    assert name is not None
    world.run(30_000, "a")
    late, unknown = rollback(world, name), rollback(world, "reshard-nothing")
    assert isinstance(late, Refused)
    assert isinstance(unknown, Refused)
    assert (late.code, unknown.code) == (Code.ROLLBACK_NOT_ALLOWED, Code.MIGRATION_NOT_FOUND)
    assert world.stream().shard_count == 4


@pytest.mark.parametrize(("before", "after"), [(10, 1), (3, 0)])
def test_h8_a_scale_in_with_nobody_alive(before: int, after: int) -> None:
    """The proof is Redis' alone, and comes after the last of: one pending, one unread, a foreign group that lags."""
    world = start(before, "a", "b")
    world.shards.publish("orders:1")
    world.shards.deliver("orders:1", "g")
    world.shards.publish("orders:2")
    world.shards.provision("orders", [2], {"audit": "0"})
    world.told.clear()  # killed, all at once
    scale(world, after)
    world.run(40_000)
    assert world.group().active() == []
    for clear in ("orders:1 g", "orders:2 g", "orders:2 audit"):
        assert world.stream().resharding is not None, clear
        world.shards.consume(*clear.split())
        world.run(5_000)
    if after:
        world.heartbeat("late")  # who joins in between breaks nothing
    world.run(20_000, *(["late"] if after else []))
    assert world.stream().resharding is None
    assert world.stream().read_set == tuple(range(after))
    world.verify()


def test_h13_retired_shards_are_never_handed_out_again_by_themselves() -> None:
    world = start(8, "a")
    scale(world, 4)
    world.run(40_000, "a")
    from_here = (world.group().store_revision, 10**6)
    random = Random(13)
    for step in range(100):
        name = f"m{random.randint(0, 5)}"
        if random.random() < 0.5:
            world.heartbeat(name)
        else:
            world.heartbeat(name, epoch=-1, owned=[], mv=10**6)
        if step % 20 == 0:
            world.restart()
        world.run(1_000, "a")
    granted = [entry.event for entry in world.log(KEY, from_here) if isinstance(entry.event, ShardsGranted)]
    assert granted
    assert {shard for event in granted for shard in event.shards} <= {0, 1, 2, 3}
    assert world.stream().read_set == (0, 1, 2, 3)


def test_h13_the_readme_says_what_order_is_not_promised() -> None:
    readme = (Path(__file__).parents[2] / "README.md").read_text(encoding="utf-8")
    assert "Order holds within a shard, not across a scale" in readme


def test_commits_are_seen_by_their_hook() -> None:
    """The control of H4 and H6: a hook that is never called would let every crash point pass."""
    world = start(2, "a")
    seen: list[Commit] = []
    world.store.after_commit = seen.append
    scale(world, 4)
    assert len(seen) == 2
