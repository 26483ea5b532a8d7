"""What a correction round must not take from the record of before."""

from __future__ import annotations

from tests.world import World


def test_what_an_earlier_life_abandoned_is_not_freed_while_the_present_one_drains_it() -> None:
    """Seed 354: m gave up shard 1, joined again, was given it once more, and the store fell back to before that."""
    world = World()
    world.create(shards=2)
    world.watches_readers = False
    world.settle("m")
    world.heartbeat("n", owned=())
    assert world.group().ownership[1].phase == "REVOKING"
    world.heartbeat("m", epoch=0, owned=(), request="another life")
    assert world.group().members["m"].abandoned == (1,)
    world.store.store_identity = "store-2"
    world.restart()
    epoch = world.group().epoch + 50  # of the future that was lost, in which shard 1 was granted to m again
    synced = world.heartbeat("m", epoch=epoch, owned=(0, 1)).reply
    assert synced.status == "SYNC_METADATA"
    world.sleep(16_000)
    world.heartbeat("m", epoch=synced.member_epoch, owned=(0,), draining=(1,))
    assert world.group().ownership[1].member_id == "m", "it says that it drains shard 1"
    world.heartbeat("m", epoch=synced.member_epoch, owned=(0,), draining=())
    assert 1 not in world.group().ownership
    world.verify()
