"""Topologies of the tests: shared ones for tests that leave them well, own ones for tests that break theirs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.redis_server import BINARY_70, RedisServer
from tests.topologies.servers import Cluster, Sentinels


@pytest.fixture(scope="session")
def shared_cluster() -> Iterator[Cluster]:
    cluster = Cluster(node_timeout_ms=3000)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster(shared_cluster: Cluster) -> Cluster:
    """A whole cluster, empty."""
    shared_cluster.flush()
    return shared_cluster


@pytest.fixture(scope="session")
def shared_cluster70() -> Iterator[Cluster]:
    if not BINARY_70.exists():
        pytest.skip("Redis 7.0 is not there: make redis70")
    cluster = Cluster(node_timeout_ms=3000, binary=BINARY_70)
    yield cluster
    cluster.close()


@pytest.fixture
def cluster70(shared_cluster70: Cluster) -> Cluster:
    """A whole cluster of Redis 7.0, empty."""
    shared_cluster70.flush()
    return shared_cluster70


@pytest.fixture
def own_cluster() -> Iterator[Cluster]:
    """A cluster that the test may break; it notices a dead master within a second or two."""
    cluster = Cluster(node_timeout_ms=1000)
    yield cluster
    cluster.close()


@pytest.fixture
def single() -> Iterator[RedisServer]:
    """A server by itself."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def shared_sentinels() -> Iterator[Sentinels]:
    sentinels = Sentinels(down_after_ms=10_000)
    yield sentinels
    sentinels.close()


@pytest.fixture
def sentinels(shared_sentinels: Sentinels) -> Sentinels:
    """A master behind Sentinels, empty."""
    shared_sentinels.master.call("FLUSHALL", "SYNC")
    return shared_sentinels


@pytest.fixture
def own_sentinels() -> Iterator[Sentinels]:
    """Sentinels whose servers the test may break."""
    sentinels = Sentinels()
    yield sentinels
    sentinels.close()
