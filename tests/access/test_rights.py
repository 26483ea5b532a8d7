"""Every command of the documented line is needed, and one that is missing is told by its name, with nothing half-done."""

from __future__ import annotations

import ast
import inspect
import re
from collections.abc import Iterator

import pytest

from coord.rediscommands import access, commands, moving
from coord.rediscommands.scripts import script, script_names
from tests.access.tour import Tour
from tests.access.users import PASSWORD, Owned

PROVISIONING = access.coordinator(shards="orders:*", provisioning=True)
READING = access.coordinator(shards="orders:*")


@pytest.fixture
def server(owned: Owned) -> Iterator[Owned]:
    """With a user for fate: all may be done under its name, under the documented key prefix."""
    owned.call("ACL", "SETUSER", "fate", "on", f">{PASSWORD}", "~*", "&*", "+@all")
    yield owned
    owned.make_users()


def rules_without(whole: access.Access, part: int, command: str) -> list[str]:
    """Give the rules of `ACL SETUSER` without one command of one part."""
    parts = list(whole.parts)
    left = tuple(each for each in parts[part].commands if each != command)
    parts[part] = access.Part(parts[part].pattern, left, reads_only=parts[part].reads_only)
    return ["reset", "on", f">{PASSWORD}", *access.Access(tuple(parts)).words()]


def names(text: str, command: str) -> bool:
    """Whether a refusal tells a command as Redis does ('xgroup|create'), or as it is written (XGROUP CREATE key)."""
    return f"'{command}'" in text or f" {command.upper().replace('|', ' ')} " in text


def refusals(server: Owned) -> list[str]:
    tour = Tour(server)
    try:
        return tour.walk()
    finally:
        tour.close()


def lacking(server: Owned, whole: access.Access) -> list[tuple[str, str]]:
    """Give what `coord doctor` is told of the user `coordinator`: command and key."""
    asked = server.commands_of()
    ((_, missing),) = asked.missing_rights(whole)
    asked.close()
    assert missing is not None
    return [(each.command, each.key) for each in missing]


def test_the_documented_user_is_refused_nothing(server: Owned) -> None:
    assert refusals(server) == []
    assert lacking(server, PROVISIONING) == []


def test_each_command_that_is_missing_is_named(server: Owned) -> None:
    """By what the coordinator logs and answers, and by the doctor: exactly it. So each is needed."""
    cases = [(part, command) for part, each in enumerate(PROVISIONING.parts) for command in each.commands]
    assert len(cases) > 40
    for part, command in cases:
        server.call("ACL", "SETUSER", "coordinator", *rules_without(PROVISIONING, part, command))
        told = refusals(server)
        assert [text for text in told if names(text, command)], f"without {command} on part {part}: {told}"
        assert all("NOPERM" in text for text in told), told
        key = PROVISIONING.parts[part].pattern.replace("*", "coord-doctor")
        assert lacking(server, PROVISIONING) == [(command, key)]


def test_keys_that_are_missing_are_named(server: Owned) -> None:
    """A prefix that the user may not touch: the key is told, which Redis itself does not."""
    server.call("ACL", "SETUSER", "coordinator", *[rule.replace("orders:", "others:") for rule in _documented_rules()])
    told = refusals(server)
    assert told
    assert all("orders:" in text for text in told), told


def test_who_only_reads_shards_is_refused_their_making(server: Owned) -> None:
    """The smaller line proves drains, and makes, changes and removes nothing."""
    tour = Tour(server, "coordinator-only")
    told = tour.walk()
    tour.close()
    assert told
    writers = ("script provision_shard", "script destroy_group", "script delete_drained")
    assert all(any(writer in text for writer in writers) for text in told), told
    for command in READING.parts[1].commands:
        server.call("ACL", "SETUSER", "coordinator", *rules_without(READING, 1, command))
        key = "orders:coord-doctor"
        assert lacking(server, READING) == [(command, key)]


def test_a_commit_that_may_not_write_all_writes_nothing(server: Owned) -> None:
    """An ACL would stop the script between the log and the aggregate; the aggregate would be corrupt for ever."""
    for command in ("hset", "zadd", "zrem", "hdel", "del", "xadd"):
        server.call("ACL", "SETUSER", "coordinator", *rules_without(PROVISIONING, 0, command))
        refusals(server)
        server.call("ACL", "SETUSER", "coordinator", *_documented_rules())
        assert server.call("EXISTS", "redis-stream:coord:{orders:another}:events") == 0
        assert server.call("EXISTS", "redis-stream:coord:{orders:another}:metadata") == 0


def _documented_rules() -> list[str]:
    return ["reset", "on", f">{PASSWORD}", *PROVISIONING.words()]


# -- the lists are the code's


def test_what_is_sent_outside_of_scripts_is_all_listed() -> None:
    """Each command that `commands.py` sends by itself is in the list, and no other."""
    sent = {
        call.args[1].value.lower()
        for call in ast.walk(ast.parse(inspect.getsource(commands)))
        if isinstance(call, ast.Call)
        and isinstance(call.func, ast.Attribute)
        and call.func.attr == "call"
        and isinstance(call.args[1], ast.Constant)
        and isinstance(call.args[1].value, str)
    }
    assert sent == set(access.SENT_ALONE)


def test_what_movers_send_outside_of_scripts_is_all_listed() -> None:
    sent = set(re.findall(r'_template\.call\(\w+, "([A-Z]+)"', inspect.getsource(moving)))
    assert {name.lower() for name in sent} == set(access.SENT_BY_MOVERS)
    assert set(access.MOVERS) < set(script_names())


def test_every_call_of_a_script_is_read_off_it() -> None:
    """A command that is not written as a literal would be missed."""
    assert {*access.SHARD_READERS, *access.SHARD_WRITERS} < set(script_names())
    for name in script_names():
        text = script(name).text
        called = text.count("redis.call(") + text.count("redis.pcall(")
        assert called == len(access._CALLED.findall(text)), name
        assert bool(access.commands_of(script(name))) == bool(called), name
    assert access.commands_of(script("provision_shard")) == {
        "exists", "type", "xgroup|create", "xgroup|destroy", "xinfo|groups",
    }  # fmt: skip
