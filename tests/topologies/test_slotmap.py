"""What nodes tell of their cluster, in every form that they tell it in."""

from __future__ import annotations

import pytest

from coord.rediscommands.settings import Address
from coord.rediscommands.slotmap import MapReader
from coord.rediscommands.slots import SLOTS

ASKED = Address("asked", 7000)
PLAIN = MapReader({})


def node(host: bytes | None, port: int) -> list[object]:
    return [host, port, b"id", []]


def shard_node(role: bytes, endpoint: bytes | None, port: int, health: bytes = b"online") -> list[object]:
    return [
        b"id", b"x", b"port", port, b"tls-port", port + 1, b"ip", b"10.0.0.1", b"endpoint", endpoint, b"role", role,
        b"replication-offset", 7, b"health", health,
    ]  # fmt: skip


def shard(slots: list[int], *nodes: list[object]) -> list[object]:
    return [b"slots", slots, b"nodes", list(nodes)]


def test_slots_name_a_master_first_and_replicas_after_it() -> None:
    told = PLAIN.of_slots([[0, 99, node(b"a", 1), node(b"b", 2)], [200, SLOTS - 1, node(b"c", 3)]], asked=ASKED)
    assert (told.owners[0], told.owners[99], told.owners[100], told.owners[-1]) == (
        Address("a", 1), Address("a", 1), None, Address("c", 3),
    )  # fmt: skip
    assert told.known == (Address("a", 1), Address("b", 2), Address("c", 3))
    assert told.masters == {Address("a", 1), Address("c", 3)}
    assert (told.covered, len(told.owners)) == (SLOTS - 100, SLOTS)


@pytest.mark.parametrize("unknown", [None, b"", b"?"])
def test_a_node_that_does_not_know_its_name_means_where_it_was_asked(unknown: bytes | None) -> None:
    told = PLAIN.of_slots([[0, SLOTS - 1, node(unknown, 7005)]], asked=ASKED)
    assert told.masters == {Address("asked", 7005)}


def test_shards_name_roles_and_health() -> None:
    reply = [
        shard([0, 9, 20, 29], shard_node(b"replica", b"b", 2), shard_node(b"master", b"a", 1)),
        shard([10, 19], shard_node(b"master", b"dead", 5, b"fail"), shard_node(b"replica", b"c", 3)),
        shard([], shard_node(b"master", b"empty", 9)),
    ]
    told = PLAIN.of_shards(reply, asked=ASKED, secured=False)
    assert (told.owners[0], told.owners[15], told.owners[25], told.owners[30]) == (Address("a", 1), None, Address("a", 1), None)
    assert told.covered == 20
    assert PLAIN.of_shards(reply, asked=ASKED, secured=True).owners[0] == Address("a", 2), "the port for TLS"


def test_addresses_are_reached_by_the_map_whoever_tells_them() -> None:
    reader = MapReader({Address("10.0.0.1", 6379): Address("localhost", 7001)})
    reached = Address("localhost", 7001)
    assert reader.of_slots([[0, 1, node(b"10.0.0.1", 6379)]], asked=ASKED).masters == {reached}
    told = reader.of_shards([shard([0, 1], shard_node(b"master", b"10.0.0.1", 6379))], asked=ASKED, secured=False)
    assert told.masters == {reached}
    assert reader.address("10.0.0.1:6379", asked=ASKED) == reached
    assert reader.address("10.0.0.2:6379", asked=ASKED) == Address("10.0.0.2", 6379)


@pytest.mark.parametrize(
    ("told", "address"),
    [("h:1", Address("h", 1)), (":7003", Address("asked", 7003)), ("2001:db8::1:6379", Address("2001:db8::1", 6379))],
)
def test_redirections_name_addresses_in_their_own_way(told: str, address: Address) -> None:
    assert PLAIN.address(told, asked=ASKED) == address
