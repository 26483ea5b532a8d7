"""A single server, managed or unsafe, and the way from the configuration to a topology."""

from __future__ import annotations

from pathlib import Path

import pytest

from coord.addresses import redis_settings
from coord.bootstrap import open_store
from coord.config import load
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.sentinel import SentinelTopology
from coord.rediscommands.settings import Address, ClusterSettings, RedisSettings, RedisTls, SentinelSettings
from coord.store.base import CorruptAggregate, LeaseChanges, StoreUnavailable
from coord.store.redis.store import RedisStore
from coord.streams.provisioning import ShardStreams
from tests.store.author import KEY, committed, deleted
from tests.store.redis_server import RedisServer
from tests.topologies.servers import HOST, Cluster, Sentinels, store_of, worries

BLANK = {"REDIS_CLUSTER_NODES": " ", "REDIS_SENTINEL_MASTER": "", "REDIS_SENTINEL_NODES": "", "REDIS_PASSWORD": ""}


def settings_of(tmp_path: Path, **environ: str) -> RedisSettings:
    return redis_settings(load(environ=environ, directory=tmp_path, secrets_directory=tmp_path))


# -- from the configuration to a topology


def test_blank_settings_mean_absent(tmp_path: Path) -> None:
    assert settings_of(tmp_path, **BLANK) == settings_of(tmp_path)
    plain = settings_of(tmp_path, REDIS_URL="rediss://me:secret@redis.example:6400/3", **BLANK)
    assert (plain.host, plain.port, plain.db, plain.username, plain.password) == ("redis.example", 6400, 3, "me", "secret")
    assert (plain.tls, plain.sentinel, plain.cluster) == (RedisTls(), None, None)


def test_sentinel_and_cluster_are_read(tmp_path: Path) -> None:
    sentinel = settings_of(
        tmp_path,
        REDIS_SENTINEL_MASTER="m",
        REDIS_SENTINEL_NODES="a:1,[2001:db8::1]:2",
        COORDINATOR_REDIS_SENTINEL_PASSWORD="secret",
        COORDINATOR_REDIS_SSL="true",
    )
    assert sentinel.sentinel == SentinelSettings(
        master="m", nodes=(Address("a", 1), Address("2001:db8::1", 2)), password="secret"
    )
    assert sentinel.at_sentinel(Address("a", 1)).tls == RedisTls()
    assert "secret" not in repr(sentinel)
    cluster = settings_of(
        tmp_path, REDIS_CLUSTER_NODES="a:1,b:2", COORDINATOR_REDIS_CLUSTER_ADDRESS_MAP="10.0.0.1:6379=localhost:7001"
    )
    reached = {Address("10.0.0.1", 6379): Address("localhost", 7001)}
    assert cluster.cluster == ClusterSettings(nodes=(Address("a", 1), Address("b", 2)), address_map=reached)


@pytest.mark.parametrize(
    ("wrong", "name"),
    [
        ({"cluster": ClusterSettings(nodes=())}, r"redis\.cluster\.nodes"),
        ({"sentinel": SentinelSettings(master="m", nodes=())}, r"redis\.sentinel\.nodes"),
        ({"cluster": ClusterSettings(nodes=(Address("a", 1),)), "db": 1}, r"redis\.database 1"),
        (
            {
                "cluster": ClusterSettings(nodes=(Address("a", 1),)),
                "sentinel": SentinelSettings(master="m", nodes=(Address("a", 1),)),
            },
            "exclude each other",
        ),
    ],
)
def test_what_cannot_work_is_refused_by_name(wrong: dict[str, object], name: str) -> None:
    with pytest.raises(ValueError, match=name):
        RedisSettings(**wrong)  # type: ignore[arg-type]  # wrong on purpose


def test_the_configured_store_is_on_the_cluster(cluster: Cluster, tmp_path: Path) -> None:
    nodes = ",".join(f"{HOST}:{node.port}" for node in cluster.nodes[:2])
    store, shards = open_store(load(environ={"REDIS_CLUSTER_NODES": nodes}, directory=tmp_path, secrets_directory=tmp_path))
    committed(store)
    assert shards is not None
    assert len(shards.provision("orders", range(9), {"g": "0"}).keys) == 9
    assert sum(node.call("DBSIZE") for node in cluster.masters()) == 9 + 2
    store.close()


def test_the_configured_store_is_behind_the_sentinels(sentinels: Sentinels, tmp_path: Path) -> None:
    nodes = ",".join(f"{HOST}:{sentinel.port}" for sentinel in sentinels.sentinels)
    environ = {"REDIS_SENTINEL_MASTER": "the-master", "REDIS_SENTINEL_NODES": nodes}
    store, _ = open_store(load(environ=environ, directory=tmp_path, secrets_directory=tmp_path))
    committed(store)
    assert sentinels.master.call("DBSIZE") == 2
    store.close()


# -- a server that allows little


def test_a_single_server_is_never_asked_about_clusters_or_settings(single: RedisServer) -> None:
    store = RedisStore(single.commands())
    committed(store, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
    ShardStreams(store._commands).provision("orders", range(3), {"g": "0"})
    store.ping()
    store.take_turn("one", takeover_ms=1)
    told: bytes = single.call("INFO", "commandstats")
    used = {line.split(b":")[0].removeprefix(b"cmdstat_").split(b"|")[0] for line in told.splitlines() if b"cmdstat_" in line}
    assert b"evalsha" in used
    assert used.isdisjoint({b"cluster", b"config", b"memory", b"role", b"asking", b"readonly", b"client"})
    store.close()


def test_a_server_that_refuses_to_be_looked_into_works_and_is_named(single: RedisServer) -> None:
    single.call("ACL", "SETUSER", "managed", "on", ">secret", "~*", "&*", "+@all", "-config", "-memory", "-cluster", "-role")
    store = store_of(RedisSettings(host=HOST, port=single.port, username="managed", password="secret"))
    committed(store)
    assert worries(store, 15_000) == [], "without replicas there is nothing that CONFIG would have to tell"
    single.call("ACL", "SETUSER", "managed", "-info")
    (concern,) = worries(store, 15_000)
    assert (concern.name, concern.is_unknown) == ("info", True)
    assert f"Redis at {HOST}:{single.port}: INFO is refused" in str(concern)
    with pytest.raises(StoreUnavailable, match=r"INFO is refused .* set store\.identity to constant"):
        store.load(KEY)
    constant = RedisStore(RedisCommands(store._commands._template.settings, identity_source="constant"))
    committed(constant)
    constant.close()
    store.close()


# -- eviction


def test_f8_eviction_is_reported_and_never_taken_for_a_new_group(single: RedisServer) -> None:
    """The policy is named; a group that lost its metadata or its log is not born again."""
    single.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    store = RedisStore(single.commands())
    (concern,) = worries(store, 15_000)
    assert (concern.name, concern.is_unknown) == ("eviction", False)
    assert "allkeys-lru may remove the coordinator's keys; set noeviction" in str(concern)
    keys = store._commands.keys.aggregate(KEY)
    for evicted in (keys.metadata, keys.events):
        single.call("FLUSHALL")
        committed(store)
        committed(store)
        single.call("DEL", evicted)
        with pytest.raises(CorruptAggregate):
            store.load(KEY)
    single.call("CONFIG", "SET", "maxmemory-policy", "volatile-lru")
    (concern,) = worries(store, 15_000)
    assert (concern.name, concern.level) == ("eviction", "warn"), "only what may go by itself is evicted"
    single.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    assert worries(store, 15_000) == []
    single.call("FLUSHALL")
    committed(store)
    deleted(store)
    assert store.load(KEY).head.revision == 2
    store.close()


def test_f8_concerns_of_a_master_with_a_replica(own_sentinels: Sentinels) -> None:
    store = own_sentinels.store()
    (concern,) = worries(store, 15_000)
    assert concern.name == "min-replicas"
    for server in own_sentinels.servers:
        server.call("CONFIG", "SET", "min-replicas-to-write", 1)
    (concern,) = worries(store, 15_000)
    assert "min-replicas-max-lag 10 s is more than half a lease (7500 ms)" in str(concern)
    for server in own_sentinels.servers:
        server.call("CONFIG", "SET", "min-replicas-max-lag", 5)
    assert worries(store, 15_000) == []
    assert isinstance(store._commands._template._topology, SentinelTopology)
    store.close()
