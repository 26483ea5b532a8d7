"""`coord adopt` on what a Kotlin coordinator left in a real Redis."""

from __future__ import annotations

import json
from typing import Any

import pytest
import redis

from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import decode
from coord.projections.group import Group, Hold
from coord.projections.stream import Stream
from coord.store.base import Commit
from coord.store.redis.adoption import RedisAdoption
from tests.cli.conftest import Run
from tests.moving.kotlin import NAMES, STABLE, keys_of, seed
from tests.moving.lives import Life, stored
from tests.servers import wait_until

REDIS = "redis-stream:coord"


def adopted(run: Run, url: str, *options: str) -> dict[str, Any]:
    done = run("adopt", "--redis-url", url, "--output", "json", *options)
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    return told


def group_of(life: Life, prefix: str, name: str) -> Group:
    key = GroupKey(prefix, name)
    aggregate = life.services.store.load(key).aggregate
    assert aggregate is not None
    state = decode(key, aggregate)
    assert isinstance(state, Group)
    return state


def stream_of(life: Life, prefix: str) -> Stream:
    key = StreamKey(prefix)
    aggregate = life.services.store.load(key).aggregate
    assert aggregate is not None
    state = decode(key, aggregate)
    assert isinstance(state, Stream)
    return state


def shards(*indexes: int) -> list[dict[str, int]]:
    return [{"shardIndex": index} for index in indexes]


@pytest.mark.parametrize("name", NAMES)
def test_every_fixture_is_adopted_and_verifies(run: Run, redis_url: str, name: str) -> None:
    """A second run finds nothing left; the dry run before it changed nothing and told the same."""
    seed(redis_url, name)
    before = stored(redis_url, "*")
    would = adopted(run, redis_url, "--dry-run")
    assert stored(redis_url, "*") == before
    did = adopted(run, redis_url)
    assert (would.pop("dryRun"), did.pop("dryRun")) == (True, False)
    assert would == did
    assert did["findings"] == []
    assert run("verify", "--redis-url", redis_url).exit_code == 0
    assert adopted(run, redis_url)["streams"] == []
    after = stored(redis_url, "*")
    for key in keys_of(name):
        if key["type"] != "set":
            assert after[f"{key['key']}:kotlin".encode()] == before[key["key"].encode()]


def test_members_go_on_with_their_epochs(run: Run, redis_url: str) -> None:
    """Both live members' next heartbeats are OK without a rejoin, and show what they held; the expired one must join."""
    seed(redis_url, "kotlin-0.1-stable")
    adopted(run, redis_url)
    life = Life(redis_url)
    group = group_of(life, "orders", "orders-consumer")
    assert group.metadata_version > 9
    assert stream_of(life, "orders").metadata_version > group.metadata_version
    for member, mine in (("10.0.3.11-m0", shards(0, 2, 4)), ("10.0.3.12-m0", shards(1, 3, 5))):
        for _ in range(2):
            answer = life.beat("orders-consumer", member, 7, metadataVersion=9, ownedShards=mine)
            assert (answer["status"], answer["memberEpoch"]) == ("OK", 7)
            assert answer["assignment"]["assignedShards"] == mine
    gone = life.beat("orders-consumer", "10.0.3.9-m0", 6, metadataVersion=7)
    assert gone["status"] == "FENCED_MEMBER_EPOCH"
    life.close()


def test_a_resharding_in_flight_goes_on(run: Run, redis_url: str) -> None:
    """What the old coordinator had begun is where it was; it goes on by itself, and the shard that moves moves."""
    seed(redis_url, "kotlin-0.1-resharding-old-aliases")
    told = adopted(run, redis_url)
    assert told["streams"][0]["resharding"] == {
        "reshardingId": "reshard-5b0a", "fromShardCount": 6, "toShardCount": 8, "state": "ACTIVE",
    }  # fmt: skip
    life = Life(redis_url)
    stream, group = stream_of(life, "orders"), group_of(life, "orders", "billing")
    assert stream.resharding is not None
    assert (stream.resharding.state, stream.shard_count, stream.read_set) == ("ACTIVE", 8, tuple(range(8)))
    assert group.migration == stream.followed()
    assert group.ownership[3] == Hold("billing-0", "REVOKING", 9, group.ownership[3].deadline_at)
    assert group.ownership[6] == Hold("billing-1", "ASSIGNED", 9, 0)
    assert set(group.ownership) == {0, 1, 2, 3, 4, 5, 6}
    assert group.view("billing-0") == ((0, 1, 2), (7,))
    assert group.view("billing-1") == ((4, 5, 6), (3,))

    draining = [{"shard": {"shardIndex": 3}, "state": "DRAINING", "inFlight": 1}]
    first = life.beat("billing", "billing-0", 9, metadataVersion=12, ownedShards=shards(0, 1, 2), revokingShards=draining)
    assert first["status"] == "OK"
    second = life.beat("billing", "billing-1", 9, metadataVersion=12, ownedShards=shards(4, 5, 6))
    assert (second["status"], second["assignment"]["pendingShards"]) == ("OK", shards(3))
    done = life.beat("billing", "billing-0", first["memberEpoch"], metadataVersion=12, ownedShards=shards(0, 1, 2))
    assert done["status"] == "OK"
    life.services.ticker.tick()
    third = life.beat("billing", "billing-1", second["memberEpoch"], metadataVersion=12, ownedShards=shards(4, 5, 6))
    assert third["assignment"]["assignedShards"] == shards(3, 4, 5, 6)
    seventh = life.beat("billing", "billing-0", done["memberEpoch"], metadataVersion=12, ownedShards=shards(0, 1, 2))
    assert seventh["assignment"]["assignedShards"] == shards(0, 1, 2, 7)
    life.close()
    assert run("verify", "--redis-url", redis_url).exit_code == 0


def test_the_older_string_key_is_adopted(run: Run, redis_url: str) -> None:
    """What is unknown is dropped and named; the old key is gone, a copy is kept."""
    seed(redis_url, "kotlin-legacy-string-key")
    told = adopted(run, redis_url)
    (group,) = told["streams"][0]["groups"]
    assert group["unknownFields"] == ["consumerConcurrencyPolicy", "hashAlgorithm", "hashSeed"]
    with redis.Redis.from_url(redis_url) as client:
        assert client.exists(f"{REDIS}:{{legacy-orders:workers}}:group") == 0
        assert client.type(f"{REDIS}:{{legacy-orders:workers}}:group:kotlin") == b"string"
    life = Life(redis_url)
    assert (stream_of(life, "legacy-orders").shard_count, group_of(life, "legacy-orders", "workers").epoch) == (4, 3)
    life.close()


def test_shards_of_several_stream_versions(run: Run, redis_url: str) -> None:
    """The version that is written stays; the member keeps shard 1, and gives up 0 before it may have it again."""
    seed(redis_url, "kotlin-oldest-versioned-shards")
    told = adopted(run, redis_url)
    assert "v1" in told["streams"][0]["groups"][0]["notes"][0]
    life = Life(redis_url)
    group = group_of(life, "oldest-orders", "workers")
    assert group.shard_count == 4
    assert {shard: hold.phase for shard, hold in group.ownership.items()} == {0: "REVOKING", 1: "ASSIGNED"}
    answer = life.beat("workers", "member-a", 3, stream="oldest-orders", metadataVersion=5, ownedShards=shards(1))
    assert answer["status"] == "OK"
    life.close()


def test_a_stream_hash_beside_its_group(run: Run, redis_url: str) -> None:
    """One stream and its group; routing's version is above every one that anybody was told."""
    seed(redis_url, "kotlin-0.3-stream-and-group")
    told = adopted(run, redis_url)
    assert [(each["streamPrefix"], each["shardCount"], len(each["groups"])) for each in told["streams"]] == [("orders", 6, 1)]
    life = Life(redis_url)
    assert list(life.services.store.streams()) == ["orders"]
    assert stream_of(life, "orders").metadata_version > group_of(life, "orders", "orders-consumer").metadata_version > 9
    life.close()
    with redis.Redis.from_url(redis_url) as client:
        assert client.exists(f"{REDIS}:{{orders}}:stream") == 0
        assert client.hget(f"{REDIS}:{{orders}}:stream:kotlin", "revision") == b"3"


def test_one_stream_only(run: Run, redis_url: str) -> None:
    for name in ("kotlin-legacy-string-key", "kotlin-oldest-versioned-shards"):
        seed(redis_url, name)
    assert [each["streamPrefix"] for each in adopted(run, redis_url, "legacy-orders")["streams"]] == ["legacy-orders"]
    assert [each["streamPrefix"] for each in adopted(run, redis_url)["streams"]] == ["oldest-orders"]


def test_a_table_for_people(run: Run, redis_url: str) -> None:
    assert "no Kotlin coordinator's state" in run("adopt", "--redis-url", redis_url).stdout
    seed(redis_url, "kotlin-legacy-string-key")
    done = run("adopt", "--redis-url", redis_url)
    assert done.exit_code == 0
    assert "legacy-orders/workers" in done.stdout
    assert "unknown field dropped: hashSeed" in done.stdout
    assert "do not start the other one again" in done.stderr


# ---- going back


@pytest.mark.parametrize("name", NAMES)
def test_undo_puts_everything_back(run: Run, redis_url: str, name: str) -> None:
    """To the byte, and it can be adopted again."""
    seed(redis_url, name)
    before = stored(redis_url, "*")
    adopted(run, redis_url)
    would = adopted(run, redis_url, "--undo", "--dry-run")
    did = adopted(run, redis_url, "--undo")
    assert would["restored"] == did["restored"] == sorted(key["key"] for key in keys_of(name) if key["type"] != "set")
    after = stored(redis_url, "*")
    assert {key: value for key, value in after.items() if not key.endswith(b":undone")} == before
    assert adopted(run, redis_url, "--undo")["restored"] == []
    assert adopted(run, redis_url)["findings"] == []


def test_reports_do_not_stand_against_an_undo(run: Run, redis_url: str) -> None:
    """Nobody was given, told or denied anything."""
    seed(redis_url, "kotlin-0.1-stable")
    before = stored(redis_url, "*")
    adopted(run, redis_url)
    life = Life(redis_url)
    life.beat("orders-consumer", "10.0.3.11-m0", 7, metadataVersion=9, ownedShards=shards(0, 2, 4))
    life.close()
    adopted(run, redis_url, "--undo")
    assert {key: value for key, value in stored(redis_url, "*").items() if not key.endswith(b":undone")} == before


def test_undo_is_refused_once_the_coordinator_has_moved_on(run: Run, redis_url: str) -> None:
    """A member has joined: said, and done only by force; the log is kept."""
    seed(redis_url, "kotlin-0.1-stable")
    before = stored(redis_url, "*")
    adopted(run, redis_url)
    life = Life(redis_url)
    life.beat("orders-consumer", "new", 0)
    life.close()
    during = stored(redis_url, "*")
    refused = run("adopt", "--undo", "--redis-url", redis_url)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "MemberJoined" in refused.stderr
    assert stored(redis_url, "*") == during
    assert adopted(run, redis_url, "--undo", "--force")["movedOn"] != []
    after = stored(redis_url, "*")
    kept = {key for key in after if key.endswith(b":undone")}
    assert {key: value for key, value in after.items() if key not in kept} == before
    assert len(kept) == 2


def test_undo_is_refused_while_a_coordinator_works(run: Run, redis_url: str) -> None:
    seed(redis_url, "kotlin-0.1-stable")
    adopted(run, redis_url)
    life = Life(redis_url, {"loop.tick-interval": "100ms"})
    life.services.ticker.start()
    wait_until(lambda: life.services.store.last_tick()[0], what="it ticks")
    refused = run("adopt", "--undo", "--redis-url", redis_url)
    life.services.ticker.stop()
    life.close()
    assert refused.exit_code == 1
    assert "a coordinator works on it" in refused.stderr


def test_groups_that_were_made_since_stand_against_an_undo(run: Run, redis_url: str) -> None:
    seed(redis_url, "kotlin-0.1-stable")
    adopted(run, redis_url)
    life = Life(redis_url)
    life.done("POST", "/streams/orders/groups/later", {"initialShardCount": 6, "requestedBy": "test"})
    life.close()
    refused = run("adopt", "--undo", "--force", "--redis-url", redis_url)
    assert refused.exit_code == 1
    assert "delete them first: later" in refused.stderr


# ---- what cannot be taken over


def test_what_is_ours_is_not_taken_for_the_others(run: Run, redis_url: str) -> None:
    """A stream of this name that exists here already is nobody's to adopt."""
    life = Life(redis_url)
    life.done("POST", "/streams/orders", {"initialShardCount": 6, "requestedBy": "test"})
    life.close()
    seed(redis_url, "kotlin-0.1-stable")
    before = stored(redis_url, "*")
    refused = run("adopt", "--redis-url", redis_url)
    assert (refused.exit_code, "stream orders exists here already" in refused.stderr) == (1, True)
    assert stored(redis_url, "*") == before


def test_groups_of_a_stream_must_agree_on_its_shards(run: Run, redis_url: str) -> None:
    """Six shards here, eight there: which key says what is told, and nothing is written."""
    seed(redis_url, "kotlin-0.1-stable")
    seed(redis_url, "kotlin-0.1-resharding-old-aliases")
    before = stored(redis_url, "*")
    refused = run("adopt", "--redis-url", redis_url)
    assert refused.exit_code == 1
    assert "shardCount: is 6, but 8 in redis-stream:coord:{orders:billing}:metadata" in refused.stderr
    assert stored(redis_url, "*") == before


def test_another_store_than_redis_is_wrong_usage(run: Run) -> None:
    environ = {"COORDINATOR_STORE_TYPE": "jdbc", "COORDINATOR_STORE_URL": "jdbc:sqlite:x.db"}
    refused = run("adopt", environ=environ)
    assert (refused.exit_code, "coord store copy" in refused.stderr) == (2, True)
    assert run("adopt", "--force").exit_code == 2
    assert run("adopt", "--redis-url", "redis://127.0.0.1:1").exit_code == 3


def test_an_earlier_copy_that_differs_stops_it(run: Run, redis_url: str) -> None:
    """What was set aside before is not written over; no copy of this run stays behind."""
    seed(redis_url, "kotlin-0.3-stream-and-group")
    with redis.Redis.from_url(redis_url) as client:
        client.hset(f"{STABLE}:kotlin", mapping={"aggregate": "{}", "revision": "1"})
    before = stored(redis_url, "*")
    refused = run("adopt", "--redis-url", redis_url)
    assert (refused.exit_code, "an earlier adoption set aside" in refused.stderr) == (1, True)
    assert stored(redis_url, "*") == before


def test_a_coordinator_that_writes_on_is_noticed(run: Run, redis_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the reading and the step that replaces its hash: nothing of it is lost, and an undo clears what was begun."""
    seed(redis_url, "kotlin-0.1-stable")
    real = RedisAdoption.adopt

    def late(self: RedisAdoption, commit: Commit, *, seen: bytes) -> None:
        seed(redis_url, "kotlin-0.1-stable", lambda told: told.update(updatedAt="2026-06-12T08:15:33.120Z"))
        real(self, commit, seen=seen)

    monkeypatch.setattr(RedisAdoption, "adopt", late)
    refused = run("adopt", "--redis-url", redis_url)
    assert (refused.exit_code, "is not as it was read" in refused.stderr) == (1, True)
    monkeypatch.setattr(RedisAdoption, "adopt", real)
    refused = run("adopt", "--redis-url", redis_url)
    assert (refused.exit_code, "undo that first" in refused.stderr) == (1, True)
    assert adopted(run, redis_url, "--undo")["restored"] == []
    with redis.Redis.from_url(redis_url) as client:
        assert b"08:15:33" in (client.hget(STABLE, "aggregate") or b"")
        assert client.exists(f"{STABLE}:kotlin") == 0
    assert len(adopted(run, redis_url)["streams"]) == 1
