"""Consumers and producers on a real cluster and behind real Sentinels: they find the shards, and heal without a restart."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Self

import pytest
import redis

from coord.client import Consumer, Entry, Producer, PublishError, PublishUncertainError, ReaderSettings
from coord.client.connecting import connect
from coord.client.dataplane import DataPlane
from coord.client.redisurl import RedisPlace, read_redis_url
from coord.rediscommands.settings import Address
from coord.rediscommands.slots import slot_of
from tests.client.conftest import wait_until
from tests.client.scripted import ScriptedCoordinator, SmallGroup
from tests.store.redis_server import RedisServer
from tests.tap import Tap
from tests.topologies.servers import HOST, SENTINEL_NAME, Cluster, Sentinels

SHARDS = 6
TIMEOUT_MS = 500
LEASE_MS = 6_000


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(node_timeout_ms=1000)
    yield made
    made.close()


@pytest.fixture(scope="module")
def sentinels() -> Iterator[Sentinels]:
    made = Sentinels(down_after_ms=1000)
    yield made
    made.close()


def cluster_url(cluster: Cluster, count: int = 2) -> str:
    return "redis-cluster://" + ",".join(f"{HOST}:{node.port}" for node in cluster.nodes[:count])


def sentinel_url(sentinels: Sentinels) -> str:
    return f"redis-sentinel://{','.join(f'{HOST}:{each.port}' for each in sentinels.sentinels)}/{SENTINEL_NAME}"


class Seen:
    """Counts how often each record was handled."""

    def __init__(self) -> None:
        self.numbers: dict[str, int] = {}
        self._lock = threading.Lock()

    def __call__(self, entry: Entry) -> None:
        number = entry.fields[b"n"].decode()
        with self._lock:
            self.numbers[number] = self.numbers.get(number, 0) + 1


class Flow:
    """One consumer on all shards, and a producer that goes on whatever happens; what it published must be seen."""

    def __init__(self, coordinator: ScriptedCoordinator, url: str) -> None:
        self.seen = Seen()
        self.published: set[str] = set()
        self.errors: list[PublishError] = []
        self._done = threading.Event()
        self.producer = Producer(coordinator.url, url, stream_prefix="orders", redis_timeout_ms=TIMEOUT_MS)
        self.consumer = Consumer(
            coordinator.url, url, stream_prefix="orders", consumer_group="g", member_id="a", handler=self.seen,
            reader=ReaderSettings(block_ms=100, sweep_interval_ms=500), redis_timeout_ms=TIMEOUT_MS,
        )  # fmt: skip
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Self:
        self.consumer.start()
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(20)
        self.consumer.stop()
        self.consumer.wait(20)
        self.producer.close()
        assert not self._thread.is_alive()

    def _run(self) -> None:
        number = 0
        while not self._done.is_set():
            number += 1
            try:
                self.producer.publish(f"key-{number}", {"n": str(number)})
                self.published.add(str(number))
            except PublishError as error:
                self.errors.append(error)
            time.sleep(0.01)

    def goes_on(self, within_s: float = 20) -> None:
        """Wait until records are published and handled again, and every shard is being read."""
        count = len(self.published)
        wait_until(lambda: len(self.published) > count + 50, "publishing goes on", within_s)
        wait_until(lambda: self.consumer.health().healthy, "every shard is read", within_s)
        late = set(list(self.published)[-20:])
        wait_until(lambda: late <= set(self.seen.numbers), "the records are handled", within_s)


@pytest.fixture
def group(coordinator: ScriptedCoordinator) -> SmallGroup:
    small = SmallGroup(lease_ms=LEASE_MS, interval_ms=200)
    small.shard_count = SHARDS
    small.give(a=list(range(SHARDS)))
    coordinator.script = small
    return small


def provision(master_of: Callable[[str], RedisServer]) -> None:
    for shard in range(SHARDS):
        key = f"orders:{shard}"
        master_of(key).call("DEL", key)
        master_of(key).call("XGROUP", "CREATE", key, "g", "0", "MKSTREAM")


@pytest.mark.slow
def test_f4_a_cluster_that_loses_a_master_and_moves_a_slot(
    cluster: Cluster, coordinator: ScriptedCoordinator, group: SmallGroup
) -> None:
    """Shards over several nodes; one node dies, a live slot moves; both sides go on in the same process."""
    provision(cluster.master_of)
    assert len({cluster.master_of(f"orders:{shard}").port for shard in range(SHARDS)}) > 1
    with Flow(coordinator, cluster_url(cluster)) as flow:
        flow.goes_on()
        assert flow.errors == []
        slot = slot_of("orders:0")
        source = cluster.master_of("orders:0")
        target = next(node for node in cluster.masters() if node is not source)
        cluster.migrate_begin(slot, source, target)
        while cluster.migrate_keys(slot, source, target):
            pass
        flow.goes_on()  # by ASK
        cluster.migrate_end(slot, source, target)
        flow.goes_on()  # by MOVED
        assert flow.errors == []
        dead = cluster.master_of("orders:1")
        dead.stop()
        flow.goes_on(30)
        assert flow.errors != []
        dead.start()
        cluster.wait_whole()
        flow.goes_on()


@pytest.mark.slow
@pytest.mark.parametrize("how", ["switch", "freeze"])
def test_f2_sentinels_that_name_another_master(
    sentinels: Sentinels, coordinator: ScriptedCoordinator, group: SmallGroup, how: str
) -> None:
    """Live sockets to the old master are left, whether it says READONLY or nothing."""
    old = sentinels.master
    provision(lambda _key: old)
    old.call("WAIT", "1", "1000")
    with Flow(coordinator, sentinel_url(sentinels)) as flow:
        flow.goes_on()
        if how == "switch":
            sentinels.failover()
        else:
            old.freeze()
            wait_until(lambda: sentinels.master is not old, "another master", 20)
        flow.goes_on(30)
        old.thaw()
        sentinels.follow()
        flow.goes_on()


def test_a_cluster_is_told_nothing_twice_when_answers_are_lost(cluster: Cluster) -> None:
    """A library that repeats an XADD whose answer was lost doubles the record: alone, and in a batch, it stands there once."""
    key = "lost:1"
    master = cluster.master_of(key)
    master.call("DEL", key)
    with Tap(master.port) as tap:
        plane = tapped_plane(cluster, master, tap)
        assert isinstance(plane.call(key, "XADD", key, "*", "n", "0"), bytes)
        tap.drop_replies(containing=b"XADD", times=1)
        with pytest.raises(redis.RedisError):
            plane.call(key, "XADD", key, "*", "n", "1")
        tap.drop_replies(containing=b"XADD", times=1)
        replies = plane.batch([(key, ("XADD", key, "*", "n", str(number))) for number in (2, 3)])
        assert all(isinstance(reply, redis.ConnectionError | redis.TimeoutError) for reply in replies)
        tap.pass_through()
        plane.close()
    assert master.call("XLEN", key) == 4


def tapped_plane(cluster: Cluster, node: RedisServer, tap: Tap) -> DataPlane:
    """Make a plane that reaches one node through a tap."""
    plane = connect(cluster_url(cluster), timeout_ms=TIMEOUT_MS)
    plane.prepare()
    client = plane._client_of("lost:1")  # type: ignore[attr-defined]  # looks inside
    assert client.connection_pool.connection_kwargs["port"] == node.port
    client.connection_pool.connection_kwargs["port"] = tap.port
    client.connection_pool.disconnect()
    return plane


def test_an_uncertain_record_is_called_so_on_a_cluster(
    cluster: Cluster, coordinator: ScriptedCoordinator, group: SmallGroup
) -> None:
    """A node that hangs: the producer says that it does not know, and does not try again."""
    provision(cluster.master_of)
    with Producer(coordinator.url, cluster_url(cluster), stream_prefix="orders", redis_timeout_ms=TIMEOUT_MS) as producer:
        first = producer.publish("k", {"n": "1"})
        holder = cluster.master_of(first.stream_key)
        holder.freeze()
        try:
            with pytest.raises(PublishUncertainError):
                producer.publish("k", {"n": "2"})
        finally:
            holder.thaw()
        wait_until(lambda: holder.call("XLEN", first.stream_key) == 2, "it was on its way, once")
        time.sleep(0.3)
        assert holder.call("XLEN", first.stream_key) == 2
    cluster.wait_whole()


def test_a_cluster_whose_known_nodes_are_gone_is_found_by_those_first_named(cluster: Cluster) -> None:
    plane = connect(cluster_url(cluster), timeout_ms=TIMEOUT_MS)
    assert plane.batch([("k", ("SET", "k", "v"))]) == [b"OK"]
    for node in plane._cluster.nodes_manager.nodes_cache.values():  # type: ignore[attr-defined]  # looks inside
        node.redis_connection.connection_pool.connection_kwargs["port"] = 1
        node.redis_connection.connection_pool.disconnect()
    wait_until(lambda: plane.batch([("k", ("GET", "k"))]) == [b"v"], "found again")
    plane.close()


@pytest.mark.parametrize(
    ("url", "kind", "nodes", "master", "db"),
    [
        ("redis://h", "server", (("h", 6379),), "", 0),
        ("rediss://u:p%40w@h:1/3", "server", (("h", 1),), "", 3),
        ("redis://[::1]:7/2", "server", (("::1", 7),), "", 2),
        ("redis-cluster://a:1,b", "cluster", (("a", 1), ("b", 6379)), "", 0),
        ("redis-sentinel://a,b:2/mine", "sentinel", (("a", 26379), ("b", 2)), "mine", 0),
        ("rediss-sentinel://:pw@a/mine/4?sentinel_password=x", "sentinel", (("a", 26379),), "mine", 4),
    ],
)
def test_urls(url: str, kind: str, nodes: tuple[tuple[str, int], ...], master: str, db: int) -> None:
    place = read_redis_url(url)
    assert (place.kind, place.nodes, place.master, place.db) == (kind, nodes, master, db)
    assert place.is_tls is url.startswith("rediss")


def test_credentials_of_a_url_are_read_and_shown_nowhere() -> None:
    place = read_redis_url("rediss-sentinel://u:p%40w@a,b/m?sentinel_password=deep&ssl_ca_certs=/ca.pem")
    assert place.options == {"username": "u", "password": "p@w", "ssl_ca_certs": "/ca.pem"}
    assert place.sentinel_options == {"password": "deep", "ssl_ca_certs": "/ca.pem"}
    assert "p@w" not in repr(place)
    assert "deep" not in repr(place)


def test_several_urls_are_one_place() -> None:
    place = read_redis_url(["redis-cluster://a:1", "redis-cluster://b:2,a:1"])
    assert place == RedisPlace(kind="cluster", nodes=(Address("a", 1), Address("b", 2)))


@pytest.mark.parametrize(
    ("urls", "says"),
    [
        ("http://h", "must begin with redis://"),
        ("redis://a,b", "names one server"),
        ("redis-cluster://a:0", "is not host:port"),
        ("redis-cluster://a:1,", "is not host:port"),
        ("redis-cluster://a/1", "database 0 only"),
        ("redis-sentinel://a:1", "name the master"),
        ("redis://a/x", "database must be a number"),
        (["redis://a", "redis://b"], "several may only"),
        (["redis-cluster://a", "redis-cluster://:pw@b"], "several may only"),
        ("redis://a?health_check_interval=often", "an option after"),
        ([], "give one"),
    ],
)
def test_bad_urls_are_refused_without_showing_them(urls: str | list[str], says: str) -> None:
    with pytest.raises(ValueError, match=says) as refused:
        read_redis_url(urls)
    assert str(refused.value).startswith("redis_url: ")
    assert "pw" not in str(refused.value)
