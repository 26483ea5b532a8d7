"""What another coordinator stored, mangled: read, or refused by key and field; never anything else, and nothing is written."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest
import redis
from hypothesis import given
from hypothesis import strategies as st

from coord.runtime.kotlin import KotlinAggregate, MalformedForeign, Raw, read
from tests.cli.conftest import Run
from tests.moving.kotlin import NAMES, STABLE, keys_of, seed
from tests.moving.lives import stored

MEMBER = "10.0.3.11-m0"
GARBAGE = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=5,
)
GROUPS = [key for name in NAMES for key in keys_of(name) if key["type"] != "set" and not key["key"].endswith(":stream")]


def raw_of(key: dict[str, Any], aggregate: object = None) -> Raw:
    if key["type"] == "string":
        return Raw(key["key"], key["value"].encode() if aggregate is None else json.dumps(aggregate).encode(), None)
    value = key["value"]
    text = value["aggregate"].encode() if aggregate is None else json.dumps(aggregate).encode()
    return Raw(key["key"], text, (value["revision"], value["schemaVersion"], value["layoutVersion"]))


def places(value: object, path: tuple[object, ...] = ()) -> list[tuple[object, ...]]:
    found = [path] if path else []
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, inner in items:
        found += places(inner, (*path, name))
    return found


@given(st.data())
def test_garbage_anywhere_is_read_or_refused_by_name(data: st.DataObject) -> None:
    """One place of a real aggregate is replaced by anything, or taken out."""
    key = data.draw(st.sampled_from(GROUPS))
    told = json.loads(raw_of(key).text)
    *way, last = data.draw(st.sampled_from(places(told)))
    holder: Any = told
    for step in way:
        holder = holder[step]
    if data.draw(st.booleans()):
        del holder[last]
    else:
        holder[last] = data.draw(GARBAGE)
    try:
        found: KotlinAggregate | MalformedForeign = read(raw_of(key, told), is_group=True)
    except MalformedForeign as error:
        found = error
    if isinstance(found, MalformedForeign):
        assert found.key == key["key"]
        assert found.where
        assert str(found).startswith(f"{key['key']}: {found.where}: ")


@given(st.binary(max_size=60))
def test_any_bytes_are_read_or_refused(text: bytes) -> None:
    with pytest.raises(MalformedForeign, match=r"^k: "):
        read(Raw("k", text, None), is_group=True)


@pytest.mark.parametrize(
    ("path", "value", "where"),
    [
        (("members", MEMBER, "memberEpoch"), "seven", f"members.{MEMBER}.memberEpoch"),
        (("members", MEMBER, "memberEpoch"), -1, f"members.{MEMBER}.memberEpoch"),
        (("members", MEMBER, "state"), "ASLEEP", f"members.{MEMBER}.state"),
        (("members", MEMBER, "memberId"), "other", f"members.{MEMBER}.memberId"),
        (("members", MEMBER, "currentAssignment"), [{"shardIndex": 1.5}], f"members.{MEMBER}.currentAssignment[0].shardIndex"),
        (("members", MEMBER, "memberLeaseExpiresAt"), "yesterday", f"members.{MEMBER}.memberLeaseExpiresAt"),
        (("members", MEMBER), None, "members[...]"),
        (("groupEpoch",), None, "groupEpoch"),
        (("metadataVersion",), 2**60, "metadataVersion"),
        (("shardCount",), 100_000, "shardCount"),
        (("shardCount",), None, "shardCount"),
        (("schemaVersion",), 3, "schemaVersion"),
        (("storeRevision",), 5, "revision"),
        (("activeReshardingId",), "gone", "activeReshardingId"),
        (("streamPrefix",), "other", "streamPrefix, consumerGroup"),
        (("consumerGroup",), "a/b", "consumerGroup"),
        (("updatedAt",), "never", "updatedAt"),
    ],
)
def test_the_field_is_named_and_nothing_is_written(
    run: Run, redis_url: str, path: tuple[str, ...], value: object, where: str
) -> None:
    """Through the command, with a sound group beside the broken one: neither is taken over."""

    def change(told: dict[str, Any]) -> None:
        *way, last = path
        for step in way:
            told = told[step]
        told[last] = value

    seed(redis_url, "kotlin-legacy-string-key")
    seed(redis_url, "kotlin-0.1-stable", change)
    before = stored(redis_url, "*")
    for options in ((), ("--dry-run",)):
        refused = run("adopt", "--redis-url", redis_url, *options)
        assert (refused.exit_code, refused.stdout) == (1, "")
        assert f"{STABLE}: {where}: " in refused.stderr
    assert stored(redis_url, "*") == before
    assert run("adopt", "legacy-orders", "--redis-url", redis_url).exit_code == 0


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"schemaVersion": "3"}, "schemaVersion"), ({"layoutVersion": "9"}, "layoutVersion"), ({"revision": "417"}, "revision"),
        ({"aggregate": "{"}, "aggregate"), ({"aggregate": "[]"}, "aggregate"),
    ],
)  # fmt: skip
def test_the_hash_itself_is_held_to_what_it_says(run: Run, redis_url: str, fields: dict[str, str], where: str) -> None:
    seed(redis_url, "kotlin-0.1-stable")
    with redis.Redis.from_url(redis_url) as client:
        client.hset(STABLE, mapping=fields)
    refused = run("adopt", "--redis-url", redis_url)
    assert (refused.exit_code, f"{STABLE}: {where}: " in refused.stderr) == (1, True), refused.stderr


def test_a_key_of_another_type_is_named(run: Run, redis_url: str) -> None:
    with redis.Redis.from_url(redis_url) as client:
        client.rpush(STABLE, "x")
    refused = run("adopt", "--redis-url", redis_url)
    assert (refused.exit_code, f"{STABLE}: type: " in refused.stderr) == (1, True)


def test_older_and_newer_names_that_disagree_are_refused() -> None:
    (key,) = [key for key in GROUPS if "billing" in key["key"]]
    told = json.loads(raw_of(key).text)
    same = copy.deepcopy(told)
    same["activeReshardingId"] = same["activeMigrationId"]
    assert read(raw_of(key, same), is_group=True).resharding is not None
    null = copy.deepcopy(told)
    null["activeReshardingId"] = None
    assert read(raw_of(key, null), is_group=True).resharding is not None
    told["activeReshardingId"] = "another"
    with pytest.raises(MalformedForeign, match="activeReshardingId: and its older name"):
        read(raw_of(key, told), is_group=True)


def test_unknown_fields_are_named_wherever_they_are() -> None:
    (key,) = [key for key in GROUPS if "billing" in key["key"]]
    told = json.loads(raw_of(key).text)
    told["novel"] = 1
    for member in told["members"].values():
        member["mood"] = "fine"
    told["migrations"]["reshard-5b0a"]["colour"] = "blue"
    assert read(raw_of(key, told), is_group=True).dropped == ("members.*.mood", "migrations.*.colour", "novel")
