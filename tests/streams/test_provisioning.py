"""Shards are made without moving anything, and drained only when every Redis consumer group has read and acknowledged all."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from coord.rediscommands.commands import RedisCommands
from coord.streams.provisioning import NoProof, Provisioned, ProvisioningFailed, ShardStreams
from tests.access.users import PASSWORD, documented
from tests.store.redis_server import RedisServer

SHARD = "orders:0"
GROUP = "orders-consumer"


@pytest.fixture(params=["default", "coordinator"])
def shards(server: RedisServer, request: pytest.FixtureRequest) -> Iterator[ShardStreams]:
    """The shards of a user who may do everything, and of the one that the README documents."""
    commands = server.commands()
    if request.param != "default":
        server.call("ACL", "SETUSER", request.param, *documented()[request.param])
        commands = RedisCommands(replace(server.settings(), username=request.param, password=PASSWORD))
    yield ShardStreams(commands)
    commands.close()


class Shard:
    """One shard and what its readers and writers do."""

    def __init__(self, server: RedisServer) -> None:
        self._call = server.call

    def write(self, *ids: int) -> None:
        for number in ids:
            self._call("XADD", SHARD, f"{number}-0", "n", number)

    def read(self, count: int, group: str = GROUP) -> list[bytes]:
        reply = self._call("XREADGROUP", "GROUP", group, "c", "COUNT", count, "STREAMS", SHARD, ">")
        return [] if reply is None else [identifier for identifier, _ in reply[0][1]]

    def read_and_acknowledge(self, count: int, group: str = GROUP) -> None:
        for identifier in self.read(count, group):
            self._call("XACK", SHARD, group, identifier)

    def __getattr__(self, name: str) -> Callable[..., object]:
        return lambda *arguments: self._call(name.upper(), SHARD, *arguments)


@pytest.fixture
def shard(server: RedisServer, shards: ShardStreams) -> Shard:
    shards.provision("orders", [0], {GROUP: "0"})
    return Shard(server)


def blockers(shards: ShardStreams) -> tuple[str, ...]:
    proof = shards.prove_drained("orders", 0)
    assert proof.is_drained == (not proof.blockers)
    assert proof.key == SHARD
    return proof.blockers


# -- provisioning


def test_provisioning_makes_what_is_missing_and_says_so(server: RedisServer, shards: ShardStreams) -> None:
    made = shards.provision("orders", range(3), {GROUP: "0", "billing": "0"})
    assert made.keys == ("orders:0", "orders:1", "orders:2")
    assert set(made.groups) == {(key, group) for key in made.keys for group in (GROUP, "billing")}
    assert shards.missing("orders", range(4)) == ("orders:3",)
    assert shards.provision("orders", range(3), {GROUP: "0", "billing": "0"}) == Provisioned()
    more = shards.provision("orders", [2, 3], {GROUP: "0", "audit": "0"})
    assert more.keys == ("orders:3",)
    assert set(more.groups) == {("orders:2", "audit"), ("orders:3", GROUP), ("orders:3", "audit")}
    assert shards.provision("orders", [], {GROUP: "0"}) == Provisioned()


def test_a_stream_without_groups_gets_empty_shards(server: RedisServer, shards: ShardStreams) -> None:
    made = shards.provision("orders", [0], {})
    assert (made.keys, made.groups) == ((SHARD,), ())
    assert server.call("XINFO", "GROUPS", SHARD) == []
    assert server.call("XADD", SHARD, "NOMKSTREAM", "*", "n", 1) is not None


def test_g5_groups_start_at_the_beginning_and_stay_where_they_are(server: RedisServer, shards: ShardStreams) -> None:
    shard = Shard(server)
    shard.write(1, 2, 3, 4, 5)
    made = shards.provision("orders", [0], {GROUP: "0"})
    assert (made.keys, made.groups) == ((), ((SHARD, GROUP),))
    assert shard.read(2) == [b"1-0", b"2-0"]
    assert shards.provision("orders", [0], {GROUP: "0"}) == Provisioned()
    assert shards.provision("orders", [0], {GROUP: "$"}) == Provisioned()
    assert shard.read(9) == [b"3-0", b"4-0", b"5-0"]
    server.call("XGROUP", "DESTROY", SHARD, GROUP)
    shards.provision("orders", [0], {GROUP: "0"})
    assert len(shard.read(9)) == 5


def test_a_group_may_start_at_the_end_or_after_an_id(server: RedisServer, shards: ShardStreams) -> None:
    shard = Shard(server)
    shard.write(1, 2, 3)
    shards.provision("orders", [0], {"new": "$", "after": "2-0"})
    assert shard.read(9, "new") == []
    assert shard.read(9, "after") == [b"3-0"]


@pytest.mark.parametrize("start", ["", "latest", "1-2-3", "0 MKSTREAM", "-1"])
def test_a_start_that_is_none_is_refused_before_anything_is_made(shards: ShardStreams, start: str) -> None:
    with pytest.raises(ProvisioningFailed, match="cannot start from"):
        shards.provision("orders", range(2), {GROUP: start})
    assert len(shards.missing("orders", range(2))) == 2


def test_d12_a_shard_that_cannot_be_made_is_named_and_the_rest_can_be_taken_back(
    server: RedisServer, shards: ShardStreams
) -> None:
    server.call("SET", "orders:6", "a string")
    with pytest.raises(ProvisioningFailed, match=r"orders:6 is of type string, not stream") as caught:
        shards.provision("orders", range(4, 8), {GROUP: "0"})
    assert caught.value.key == "orders:6"
    assert caught.value.made.keys == ("orders:4", "orders:5", "orders:7")
    assert shards.missing("orders", range(4, 8)) == ("orders:6",)
    server.call("DEL", "orders:6")
    assert shards.provision("orders", range(4, 8), {GROUP: "0"}).keys == ("orders:6",), "it can be resumed"
    assert shards.remove_created(caught.value.made) == caught.value.made.keys, "or taken back"
    assert server.call("EXISTS", *caught.value.made.keys) == 0


def test_taking_back_leaves_what_others_use_or_had(server: RedisServer, shards: ShardStreams) -> None:
    server.call("XGROUP", "CREATE", "orders:0", "theirs", "0", "MKSTREAM")
    made = shards.provision("orders", range(5), {GROUP: "0"})
    server.call("XADD", "orders:1", "*", "n", 1)
    identifier = server.call("XADD", "orders:2", "*", "n", 1)
    server.call("XDEL", "orders:2", identifier)
    server.call("XGROUP", "CREATE", "orders:3", "theirs", "0")
    assert shards.remove_created(made) == ("orders:4",)
    assert shards.remove_created(made) == ()
    assert shards.missing("orders", range(5)) == ("orders:4",)
    assert shards.remove_created(Provisioned()) == ()


def test_many_shards_are_made_in_a_breath(shards: ShardStreams) -> None:
    begun = time.monotonic()
    assert len(shards.provision("orders", range(5000), {GROUP: "0", "billing": "0"}).keys) == 5000
    assert time.monotonic() - begun < 30


def test_groups_are_destroyed_by_name_with_what_was_pending(server: RedisServer, shards: ShardStreams) -> None:
    shards.provision("orders", range(3), {GROUP: "0", "billing": "0"})
    shard = Shard(server)
    shard.write(1, 2, 3)
    shard.read(2)
    server.call("XGROUP", "DESTROY", "orders:1", GROUP)
    assert shards.destroy_consumer_group("orders", range(4), GROUP) == {"orders:0": 2, "orders:2": 0}
    assert shards.destroy_consumer_group("orders", range(4), GROUP) == {}
    assert shards.provision("orders", range(3), {"billing": "0"}) == Provisioned()


# -- proof of drain


def test_a_shard_that_does_not_exist_or_holds_nothing_is_drained(shards: ShardStreams, server: RedisServer) -> None:
    assert blockers(shards) == ()
    shards.provision("orders", [0], {})
    assert blockers(shards) == ()


def test_entries_that_no_group_reads_are_not_drained(shards: ShardStreams, server: RedisServer) -> None:
    Shard(server).write(1, 2)
    assert blockers(shards) == ("no consumer group: 2 entries that nobody read",)


def test_every_group_counts_ours_or_not(shards: ShardStreams, shard: Shard, server: RedisServer) -> None:
    server.call("XGROUP", "CREATE", SHARD, "a stranger's", "0")
    shard.write(1, 2, 3)
    shard.read(2)
    assert blockers(shards) == (
        "group a stranger's: unread entries after 0-0",
        f"group {GROUP}: 2 pending",
        f"group {GROUP}: unread entries after 2-0",
    )
    shard.read_and_acknowledge(1)
    shard.xack(GROUP, "1-0", "2-0")
    assert blockers(shards) == ("group a stranger's: unread entries after 0-0",)
    shard.read_and_acknowledge(9, "a stranger's")
    assert blockers(shards) == ()


HISTORIES: dict[str, Callable[[Shard], object]] = {
    "unread entries deleted in the middle": lambda shard: shard.xdel("3-0", "4-0"),
    "trimmed past the group's position": lambda shard: shard.xtrim("MINID", "4-0"),
    "the last entry deleted": lambda shard: shard.xdel("6-0"),
    "trimmed to one": lambda shard: shard.xtrim("MAXLEN", 1),
    "nothing": lambda shard: None,
}


@pytest.mark.parametrize("history", HISTORIES)
def test_g1_drained_is_what_was_read_whatever_the_lag_says(shards: ShardStreams, shard: Shard, history: str) -> None:
    """Never drained with an unread entry, and drained once the rest was read."""
    shard.write(1, 2, 3, 4, 5, 6)
    shard.read_and_acknowledge(1)
    HISTORIES[history](shard)
    while shard.xlen():
        left = blockers(shards)
        taken = shard.read(1)
        assert bool(taken) == (f"group {GROUP}: unread entries after" in " ".join(left))
        if not taken:
            break
        assert blockers(shards)[0] == f"group {GROUP}: 1 pending"
        shard.xack(GROUP, taken[0])
    assert blockers(shards) == ()


def test_g1_all_unread_entries_deleted_is_drained(shards: ShardStreams, shard: Shard) -> None:
    shard.write(1, 2, 3)
    assert blockers(shards) == (f"group {GROUP}: unread entries after 0-0",)
    shard.xtrim("MAXLEN", 0)
    assert blockers(shards) == ()


def test_g7_a_stranger_that_trims_on_publish_makes_no_shard_read(shards: ShardStreams, shard: Shard, server: RedisServer) -> None:
    """Most of what nobody read is gone; the shard is drained once what is left was read, and not before."""
    for number in range(1, 201):
        server.call("XADD", SHARD, "MAXLEN", 10, f"{number}-0", "n", "x")
    assert shard.xlen() == 10
    assert blockers(shards) == (f"group {GROUP}: unread entries after 0-0",)
    assert len(shard.read(9)) == 9
    assert blockers(shards) == (f"group {GROUP}: 9 pending", f"group {GROUP}: unread entries after 199-0")
    shard.xtrim("MAXLEN", 1)
    assert f"group {GROUP}: 9 pending entries without data" in blockers(shards)


def test_g2_a_lag_that_redis_does_not_know_decides_nothing(shards: ShardStreams, shard: Shard, server: RedisServer) -> None:
    """A group made in the middle has no lag until it has read to the end."""
    shard.write(1, 2, 3, 4, 5)
    server.call("XGROUP", "SETID", SHARD, GROUP, "2-5")
    shard.xdel("3-0")
    (group,) = server.call("XINFO", "GROUPS", SHARD)
    assert dict(zip(group[::2], group[1::2], strict=True))[b"lag"] is None
    assert blockers(shards) == (f"group {GROUP}: unread entries after 2-5",)
    shard.read_and_acknowledge(9)
    assert blockers(shards) == ()


def test_g4_pending_entries_whose_records_are_gone_are_named(shards: ShardStreams, shard: Shard) -> None:
    shard.write(*range(1, 11))
    shard.read(10)
    shard.xtrim("MAXLEN", 4)
    assert blockers(shards) == (f"group {GROUP}: 4 pending", f"group {GROUP}: 6 pending entries without data")
    shard.xtrim("MAXLEN", 0)
    assert blockers(shards) == (f"group {GROUP}: 10 pending entries without data",)
    shard.xautoclaim(GROUP, "c", 0, "0")
    assert blockers(shards) == ()


def test_an_error_or_no_answer_is_no_proof(server: RedisServer, shards: ShardStreams) -> None:
    server.call("SET", SHARD, "a string")
    for ask in (shards.prove_drained, shards.delete_if_drained):
        with pytest.raises(NoProof, match="WRONGTYPE"):
            ask("orders", 0)
    assert server.call("EXISTS", SHARD) == 1


def test_without_an_answer_nothing_is_proved_made_or_missing() -> None:
    server = RedisServer()
    commands = server.commands(timeout_ms=300)
    shards = ShardStreams(commands)
    server.close()
    for ask in (shards.prove_drained, shards.delete_if_drained):
        with pytest.raises(NoProof):
            ask("orders", 0)
    with pytest.raises(ProvisioningFailed, match="cannot connect"):
        shards.provision("orders", [0], {GROUP: "0"})
    with pytest.raises(ProvisioningFailed, match="cannot connect"):
        shards.missing("orders", [0])


def test_a_shard_goes_only_by_the_script_that_proves_it_drained(server: RedisServer, shards: ShardStreams, shard: Shard) -> None:
    shard.write(1, 2)
    shard.read_and_acknowledge(1)
    assert not shards.delete_if_drained("orders", 0).is_drained
    assert server.call("EXISTS", SHARD) == 1
    shard.read_and_acknowledge(1)
    assert shards.delete_if_drained("orders", 0).is_drained
    assert server.call("EXISTS", SHARD) == 0
    assert shards.delete_if_drained("orders", 0).is_drained, "once gone, it stays proved"
