"""The store's contract on a cluster, and behind Sentinels with a failover in the middle."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.servers import wait_until
from tests.store.beside import BesideContract, Place
from tests.store.contract import StoreContract, World
from tests.store.worlds import RedisWorld
from tests.topologies.servers import Cluster, Sentinels, store_of

TESTS_BEFORE_FAILOVER = 35
HEALED_S_MAX = 60


class TestCluster(StoreContract):
    @pytest.fixture
    def world(self, cluster: Cluster) -> Iterator[World]:
        store = cluster.store()
        yield RedisWorld(store)
        store.close()


class TestBesideCluster(BesideContract):
    @pytest.fixture
    def place(self, cluster: Cluster) -> Iterator[Place]:
        store = cluster.store()
        yield Place(store.windows, store.answers)
        store.close()


class TestCluster70(StoreContract):
    """The oldest Redis that is supported; its nodes are asked by CLUSTER SHARDS."""

    @pytest.fixture
    def world(self, cluster70: Cluster) -> Iterator[World]:
        for node in cluster70.nodes:
            node.call("ACL", "SETUSER", "managed", "on", ">secret", "~*", "&*", "+@all", "-cluster", "+cluster|shards")
        store = store_of(cluster70.settings(username="managed", password="secret"))
        yield RedisWorld(store)
        store.close()


class OneLife:
    """One store behind Sentinels for all tests of the contract, so that its connections live through the failover."""

    def __init__(self, sentinels: Sentinels) -> None:
        self.world = RedisWorld(sentinels.store())
        self._sentinels = sentinels
        self.tests = 0
        self.failovers = 0

    def next_test(self) -> World:
        if self.tests == TESTS_BEFORE_FAILOVER:
            before = self.world.store.identity()
            self._sentinels.failover()
            # The master is looked for once a second, so the old one may be asked for that long.
            wait_until(lambda: self.world.store.identity() != before, timeout_s=HEALED_S_MAX, what="the store follows")
            self.failovers += 1
        self.tests += 1
        self._sentinels.master.call("FLUSHALL", "SYNC")
        return self.world


@pytest.fixture(scope="module")
def one_life(shared_sentinels: Sentinels) -> Iterator[OneLife]:
    life = OneLife(shared_sentinels)
    yield life
    life.world.store.close()
    assert life.failovers == (life.tests > TESTS_BEFORE_FAILOVER)


@pytest.mark.xdist_group("one life")
class TestSentinel(StoreContract):
    @pytest.fixture
    def world(self, one_life: OneLife) -> World:
        return one_life.next_test()
