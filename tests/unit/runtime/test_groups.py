"""Sagas over a stream and its groups, where the stories do not go."""

from __future__ import annotations

from coord.events.catalog import GroupRegistered, ShardReopened, TopologyFollowed
from coord.names import GroupKey, StreamKey
from coord.refusals import Code, Refused
from coord.runtime.requests import Result
from coord.store.base import Commit
from tests.world import World

KEY = GroupKey("orders", "g")
STREAM = StreamKey("orders")


def scale(world: World, count: int) -> None:
    scaled = world.services.admin.scale_stream(STREAM, target_shard_count=count, info=world.request("scale"))
    assert isinstance(scaled, Result)


def test_a_stream_that_was_read_before_it_moved_on_has_lost_nothing() -> None:
    """A slow ticker must not take its group back to where the stream was."""
    world = World()
    world.create(shards=4)
    world.settle("a")
    scale(world, 2)
    world.run(15_000, "a")
    slow, stale = world.start("slow"), world.stream()
    world.run(15_000, "a")
    assert world.group().read_set == (0, 1)
    assert stale.read_set == (0, 1, 2, 3)
    followed = len(world.events(TopologyFollowed))
    slow.executor.aggregates.load(KEY)
    slow.ticker._looks._sagas.complete(stale, "g")
    assert len(world.events(TopologyFollowed)) == followed
    assert world.events(ShardReopened, None) == []


def test_a_stream_that_lost_its_latest_commits_reads_again_what_a_group_had_followed() -> None:
    """What the group may have read from stays readable until it is proved drained."""
    world = World()
    world.create(shards=2)
    world.settle("a")
    before = world.store.dump().records[STREAM]
    scale(world, 4)
    world.run(3_000, "a")
    assert world.group().read_set == (0, 1, 2, 3)
    world.store.state.records[STREAM] = before  # another slot, and that one fell back
    world.restart()
    world.run(10_000, "a")
    assert world.stream().reopened == (2, 3)
    assert set(world.owners()) == {0, 1, 2, 3}
    world.run(20_000, "a")
    assert world.stream().read_set == world.group().read_set == (0, 1)
    assert set(world.owners()) == {0, 1}
    world.verify()


def test_a_group_that_cannot_be_provisioned_is_tried_again_by_the_tick() -> None:
    world = World()
    world.create(shards=2)
    world.shards.keys["orders:1"].groups.clear()

    def die(commit: Commit) -> None:
        if any(b"GroupRegistered" in entry.body for entry in commit.entries):
            raise KeyboardInterrupt

    world.store.after_commit = die
    try:
        world.services.admin.create_group(
            GroupKey("orders", "h"), shard_count=None, start_from=None, info=world.request("create")
        )
    except KeyboardInterrupt:
        world.restart()
    world.shards.failing.add("orders:1")
    world.run(30_000)
    assert not world.exists(GroupKey("orders", "h"))
    world.shards.failing.clear()
    world.run(2_000)
    assert world.exists(GroupKey("orders", "h"))
    assert len(world.events(GroupRegistered, None)) == 2


def test_two_who_create_one_group_make_one() -> None:
    """The loser of the race undoes nothing of the winner's."""
    world = World()
    world.create(shards=2)
    other, raced = world.start("other"), GroupKey("orders", "h")

    def win(commit: Commit) -> None:
        if commit.key == raced:
            world.store.before_commit = lambda commit: None
            won = other.admin.create_group(raced, shard_count=None, start_from=None, info=world.request("create"))
            assert isinstance(won, Result)

    world.store.before_commit = win
    lost = world.services.admin.create_group(raced, shard_count=None, start_from=None, info=world.request("create"))
    assert isinstance(lost, Refused)
    assert lost.code == Code.GROUP_ALREADY_EXISTS
    assert sorted(world.stream().groups) == ["g", "h"]
    assert "h" in world.shards.keys["orders:0"].groups
    world.verify()


def test_a_failed_provisioning_of_a_group_and_its_new_stream_leaves_nothing() -> None:
    world = World()
    world.shards.failing.add("orders:1")
    refused = world.services.admin.create_group(KEY, shard_count=3, start_from=None, info=world.request("create"))
    assert isinstance(refused, Refused)
    assert refused.code == Code.REDIS_STREAM_PROVISIONING_FAILED
    assert world.shards.keys == {}
    assert world.store.streams() == []
    assert not world.exists(STREAM)
    assert not world.exists(KEY)
    world.shards.failing.clear()
    world.create(shards=2)
    world.settle("a")


def test_a_group_that_is_registered_for_long_and_not_there_may_have_been_lost() -> None:
    """Seed 6432: the store fell back to before the group's creation, which the tick repeats; its members may read yet."""
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.run(20_000, "a")
    del world.store.state.records[KEY]
    world.restart()
    world.run(5_000)
    assert world.group().grants_from == world.group().created_at + 25_000
    joined = world.heartbeat("b", epoch=0, owned=(), request="b joins").reply
    assert (joined.row, joined.assigned, joined.pending) == (8, (), (0, 1))
    told = world.heartbeat("b").reply
    assert told.assigned == ()
    world.run(26_000, "b")
    assert world.heartbeat("b").reply.assigned == (0, 1)
    world.verify()
