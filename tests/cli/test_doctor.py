"""`coord doctor`: each line is fine, a risk or a failure, says what to do, and the exit code follows; against real stores."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path

import pytest
import structlog
from click.testing import Result

from coord.addresses import redis_commands
from coord.bootstrap import build, sql_store
from coord.cli.checkup import Line
from coord.cli.checkup_redis import RedisCheckup
from coord.config import load
from coord.names import StreamKey
from coord.rediscommands.access import coordinator, data_plane
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import Refused
from coord.rediscommands.settings import Address
from coord.store.sql.tables import VERSION_TABLE
from tests.cli.conftest import Run
from tests.store.redis_server import RedisServer, free_port

PASSWORD = "a-password-of-the-tests"
TOKEN_SECRET = "0123456789abcdef0123456789abcdef"
SAFE = {"COORDINATOR_API_ADMIN_PASSWORD": "something else", "COORDINATOR_API_TOKEN_SECRET": TOKEN_SECRET}


@pytest.fixture(scope="module")
def shared() -> Iterator[RedisServer]:
    server = RedisServer("--appendonly", "yes")
    yield server
    server.close()


@pytest.fixture
def server(shared: RedisServer) -> RedisServer:
    """An empty Redis with an append-only file, as it should be."""
    shared.call("FLUSHALL")
    shared.call("CONFIG", "SET", "maxmemory-policy", "noeviction")
    return shared


def url_of(server: RedisServer, user: str = "") -> str:
    return f"redis://{f'{user}:{PASSWORD}@' if user else ''}127.0.0.1:{server.port}/0"


def lines(result: Result) -> list[Line]:
    """Read the lines of JSON; each that is not fine says what to do."""
    told = json.loads(result.stdout)
    assert told["healthy"] == (result.exit_code == 0)
    found = [Line(**{**each, "advice": each["advice"] or ""}) for each in told["checks"]]
    assert all(line.advice for line in found if line.status != "OK"), found
    return found


def about(found: list[Line], check: str) -> list[tuple[str, str]]:
    return [(line.status, line.text) for line in found if line.check == check]


def test_a_sound_store_is_healthy(run: Run, server: RedisServer) -> None:
    result = run("doctor", "--redis-url", url_of(server), "--strict", "--output", "json", environ=SAFE)
    assert result.exit_code == 0, result.stdout
    found = lines(result)
    assert {line.status for line in found} == {"OK"}
    assert [line.check for line in found] == [
        "configuration", "credentials", "secrets", "timings",
        "reachable", "version", "eviction", "persistence", "replicas", "rights", "clock",
    ]  # fmt: skip
    table = run("doctor", "--redis-url", url_of(server), environ=SAFE)
    assert table.exit_code == 0
    assert "OK    eviction       Redis at 127.0.0.1" in table.stdout


def test_risks_are_warned_of_and_fail_only_when_asked(run: Run, server: RedisServer) -> None:
    arguments = ("doctor", "--redis-url", url_of(server), "--output", "json")
    variables = {
        "COORDINATOR_STORE_WAIT_REPLICAS": "1",
        "COORDINATOR_HEARTBEAT_INTERVAL": "6s",
        "COORDINATOR_MEMBER_LEASE_TTL": "15s",
    }
    result = run(*arguments, environ=variables)
    assert result.exit_code == 0
    found = lines(result)
    ((status, text),) = about(found, "replicas")
    assert status == "WARN"
    assert "wait-replicas is 1, and 0 replicas" in text
    assert about(found, "credentials")[0][0] == "WARN"
    assert "three heartbeat-intervals" in about(found, "timings")[0][1]
    assert run(*arguments, "--strict", environ=variables).exit_code == 1


def test_what_is_not_safe_fails(run: Run, server: RedisServer) -> None:
    server.call("CONFIG", "SET", "maxmemory-policy", "allkeys-lru")
    result = run("doctor", "--redis-url", url_of(server), environ=SAFE)
    assert result.exit_code == 1
    assert "FAIL  eviction" in result.stdout
    assert "→ set noeviction" in result.stdout


def test_a_store_that_is_away_is_told(run: Run) -> None:
    result = run("doctor", "--redis-url", f"redis://127.0.0.1:{free_port()}", "--output", "json", environ=SAFE)
    assert result.exit_code == 3
    assert about(lines(result), "reachable")[0][0] == "FAIL"


def test_k8_a_wrong_password_is_not_told(run: Run, server: RedisServer) -> None:
    result = run("doctor", "--redis-url", f"redis://somebody:{PASSWORD}@127.0.0.1:{server.port}", environ=SAFE)
    assert result.exit_code == 3
    assert "invalid username-password pair" in result.stdout
    assert PASSWORD not in result.output


def test_a_refused_configuration_is_told_whole(run: Run) -> None:
    result = run("doctor", "--output", "json", environ={"COORDINATOR_SERVER_PORT": "0", "COORDINATOR_STORE_TYPE": "paper"})
    assert result.exit_code == 2
    assert [status for status, _ in about(lines(result), "configuration")] == ["FAIL", "FAIL"]


def test_the_memory_store_is_for_trials(run: Run) -> None:
    result = run("doctor", "--output", "json", environ={**SAFE, "COORDINATOR_STORE_TYPE": "memory"})
    assert result.exit_code == 0
    assert about(lines(result), "store")[0][0] == "WARN"


def test_rights_are_judged_command_by_command_and_shard_by_shard(run: Run, server: RedisServer) -> None:
    """The least user is told what it cannot look at, and one command less is a failure by name."""
    rules = coordinator(shards="orders:*", provisioning=True).words()
    server.call("ACL", "SETUSER", "least", "reset", "on", f">{PASSWORD}", *rules)
    server.call("SADD", "redis-stream:coord:index", "orders")
    arguments = ("doctor", "--redis-url", url_of(server, "least"), "--output", "json")
    variables = {**SAFE, "COORDINATOR_STREAMS_PROVISIONING_ENABLED": "true"}
    result = run(*arguments, environ=variables)
    assert result.exit_code == 0, result.stdout
    found = lines(result)
    assert "the user least may run all" in about(found, "rights")[0][1]
    assert about(found, "persistence")[0][0] == "WARN", "appendfsync is not known without CONFIG GET"
    assert "'config|get'" in about(found, "persistence")[0][1]
    server.call("ACL", "SETUSER", "least", "-hset", "-time")
    result = run(*arguments, environ=variables)
    assert result.exit_code == 1
    told = [text for status, text in about(lines(result), "rights") if status == "FAIL"]
    assert [text.split("may not run ")[1] for text in told] == [
        "'hset' on redis-stream:coord:coord-doctor",
        "'time' on redis-stream:coord:coord-doctor",
    ]
    server.call("SADD", "redis-stream:coord:index", "secret-stream")
    server.call("ACL", "SETUSER", "least", "+hset", "+time")
    result = run(*arguments, environ=variables)
    told = [text for status, text in about(lines(result), "rights") if status == "FAIL"]
    assert told
    assert all(text.endswith("on secret-stream:0") for text in told)
    server.call("ACL", "SETUSER", "least", "-eval_ro", "clearselectors")
    result = run(*arguments, environ=variables)
    assert (result.exit_code, len(about(lines(result), "rights"))) == (1, 1)
    assert "'eval_ro'" in about(lines(result), "rights")[0][1]


def test_secrets_are_told_by_where_they_came_from(run: Run, server: RedisServer, tmp_path: Path) -> None:
    file = tmp_path / "coordinator.yaml"
    file.write_text(
        f"coordinator: {{api: {{admin-password: in-the-file, token-secret: '${{SECRET}}'}}, redis: {{port: {server.port}}}}}"
    )
    result = run("doctor", "--output", "json", environ={"SECRET": TOKEN_SECRET})
    ((status, text),) = about(lines(result), "secrets")
    assert (status, text) == ("WARN", "api.admin-password: written in the configuration file itself")
    assert "in-the-file" not in result.stdout
    file.write_text(f"coordinator: {{api: {{token-secret: '${{SECRET}}'}}, redis: {{port: {server.port}}}}}")
    result = run(
        "doctor", "--output", "json", environ={"SECRET": TOKEN_SECRET, "REDIS_STREAM_COORDINATOR_ADMIN_PASSWORD": "x" * 9}
    )
    ((status, text),) = about(lines(result), "secrets")
    assert status == "OK"
    assert "api.token-secret from " in text
    assert "${SECRET}" in text
    assert TOKEN_SECRET not in result.stdout


class FarClocks(RedisCommands):
    """Masters whose clocks are where a test puts them."""

    told: tuple[tuple[int, int] | Refused, ...] = ()

    def clocks(self) -> list[tuple[Address, tuple[int, int] | Refused]]:
        return [(Address("redis", number), reply) for number, reply in enumerate(self.told, 1)]


@pytest.mark.parametrize(
    ("told", "statuses", "says"),
    [
        (((5_000, 5_400),), ["OK"], "differ by -400 ms"),
        (((5_000, 1_000),), ["WARN"], "differs from this machine's by 4000 ms"),
        (((5_900, 5_000), (4_500, 5_000)), ["WARN"], "the clocks of the masters differ by 1400 ms"),
        ((Refused("NOPERM no time"),), ["WARN"], "does not tell its clock"),
    ],
)
def test_clocks_are_compared(
    server: RedisServer, told: tuple[tuple[int, int] | Refused, ...], statuses: list[str], says: str, tmp_path: Path
) -> None:
    config = load(overrides={"redis.port": server.port}, environ=SAFE, directory=tmp_path, secrets_directory=tmp_path)
    commands = FarClocks(redis_commands(config)._template.settings)
    commands.told = told
    found = [line for line in RedisCheckup(config, commands).lines() if line.check == "clock"]
    commands.close()
    assert [line.status for line in found] == statuses
    assert says in found[0].text


def test_tables_of_a_database_are_judged(run: Run, tmp_path: Path) -> None:
    file, database = tmp_path / "coordinator.yaml", tmp_path / "coord.db"
    section = {"type": "sql", "url": f"jdbc:sqlite:{database}", "jdbc": {"migrate": True}}

    def judged() -> tuple[int, list[tuple[str, str]]]:
        file.write_text(json.dumps({"coordinator": {"store": section}}))
        result = run("doctor", "--config", str(file), "--output", "json", environ=SAFE)
        return result.exit_code, about(lines(result), "schema")

    assert judged() == (0, [("WARN", "the tables are at version none, 0002 is needed")])
    section["jdbc"] = {"migrate": False}
    assert judged()[0] == 1
    assert judged()[1][0][0] == "FAIL"
    assert run("store", "migrate", "--config", str(file)).exit_code == 0
    assert judged() == (0, [("OK", "the tables are at version 0002, this release knows 0002")])
    with sqlite3.connect(database) as connection:
        connection.execute(f"UPDATE {VERSION_TABLE} SET version_num = '9999'")
        connection.execute("UPDATE coordinator_store SET usable_from = 9999")
    connection.close()
    code, schema = judged()
    assert (code, schema[0][0]) == (1, "FAIL")


def test_beside_a_database_the_rights_on_shards_alone_are_looked_at(run: Run, server: RedisServer, tmp_path: Path) -> None:
    """The documented part for shards, and TIME, is enough; one command less is told."""
    url = f"jdbc:sqlite:{tmp_path / 'coord.db'}"
    variables = {**SAFE, "COORDINATOR_STORE_TYPE": "jdbc", "COORDINATOR_STORE_URL": url, "REDIS_URL": url_of(server, "shards")}
    variables["COORDINATOR_STREAMS_PROVISIONING_ENABLED"] = "true"
    config = load(environ=variables, directory=tmp_path, secrets_directory=tmp_path)
    store = sql_store(config, migrates=True)
    store.index_add(StreamKey("orders"))
    store.close()
    server.call("ACL", "SETUSER", "shards", "reset", "on", f">{PASSWORD}", *data_plane("orders:*", provisioning=True).words())
    result = run("doctor", "--output", "json", environ=variables)
    assert result.exit_code == 0, result.stdout
    result = run("doctor", "--output", "json", environ={**variables, "COORDINATOR_AUDIT_SINK": "redis"})
    assert "may not run 'rpush' on" in result.stdout, "audit entries go there too, then"
    server.call("ACL", "SETUSER", "shards", "-xgroup|create")
    result = run("doctor", "--output", "json", environ=variables)
    assert result.exit_code == 1
    ((_, text),) = about(lines(result), "rights")
    assert text.endswith("may not run 'xgroup|create' on orders:0")


def test_a_start_warns_of_risks_and_is_degraded_by_what_is_unsafe(server: RedisServer, tmp_path: Path) -> None:
    """No append-only file: a warning that names the risk; eviction of any key: DEGRADED too."""
    bare = RedisServer()
    try:
        config = load(overrides={"redis.port": bare.port}, environ=SAFE, directory=tmp_path, secrets_directory=tmp_path)
        services = build(config)
        services.ticker.tick()
        with structlog.testing.capture_logs() as logs:
            health = services.health()
        assert any("no append-only file" in line.get("reason", "") and "loses" in line["reason"] for line in logs), logs
        assert health.status == "UP"
        bare.call("CONFIG", "SET", "maxmemory-policy", "allkeys-random")
        again = build(config)
        with structlog.testing.capture_logs() as logs:
            assert again.health().status == "DEGRADED"
        assert any("allkeys-random" in line.get("reason", "") for line in logs)
        for each in (services, again):
            each.store.close()
    finally:
        bare.close()
