"""Where values come from, and which of them wins."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from coord.config import ConfigurationError, load
from coord.config.loading import cores

if TYPE_CHECKING:
    from tests.unit.config.conftest import Place

SEED = Path(__file__).with_name("seed.yaml")


def test_without_file_and_environment_the_defaults_hold(place: Place) -> None:
    """All keys are optional."""
    config = place.load()
    assert (config.heartbeat_interval_ms, config.member_lease_ttl_ms, config.rebalance_timeout_ms) == (3000, 15_000, 60_000)
    assert config.id == socket.gethostname()
    assert config.server.workers == cores()
    assert config.api.base_path == "/coord/v1"
    assert config.store.type == "redis"
    assert not config.streams.provisioning_enabled
    assert config.coordination.state_mutex.ttl_ms == 3000
    assert str(config.events.retain) == "30d or 1000000 entries"
    assert config.origins["id"] == "default (host name)"
    assert config.origins["server.workers"] == "default (cores)"
    assert config.origins["server.port"] == "default"


def test_the_seeds_example_loads_unchanged(place: Place) -> None:
    """The document that users have works as it is; blank passwords and the long mutex are told."""
    config = place.load(SEED)
    assert [user.username for user in config.api.users] == ["admin", "grafana", "member"]
    assert [user.roles for user in config.api.users] == [("WRITE",), ("READ",), ("MEMBER",)]
    assert config.api.users[0].password.reveal() == "password"
    assert config.coordination.state_mutex.ttl_ms == 30_000
    assert config.redis.username == ""
    warned = {warning.key: warning.message for warning in config.warnings}
    assert "'grafana' cannot log in" in warned["api.users[1].password"]
    assert "'member' cannot log in" in warned["api.users[2].password"]
    assert "member-lease-ttl" in warned["coordination.state-mutex.ttl-ms"]
    assert config.origins["heartbeat-interval"] == str(SEED)


def test_the_seeds_placeholders_take_the_environment(place: Place) -> None:
    """A placeholder's variable is named in the origin."""
    config = place.load(SEED, REDIS_STREAM_COORDINATOR_MONITOR_PASSWORD="seen")
    assert config.api.users[1].password.reveal() == "seen"
    assert config.origins["api.users[1].password"] == f"{SEED} (${{REDIS_STREAM_COORDINATOR_MONITOR_PASSWORD}})"


def test_search_order(place: Place, tmp_path: Path) -> None:
    """`--config` before `$COORDINATOR_CONFIG` before `./coordinator.yaml`."""
    place.coordinator("id: beside")
    told, named = tmp_path / "told.yaml", tmp_path / "named.yaml"
    told.write_text("coordinator: {id: told}")
    named.write_text("coordinator: {id: named}")
    assert place.load().id == "beside"
    assert place.load(COORDINATOR_CONFIG="  ").id == "beside"
    assert place.load(COORDINATOR_CONFIG=str(told)).id == "told"
    assert place.load(named, COORDINATOR_CONFIG=str(told)).id == "named"


def test_a_named_file_must_exist(place: Place) -> None:
    """A missing file is not silently the defaults."""
    assert "cannot read" in place.refused(COORDINATOR_CONFIG=str(place.directory / "gone.yaml"))[""]


@pytest.mark.parametrize(
    ("yaml", "said"),
    [
        ("coordinator: [", "not valid YAML"),
        ("- a\n- b", "root key"),
        ("coordinator: 5", "a mapping of keys"),
        ("coordinator: {id: a, id: b}", "stands twice"),
        ("coordinator: !!python/object:os.system {}", "not valid YAML"),
        ("coordinator:\n  redis: {password: 's3cret-marker'\n", "line"),
        ("coordinator: {id: \x01}", "not valid YAML"),
        ("coordinator: " + "[" * 1500, "not valid YAML"),
        ("coordinator: {a: " + "x" * 1_100_000 + "}", "more than"),
    ],
)
def test_a_file_that_is_no_configuration(place: Place, yaml: str, said: str) -> None:
    """The place of the mistake is told, and nothing of the file is quoted."""
    messages = " ".join(place.write(yaml).refused().values())
    assert said in messages
    assert "s3cret-marker" not in messages


def test_an_empty_file_is_the_defaults(place: Place) -> None:
    """An empty file, an empty root and an empty section say nothing."""
    for yaml in ("", "coordinator:", "coordinator:\n  api:\n  redis:\n    host:\n"):
        assert place.write(yaml).load().redis.host == "localhost"


@pytest.mark.parametrize("key", ["heartbeat-interval", "heartbeatInterval", "heartbeat_interval", "HEARTBEAT_INTERVAL"])
def test_key_spellings(place: Place, key: str) -> None:
    """kebab-case, camelCase and snake_case are one key."""
    assert place.coordinator(f"{key}: 2s").load().heartbeat_interval_ms == 2000


def test_two_spellings_of_one_key_are_refused(place: Place) -> None:
    """Neither of two spellings wins in silence."""
    assert "given twice" in place.coordinator("heartbeat-interval: 2s", "heartbeatInterval: 3s").refused()["heartbeat-interval"]


def test_precedence_and_origin(place: Place) -> None:
    """Override before environment before file before default, each told."""
    place.coordinator("server: {port: 1001}")
    config = place.load()
    assert (config.server.port, config.origins["server.port"]) == (1001, str(place.directory / "coordinator.yaml"))
    config = place.load(COORDINATOR_SERVER_PORT="1002")
    assert (config.server.port, config.origins["server.port"]) == (1002, "environment COORDINATOR_SERVER_PORT")
    config = place.load(overrides={"server.port": 1003, "streams.provisioning-enabled": True}, COORDINATOR_SERVER_PORT="1002")
    assert (config.server.port, config.origins["server.port"]) == (1003, "command line")
    assert config.streams.provisioning_enabled


def test_relaxed_environment(place: Place) -> None:
    """Variables reach every kind of key; case, dashes and underscores do not matter after the prefix."""
    config = place.load(
        COORDINATOR_STORE_TYPE="MEMORY",
        COORDINATOR_API_RATE_LIMIT_ENABLED="true",
        COORDINATOR_API_RATELIMIT_ADMINMUTATIONSPERMINUTE="7",
        COORDINATOR_API_USERS_0_USERNAME="anna",
        COORDINATOR_API_USERS_0_ROLES="read, WRITE",
        COORDINATOR_API_USERS_1_USERNAME="ben",
        COORDINATOR_API_USERS_1_ROLES_0="MEMBER",
        COORDINATOR_API_TRUSTED_PROXIES="10.0.0.0/8,192.168.1.7",
        COORDINATOR_SERVER_GRACEFUL_TIMEOUT="1m30s",
    )
    assert config.store.type == "memory"
    assert config.server.workers == 1
    assert (config.api.rate_limit.enabled, config.api.rate_limit.admin_mutations_per_minute) == (True, 7)
    assert [(user.username, user.roles) for user in config.api.users] == [("anna", ("READ", "WRITE")), ("ben", ("MEMBER",))]
    assert config.api.trusted_proxies == ("10.0.0.0/8", "192.168.1.7/32")
    assert config.server.graceful_timeout_ms == 90_000


def test_one_entry_of_a_list_from_the_environment(place: Place) -> None:
    """An indexed variable changes one entry of the file's list; a whole list replaces it."""
    place.coordinator("api: {users: [{username: anna, password: x, roles: READ}], trusted-proxies: [10.0.0.1, 10.0.0.2]}")
    config = place.load(COORDINATOR_API_USERS_0_PASSWORD="from-environment", COORDINATOR_API_TRUSTED_PROXIES="10.0.0.9")
    assert (config.api.users[0].username, config.api.users[0].password.reveal()) == ("anna", "from-environment")
    assert config.api.trusted_proxies == ("10.0.0.9/32",)


def test_a_list_with_a_hole_is_refused(place: Place) -> None:
    """Entry 2 without entry 1 is a slip."""
    assert "missing" in place.refused(COORDINATOR_API_USERS_0_USERNAME="a", COORDINATOR_API_USERS_2_USERNAME="c")["api.users[1]"]


def test_an_empty_list_is_not_the_default(place: Place) -> None:
    """A user with `streams: []` may touch none, which is not the default of all."""
    place.coordinator(
        "api: {users: [{username: a, password: x, roles: READ, streams: []}, {username: b, password: x, roles: READ}]}"
    )
    assert [user.streams for user in place.load().api.users] == [(), ("*",)]


def test_seed_names_in_the_environment(place: Place) -> None:
    """The seed's variables set their keys without any file; the COORDINATOR_ name wins."""
    names = {
        "REDIS_STREAM_COORDINATOR_ADMIN_PASSWORD": "one",
        "REDIS_STREAM_COORDINATOR_TOKEN_SECRET": "t" * 40,
        "REDIS_STREAM_COORDINATOR_TOKEN_TTL": "2h",
        "REDIS_PASSWORD": "two",
    }
    config = place.load(environ=names)
    assert config.api.admin_password.reveal() == "one"
    assert config.api.token_secret.reveal() == "t" * 40
    assert config.api.token_ttl_ms == 7_200_000
    assert config.redis.password.reveal() == "two"
    assert place.load(environ=names, COORDINATOR_REDIS_PASSWORD="three").redis.password.reveal() == "three"


def test_a_blank_variable(place: Place) -> None:
    """A blank leaves Redis settings and everything but texts alone; a blank admin password locks the admin out."""
    place.coordinator("redis: {host: there}", "server: {port: 9000}")
    config = place.load(
        COORDINATOR_REDIS_HOST=" ", REDIS_PASSWORD="", COORDINATOR_SERVER_PORT="", REDIS_STREAM_COORDINATOR_ADMIN_PASSWORD=""
    )
    assert (config.redis.host, config.server.port, config.redis.password.reveal()) == ("there", 9000, "")
    assert config.api.admin_password.is_blank()
    assert any("'admin' cannot log in" in warning.message for warning in config.warnings)


def test_redis_url(place: Place) -> None:
    """A URL fills host to ssl; what it leaves out stays; `rediss` means TLS."""
    place.coordinator("redis: {host: localhost, username: kept, password: kept-too}")
    redis = place.load(REDIS_URL="rediss://cache.example:6390/3").redis
    assert (redis.host, redis.port, redis.database, redis.ssl) == ("cache.example", 6390, 3, True)
    assert (redis.username, redis.password.reveal()) == ("kept", "kept-too")
    config = place.load(REDIS_URL="redis://anna:p%40ss@[::1]")
    redis = config.redis
    assert (redis.host, redis.port, redis.username, redis.password.reveal()) == ("::1", 6379, "anna", "p@ss")
    assert config.origins["redis.host"] == "redis.url from environment REDIS_URL"
    assert "p%40ss" not in repr(config)


@pytest.mark.parametrize(
    "url",
    ["http://h", "redis://", "redis://:marker@/0", "redis://h:99999", "redis://h:0", "redis://u:marker@h/x", "redis://h?a=marker",
     "redis://u:marker#@h", "redis://[::1", "h:6379"],
)  # fmt: skip
def test_a_bad_redis_url_is_refused_without_its_password(place: Place, url: str) -> None:
    """The key is named, the credentials are not."""
    refused = place.refused(REDIS_URL=url)
    assert "redis.url" in refused
    assert "marker" not in str(refused)


def test_values_from_files(place: Place) -> None:
    """`…_FILE` names a file; the line end that editors add is no part of the secret."""
    secret = place.mount("elsewhere.txt", "s" * 40 + "\n")
    config = place.load(COORDINATOR_API_TOKEN_SECRET_FILE=str(secret), REDIS_PASSWORD_FILE=str(place.mount("x", "pw")))
    assert config.api.token_secret.reveal() == "s" * 40
    assert config.redis.password.reveal() == "pw"
    assert config.origins["api.token-secret"] == f"file {secret} (COORDINATOR_API_TOKEN_SECRET_FILE)"


def test_mounted_secrets(place: Place) -> None:
    """Files in the directory of secrets count by their name; the environment wins; strangers' secrets are not read."""
    place.mount("redis_password", "mounted\r\n")
    place.mount("coordinator.api.token-secret", "m" * 40)
    place.mount("unrelated", "")
    (place.secrets / "kubernetes.io").mkdir()
    config = place.load()
    assert config.redis.password.reveal() == "mounted"
    assert config.api.token_secret.reveal() == "m" * 40
    assert place.load(REDIS_PASSWORD="set").redis.password.reveal() == "set"
    assert place.coordinator("id: ${MY_ID}").load(MY_ID_FILE=str(place.mount("MY_ID", "seven"))).id == "seven"
    assert place.load().id == "seven"


def test_a_variable_and_its_file_exclude_each_other(place: Place) -> None:
    """Nobody has to guess which of two secrets is in force."""
    secret = place.mount("x", "s" * 40)
    refused = place.refused(REDIS_PASSWORD="a", REDIS_PASSWORD_FILE=str(secret))
    assert "both REDIS_PASSWORD and REDIS_PASSWORD_FILE" in refused["redis.password"]
    assert "given twice" in place.refused(COORDINATOR_SERVER_PORT="1", COORDINATOR_SERVERPORT="2")["server.port"]


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${A}", {"A": "x"}, "x"),
        ("${A:y}", {}, "y"),
        ("${A:}b", {}, "b"),
        ("a-${A:${B:deep}}-z", {}, "a-deep-z"),
        ("a-${A:${B:deep}}-z", {"B": "b"}, "a-b-z"),
        ("${A:x:1}", {}, "x:1"),
        ("${A}${B}", {"A": "1a", "B": "2"}, "1a2"),
        ("${A}", {"A": "${B}"}, "${B}"),
    ],
)
def test_placeholders(place: Place, text: str, environ: dict[str, str], value: str) -> None:
    """Defaults nest and may hold colons; what a variable holds is taken as it is."""
    config = place.coordinator(f"api: {{admin-password: '{text}'}}").load(environ=environ)
    assert config.api.admin_password.reveal() == value


@pytest.mark.parametrize("text", ["${A", "${}", "${A:${B}", "${A}", "${1x:y}", "${A:" * 20 + "x" + "}" * 20])
def test_bad_placeholders(place: Place, text: str) -> None:
    """An open brace, a missing name, an unset variable without a default."""
    assert "placeholder" in place.coordinator(f"id: '{text}'").refused()["id"]


def test_a_placeholder_with_a_blank_variable(place: Place) -> None:
    """Blank counts as unset for Redis settings, and is a blank password elsewhere: never the default password."""
    place.coordinator("redis: {host: '${H:fallback}'}", "api: {admin-password: '${P:password}'}", "server: {port: '${N:}'}")
    config = place.load(H="", P="")
    assert config.redis.host == "fallback"
    assert config.api.admin_password.is_blank()
    assert config.server.port == 8080


def test_kubernetes_service_links_are_not_keys(place: Place) -> None:
    """A service that is named coordinator-redis must not move the coordinator's Redis."""
    config = place.load(
        COORDINATOR_REDIS_PORT="tcp://10.0.0.1:6379",
        COORDINATOR_REDIS_SERVICE_HOST="10.0.0.1",
        COORDINATOR_REDIS_SERVICE_PORT_HTTP="6379",
        COORDINATOR_REDIS_PORT_6379_TCP_ADDR="10.0.0.1",
        COORDINATOR_SERVICE_HOST="10.0.0.2",
        COORDINATOR_PORT="tcp://10.0.0.2:80",
    )
    assert config.redis.port == 6379
    assert [warning.key for warning in config.warnings if "service link" in warning.message] == ["redis.port"]


def test_variables_that_set_nothing(place: Place) -> None:
    """A slip stops the start and names the nearest; a stranger's variable is told and ignored."""
    refused = place.refused(COORDINATOR_STORE_TPYE="memory", COORDINATOR_HEARTBEAT_INTERVALL="1s")
    assert "COORDINATOR_STORE_TYPE" in refused["COORDINATOR_STORE_TPYE"]
    assert "COORDINATOR_HEARTBEAT_INTERVAL" in refused["COORDINATOR_HEARTBEAT_INTERVALL"]
    assert "is ignored" in place.warned(COORDINATOR_URL="http://x")["COORDINATOR_URL"]


def test_load_takes_the_process_environment(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without arguments the real environment and working directory count."""
    monkeypatch.chdir(place.coordinator("loop: {tick-interval: 500ms}").directory)
    monkeypatch.setenv("COORDINATOR_ID", "from-environment")
    for name in set(os.environ) & {"WEB_CONCURRENCY", "REDIS_URL", "COORDINATOR_CONFIG"}:
        monkeypatch.delenv(name)
    config = load()
    assert (config.id, config.loop.tick_interval_ms) == ("from-environment", 500)


def test_contradicting_overrides_are_our_bug(place: Place) -> None:
    """A section cannot be a value too."""
    with pytest.raises(TypeError):
        place.load(overrides={"server": 1, "server.port": 2})


def test_the_error_lists_every_problem(place: Place) -> None:
    """Nobody mends a file one error at a time."""
    place.coordinator("stroe: {type: redis}", "server: {port: 0, threads: many}", "heartbeat-interval: 10s")
    with pytest.raises(ConfigurationError) as caught:
        place.load(COORDINATOR_LOOP_ENABLED="perhaps")
    assert [problem.key for problem in caught.value.problems] == [
        "stroe", "server.port", "server.threads", "loop.enabled", "member-lease-ttl",
    ]  # fmt: skip
    assert "5 problems" in str(caught.value)


def test_nothing_given_leaves_a_list_alone(place: Place) -> None:
    """Null and, for Redis, a blank list are no lists."""
    config = place.coordinator("redis: {sentinel: {nodes: }}", "api: {trusted-proxies: , users: }").load(REDIS_CLUSTER_NODES=" ")
    assert (config.redis.sentinel.nodes, config.redis.cluster.nodes, config.api.trusted_proxies, config.api.users) == (
        (),
        (),
        (),
        (),
    )
    assert config.origins["redis.cluster.nodes"] == "default"
    assert place.load(COORDINATOR_API_TOKEN_SECRET_FILE=" ").api.token_secret.reveal() == ""
