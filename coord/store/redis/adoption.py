"""Another coordinator's keys in Redis, and ours in their place: each step one script."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal

from coord.names import AggregateKey
from coord.rediscommands.access import FOREIGN_INDEX
from coord.rediscommands.moving import MovingCommands
from coord.store.adoption import ASIDE, Changed, Foreign, Kind
from coord.store.base import LAYOUT_VERSION, SCHEMA_VERSION, Commit, Head
from coord.store.redis.faults import told
from coord.store.redis.replies import entry_id, written

UNDONE: Final = ":undone"
_OURS: Final = str(SCHEMA_VERSION)
_SUFFIXES: Final[dict[str, Literal["group", "stream"]]] = {"metadata": "group", "group": "group", "stream": "stream"}


class RedisAdoption:
    """`coord.store.adoption.Adoption` on Redis."""

    def __init__(self, commands: MovingCommands) -> None:
        self._commands = commands
        self._keys = commands.keys
        self._named: Final = re.compile(rf"{re.escape(self._keys.prefix)}:\{{([^{{}}]+)\}}:(\w+)({ASIDE})?")

    def found(self) -> Sequence[Foreign]:
        """Go through all keys, on every node, and read those that are not ours."""
        with told():
            names = sorted({key.decode(errors="replace") for key in self._commands.keys_like(":{*}:*")})
            return list(self._read(names))

    def _read(self, names: Sequence[str]) -> Iterator[Foreign]:
        for name in names:
            matched = self._named.fullmatch(name)
            role = _SUFFIXES.get(matched[2]) if matched else None
            if matched is None or role is None:
                continue
            kind, text, *fields = self._commands.read_foreign(name)
            if kind == b"none" or (kind == b"hash" and fields[1] == _OURS.encode() and not matched[3]):
                continue
            revision, schema, layout = (_text(each) for each in fields)
            yield Foreign(
                key=name, tag=matched[1], role=role, is_aside=matched[3] is not None, kind=_kind(kind), text=text or b"",
                fields=(revision, schema, layout),
            )  # fmt: skip

    def indexed(self) -> Sequence[str]:
        """Read both indexes, the older one and that of 0.3, whose entries begin with `stream:` or `group:`."""
        found: set[str] = set()
        for index in (f"{self._keys.prefix}:groups", FOREIGN_INDEX):
            with told():
                if self._commands.types([index])[0] == b"set":
                    found |= {name.decode(errors="replace") for name in self._commands.set_members(index)}
        return sorted(name.removeprefix("stream:").removeprefix("group:") for name in found)

    def moment(self, key: AggregateKey) -> tuple[int, str]:
        """Ask the node that holds the aggregate."""
        with told():
            now, identity = self._commands.moment(self._keys.metadata(key))
        return now, identity.decode()

    def metadata_key(self, key: AggregateKey) -> str:
        """Give the key of an aggregate of ours."""
        return self._keys.metadata(key)

    def set_aside(self, foreign: Foreign) -> None:
        """Copy it, if it is as it was read."""
        with told():
            outcome = self._commands.set_aside(foreign.key, foreign.key + ASIDE, foreign.text)
        if outcome == b"changed":
            raise Changed(f"{foreign.key} was changed since it was read: stop the other coordinator first")
        if outcome == b"taken":
            raise Changed(f"{foreign.key}{ASIDE} holds what an earlier adoption set aside: remove it, or undo that first")

    def adopt(self, commit: Commit, *, seen: bytes) -> None:
        """Write ours where theirs was."""
        assert commit.aggregate is not None
        entries = tuple(written(commit.entries))
        with told(commit.key):
            reply: Any = self._commands.adopt(
                self._keys.aggregate(commit.key), commit.identity, seen, commit.commit_id, commit.aggregate, SCHEMA_VERSION,
                LAYOUT_VERSION, commit.leases.ttl_ms, len(commit.entries), *entries, *commit.leases.renew,
            )  # fmt: skip
        if reply[0] != b"adopted":
            raise Changed(f"{commit.key} cannot be adopted: {reply[1].decode(errors='replace')}")

    def drop(self, foreign: Foreign) -> None:
        """Remove it, if it is as it was read."""
        with told():
            if not self._commands.drop_foreign(foreign.key, foreign.text):
                raise Changed(f"{foreign.key} was changed since it was read: stop the other coordinator first")

    def put_back(self, foreign: Foreign) -> None:
        """Copy what is kept aside to where it was."""
        place = foreign.key.removesuffix(ASIDE)
        with told():
            outcome = self._commands.put_back(place, foreign.key)
        if outcome != b"back":
            raise Changed(f"{place} holds something else than what is kept in {foreign.key}")

    def retire(self, key: AggregateKey, head: Head) -> None:
        """Take ours away."""
        keys = self._keys.aggregate(key)
        with told(key):
            if not self._commands.retire(keys, keys.events + UNDONE, entry_id(head.last), head.chain):
                raise Changed(f"{key} was changed meanwhile: stop the coordinators that work on it")

    def close(self) -> None:
        """Close all connections."""
        self._commands.close()


def _text(value: bytes | None) -> str | None:
    return None if value is None else value.decode(errors="replace")


def _kind(kind: bytes) -> Kind:
    if kind == b"hash":
        return "hash"
    return "string" if kind == b"string" else "other"
