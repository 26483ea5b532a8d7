"""`coord verify` against what a real coordinator has written."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.cli.conftest import Run, Served
from tests.http.served import BASE, serving
from tests.servers import free_port, private_redis, wait_until


@pytest.fixture
def written(ask: Run, stream: str) -> str:
    """A stream with a group and some history."""
    assert ask("groups", "create", stream, "billing", "--shards", "2").exit_code == 0
    assert ask("streams", "scale", stream, "--shards", "3", "--wait", "--reason", "a test").exit_code == 0
    return stream


def test_a_sound_store_holds(run: Run, served: Served, written: str) -> None:
    """A row an aggregate, exit code 0; without names all of the index is verified."""
    done = run("verify", "--redis-url", served.redis.url, "--output", "json")
    assert done.exit_code == 0, done.output
    found = json.loads(done.stdout)
    assert found["holds"] is True
    mine = [each for each in found["aggregates"] if each["streamPrefix"] == written]
    assert [each["consumerGroup"] for each in mine] == [None, "billing"]
    for each in mine:
        assert list(each) == ["streamPrefix", "consumerGroup", "holds", "entries", "firstRevision", "revision", "findings"]
        assert each["entries"] >= each["revision"] > 1
    table = run("verify", written, "--redis-url", served.redis.url)
    assert table.exit_code == 0
    assert table.stdout.count("holds") == 2
    assert f"{written}/billing" in table.stdout
    only = run("verify", written, "billing", "--redis-url", served.redis.url, "--output", "json")
    assert [each["consumerGroup"] for each in json.loads(only.stdout)["aggregates"]] == ["billing"]


def test_a_configuration_names_the_store(run: Run, served: Served, written: str) -> None:
    """The coordinator's own file, or the variable."""
    assert run("verify", written, environ={"REDIS_URL": served.redis.url}).exit_code == 0
    with open("c.yaml", "w", encoding="utf-8") as file:  # noqa: PTH123  the fixture's own directory
        file.write(json.dumps({"coordinator": {"redis": {"url": served.redis.url}}}))
    assert run("verify", written, "--config", "c.yaml").exit_code == 0


def test_a_changed_log_is_found(run: Run, served: Served, written: str) -> None:
    """A missing entry in a copy of the store: exit code 1, the finding names where; other aggregates are still verified."""
    with (
        private_redis() as copied,
        redis.Redis.from_url(served.redis.url) as source,
        redis.Redis.from_url(copied.url) as copy,
    ):
        for key in source.scan_iter():
            if (dumped := source.dump(key)) is not None:
                copy.restore(key, 0, dumped)
        (log,) = [key for key in copy.scan_iter(match="*events*") if written.encode() in key and b"billing" in key]
        assert copy.xdel(log, copy.xrange(log)[1][0]) == 1
        done = run("verify", written, "--redis-url", copied.url)
        found = json.loads(run("verify", written, "--redis-url", copied.url, "--output", "json").stdout)
    assert done.exit_code == 1
    assert "1 finding(s)" in done.stdout
    assert f"{written}/billing: entry 2-0: the chain is broken" in done.stdout
    assert (found["holds"], [each["holds"] for each in found["aggregates"]]) == (False, [True, False])


def test_a_name_that_is_not_there(run: Run, served: Served) -> None:
    """A finding: who verifies a name expects it."""
    done = run("verify", "never-made", "--redis-url", served.redis.url)
    assert done.exit_code == 1
    assert "there is no stream of this name" in done.stdout


def test_an_empty_store_holds(run: Run) -> None:
    """Nothing to find."""
    with private_redis() as server:
        done = run("verify", "--redis-url", server.url)
    assert (done.exit_code, done.stdout) == (0, "the store holds no streams\n")


def test_a_store_that_is_away_is_exit_3(run: Run) -> None:
    """Said on stderr, nothing on stdout."""
    done = run("verify", "--redis-url", f"redis://:secret@127.0.0.1:{free_port()}/0")
    assert (done.exit_code, done.stdout) == (3, "")
    assert "the store cannot be read" in done.stderr
    assert "secret" not in done.stderr


def test_what_cannot_be_verified_is_wrong_usage(run: Run) -> None:
    """A memory store, a refused configuration, an address that is none."""
    done = run("verify", environ={"COORDINATOR_STORE_TYPE": "memory"})
    assert (done.exit_code, "memory" in done.stderr) == (2, True)
    done = run("verify", environ={"COORDINATOR_SERVER_PORT": "0"})
    assert (done.exit_code, "server.port" in done.stderr) == (2, True)
    assert run("verify", "--redis-url", "nonsense").exit_code == 2


@pytest.mark.e2e
def test_e2_a_log_trimmed_by_hand_is_whole_from_a_snapshot_on_and_from_nowhere_else(run: Run, tmp_path: Path) -> None:
    """Nothing is missed behind the last snapshot; past it the first missing revision is named."""
    config = "coordinator: {events: {snapshot-every: 4}, loop: {tick-interval: 100ms}, resharding: {routing-grace: 10ms}}"
    who = {"requestedBy": "t", "reason": "r"}

    def verified() -> tuple[int, dict[str, Any]]:
        done = run("verify", "orders", "--redis-url", server.url, "--output", "json")
        return done.exit_code, json.loads(done.stdout)["aggregates"][0]

    def scaled(shards: int) -> bool:
        return running.ask("POST", f"{BASE}/streams/orders/scale", {"targetShardCount": shards, **who}).status == 202

    with (
        private_redis() as server,
        redis.Redis.from_url(server.url) as client,
        serving(tmp_path, "--workers", "1", config=config, environ={"REDIS_URL": server.url}) as running,
    ):
        assert running.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 1, **who}).status == 201
        for shards in range(2, 6):
            wait_until(lambda shards=shards: scaled(shards), what="the scale before has ended")  # type: ignore[misc]  # bound at once
        (log,) = client.scan_iter(match="*{orders}*events*")
        entries = client.xrange(log)
        places = [place for place, fields in entries if b'"type":"Snapshot"' in b"".join(fields.values())]
        assert len(places) >= 2
        code, found = verified()
        assert (code, found["firstRevision"]) == (0, 1)
        assert found["entries"] >= len(entries), "the coordinator itself trims nothing"

        client.xtrim(log, minid=places[-1], approximate=False)
        code, found = verified()
        assert (code, found["firstRevision"]) == (0, int(places[-1].split(b"-")[0]))
        wait_until(lambda: scaled(9), what="the coordinator goes on")
        assert verified()[0] == 0

        (_, gone), (after, _) = client.xrange(log, count=2)
        assert gone
        client.xtrim(log, minid=after, approximate=False)
        code, found = verified()
        assert code == 1
        missing = int(after.split(b"-")[0]) - 1
        assert f"revision {missing} is missing" in str(found["findings"])
