"""What stops a start, and what is only told."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import structlog

from coord.config import log_warnings
from coord.config.checks import is_loopback
from coord.config.keys import LEAF_BY_TEMPLATE
from coord.config.strangers import UNBUILT

if TYPE_CHECKING:
    from tests.unit.config.conftest import Place

LONG_SECRET = "a-token-secret-of-more-than-32-bytes"
SAFE = {"api.admin-password": "something of my own", "api.token-secret": LONG_SECRET}


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"member-lease-ttl": "4s"}, "member-lease-ttl"),
        ({"member-lease-ttl": "5999ms"}, "member-lease-ttl"),
        ({"member-lease-ttl": "0s"}, "member-lease-ttl"),
        ({"member-lease-ttl": "-15s"}, "member-lease-ttl"),
        ({"heartbeat-interval": "0s"}, "heartbeat-interval"),
        ({"heartbeat-interval": "15s"}, "member-lease-ttl"),
        ({"loop.tick-interval": "3751ms"}, "loop.tick-interval"),
        ({"coordination.state-mutex.ttl-ms": 2000}, "coordination.state-mutex.ttl-ms"),
        ({"coordination.state-mutex.ttl-ms": 0}, "coordination.state-mutex.ttl-ms"),
        ({"redis.timeout-ms": 3000}, "coordination.state-mutex.ttl-ms"),
        ({"coordination.state-mutex.retry-interval-ms": 5001}, "coordination.state-mutex.retry-interval-ms"),
    ],
)
def test_b6_timings_that_cannot_work_are_refused(place: Place, overrides: dict[str, object], key: str) -> None:
    """Each refusal is the only one, and names its setting."""
    assert list(place.refused(overrides=overrides)) == [key]


@pytest.mark.parametrize(
    "overrides",
    [
        {"member-lease-ttl": "6s"},
        {"loop.tick-interval": "3750ms"},
        {"coordination.state-mutex.ttl-ms": 2001},
        {"coordination.state-mutex.ttl-ms": 100, "coordination.state-mutex.enabled": False},
        {
            "heartbeat-interval": "200ms", "member-lease-ttl": "2s", "rebalance-timeout": "3s", "loop.tick-interval": "100ms",
            "coordination.state-mutex.ttl-ms": 1000, "redis.timeout-ms": 500,
        },
    ],
)  # fmt: skip
def test_b6_timings_at_the_edge_are_fine(place: Place, overrides: dict[str, object]) -> None:
    """The bounds themselves are allowed."""
    assert set(overrides) <= {key for key, origin in place.load(overrides=overrides).origins.items() if origin == "command line"}


def test_a_mutex_that_outlives_a_lease_is_told(place: Place) -> None:
    """The seed's own value must load, so it warns."""
    assert (
        "member-lease-ttl"
        in place.warned(overrides={"coordination.state-mutex.ttl-ms": 15_000})["coordination.state-mutex.ttl-ms"]
    )


@pytest.mark.parametrize(("timeout_ms", "told"), [(2000, True), (1900, False)])
def test_j10_a_stop_that_is_shorter_than_the_longest_wait_is_told(place: Place, timeout_ms: int, told: bool) -> None:
    overrides = {
        "server.graceful-timeout": "7s",
        "coordination.state-mutex.acquire-timeout-ms": 5000,
        "redis.timeout-ms": timeout_ms,
    }
    assert ("server.graceful-timeout" in place.warned(overrides=overrides)) is told


def test_a_broken_value_brings_no_second_refusal(place: Place) -> None:
    """A pair is not judged when half of it is unknown."""
    assert list(place.refused(overrides={"member-lease-ttl": "long", "heartbeat-interval": "10s"})) == ["member-lease-ttl"]


@pytest.mark.parametrize("secret", [None, "", "   ", " " * 40, "password", "12345678", "é" * 15])
def test_k2_empty_or_weak_token_secrets_are_refused_beyond_loopback(place: Place, secret: str | None) -> None:
    """Unset, empty, blank, well known, short: the setting is named and its value is not shown."""
    overrides: dict[str, object] = {"server.host": "0.0.0.0", "api.admin-password": "my own"}
    overrides |= {} if secret is None else {"api.token-secret": secret}
    refused = place.refused(overrides=overrides)
    assert "api.token-secret" in str(refused)
    assert "12345678" not in str(refused)


@pytest.mark.parametrize("secret", ["   ", " " * 40, "password", "12345678"])
def test_k2_a_weak_token_secret_is_refused_on_loopback_too(place: Place, secret: str) -> None:
    """Whoever sets one means it."""
    for extra in ({}, {"api.allow-insecure-defaults": True}):
        assert "api.token-secret" in place.refused(overrides={"api.token-secret": secret, **extra})


def test_k2_secret_files(place: Place) -> None:
    """A missing, an empty and a binary file are refused; a line end is not part of the secret."""
    name = "REDIS_STREAM_COORDINATOR_TOKEN_SECRET_FILE"
    assert "no such file" in place.refused(environ={name: str(place.directory / "gone")})["api.token-secret"].lower()
    assert "is empty" in place.refused(environ={name: str(place.mount("a", "\n"))})["api.token-secret"]
    assert "30" in place.refused(environ={name: str(place.mount("b", "x" * 30 + "\r\n"))})["api.token-secret"]
    assert place.load(environ={name: str(place.mount("c", LONG_SECRET + "\n"))}).api.token_secret.reveal() == LONG_SECRET
    binary = place.mount("d", "")
    binary.write_bytes(b"\xff" * 40)
    assert "not UTF-8" in place.refused(environ={name: str(binary)})["api.token-secret"]
    assert "more than" in place.refused(environ={name: str(place.mount("e", "x" * 70_000))})["api.token-secret"]
    place.mount("redis_password", "")
    assert "is empty" in place.refused()["redis.password"]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "coordinator.example", "::ffff:10.0.0.1"])
def test_k2_default_credentials_stay_on_loopback(place: Place, host: str) -> None:
    """Both keys are named; own credentials are fine; the switch allows it with a warning at every start."""
    refused = place.refused(overrides={"server.host": host})["server.host"]
    assert "api.admin-password" in refused
    assert "api.token-secret" in refused
    assert "api.admin-password" in place.refused(overrides={"server.host": host, "api.token-secret": LONG_SECRET})["server.host"]
    assert place.load(overrides={"server.host": host, **SAFE}).server.host == host
    warned = place.warned(overrides={"server.host": host, "api.allow-insecure-defaults": True})
    assert "INSECURE" in warned["api.allow-insecure-defaults"]


def test_k2_a_user_with_the_default_password_counts(place: Place) -> None:
    """The seed's own example is not let out of the house by its list of users."""
    users = [
        {"username": "a", "password": "mine", "roles": "READ"},
        {"username": "admin", "password": "password", "roles": "WRITE"},
    ]
    refused = place.refused(overrides={"server.host": "10.0.0.1", "api.token-secret": LONG_SECRET, "api.users": users})
    assert "api.users[1].password" in refused["server.host"]
    assert "api.users[0]" not in refused["server.host"]


@pytest.mark.parametrize(
    ("host", "local"),
    [("127.0.0.1", True), ("127.9.9.9", True), ("localhost", True), ("LOCALHOST", True), ("::1", True), ("[::1]", True),
     ("::ffff:127.0.0.1", True), ("0.0.0.0", False), ("::", False), ("localhost.example", False), ("1.2.3.4", False)],
)  # fmt: skip
def test_loopback(host: str, local: bool) -> None:
    """Only what no other machine can reach."""
    assert is_loopback(host) is local


@pytest.mark.parametrize(
    ("overrides", "environ"),
    [
        ({"store.type": "memory", "server.workers": 2}, {}),
        ({"store.type": "memory"}, {"WEB_CONCURRENCY": "4"}),
        ({"store.type": "memory"}, {"COORDINATOR_SERVER_WORKERS": "2"}),
    ],
)
def test_o3_the_memory_store_with_several_workers_is_refused(
    place: Place, overrides: dict[str, object], environ: dict[str, str]
) -> None:
    """However the workers are asked for, gunicorn's own variable included."""
    refused = place.refused(overrides=overrides, environ=environ)
    assert "store.type memory" in refused["server.workers"]
    assert "WEB_CONCURRENCY" in refused["server.workers"]


def test_o3_the_default_never_lands_there(place: Place) -> None:
    """The memory store has one worker; our own setting beats gunicorn's variable."""
    assert place.load(overrides={"store.type": "memory"}).server.workers == 1
    assert place.load(overrides={"store.type": "memory", "server.workers": 1}, WEB_CONCURRENCY="4").server.workers == 1
    assert place.load(WEB_CONCURRENCY="3").server.workers == 3
    assert "server.workers" in place.refused(WEB_CONCURRENCY="many")


def test_o3_the_memory_store_with_provisioning_is_refused(place: Place) -> None:
    """Streams would outlive the groups that own them."""
    assert (
        "store.type memory"
        in place.refused(overrides={"store.type": "memory", "streams.provisioning-enabled": True})["streams.provisioning-enabled"]
    )


@pytest.mark.parametrize(
    ("overrides", "key"),
    [
        ({"redis.sentinel.master": "m", "redis.sentinel.nodes": "a:1", "redis.cluster.nodes": "b:1"}, "redis.sentinel"),
        ({"redis.sentinel.master": "m"}, "redis.sentinel"),
        ({"redis.sentinel.nodes": ["a:1"]}, "redis.sentinel"),
        ({"redis.url": "redis://h", "redis.cluster.nodes": "b:1"}, "redis.url"),
        ({"redis.url": "redis://h", "redis.sentinel.master": "m", "redis.sentinel.nodes": "a:1"}, "redis.url"),
        ({"redis.cluster.address-map": ["a:1=b:2"]}, "redis.cluster.address-map"),
        ({"redis.cluster.nodes": "b:1", "redis.database": 1}, "redis.database"),
        ({"redis.tls.cert-file": "x", "redis.ssl": True}, "redis.tls"),
        ({"redis.tls.ca-file": "x"}, "redis.tls"),
        ({"server.tls.key-file": "x"}, "server.tls"),
        ({"store.wait-replicas": 1, "store.type": "memory", "server.workers": 1}, "store.wait-replicas"),
        ({"store.wait-replicas": 1, "store.wait-timeout-ms": 3751}, "store.wait-timeout-ms"),
        ({"server.tls.ca-file": "x"}, "server.tls.ca-file"),
        ({"api.base-path": "/metrics/x"}, "api.base-path"),
        ({"api.base-path": "/docs"}, "api.base-path"),
        ({"api.users": [{"username": "a", "password": "x"}, {"username": "a", "password": "y"}]}, "api.users[1].username"),
        ({"api.users": [{"password": "x"}]}, "api.users[0].username"),
        ({"api.users": [{"username": "a", "roles": ["ROOT"]}]}, "api.users[0].roles[0]"),
        ({"api.users": [{"username": "a", "streams": ["orders*", "a*b"]}]}, "api.users[0].streams[1]"),
        ({"api.users": [{"username": "a", "streams": ["orders**"]}]}, "api.users[0].streams[0]"),
        ({"api.users": [{"username": "a", "streams": ["a/b*"]}]}, "api.users[0].streams[0]"),
        ({"api.users": [{"username": "a", "streams": ["{a}"]}]}, "api.users[0].streams[0]"),
        ({"api.users": [{"username": "a", "streams": ["x" * 256]}]}, "api.users[0].streams[0]"),
        ({"api.users": [{"username": "a", "password": "$argon2id$broken"}]}, "api.users[0].password"),
        ({"api.users": [{"username": "a", "password": "$2b$12$abcdefghijklmnopqrstuv"}]}, "api.users[0].password"),
        ({"api.admin-password": "{noop}x"}, "api.admin-password"),
        ({"api.previous-token-secrets": ["short"]}, "api.previous-token-secrets[0]"),
    ],
)
def test_impossible_combinations(place: Place, overrides: dict[str, object], key: str) -> None:
    """Each is refused by name."""
    assert key in place.refused(overrides=overrides)


def test_what_is_only_told(place: Place) -> None:
    """Unusual, not impossible."""
    assert "no role" in place.warned(overrides={"api.users": [{"username": "a", "password": "x"}]})["api.users[0].roles"]
    nothing = {"api.users": [{"username": "a", "password": "x", "roles": "READ", "streams": []}]}
    assert "may touch no stream" in place.warned(overrides=nothing)["api.users[0].streams"]
    proxies: dict[str, object] = {"api.trusted-proxies": "10.0.0.0/8", "server.engine": "granian"}
    assert "X_Forwarded_For" in place.warned(overrides=proxies)["api.trusted-proxies"]
    assert "api.trusted-proxies" not in place.warned(overrides={**proxies, "server.engine": "gunicorn"})
    assert "believes everybody" in place.warned(overrides={"api.trusted-proxies": "0.0.0.0/0"})["api.trusted-proxies[0]"]
    assert "requests will wait" in place.warned(overrides={"redis.max-connections": 3})["redis.max-connections"]
    assert "not checked" in place.warned(overrides={"redis.ssl": True, "redis.tls.verify": False})["redis.tls.verify"]
    assert not place.warned(overrides=SAFE)


def test_an_argon2_hash_is_a_password(place: Place) -> None:
    """Hashes may stand in the file; their dollar signs are no placeholders."""
    hashed = "$argon2id$v=19$m=8,t=1,p=1$/XT2rL7JHoVnz7ufyvRo2Q$RyA/VACnBH9SRHHLLdKD1r0SSAH8vk0Zsf1TlQTq84A"
    place.coordinator(f"api: {{admin-password: '{hashed}'}}")
    assert place.load().api.admin_password.reveal() == hashed


def test_hashes_of_different_cost_are_told(place: Place) -> None:
    """An unknown name costs one run of one cost: whoever has another could be told by the time."""

    def told(*costs: str) -> dict[str, str]:
        hashes = [
            f"$argon2id$v=19$m={cost},p=1$/XT2rL7JHoVnz7ufyvRo2Q$RyA/VACnBH9SRHHLLdKD1r0SSAH8vk0Zsf1TlQTq84A" for cost in costs
        ]
        users = [{"username": f"u{index}", "password": each, "roles": "READ"} for index, each in enumerate(hashes)]
        return dict(place.warned(overrides={"api.users": users}))

    assert "api.users" not in told("8,t=1", "8,t=1")
    assert "different cost" in told("8,t=1", "8,t=2")["api.users"]


NEVER = [
    ("streamPrefix: orders", "streamPrefix", "comes with each request"),
    ("consumer-group: g", "consumer-group", "comes with each request"),
    ("groups: [{streamPrefix: orders}]", "groups", "comes with each request"),
    ("defaults: {shard-count: 4}", "defaults.shard-count", "shard count"),
    ("topology: {orders: {shardCount: 4}}", "topology.orders.shardCount", "shard count"),
    ("topology: [{shardCount: 4}]", "topology[0].shardCount", "shard count"),
    ("producer: {cache: 5s}", "producer", "producers cache"),
    ("streams: {routing-cache-ttl: 5s}", "streams.routing-cache-ttl", "producers cache"),
    ("consumer: {workers: 4}", "consumer", "worker counts"),
    ("members: {runtime-max-concurrency: 4}", "members.runtime-max-concurrency", "worker counts"),
    ("redis: {processing-marker-ttl: 1h}", "redis.processing-marker-ttl", "processing markers"),
    ("streams: {readCursor: 0-0}", "streams.readCursor", "cursors"),
    ("members: {retry-state: x}", "members.retry-state", "retry state"),
]


@pytest.mark.parametrize(("line", "key", "why"), NEVER)
def test_what_must_never_be_configured_is_refused_with_its_reason(place: Place, line: str, key: str, why: str) -> None:
    """The sentence says why, not only that the key is unknown."""
    refused = place.coordinator(line).refused()
    assert list(refused) == [key]
    assert why in refused[key]
    assert "never" in refused[key]


@pytest.mark.parametrize("name", ["COORDINATOR_STREAM_PREFIX", "COORDINATOR_API_CONSUMER_GROUP", "COORDINATOR_SHARDCOUNT"])
def test_what_must_never_be_configured_is_refused_in_the_environment(place: Place, name: str) -> None:
    """A variable is configuration too."""
    assert "never" in place.refused(environ={name: "x"})[name]


def test_keys_of_the_kotlin_coordinator_are_told_and_ignored(place: Place) -> None:
    """An existing file starts; what has no meaning here is named."""
    place.coordinator(
        "health: {redis: {enabled: true}}",
        "monitoring: {offset-parallelism: 4, shardParallelism: 2}",
        "coordination: {stateMutex: {ttl: 30s}}",
    )
    warned = place.warned(COORDINATOR_HEALTH_REDIS="x")
    kotlin = {
        "health",
        "monitoring.offset-parallelism",
        "monitoring.shardParallelism",
        "coordination.state-mutex.ttl",
        "COORDINATOR_HEALTH_REDIS",
    }
    assert kotlin <= {key for key, message in warned.items() if "Kotlin" in message}


@pytest.mark.parametrize(
    ("line", "key", "near"),
    [
        ("stroe: {type: redis}", "stroe", "store"),
        ("api: {token-secert: marker}", "api.token-secert", "api.token-secret"),
        ("tick-interval: 1s", "tick-interval", "loop.tick-interval"),
        ("api: {users: [{user-name: a, pasword: marker}]}", "api.users[0].pasword", "api.users[].password"),
        ("redis: {sentinel: {masters: m}}", "redis.sentinel.masters", "redis.sentinel.master"),
    ],
)
def test_an_unknown_key_names_the_nearest_known(place: Place, line: str, key: str, near: str) -> None:
    """And never its value, which may be a secret."""
    refused = place.coordinator(line).refused()
    assert f"`{near}`" in refused[key]
    assert "marker" not in str(refused)


def test_unknown_keys_without_a_neighbour_and_outside_the_root(place: Place) -> None:
    """No wild guess; Spring's own sections are named as what they are not."""
    assert "nearest" not in place.coordinator("qqqqqqqq: 1").refused()["qqqqqqqq"]
    refused = place.write("server: {port: 1}\nspring: {}\ncoordinator: {}").refused()
    assert "`coordinator.server`" in refused["server"]
    assert "only the root key" in refused["spring"]


def test_deep_unknown_sections_end(place: Place) -> None:
    """A file cannot send the search for a reason down for ever."""
    deep = "{a: " * 50 + "1" + "}" * 50
    assert list(place.coordinator(f"qqqqqqqq: {deep}").refused()) == ["qqqqqqqq"]
    assert list(place.write("coordinator: {qqqqqqqq: &x [*x]}").refused()) == ["qqqqqqqq"]
    laughs = "[" + ", ".join(f"&l{n} [{', '.join([f'*l{n - 1}'] * 9)}]" if n else "&l0 [x]" for n in range(12)) + "]"
    assert list(place.coordinator(f"qqqqqqqq: {laughs}", f"id: {laughs.replace('l', 'm')}").refused()) == ["qqqqqqqq", "id"]


@pytest.mark.parametrize("unbuilt", UNBUILT)
def test_each_unbuilt_key_exists(unbuilt: str) -> None:
    """The list of what is not built names real keys, each once."""
    assert unbuilt in LEAF_BY_TEMPLATE
    assert UNBUILT.count(unbuilt) == 1


def test_an_unbuilt_key_is_told_when_set_and_silent_when_default(place: Place) -> None:
    """Setting the default is no wish."""
    place.coordinator("audit: {sink: log}", "monitoring: {metrics-auth: true}", "events: {retain: 1d}")
    warned = place.warned()
    assert {key for key, message in warned.items() if "not implemented in this release" in message} == {
        "monitoring.metrics-auth", "events.retain",
    }  # fmt: skip


def test_warnings_reach_the_log(place: Place) -> None:
    """One line a warning, the key in a field of its own."""
    config = place.load(overrides={"monitoring.metrics-auth": True, **SAFE})
    with structlog.testing.capture_logs() as lines:
        log_warnings(config)
    assert [(line["log_level"], line["key"]) for line in lines] == [("warning", "monitoring.metrics-auth")]
