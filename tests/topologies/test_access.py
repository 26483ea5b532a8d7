"""What a Sentinel, a Cluster, another database and `store.wait-replicas` add to the documented users."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from coord.rediscommands.access import Access, Part, coordinator
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.settings import RedisSettings
from coord.store.base import LeaseChanges, StoreUnavailable
from coord.store.redis.replicas import ReplicaWait
from coord.store.redis.store import RedisStore
from coord.streams.provisioning import ShardStreams
from tests.store.author import KEY, commit_on, committed
from tests.store.redis_server import RedisServer
from tests.topologies.servers import Cluster, Sentinels

PASSWORD = "a-password-of-the-tests"
USER = {"username": "least", "password": PASSWORD}


def allow(servers: list[RedisServer], access: Access) -> None:
    for server in servers:
        server.call("ACL", "SETUSER", "least", "reset", "on", f">{PASSWORD}", *access.words())


def without(access: Access, command: str) -> Access:
    first, *others = access.parts
    return Access((replace(first, commands=tuple(each for each in first.commands if each != command)), *others))


def work(settings: RedisSettings) -> None:
    """Store and shards on new connections, and nothing lacking."""
    store = RedisStore(RedisCommands(settings))
    try:
        committed(store, leases=LeaseChanges(ttl_ms=60_000, renew=("m",)))
        ShardStreams(store._commands).provision("orders", range(9), {"g": "0"})
    finally:
        store.close()


def user_of(settings: RedisSettings, **more: object) -> RedisSettings:
    return replace(settings, **USER, **more)  # type: ignore[arg-type]  # options as they come


def needs(**settings: bool) -> Access:
    return coordinator(shards="orders:*", provisioning=True, **settings)  # type: ignore[arg-type]  # options as they come


def test_a_cluster_needs_its_map(cluster: Cluster) -> None:
    allow(cluster.nodes, needs(cluster=True))
    work(user_of(cluster.settings()))
    allow(cluster.nodes, without(needs(cluster=True), "cluster|slots"))
    with pytest.raises(StoreUnavailable, match="'cluster"):
        work(user_of(cluster.settings()))


def test_a_slot_on_its_way_needs_asking(cluster: Cluster) -> None:
    """A key that has gone ahead is asked for at the node that it went to."""
    settings = user_of(cluster.settings())
    store = RedisStore(RedisCommands(settings))
    key = store._commands.keys.aggregate(KEY).metadata
    slot = cluster.nodes[0].call("CLUSTER", "KEYSLOT", key)
    source = cluster.master_of(key)
    target = next(node for node in cluster.masters() if node is not source)
    allow(cluster.nodes, without(needs(cluster=True), "asking"))
    cluster.migrate_begin(slot, source, target)
    try:
        with pytest.raises(StoreUnavailable, match="'asking'"):
            store.tail(KEY, after=(0, 0), limit=1)
        allow(cluster.nodes, needs(cluster=True))
        assert store.tail(KEY, after=(0, 0), limit=1) == []
    finally:
        for node in (source, target):
            node.call("CLUSTER", "SETSLOT", slot, "STABLE")
        store.close()


def test_a_master_behind_sentinels_tells_its_role(sentinels: Sentinels) -> None:
    """Without ROLE the Sentinels' word is taken, and the doctor names it."""
    allow(sentinels.servers, needs(sentinel=True))
    work(user_of(sentinels.settings()))
    allow(sentinels.servers, without(needs(sentinel=True), "role"))
    commands = RedisCommands(user_of(sentinels.settings()))
    ((_, lacking),) = commands.missing_rights(needs(sentinel=True))
    commands.close()
    assert [each.command for each in lacking or ()] == ["role"]


@pytest.mark.parametrize(
    ("settings", "command", "more"), [({"database": True}, "select", {"db": 1}), ({"replicas": True}, "wait", {})]
)
def test_what_a_setting_adds_is_needed(
    single: RedisServer, settings: Mapping[str, bool], command: str, more: Mapping[str, object]
) -> None:
    allow([single], needs(**settings))
    own = user_of(single.settings(), **more)
    work(own)
    store = RedisStore(RedisCommands(own), wait=ReplicaWait(replicas=1, timeout_ms=1))
    allow([single], without(needs(**settings), command))
    if command == "wait":
        ((_, lacking),) = store._commands.missing_rights(needs(**settings))
        assert [each.command for each in lacking or ()] == ["wait"]
        store.commit(replace(commit_on(store.load(KEY)), waits=True))
    else:
        with pytest.raises(StoreUnavailable, match="'select'"):
            store.load(KEY)
    store.close()


def test_a_part_that_is_only_read_says_so() -> None:
    assert Part("a:*", ("get",), reads_only=True).rules() == "%R~a:* +get"
