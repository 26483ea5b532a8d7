"""Where audit entries go besides the logs: lines of the structured log, lists in Redis; and requests without them."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import redis

from coord.bootstrap import build
from coord.config import Configuration, load
from coord.http.app import create_app
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.observability.logging import configure
from coord.runtime.audit import ENTRIES_A_MINUTE_MAX
from coord.runtime.auditsinks import AuditDelivery, ListSink
from coord.runtime.embedded import EmbeddedRedis
from coord.store.base import StoreUnavailable
from coord.wire import AuditEntry
from tests.http.face import OLD_SECRET, SECRET, USERS, Face, error_of
from tests.http.test_requests import audited
from tests.servers import private_redis

WHO = {"requestedBy": "tester", "reason": "a test"}
SCALE = {"targetShardCount": 6, **WHO}
PREFIX = "redis-stream:coord"


@pytest.fixture
def out() -> io.StringIO:
    """What the log of this process says, for the time of a test."""
    return io.StringIO()


def lines_of(out: io.StringIO) -> list[dict[str, object]]:
    return [line for text in out.getvalue().splitlines() if (line := json.loads(text))["logger"] == "coord.audit"]


# -- the log


def test_every_mutation_is_a_line_of_the_log_whatever_became_of_it(world: Face, out: io.StringIO) -> None:
    configure("json", stream=out)
    world.ask("POST", "/streams/orders/scale", SCALE, headers={"X-Request-Id": "done"})
    world.ask("POST", "/streams/orders/scale", SCALE, user="reader", headers={"X-Request-Id": "forbidden"})
    world.ask("POST", "/streams/nowhere/groups/g/scale", SCALE, headers={"X-Request-Id": "lost"})
    world.ask("POST", "/streams/orders/scale", SCALE, user=None, headers={"X-Request-Id": "nobody"})
    lines = {str(line["requestId"]): line for line in lines_of(out)}
    assert {name: (line["event"], line["outcome"], line["status"]) for name, line in lines.items()} == {
        "done": ("audit", "SUCCESS", 202),
        "forbidden": ("audit", "FORBIDDEN", 403),
        "lost": ("audit", "FAILED", 404),
        "nobody": ("audit", "UNAUTHORIZED", 401),
    }
    assert {"revision", "at", "principal", "requestedBy", "streamPrefix", "durationMs"} <= set(lines["done"])
    assert "revision" not in lines["lost"]
    assert (lines["lost"]["streamPrefix"], lines["lost"]["consumerGroup"]) == ("nowhere", "g")
    assert len(lines_of(out)) == 4


@pytest.mark.parametrize("log_format", ["json", "console"])
def test_no_value_of_a_caller_makes_a_line_of_its_own(world: Face, out: io.StringIO, log_format: str) -> None:
    """Line ends, escape sequences and turned letters stay inside their value; so does what looks like another field."""
    configure(log_format, stream=out)  # type: ignore[arg-type]  # one of the formats
    forged = '\r\n{"event":"audit","outcome":"SUCCESS"}\x1b[31m\u2028\u202e'
    world.ask(
        "POST",
        "/streams/orders%0Aevil/scale",
        {**SCALE, "reason": 'x" outcome=SUCCESS \u202e'},
        headers={"User-Agent": "agent \u00e9 [31m"},
        query="password=MARKER&x=%0D%0Aevent%3Daudit",
    )
    world.ask("POST", "/streams/orders/scale", {**SCALE, "reason": forged})
    world.ask("POST", "/streams/orders/scale", {**SCALE, "reason": 'x" outcome=SUCCESS \u202e'})
    text = out.getvalue()
    told = [line for line in text.splitlines() if "coord.audit" in line]
    assert len(told) == 3
    assert not set("\x1b\u2028\u202e\r") & set(text)
    assert "MARKER" not in text


# -- a sink that fails


class Broken:
    """A sink that takes nothing while it is broken."""

    broken = True
    taken = 0

    def take(self, entry: AuditEntry, key: AggregateKey | None, *, gone: bool) -> None:
        if self.broken:
            raise StoreUnavailable("the list is away")
        self.taken += 1


def test_k10_a_sink_that_is_away_fails_no_request_and_is_told(
    world: Face, out: io.StringIO, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The entry is on the log all the same; what the sink lost is counted, said at error, and degrades the health."""
    configure("json", stream=out)
    monkeypatch.setattr(world.services.monitor._survey_glance, "_fresh_s", 0.0)
    monkeypatch.setattr(world.services.monitor._store_glance, "_fresh_s", 0.0)
    world.services.ticker.tick()
    assert world.ask("GET", "/monitoring/health").json["status"] == "UP"
    sink, delivery = Broken(), world.services.executor.delivery
    delivery._sink = sink
    statuses = [
        world.ask("POST", "/streams/orders/scale", SCALE).status_code,
        world.ask("POST", "/streams/orders", WHO).status_code,
        world.ask("DELETE", "/streams/none", WHO).status_code,
    ]
    assert statuses == [202, 409, 404]
    assert [entry.status for entry in audited(world, StreamKey("orders"))[-2:]] == [202, 409]
    assert [entry.status for entry in audited(world)] == [404]
    lost = [line for line in lines_of(out) if line["event"] == "audit entry could not be delivered"]
    assert [line["level"] for line in lost] == ["error"] * 3
    assert "the list is away" in str(lost[0])
    assert delivery.unwritten == 3
    assert world.ask("GET", "/monitoring/health").json["status"] == "DEGRADED"
    sink.broken = False
    world.ask("DELETE", "/streams/none", WHO)
    assert (sink.taken, delivery.unwritten) == (1, 3)
    assert world.ask("GET", "/monitoring/health").json["status"] == "UP"


def test_what_no_store_takes_is_counted_too(world: Face) -> None:
    world.store.fault = StoreUnavailable("away")
    world.store.append_request = lambda entry: world.store._fail()  # type: ignore[method-assign]  # a stand-in
    assert world.ask("POST", "/streams/orders/scale", SCALE).status_code == 503
    assert world.services.executor.delivery.unwritten == 1


# -- lists in Redis


class Lists:
    """Lists in memory."""

    def __init__(self) -> None:
        self.pushed: list[tuple[AggregateKey, AuditEntry]] = []

    def push_audit(self, key: AggregateKey, entry: bytes, *, kept: int, ttl_ms: int | None) -> None:
        self.pushed.append((key, msgspec.json.decode(entry, type=AuditEntry)))


def test_a_flood_of_refusals_pushes_nothing_out_of_a_list(world: Face) -> None:
    """What the log leaves out, the list leaves out; names that do not exist have no list at all."""
    lists = Lists()
    world.services.executor.delivery._sink = ListSink(lists, kept=1000, gone_ttl_ms=1)
    for number in range(ENTRIES_A_MINUTE_MAX + 20):
        world.ask("POST", "/streams/orders", WHO)
        world.ask("POST", f"/streams/made-up-{number}/scale", SCALE)
        world.ask("POST", "/streams/orders/scale", SCALE, user=None)
    assert {key for key, _ in lists.pushed} == {StreamKey("orders")}
    assert len(lists.pushed) <= ENTRIES_A_MINUTE_MAX


def redis_config(folder: Path, port: int, **overrides: object) -> Configuration:
    file = folder / "coordinator.yaml"
    file.write_text(USERS.format(secret=SECRET, old=OLD_SECRET, members="false"))
    overrides.setdefault("store.jdbc.timeout-ms", 10_000)  # the first call makes the tables
    wanted = {"audit.sink": "redis", "audit.redis-max-entries": 5, "redis.port": port, "redis.host": "127.0.0.1", **overrides}
    return load(file, overrides=wanted, environ={}, secrets_directory=folder / "none")


@pytest.fixture(params=["redis", "jdbc"])
def stored(request: pytest.FixtureRequest, tmp_path: Path, redis_url: str, redis_server: EmbeddedRedis) -> Iterator[Face]:
    """A coordinator whose entries go to lists in Redis, where its store is too, or beside its SQL store."""
    beside = {"store.type": "jdbc", "store.url": f"sqlite:///{tmp_path}/coord.db"} if request.param == "jdbc" else {}
    services = build(redis_config(tmp_path, redis_server.port, **beside))
    yield Face(services=services, app=create_app(services), store=services.store)  # type: ignore[arg-type]  # a store of the test's kind
    services.stop()


def test_the_list_holds_the_newest_entries_of_its_stream_or_group(stored: Face, redis_server: EmbeddedRedis) -> None:
    stored.make_stream()
    stored.make_group()
    for _ in range(7):
        stored.ask("POST", "/streams/orders", WHO)
    stored.ask("POST", "/streams/none/groups/x/scale", SCALE)
    with redis.Redis(port=redis_server.port) as client:
        of_stream = [json.loads(each) for each in client.lrange(f"{PREFIX}:{{orders}}:stream:admin:audit", 0, -1)]
        of_group = [json.loads(each) for each in client.lrange(f"{PREFIX}:{{orders:g}}:admin:audit", 0, -1)]
        assert [(each["action"], each["status"]) for each in of_stream] == [("CREATE_STREAM", 409)] * 5
        assert [(each["action"], each["status"], each["revision"]) for each in of_group] == [("CREATE_GROUP", 201, 1)]
        assert client.ttl(f"{PREFIX}:{{orders:g}}:admin:audit") == -1
        assert client.keys("*none*") == []
        assert stored.ask("DELETE", "/streams/orders/groups/g", WHO).status_code == 200
        assert client.ttl(f"{PREFIX}:{{orders:g}}:admin:audit") > 29 * 24 * 3600, "it goes with the log"
        stored.make_group()
        assert client.ttl(f"{PREFIX}:{{orders:g}}:admin:audit") == -1, "a new life keeps it"
        assert client.llen(f"{PREFIX}:{{orders:g}}:admin:audit") == 3


@pytest.mark.parametrize("path", ["/streams/orders/groups/g", "/streams/orders/consumer-groups/foreign"])
def test_a_destroyed_consumer_group_is_audited_with_what_was_pending(
    tmp_path: Path, redis_url: str, redis_server: EmbeddedRedis, path: str
) -> None:
    services = build(redis_config(tmp_path, redis_server.port, **{"streams.provisioning-enabled": True}))
    face = Face(services=services, app=create_app(services), store=services.store)  # type: ignore[arg-type]  # a store of the test's kind
    face.make_stream()
    face.make_group()
    name = path.rpartition("/")[2]
    with redis.Redis(port=redis_server.port) as client:
        for shard in ("orders:0", "orders:1"):
            if name == "foreign":
                client.xgroup_create(shard, name)
            for _ in range(3):
                client.xadd(shard, {"a": "b"})
            client.xreadgroup(name, "somebody", {shard: ">"}, count=2)
    body = {**WHO, **({"destroyConsumerGroups": True} if name == "g" else {})}
    answer = face.ask("DELETE", path, body)
    assert answer.status_code == 200, answer.text
    told = audited(face, StreamKey("orders"))[-1]
    assert (told.outcome, told.status) == ("SUCCESS", 200)
    assert "destroyed on " in told.request_summary
    assert told.request_summary.endswith("shards, pending 4")
    services.stop()


def test_consumer_groups_that_cannot_be_destroyed_are_told_of_though_the_group_is_gone(tmp_path: Path) -> None:
    """The store is elsewhere than the shards' Redis, which is away."""
    beside = {"store.type": "jdbc", "store.url": f"sqlite:///{tmp_path}/c.db", "redis.timeout-ms": 300, "audit.sink": "log"}
    with private_redis() as server:
        services = build(redis_config(tmp_path, server.port, **beside, **{"streams.provisioning-enabled": True}))
        face = Face(services=services, app=create_app(services), store=services.store)  # type: ignore[arg-type]  # a store of the test's kind
        face.make_stream()
        face.make_group()
        server.stop()
        answer = face.ask("DELETE", "/streams/orders/groups/g", {**WHO, "destroyConsumerGroups": True})
        assert error_of(answer) == (503, "REDIS_STREAM_PROVISIONING_FAILED")
        assert "is deleted, but" in answer.json["message"]
        assert face.ask("GET", "/streams/orders/groups/g").status_code == 404
        ((_, kept),) = services.store.requests(before=None, limit=9)
        entry = msgspec.json.decode(kept, type=AuditEntry)
        assert (entry.action, entry.status, entry.outcome) == ("DELETE_GROUP", 503, "ERROR")
        services.stop()


def test_a_key_of_another_type_is_told_and_left_alone(stored: Face, redis_server: EmbeddedRedis) -> None:
    with redis.Redis(port=redis_server.port) as client:
        client.set(f"{PREFIX}:{{orders}}:stream:admin:audit", "somebody's")
        stored.make_stream()
        assert stored.services.executor.delivery.unwritten == 1
        assert client.get(f"{PREFIX}:{{orders}}:stream:admin:audit") == b"somebody's"


def test_k10_mutations_go_on_while_the_lists_redis_is_away(tmp_path: Path) -> None:
    """The store is elsewhere: only the copy is lost, and the health says which part is down."""
    with private_redis() as server:
        config = redis_config(
            tmp_path, server.port, **{"store.type": "jdbc", "store.url": f"sqlite:///{tmp_path}/c.db", "redis.timeout-ms": 300}
        )
        services = build(config)
        face = Face(services=services, app=create_app(services), store=services.store)  # type: ignore[arg-type]  # a store of the test's kind
        face.make_stream()
        assert services.executor.delivery.unwritten == 0
        server.stop()
        face.make_stream("fresh")
        assert services.executor.delivery.unwritten == 1
        assert face.ask("GET", "/monitoring/health").json["redis"] == "DOWN"
        (entry,) = audited(face, StreamKey("fresh"))
        assert entry.status == 201
        services.stop()


def test_lists_are_refused_where_the_store_ends_with_the_process(tmp_path: Path) -> None:
    with pytest.raises(Exception, match=r"audit\.sink"):
        redis_config(tmp_path, 1, **{"store.type": "memory", "server.workers": 1})


def test_an_entry_goes_to_the_sink_with_the_change_it_made(world: Face) -> None:
    lists = Lists()
    world.services.executor.delivery = AuditDelivery(ListSink(lists, kept=10, gone_ttl_ms=1))
    world.ask("POST", "/streams/orders/groups/h", WHO)
    world.ask("DELETE", "/streams/orders/groups/h", WHO)
    assert [(key, entry.action, entry.revision) for key, entry in lists.pushed] == [
        (GroupKey("orders", "h"), "CREATE_GROUP", 1),
        (GroupKey("orders", "h"), "DELETE_GROUP", 2),
    ]
