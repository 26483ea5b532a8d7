"""The producer on a real Redis, with a scripted coordinator that gives out routings."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import redis

from coord.client import (
    NoShardsError,
    Producer,
    PublishError,
    PublishUncertainError,
    Record,
    RoutingExpiredError,
    ShardGoneError,
    shard_for,
)
from tests.client.conftest import OwnRedis, wait_until
from tests.client.scripted import Call, Reply, ScriptedCoordinator, SmallGroup

Make = Callable[..., Producer]


@pytest.fixture
def group(coordinator: ScriptedCoordinator) -> SmallGroup:
    small = SmallGroup()
    coordinator.script = small
    return small


@pytest.fixture
def make(coordinator: ScriptedCoordinator, data_redis: OwnRedis) -> Iterator[Make]:
    made: list[Producer] = []

    def begin(**options: Any) -> Producer:
        made.append(Producer(coordinator.url, data_redis.url, stream_prefix="orders", **options))
        return made[-1]

    yield begin
    for producer in made:
        producer.close()


def provision(own: OwnRedis, group: SmallGroup, count: int) -> None:
    """Make the keys of the shards, then route to them."""
    for shard in range(count):
        own.client.xgroup_create(f"orders:{shard}", "g", id="0", mkstream=True) if not own.client.exists(
            f"orders:{shard}"
        ) else None
    group.shard_count = count


def lengths(own: OwnRedis, count: int) -> list[int]:
    return [own.client.xlen(f"orders:{shard}") for shard in range(count)]


def test_a_record_goes_to_the_shard_of_its_key(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    provision(data_redis, group, 4)
    published = make().publish("customer-7", {"amount": 12, b"raw": b"\xff"})
    assert published.shard == shard_for("customer-7", 4)
    assert published.stream_key == f"orders:{published.shard}"
    assert data_redis.client.xlen(published.stream_key) == 1
    with redis.Redis(port=data_redis.port) as raw:
        assert raw.xrange(published.stream_key) == [(published.id.encode(), {b"amount": b"12", b"raw": b"\xff"})]


def test_g7_what_was_published_stays_however_much_nobody_reads(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    """Publishing trims nothing: 20 000 records to a group whose consumers are down are all there, the first one too."""
    provision(data_redis, group, 2)
    producer = make()
    for start in range(0, 20_000, 2_000):
        outcomes = producer.publish_many([Record(None, {"n": number}) for number in range(start, start + 2_000)])
        assert all(outcome.error is None for outcome in outcomes)
    assert sum(lengths(data_redis, 2)) == 20_000
    read: Any = data_redis.client.xreadgroup("g", "late", {"orders:0": ">", "orders:1": ">"}, count=20_000)
    kept = [int(fields["n"]) for _, entries in read for _, fields in entries]
    assert sorted(kept) == list(range(20_000))


def test_a_closed_producer_publishes_nothing(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    provision(data_redis, group, 1)
    producer = make()
    producer.close()
    with pytest.raises(PublishError, match="closed"):
        producer.publish("a", {"n": "0"})


def test_records_without_a_key_spread_over_all_shards(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    provision(data_redis, group, 4)
    producer = make()
    for _ in range(40):
        producer.publish(None, {"a": "b"})
    assert lengths(data_redis, 4) == [10, 10, 10, 10]


def test_h1_a_producer_fails_closed_when_its_routing_lease_ends(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup, make: Make
) -> None:
    """8 -> 4, the refresh black-holed, keys 4-7 still there: what was published is readable or was refused, in time."""
    provision(data_redis, group, 8)
    producer = make(refresh_ms=100, routing_lease_ms=500, http_timeout_ms=1_000)
    producer.publish("a", {"n": "0"})
    group.fail = lambda _call: Reply(delay_s=5)
    begin, published, refused = time.monotonic(), 1, 0
    while refused < 20 and time.monotonic() - begin < 30:
        try:
            producer.publish(f"k{published}", {"n": "1"})
            published += 1
        except RoutingExpiredError:
            refused += 1
        time.sleep(0.01)
    assert refused == 20
    assert sum(lengths(data_redis, 8)) == published
    group.fail = lambda _call: None
    coordinator.released.set()
    wait_until(lambda: publishes(producer), "it recovers by itself")


def publishes(producer: Producer) -> bool:
    try:
        producer.publish("again", {"n": "1"})
    except PublishError:
        return False
    return True


def test_h2_a_nil_answer_is_a_failure_after_exactly_one_refresh(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup, make: Make
) -> None:
    provision(data_redis, group, 2)
    producer = make()
    producer.publish("a", {"n": "0"})
    data_redis.client.delete("orders:0", "orders:1")
    fetched = len(coordinator.calls)
    with pytest.raises(ShardGoneError, match="orders:"):
        producer.publish("a", {"n": "1"})
    assert len(coordinator.calls) == fetched + 1
    assert "if-none-match" not in coordinator.calls[-1].headers
    assert data_redis.client.exists("orders:0", "orders:1") == 0, "the key is not made"


def test_h2_one_refresh_and_one_retry_find_the_new_shards(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup, make: Make
) -> None:
    """In a batch each record has its own outcome; those of a vanished shard go where the fresh routing says."""
    provision(data_redis, group, 4)
    producer = make()
    producer.publish("a", {"n": "0"})
    data_redis.client.delete("orders:2", "orders:3")
    group.shard_count = 2
    fetched, before = len(coordinator.calls), sum(lengths(data_redis, 2))
    outcomes = producer.publish_many([Record(f"k{i}", {"n": str(i)}) for i in range(40)])
    assert len(coordinator.calls) == fetched + 1
    assert all(o.published is not None and o.published.shard < 2 for o in outcomes)
    assert sum(lengths(data_redis, 2)) == before + 40
    data_redis.client.delete("orders:1")
    outcomes = producer.publish_many([Record(f"k{i}", {"n": str(i)}) for i in range(40)])
    for i, outcome in enumerate(outcomes):
        gone = shard_for(f"k{i}", 2) == 1
        assert isinstance(outcome.error, ShardGoneError) == gone
        assert (outcome.published is None) == gone
    assert len(coordinator.calls) == fetched + 2


def test_h9_no_shards_fail_closed_at_once_and_recover_within_a_refresh(
    data_redis: OwnRedis, group: SmallGroup, make: Make
) -> None:
    provision(data_redis, group, 4)
    producer = make(refresh_ms=200)
    producer.publish("a", {"n": "0"})
    group.shard_count = 0
    wait_until(lambda: not publishes(producer), "it knows")
    before = sum(lengths(data_redis, 4))
    for _ in range(5):
        begin = time.monotonic()
        with pytest.raises(NoShardsError, match="no shards"):
            producer.publish("a", {"n": "1"})
        assert time.monotonic() - begin < 5, "not queued"
    group.shard_count = 4
    wait_until(lambda: publishes(producer), "the first success")
    assert sum(lengths(data_redis, 4)) == before + 1, "nothing that was refused comes later"


def test_h10_new_shards_are_found_without_errors(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    provision(data_redis, group, 4)
    producer = make(refresh_ms=300)
    producer.publish("a", {"n": "0"})
    provision(data_redis, group, 8)
    begin, shards = time.monotonic(), set[int]()
    while len(shards) < 8 and time.monotonic() - begin < 30:
        shards.add(producer.publish(f"k{len(shards)}-{time.monotonic_ns()}", {"n": "1"}).shard)
    assert shards == set(range(8))


def test_routing_is_refreshed_by_etag(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup, make: Make
) -> None:
    provision(data_redis, group, 2)
    producer = make(refresh_ms=50, routing_lease_ms=1_500)
    producer.publish("a", {"n": "0"})
    first = coordinator.calls[0].at
    wait_until(lambda: coordinator.calls[-1].at > first + 1.6, "refreshes for longer than a lease")
    assert all(c.headers.get("if-none-match") == '"2"' for c in coordinator.calls[1:])
    producer.publish("a", {"n": "1"})  # 304 renews the lease
    assert [c.path for c in coordinator.calls[:1]] == ["/coord/v1/streams/orders/producer-routing"]


def test_a_deleted_stream_fails_closed_at_once(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    provision(data_redis, group, 2)
    producer = make(refresh_ms=50)
    producer.publish("a", {"n": "0"})
    gone = {"status": "NOT_FOUND", "errorCode": "STREAM_NOT_FOUND", "message": "no stream orders"}
    group.fail = lambda _call: Reply(gone, status=404)
    wait_until(lambda: not publishes(producer), "it knows")
    with pytest.raises(RoutingExpiredError, match="STREAM_NOT_FOUND"):
        producer.publish("a", {"n": "1"})


def test_a_routing_out_of_order_is_refused(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup, make: Make
) -> None:
    def shuffled(call: Call) -> Reply:
        reply = group(call)
        reply.body["shards"].reverse()
        return reply

    provision(data_redis, group, 2)
    coordinator.script = shuffled
    with pytest.raises(RoutingExpiredError, match="in order"):
        make().publish("a", {"n": "0"})


def test_a_coordinator_that_is_away_at_the_start_is_a_clear_error(coordinator: ScriptedCoordinator, make: Make) -> None:
    coordinator.script = lambda _call: Reply({}, status=503)
    with pytest.raises(RoutingExpiredError, match="http-503"):
        make().publish("a", {"n": "0"})


def test_redis_that_fails_leaves_the_record_in_doubt_and_says_so(
    tmp_path_factory: pytest.TempPathFactory, coordinator: ScriptedCoordinator, group: SmallGroup
) -> None:
    own = OwnRedis(tmp_path_factory.mktemp("producer-redis"))
    provision(own, group, 2)
    with Producer(coordinator.url, own.url, stream_prefix="orders", redis_timeout_ms=500) as producer:
        producer.publish("a", {"n": "0"})
        own.stop()
        with pytest.raises(PublishUncertainError):
            producer.publish("a", {"n": "1"})
        own.start()
        producer.publish("a", {"n": "2"})
    own.close()


def test_threads_publish_together(data_redis: OwnRedis, group: SmallGroup, make: Make) -> None:
    provision(data_redis, group, 4)
    producer = make()
    threads = [threading.Thread(target=lambda: [producer.publish(None, {"a": "b"}) for _ in range(25)]) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(lengths(data_redis, 4)) == 100


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"stream_prefix": "a/b"}, "stream_prefix"),
        ({"refresh_ms": 0}, "refresh_ms"),
        ({"refresh_ms": 500, "routing_lease_ms": 400}, "refresh_ms"),
    ],
)
def test_wrong_options_are_refused_by_name(options: dict[str, Any], named: str) -> None:
    with pytest.raises(ValueError, match=named):
        Producer("http://127.0.0.1:1/coord/v1", "redis://127.0.0.1:1", **{"stream_prefix": "orders", **options})
