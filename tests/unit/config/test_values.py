"""What a value may be, and that the catalogue of keys is sound."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import TYPE_CHECKING, get_args

import msgspec
import pytest

from coord.config import Configuration, Retention, Secret, SecretUrl, effective, markdown_table
from coord.config.durations import parse_duration, show_duration
from coord.config.keys import KNOWN_NAMES, Leaf, leaf_at, leaves, template_text, uniform
from coord.config.shown import shown_value

if TYPE_CHECKING:
    from tests.unit.config.conftest import Place

TABLE = [
    "id",
    "server.host",
    "server.port",
    "server.workers",
    "server.threads",
    "server.engine",
    "server.graceful-timeout",
    "server.keep-alive",
    "server.readyz-needs-store",
    "server.tls.cert-file",
    "server.tls.key-file",
    "api.base-path",
    "api.admin-username",
    "api.admin-password",
    "api.users[].username",
    "api.users[].password",
    "api.users[].roles",
    "api.users[].streams",
    "api.token-secret",
    "api.token-ttl",
    "api.previous-token-secrets",
    "api.authenticate-member-api",
    "api.rate-limit.enabled",
    "api.rate-limit.admin-mutations-per-minute",
    "api.trusted-proxies",
    "api.max-body-bytes",
    "api.allow-insecure-defaults",
    "audit.sink",
    "audit.redis-max-entries",
    "store.type",
    "store.key-prefix",
    "store.url",
    "store.jdbc.username",
    "store.jdbc.password",
    "store.jdbc.timeout-ms",
    "store.jdbc.max-connections",
    "store.jdbc.migrate",
    "redis.host",
    "redis.port",
    "redis.database",
    "redis.username",
    "redis.password",
    "redis.ssl",
    "redis.url",
    "redis.tls.ca-file",
    "redis.tls.cert-file",
    "redis.tls.key-file",
    "redis.tls.verify",
    "redis.sentinel.master",
    "redis.sentinel.nodes",
    "redis.sentinel.username",
    "redis.sentinel.password",
    "redis.cluster.nodes",
    "redis.cluster.address-map",
    "redis.timeout-ms",
    "redis.max-connections",
    "heartbeat-interval",
    "member-lease-ttl",
    "rebalance-timeout",
    "stale-member-retention",
    "loop.enabled",
    "loop.tick-interval",
    "coordination.state-mutex.enabled",
    "coordination.state-mutex.strategy",
    "coordination.state-mutex.ttl-ms",
    "coordination.state-mutex.acquire-timeout-ms",
    "coordination.state-mutex.retry-interval-ms",
    "streams.provisioning-enabled",
    "streams.new-group-start",
    "store.wait-replicas",
    "store.wait-timeout-ms",
    "store.identity",
    "store.failover-grace",
    "members.auto-register",
    "limits.groups-per-stream",
    "monitoring.metrics-auth",
    "resharding.routing-grace",
    "resharding.watch-retired",
    "resharding.retired-shards",
    "events.snapshot-every",
    "events.retain",
    "events.retention-after-delete",
    "monitoring.offset-cache-ttl-ms",
    "monitoring.per-member-metrics",
    "monitoring.per-shard-metrics",
    "defaults.initial-shard-count",
]
LEAVES = [pytest.param(path, leaf, id=template_text(path)) for path, leaf in leaves()]


def test_every_key_of_the_design_is_there() -> None:
    """The table of the design page, and one key more: who must show a certificate."""
    assert {template_text(path) for path, _ in leaves()} == {*TABLE, "server.tls.ca-file"}


def test_spellings_are_unambiguous() -> None:
    """No two keys become one in an environment variable."""
    forms = [uniform(name.replace(".", "").replace("[]", "0")) for name in KNOWN_NAMES]
    assert len(forms) == len(set(forms))


@pytest.mark.parametrize(("path", "leaf"), LEAVES)
def test_each_default_is_allowed(path: tuple[str, ...], leaf: Leaf) -> None:
    """What is shown as the default is what may be written, and means the same."""
    assert leaf.meaning
    assert leaf.rule.allowed
    if leaf.rule.is_list:
        assert tuple(leaf.rule.parse(entry) for entry in leaf.default) == leaf.default  # type: ignore[attr-defined]  # looks inside
    elif leaf.default not in ("", Secret(), SecretUrl()):
        written = leaf.default.reveal() if isinstance(leaf.default, Secret) else leaf.rule.show(leaf.default)
        assert leaf.rule.parse(written) == leaf.default
    assert path


def test_the_structs_hold_what_their_types_say() -> None:
    """The rule of a key makes the type that the struct declares."""

    def look(section: msgspec.Struct) -> None:
        for info in msgspec.structs.fields(type(section)):
            value = getattr(section, info.name)
            if isinstance(value, msgspec.Struct):
                look(value)
            elif isinstance(value, str | int | bool):
                msgspec.convert(value, get_args(info.type)[0] if get_args(info.type) else info.type)

    look(Configuration())


@pytest.mark.parametrize(
    ("text", "value_ms"),
    [
        ("100ms", 100),
        ("3s", 3000),
        ("1m", 60_000),
        ("2h", 7_200_000),
        ("7d", 604_800_000),
        ("1m30s", 90_000),
        ("1.5s", 1500),
        (" 3s ", 3000),
    ],
)
def test_durations(text: str, value_ms: int) -> None:
    """Units from ms to d, combined and with fractions, are whole milliseconds."""
    assert parse_duration(text) == value_ms
    assert parse_duration(show_duration(value_ms)) == value_ms


@pytest.mark.parametrize(
    "value", ["", "3", 3, "-3s", "3 s", "3sec", "5mm", "1y", "1us", "0.0001s", "s", True, None, "9" * 12 + "d", "٣s"]
)
def test_no_durations(value: object) -> None:
    """No unit, a strange unit, a sign, fractions of a millisecond, more than time has."""
    with pytest.raises(ValueError, match=r".*"):
        parse_duration(value)


BAD_VALUES = [
    ("server.port", 0, "from 1 to 65535"),
    ("server.port", 65_536, "from 1 to 65535"),
    ("server.port", "http", "whole number"),
    ("server.port", 80.5, "whole number"),
    ("server.port", True, "whole number"),
    ("server.threads", [1], "whole number"),
    ("server.host", "http://x", "host name"),
    ("server.engine", "tornado", "gunicorn, granian"),
    ("loop.enabled", "maybe", "true or false"),
    ("loop.enabled", 1, "true or false"),
    ("store.type", "postgres", "redis, memory, jdbc"),
    ("store.key-prefix", "a{b}", "without blanks, braces"),
    ("heartbeat-interval", 3000, "duration"),
    ("heartbeat-interval", "-3s", "duration"),
    ("redis.timeout-ms", -1, "milliseconds from 10"),
    ("redis.timeout-ms", "soon", "milliseconds"),
    ("redis.sentinel.nodes", ["nowhere"], "host:port"),
    ("redis.cluster.nodes", "h:0", "host:port"),
    ("redis.cluster.address-map", ["a:1"], "host:port=host:port"),
    ("api.trusted-proxies", ["10.0.0.0/99"], "network"),
    ("api.admin-username", 5, "in quotes"),
    ("api.admin-username", "a:b", "no colon"),
    ("api.users", {"username": "x"}, "list"),
    ("api.users", [5], "mapping"),
    ("api.users", [None], "mapping"),
    ("api", [1], "mapping"),
    ("server.port", {"a": 1}, "not a mapping"),
    ("api.trusted-proxies", 5, "list"),
    ("api.base-path", "coord", "starts with a slash"),
    ("api.base-path", "/coord/", "starts with a slash"),
    ("api.base-path", "/a//b", "starts with a slash"),
    ("api.base-path", "/a/../b", "starts with a slash"),
    ("api.base-path", "/a/{b}", "starts with a slash"),
    ("api.base-path", "/", "starts with a slash"),
    ("events.retain", "forever", "an age"),
    ("events.retain", "10 entries", "at least 1000"),
    ("events.retain", "1d or 2d", "an age"),
    ("events.retain", "2000 entries or 3000 entries", "an age"),
    ("defaults.initial-shard-count", 16_385, "16384"),
    ("id", "a b", "without blanks"),
    ("id", "a\nb", "without blanks"),
]


@pytest.mark.parametrize(("key", "value", "said"), BAD_VALUES)
def test_a_bad_value_is_told_with_path_value_and_what_is_allowed(place: Place, key: str, value: object, said: str) -> None:
    """The message names the key, says what is allowed and where the value came from."""
    refused = place.refused(overrides={key: value})
    told = " ".join(message for name, message in refused.items() if name.startswith(key))
    assert said in told
    assert "from command line" in told


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("7d", Retention(age_ms=604_800_000)),
        ("5,000 entries", Retention(entries_max=5000)),
        ("2000 entries or 1h", Retention(age_ms=3_600_000, entries_max=2000)),
        ("unlimited", Retention()),
    ],
)
def test_retention(place: Place, text: str, kept: Retention) -> None:
    """Age, count, both or neither; written as it is read."""
    assert place.load(overrides={"events.retain": text}).events.retain == kept
    assert place.load(overrides={"events.retain": str(kept)}).events.retain == kept


def test_friendly_spellings(place: Place) -> None:
    """Aliases, case and a bare 0 mean what they say."""
    config = place.coordinator(
        "streams: {new-group-start: 0}", "coordination: {state-mutex: {strategy: ALWAYS, ttl-ms: 4s}}"
    ).load(COORDINATOR_REDIS_SSL="Yes")
    assert config.streams.new_group_start == "0"
    assert (config.coordination.state_mutex.strategy, config.coordination.state_mutex.ttl_ms) == ("always", 4000)
    assert config.redis.ssl
    assert place.load(COORDINATOR_STORE_TYPE="sql", COORDINATOR_STORE_URL="jdbc:sqlite:coord.db").store.type == "jdbc"


def test_yaml_traps_in_passwords(place: Place) -> None:
    """A password that YAML takes for a number is refused, not changed; a masked value is shown."""
    refused = place.coordinator("api: {admin-password: 0123456}").refused()
    assert "in quotes" in refused["api.admin-password"]
    assert "******" in refused["api.admin-password"]
    assert "123456" not in str(refused)
    assert place.coordinator("api: {admin-password: '0123456'}").load().api.admin_password.reveal() == "0123456"


def test_the_configuration_cannot_be_changed(place: Place) -> None:
    """A reload makes a new one."""
    with pytest.raises(AttributeError):
        place.load().loop.enabled = False  # type: ignore[misc]  # frozen


def test_a_secret_does_not_show() -> None:
    """Not by str, repr, format, dump or pickle; comparison works and an empty one is false."""
    secret = Secret("marker")
    shown = [str(secret), repr(secret), f"{secret}", f"{secret!r}", "%s" % secret, str([secret])]  # noqa: UP031  every way to print
    assert not [text for text in shown if "marker" in text]
    assert secret.reveal() == "marker"
    assert secret == Secret("marker")
    assert secret != Secret("other")
    assert secret != "marker"
    assert hash(secret) == hash(Secret("marker"))
    assert not Secret("")
    assert Secret(" ").is_blank()
    for dump in (pickle.dumps, copy.copy, msgspec.json.encode):
        with pytest.raises(TypeError):
            dump(secret)


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("redis://u:marker@h:1/0", "redis://******@h:1/0"),
        ("postgresql://h/db?password=marker", "postgresql://h/db?******"),
        ("redis://[::1]:6379", "redis://[::1]:6379"),
        ("sqlite:///file.db", "sqlite:///file.db"),
        ("jdbc:sqlite:file.db", "jdbc:sqlite:file.db"),
        ("jdbc:postgresql://u:marker@h:5432/db?user=u&password=marker", "jdbc:postgresql://******@h:5432/db?******"),
        ("jdbc:postgresql://u:marker@h:1,g:2/db", "******"),
        ("jdbc:marker@x", "******"),
        ("redis://u:mar/ker@h", "******"),
        ("redis://h:marker", "******"),
        ("marker", "******"),
        ("", ""),
    ],
)
def test_a_url_shows_without_its_credentials(url: str, shown: str) -> None:
    """What cannot be split with certainty is hidden whole."""
    assert str(SecretUrl(url)) == shown


def test_effective_shows_every_key_with_its_origin(place: Place) -> None:
    """Nothing in force is left out, and no secret is in it."""
    place.coordinator("api: {token-secret: " + "m" * 40 + ", users: [{username: a, password: hidden, roles: [READ]}]}")
    rows = {row.key: row for row in effective(place.load())}
    assert set(rows) == {template_text(path).replace("users[]", "users[0]") for path, _ in leaves()}
    assert rows["api.token-secret"].value == "******"
    assert rows["api.users[0].roles"].value == ["READ"]
    assert rows["heartbeat-interval"].value == "3s"
    assert rows["api.users[0].password"].origin.endswith("coordinator.yaml")
    assert "hidden" not in str(rows)


def test_the_markdown_table_has_a_row_for_each_key() -> None:
    """Key, default and meaning; the README is compared with it."""
    lines = markdown_table().splitlines()
    assert lines[:2] == ["| key | default | meaning |", "|---|---|---|"]
    assert len(lines) == 2 + len(TABLE) + 1
    assert all(line.replace("\\|", "").count("|") == 4 for line in lines)
    assert "| `heartbeat-interval` | `3s` |" in markdown_table()
    assert "`${REDIS_STREAM_COORDINATOR_ADMIN_PASSWORD:password}`" in markdown_table()


def test_a_leaf_is_found_with_and_without_indices() -> None:
    """Entries of lists have the rule of their list."""
    assert leaf_at("api.users[3].roles[1]") is leaf_at("api.users[].roles")
    assert shown_value(leaf_at("api.users[].roles"), ("READ",)) == ["READ"]
    with pytest.raises(KeyError):
        leaf_at("api.nothing")


def test_the_seed_fixture_is_the_seeds() -> None:
    """Comments in Korean and all."""
    assert "선택 ACL이다" in Path(__file__).with_name("seed.yaml").read_text(encoding="utf-8")
