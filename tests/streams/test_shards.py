"""Shard keys and their Cluster slots."""

from __future__ import annotations

import random

import pytest

from coord.names import GroupKey
from coord.rediscommands.keys import Keys
from coord.streams.shards import shard_key, slot_of
from tests.store.redis_server import RedisServer, free_port


def test_a_shards_key_is_prefix_and_index() -> None:
    assert shard_key("orders:eu", 7) == "orders:eu:7"


@pytest.mark.parametrize(
    ("key", "slot"), [("123456789", 12739), ("{user1000}.following", slot_of("user1000")), ("foo{}{bar}", slot_of("foo{}{bar}"))]
)
def test_known_slots(key: str, slot: int) -> None:
    assert slot_of(key) == slot


def test_d11_slots_are_those_of_redis() -> None:
    """A thousand names, braces in odd places and other scripts included."""
    chance = random.Random(11)
    letters = "ab:{}%é中-0"
    names = ["{}", "{", "}", "a}b{c", "{a}{b}", "{{a}}", "a{}b{c}", *("".join(chance.choices(letters, k=8)) for _ in range(1000))]
    server = RedisServer("--cluster-enabled", "yes", "--cluster-port", str(free_port()))
    try:
        wrong = [name for name in names if server.call("CLUSTER", "KEYSLOT", name) != slot_of(name)]
    finally:
        server.close()
    assert wrong == []


def test_d11_all_keys_of_an_aggregate_share_a_slot() -> None:
    for key in (GroupKey("orders", "c:d%"), GroupKey("orders", "c:d%").stream):
        keys = Keys().aggregate(key)
        assert len({slot_of(getattr(keys, name)) for name in keys.__slots__}) == 1
