"""The contract, run on the memory store and on single Redis servers, the newest and the oldest that is supported.

Sentinel and Cluster: `tests/topologies/test_contract.py`.
"""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coord.store.memory import MemoryStore
from coord.store.redis.store import RedisStore
from tests.store.author import KEY, commit_on, committed
from tests.store.contract import StoreContract, World
from tests.store.redis_server import RedisServer
from tests.store.worlds import MemoryWorld, RedisWorld


class TestMemory(StoreContract):
    @pytest.fixture
    def world(self) -> World:
        world: MemoryWorld = MemoryWorld(MemoryStore(lambda: world.now))
        return world

    def test_a_dump_is_a_moment_that_can_come_back(self, world: MemoryWorld) -> None:
        """What is written after a dump is gone with the restore, and the dump itself is not touched by it."""
        store = world.store
        first = committed(store)
        store.index_add(KEY.stream)
        moment = store.dump()
        for _ in range(2):
            lost = committed(store)
            store.index_remove(KEY.stream)
            assert lost.head.revision == 2
            store.restore(moment)
            assert store.load(KEY).head == first.head
            assert store.streams() == ["orders"]

    def test_the_identity_may_change_under_a_writer(self, world: MemoryWorld) -> None:
        read = world.store.load(KEY)
        world.store.store_identity = "after a failover"
        assert getattr(world.store.commit(commit_on(read)), "what", None) == "identity"


class TestRedis(StoreContract):
    @pytest.fixture
    def world(self, server: RedisServer) -> Iterator[World]:
        store = RedisStore(server.commands())
        yield RedisWorld(store)
        store.close()


class TestRedisOfConstantIdentity(StoreContract):
    @pytest.fixture
    def world(self, server: RedisServer) -> Iterator[World]:
        store = RedisStore(server.commands(identity_source="constant"))
        assert store.identity() == "constant"
        yield RedisWorld(store)
        store.close()


class TestRedis70(StoreContract):
    """The oldest Redis that is supported."""

    @pytest.fixture
    def world(self, server70: RedisServer) -> Iterator[World]:
        assert b"redis_version:7.0." in server70.call("INFO", "server")
        store = RedisStore(server70.commands())
        yield RedisWorld(store)
        store.close()
