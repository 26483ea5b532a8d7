"""`coord store copy` between real stores."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import redis

from coord.config import load
from coord.moving import open_transfer
from coord.names import AggregateKey, GroupKey
from coord.runtime.copying import End, copy
from tests.cli.conftest import Run
from tests.moving.kotlin import seed
from tests.moving.lives import Life, on, stored
from tests.servers import private_redis, wait_until
from tests.store.sql_servers import PostgresqlServer

ROOT = Path(__file__).parents[2]


def copied(run: Run, source: str, target: str, *options: str) -> dict[str, Any]:
    done = run("store", "copy", "--from", source, "--to", target, "--output", "json", *options)
    assert done.exit_code == 0, done.output
    told: dict[str, Any] = json.loads(done.stdout)
    assert told["holds"] is True
    return told


def test_redis_to_postgresql_and_back_is_the_same_to_the_byte(run: Run, life: Life, database: str) -> None:
    """Logs, chain values, aggregates, tombstones, the index and the requests of nobody; both stores verify."""
    back = on(life.url, 1)
    there = copied(run, life.url, database)
    aggregates = there["aggregates"]
    names = [(each["streamPrefix"], each["consumerGroup"], each["deleted"]) for each in aggregates]
    assert names == [
        ("orders", None, False), ("orders", "a:b%c", False), ("orders", "billing", False), ("orders", "gone", True),
        ("short", None, True),
    ]  # fmt: skip
    assert there["requests"] == 2
    assert run("verify", "--config", configured(database)).exit_code == 0
    again = copied(run, database, back)
    assert again["requests"] == 2
    assert stored(back) == stored(life.url)
    with redis.Redis.from_url(life.url) as old, redis.Redis.from_url(back) as new:
        name = "redis-stream:coord:{orders}:stream:answers"
        assert old.hgetall(name) == new.hgetall(name) != {}
    assert run("verify", "--redis-url", back).exit_code == 0


def end_of(url: str) -> End:
    store, transfer = open_transfer(load("/dev/null", overrides={"redis.url": url}, environ={}), migrates=False)
    return End(store=store, transfer=transfer)


def configured(url: str) -> str:
    file = Path("sql.yaml")
    file.write_text(json.dumps({"coordinator": {"store": {"type": "sql", "url": url}}}))
    return str(file)


def test_a_copy_goes_on_where_the_source_went_on(run: Run, life: Life, database: str) -> None:
    """Made again, it brings what is new, and only that; what is deleted since is deleted."""
    first = copied(run, life.url, database)
    assert sum(each["carried"] for each in first["aggregates"]) == sum(each["entries"] for each in first["aggregates"])
    still = copied(run, life.url, database)
    assert {each["carried"] for each in still["aggregates"]} == {0}
    life.done("DELETE", "/streams/orders/groups/billing?requestedBy=test&reason=test&force=true")
    life.done("POST", "/streams/later", {"initialShardCount": 1, "requestedBy": "test"})
    told = copied(run, life.url, database)
    fresh = {(each["streamPrefix"], each["consumerGroup"]): each["carried"] for each in told["aggregates"]}
    assert {key for key, carried in fresh.items() if carried} == {("orders", None), ("orders", "billing"), ("later", None)}
    back = on(life.url, 1)
    copied(run, database, back)
    assert stored(back) == stored(life.url)


def test_answers_leases_and_reports_go_along(run: Run, life: Life) -> None:
    """A keyed request that comes again is answered from memory on the new store; no lease is shorter than it was."""
    leases = "redis-stream:coord:{orders:billing}:leases"
    with private_redis() as other:
        with redis.Redis.from_url(life.url) as old:
            old.zincrby(leases, 5_000, "two")  # else both may have the same, and the shorter would do
        copied(run, life.url, other.url)
        with redis.Redis.from_url(life.url) as old, redis.Redis.from_url(other.url) as new:
            before, after = dict(old.zrange(leases, 0, -1, withscores=True)), dict(new.zrange(leases, 0, -1, withscores=True))
            assert set(before) == set(after) == {b"one", b"two"}
            assert all(after[member] >= before[member] for member in before)
            for name in ("redis-stream:coord:{orders:billing}:reports", "redis-stream:coord:{orders}:stream:answers"):
                assert old.hgetall(name) == new.hgetall(name) != {}
            order = "redis-stream:coord:{orders}:stream:answered"
            assert old.zrange(order, 0, -1, withscores=True) == new.zrange(order, 0, -1, withscores=True)
            assert 0 < new.pttl(order) <= old.pttl(order) + 1000
        moved = Life(other.url)
        body = {"initialShardCount": 4, "requestedBy": "test", "reason": "test"}
        again = moved.ask("POST", "/streams/orders", body, **{"Idempotency-Key": "k-1"})
        assert again.status_code == 201, again.text
        assert moved.ask("POST", "/streams/orders", body).status_code == 409
        moved.close()


def test_another_store_opens_the_correction_round(run: Run, life: Life) -> None:
    """A member keeps what it holds by its report, starts nothing, and is not sent away."""
    shown = life.beat("billing", "one", 0)
    owned = shown["assignment"]["assignedShards"]
    with private_redis() as other:
        copied(run, life.url, other.url)
        moved = Life(other.url)
        answer = moved.beat("billing", "one", shown["memberEpoch"], metadataVersion=shown["metadataVersion"], ownedShards=owned)
        moved.close()
    assert answer["status"] == "SYNC_METADATA"
    assert answer["assignment"]["assignedShards"] == owned != []
    assert answer["memberEpoch"] > shown["memberEpoch"]


def test_a_target_of_somebody_else_is_refused(run: Run, life: Life) -> None:
    """Another stream, or the same name with another life: named, and not touched."""
    target = on(life.url, 1)
    other = Life(target)
    other.done("POST", "/streams/orders", {"initialShardCount": 2, "requestedBy": "test"})
    before = stored(target)
    refused = run("store", "copy", "--from", life.url, "--to", target)
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert "stream orders otherwise than the source" in refused.stderr
    other.done("DELETE", "/streams/orders?requestedBy=test&reason=test")
    other.done("POST", "/streams/strange", {"initialShardCount": 2, "requestedBy": "test"})
    other.close()
    refused = run("store", "copy", "--from", on(life.url, 2), "--to", target)
    assert refused.exit_code == 1
    assert "which the source does not" in refused.stderr
    log = b"redis-stream:coord:{orders}:stream:events"
    assert stored(target)[log][1][:1] == before[log][1][:1]


def test_a_target_that_went_on_by_itself_is_refused(run: Run, life: Life) -> None:
    """A coordinator that has been started on the copy owns it."""
    target = on(life.url, 1)
    copied(run, life.url, target)
    moved = Life(target)
    moved.beat("billing", "new", 0)
    moved.close()
    before = stored(target)
    refused = run("store", "copy", "--from", life.url, "--to", target)
    assert refused.exit_code == 1
    assert "the target holds group orders/billing otherwise than the source" in refused.stderr
    assert stored(target) == before


def test_a_source_at_work_is_told(run: Run, life: Life) -> None:
    """Its ticker is seen: what is there is carried, and the exit code says that it is not final. So is one on the target."""
    target = on(life.url, 1)
    life.services.ticker.start()
    with redis.Redis.from_url(life.url) as client:
        wait_until(lambda: client.hget("redis-stream:coord:loop", "tickedAt"), what="it ticks")
    told = run("store", "copy", "--from", life.url, "--to", target)
    assert told.exit_code == 1
    assert "a coordinator works on it" in told.stderr
    assert "orders/billing" in told.stdout
    refused = run("store", "copy", "--from", on(life.url, 2), "--to", life.url)
    assert refused.exit_code == 1
    life.services.ticker.stop()
    copied(run, life.url, target)


def test_what_changes_meanwhile_is_caught_up_with_or_told(life: Life) -> None:
    """A commit between two passes is carried too; one after the last pass makes the copy one that is not complete."""
    target = on(life.url, 1)
    written: set[str] = set()

    def tell(doing: str, key: AggregateKey, more: int) -> None:
        if doing not in written:
            written.add(doing)
            life.beat("billing", f"late-{doing}", 0)

    ends = [end_of(life.url), end_of(target)]
    outcome = copy(*ends, tick_ms=10, tell=tell)
    assert written == {"copying", "comparing"}
    assert outcome.moving == "group orders/billing was changed after it was copied"
    assert [each.findings for each in outcome.aggregates] == [[]] * 5
    there = ends[1].store.load(GroupKey("orders", "billing")).aggregate
    assert there is not None
    assert b"late-copying" in there
    assert b"late-comparing" not in there
    assert copy(*ends, tick_ms=10, tell=tell).holds
    assert stored(target) == stored(life.url)
    for end in ends:
        end.store.close()
        end.transfer.close()


def test_a_heartbeat_that_changes_nothing_is_noticed(life: Life) -> None:
    """It moves no head, and nobody ticks: the lease that it renewed says that a coordinator is at work."""
    shown = life.beat("billing", "one", 0)
    owned = shown["assignment"]["assignedShards"]

    def beat() -> None:
        life.beat("billing", "one", shown["memberEpoch"], metadataVersion=shown["metadataVersion"], ownedShards=owned)

    beat()
    ends = [end_of(life.url), end_of(on(life.url, 1))]
    outcome = copy(*ends, tick_ms=10, tell=lambda doing, key, more: beat() if doing == "comparing" else None)
    assert "it heard a member of orders/billing meanwhile" in outcome.moving
    assert copy(*ends, tick_ms=10, tell=lambda doing, key, more: None).holds
    for end in ends:
        end.store.close()
        end.transfer.close()


def test_a_trimmed_log_is_carried_from_where_it_begins(run: Run, redis_url: str) -> None:
    """It begins with a snapshot; an earlier copy that holds more of it goes on being one."""
    life = Life(redis_url, {"events.snapshot-every": 4})
    life.live()
    for number in range(4):
        life.beat("billing", f"member-{number}", 0)
    life.close()
    whole, part = on(redis_url, 1), on(redis_url, 2)
    copied(run, redis_url, whole)
    log = "redis-stream:coord:{orders:billing}:events"
    with redis.Redis.from_url(redis_url) as client:
        snapshots = [
            identifier for identifier, fields in client.xrange(log) if fields[b"event"].startswith(b'{"type":"Snapshot"')
        ]
        client.xtrim(log, minid=snapshots[-1].decode(), approximate=False)
        assert client.xrange(log)[0][0] == snapshots[-1]
    copied(run, redis_url, part)
    assert stored(part) == stored(redis_url)
    assert run("verify", "--redis-url", part).exit_code == 0
    assert {each["carried"] for each in copied(run, redis_url, whole)["aggregates"]} == {0}


def test_files_name_what_addresses_cannot(run: Run, life: Life) -> None:
    """Another key prefix on the same server and database; what is under the old one stays."""
    before = stored(life.url)
    for name, prefix in (("old", "redis-stream:coord"), ("new", "other:prefix")):
        settings = {"store": {"type": "redis", "key-prefix": prefix}, "redis": {"url": life.url}}
        Path(f"{name}.yaml").write_text(json.dumps({"coordinator": settings}))
    copied(run, "old.yaml", "new.yaml")
    assert stored(life.url) == before
    moved = {key.replace(b"other:prefix", b"redis-stream:coord", 1): value for key, value in stored(life.url, "other:*").items()}
    assert moved == before


def test_a_contradiction_in_the_source_stops_the_copy(run: Run, life: Life, database: str) -> None:
    with redis.Redis.from_url(life.url) as client:
        client.hset("redis-stream:coord:{orders:billing}:metadata", "head", "1-0")
    refused = run("store", "copy", "--from", life.url, "--to", database)
    assert refused.exit_code == 1
    assert "orders/billing: its log ends at" in refused.stderr


def test_what_was_changed_on_the_target_is_found(
    run: Run, life: Life, database: str, shared_postgresql: PostgresqlServer
) -> None:
    """The comparison reads every entry: a changed byte is no copy."""
    copied(run, life.url, database)
    name = database.rpartition("/")[2].partition("?")[0]
    shared_postgresql.execute(name, "UPDATE coordinator_events SET event = event || ' ' WHERE revision = 1 AND n = 0")
    done = run("store", "copy", "--from", life.url, "--to", database)
    assert done.exit_code == 1
    assert "entry 1-0 is not on the target as it is on the source" in done.stdout
    assert "the chain is broken" in done.stdout


def test_another_coordinators_state_is_adopted_first(run: Run, redis_url: str) -> None:
    seed(redis_url, "kotlin-0.1-stable")
    refused = run("store", "copy", "--from", redis_url, "--to", on(redis_url, 1))
    assert (refused.exit_code, "coord adopt" in refused.stderr) == (1, True)
    assert run("adopt", "--redis-url", redis_url).exit_code == 0
    copied(run, redis_url, on(redis_url, 1))


KILLED = """
import os, signal, sys
from coord.cli.main import main
from coord.store.sql.transfer import SqlTransfer

real, left = SqlTransfer.{step}, [{after}]

def step(*arguments, **named):
    if not left[0]:
        os.kill(os.getpid(), signal.SIGKILL)
    left[0] -= 1
    return real(*arguments, **named)

SqlTransfer.{step} = step
main(["store", "copy", "--from", sys.argv[1], "--to", sys.argv[2]])
"""


@pytest.mark.parametrize(("step", "after", "carried"), [("put_records", 2, 1_000), ("put_aggregate", 0, 2_000)])
def test_killed_in_the_middle_it_goes_on(run: Run, redis_url: str, database: str, step: str, after: int, carried: int) -> None:
    """SIGKILL between two pages, and before the aggregate: nobody serves what is there half, and the next run brings the rest."""
    revisions = 2_000
    life = Life(redis_url)
    life.fill(GroupKey("long", "group"), revisions)
    program = KILLED.format(step=step, after=after)
    done = subprocess.run([sys.executable, "-c", program, redis_url, database], cwd=ROOT, capture_output=True, check=False)
    assert done.returncode == -signal.SIGKILL, done.stderr
    half = run("verify", "long", "group", "--config", configured(database))
    assert half.exit_code == 1
    assert "it is missing" in half.stdout
    (told,) = copied(run, redis_url, database)["aggregates"]
    assert (told["entries"], told["carried"]) == (revisions, revisions - carried)
    copied(run, database, on(redis_url, 1))
    assert stored(on(redis_url, 1)) == stored(redis_url)
    life.close()


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--from", "redis://127.0.0.1:1"), "--to"),
        (("--from", "no-such-file.yaml", "--to", "redis://127.0.0.1:1"), "no-such-file"),
        (("--from", "redis://127.0.0.1:1", "--to", "redis://127.0.0.1:1/0"), "one and the same store"),
        (("--from", "gopher://127.0.0.1/x", "--to", "redis://127.0.0.1:1"), "must begin with"),
    ],
)
def test_wrong_usage(run: Run, options: tuple[str, ...], why: str) -> None:
    done = run("store", "copy", *options)
    assert (done.exit_code, done.stdout) == (2, "")
    assert why in done.stderr


def test_one_variable_does_not_stand_for_both_ends(run: Run) -> None:
    """A file is taken at its word: a variable that would change it is refused; for an address, no variable counts."""
    Path("a.yaml").write_text(json.dumps({"coordinator": {"redis": {"host": "127.0.0.1", "port": 1}}}))
    done = run("store", "copy", "--from", "a.yaml", "--to", "redis://127.0.0.1:2", environ={"REDIS_URL": "redis://127.0.0.1:3"})
    assert (done.exit_code, "environment REDIS_URL" in done.stderr) == (2, True)
    done = run("store", "copy", "--from", "redis://:marker@127.0.0.1:1", "--to", "redis://127.0.0.1:2")
    assert (done.exit_code, "127.0.0.1:2" in done.stderr, "marker" in done.output) == (3, True, False)
