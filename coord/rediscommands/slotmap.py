"""What a node tells of its cluster: which address serves which slots.

From CLUSTER SLOTS, or CLUSTER SHARDS where that is not allowed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from coord.rediscommands.link import Reply
from coord.rediscommands.settings import Address
from coord.rediscommands.slots import SLOTS

UNKNOWN_HOSTS = frozenset({"", "?"})
"""What a node that does not know its own host name tells: the one it was asked at is meant."""


@dataclass(slots=True)
class SlotMap:
    """The address that serves each slot (None: nobody), and every address that was told, replicas too."""

    owners: list[Address | None]
    known: tuple[Address, ...]

    @property
    def covered(self) -> int:
        """How many slots are served."""
        return sum(owner is not None for owner in self.owners)

    @property
    def masters(self) -> frozenset[Address]:
        """Every address that serves a slot."""
        return frozenset(owner for owner in self.owners if owner is not None)


@dataclass(frozen=True, slots=True)
class _Range:
    first: int
    last: int
    nodes: tuple[Address, ...]
    """The master first; none when the shard has no healthy one."""


class MapReader:
    """Reads replies of nodes. `reached`: told address -> the one that leads there from here."""

    def __init__(self, reached: Mapping[Address, Address]) -> None:
        self._reached = reached

    def address(self, told: str, *, asked: Address) -> Address:
        """Read `host:port` as MOVED and ASK tell it."""
        host, _, port = told.rpartition(":")
        return self._address(host, int(port), asked)

    def of_slots(self, reply: Reply, *, asked: Address) -> SlotMap:
        """Read a reply of CLUSTER SLOTS."""

        def ranges() -> Iterator[_Range]:
            for first, last, *nodes in reply:
                yield _Range(first, last, tuple(self._address(_text(node[0]), node[1], asked) for node in nodes))

        return _filled(ranges())

    def of_shards(self, reply: Reply, *, asked: Address, secured: bool) -> SlotMap:
        """Read a reply of CLUSTER SHARDS."""

        def place(node: Mapping[bytes, Any]) -> Address:
            port = node.get(b"tls-port") if secured else node.get(b"port")
            return self._address(_text(node.get(b"endpoint")), int(port or 0), asked)

        def ranges() -> Iterator[_Range]:
            for flat in reply:
                shard = _fields(flat)
                told = [_fields(node) for node in shard[b"nodes"]]
                serving = [node for node in told if node[b"role"] == b"master" and node.get(b"health", b"online") == b"online"]
                others = [node for node in told if node not in serving]
                nodes = tuple(place(node) for node in (*serving, *others)) if serving else ()
                slots: Sequence[int] = shard[b"slots"]
                for first, last in zip(slots[::2], slots[1::2], strict=True):
                    yield _Range(int(first), int(last), nodes)

        return _filled(ranges())

    def _address(self, host: str, port: int, asked: Address) -> Address:
        told = Address(asked.host if host in UNKNOWN_HOSTS else host, port)
        return self._reached.get(told, told)


def _filled(ranges: Iterator[_Range]) -> SlotMap:
    owners: list[Address | None] = [None] * SLOTS
    known: dict[Address, None] = {}
    for told in ranges:
        if told.nodes:
            owners[told.first : told.last + 1] = [told.nodes[0]] * (told.last + 1 - told.first)
        known |= dict.fromkeys(told.nodes)
    return SlotMap(owners, tuple(known))


def _fields(flat: Sequence[Any]) -> dict[bytes, Any]:
    return dict(zip(flat[::2], flat[1::2], strict=True))


def _text(value: bytes | None) -> str:
    return "" if value is None else value.decode(errors="replace")
