"""What a Redis user must be allowed: which commands on which keys, for the coordinator and for its clients.

The coordinator's commands are read off its scripts, those that it sends by themselves are listed here (a test holds the list
to the code). So a script that uses another command changes the documented `ACL SETUSER` line by itself. Each part of a user
has its own keys: no command for the coordinator's own keys is allowed on a shard.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cache
from typing import Final

from coord.rediscommands.errors import Refused
from coord.rediscommands.keys import KEY_PREFIX
from coord.rediscommands.link import Argument, Reply
from coord.rediscommands.scripts import Script, script, script_names

SENT_ALONE: Final = ("sadd", "smembers", "srem", "time", "xadd", "xrange", "xrevrange")
"""What the coordinator sends outside of any script."""
SHARD_READERS: Final = ("key_type", "prove_drained")
SHARD_WRITERS: Final = ("delete_drained", "destroy_group", "provision_shard", "remove_shard")
MOVERS: Final = (
    "adopt",
    "drop_foreign",
    "import_aggregate",
    "import_answers",
    "import_entries",
    "moment",
    "put_back",
    "read_answers",
    "read_foreign",
    "retire",
    "set_aside",
)
"""Scripts that no coordinator runs: they move a store, or take over another coordinator's state."""
SENT_BY_MOVERS: Final = ("hmget", "smembers", "xadd", "xrange", "xrevrange")
SCANNED: Final = ("scan",)
FOREIGN_INDEX: Final = "coordinator:metadata"
"""The one key outside of the prefix: an index of a Kotlin coordinator, which is read."""
CONSUMER: Final = ("xack", "xautoclaim", "xpending", "xreadgroup")
PRODUCER: Final = ("xadd",)
CLUSTER: Final = ("asking", "cluster|slots")
SENTINEL: Final = ("role",)
REPLICAS: Final = ("wait",)
DATABASE: Final = ("select",)

_CALLED: Final = re.compile(r"redis\.p?call\('([A-Z_]+)'(?:, '([A-Z]+)')?")
_WITH_SUB_COMMAND: Final = frozenset({"XGROUP", "XINFO"})
_WITHOUT_KEY: Final = frozenset({"info", "time", *SCANNED, *CLUSTER, *SENTINEL, *REPLICAS, *DATABASE})
_SCRIPT_COMMANDS: Final = {True: ("eval_ro", "evalsha_ro"), False: ("eval", "evalsha")}

Words = tuple[str, str, str, str]
"""A command as `missing_rights.lua` takes it."""


@dataclass(frozen=True, slots=True)
class Part:
    """Commands (as an ACL names them) that are allowed on the keys of one pattern, which is only read where `reads_only`."""

    pattern: str
    commands: tuple[str, ...]
    reads_only: bool = False

    def rules(self) -> str:
        """Give it in the words of `ACL SETUSER`."""
        return " ".join((f"{'%R' if self.reads_only else ''}~{self.pattern}", *(f"+{command}" for command in self.commands)))


@dataclass(frozen=True, slots=True)
class Access:
    """All that one user needs; the first part is the user's own, the others are selectors."""

    parts: tuple[Part, ...]

    def words(self) -> tuple[str, ...]:
        """Give the rules, to be put after `ACL SETUSER name reset on >password`."""
        first, *others = self.parts
        return tuple(" ".join((first.rules(), *(f"({part.rules()})" for part in others))).split(" "))


def commands_of(wanted: Script) -> frozenset[str]:
    """Give the commands that a script calls."""
    return frozenset(
        f"{command}|{sub}".lower() if command in _WITH_SUB_COMMAND else command.lower()
        for command, sub in _CALLED.findall(wanted.text)
    )


def coordinator(
    *,
    key_prefix: str = KEY_PREFIX,
    shards: str | None = None,
    provisioning: bool = False,
    cluster: bool = False,
    sentinel: bool = False,
    replicas: bool = False,
    database: bool = False,
) -> Access:
    """Give what a coordinator needs. `shards`: the pattern of the shards' keys; None: its data plane is elsewhere."""
    extras = (
        *(CLUSTER if cluster else ()),
        *(SENTINEL if sentinel else ()),
        *(REPLICAS if replicas else ()),
        *(DATABASE if database else ()),
    )
    parts = [Part(f"{key_prefix}:*", tuple(sorted({*_own(), *extras})))]
    if shards is not None:
        used = (*SHARD_READERS, *SHARD_WRITERS) if provisioning else SHARD_READERS
        parts.append(Part(shards, needed_by(used), reads_only=not provisioning))
    return Access(tuple(parts))


def data_plane(shards: str, *, provisioning: bool = False) -> Access:
    """Give what a coordinator needs on the shards' Redis where its store is elsewhere."""
    _, part = coordinator(shards=shards, provisioning=provisioning).parts
    return Access((replace(part, commands=tuple(sorted((*part.commands, "time")))),))


def mover(*, key_prefix: str = KEY_PREFIX) -> Access:
    """Give what `coord store copy` and `coord adopt` need."""
    own = Part(f"{key_prefix}:*", tuple(sorted({*_own(), *needed_by(MOVERS), *SENT_BY_MOVERS, *SCANNED})))
    index = Part(FOREIGN_INDEX, tuple(sorted({*needed_by(("key_type",)), "smembers"})), reads_only=True)
    return Access((own, index))


def client(shards: str, *, produces: bool = False, consumes: bool = False) -> Access:
    """Give what a producer or a consumer needs on the shards of these keys."""
    return Access((Part(shards, tuple(sorted((*(CONSUMER if consumes else ()), *(PRODUCER if produces else ()))))),))


@dataclass(frozen=True, slots=True)
class Missing:
    """A command that the user of a connection may not run, or (`is_unknown`) that the server does not know."""

    command: str
    key: str
    is_unknown: bool = False


def question(access: Access) -> tuple[Argument, ...]:
    """Give the command that asks a server what a connection's user lacks of this; it runs none of it."""
    return ("EVAL_RO", script("missing_rights").text, 0, *(word for _, _, words in probes(access) for word in words))


def missing(access: Access, reply: Reply) -> tuple[Missing, ...] | None:
    """Read the reply to `question`; None from a server that cannot tell. Raises Refused for any error but the ACL's."""
    if isinstance(reply, Refused):
        if reply.code != "NOPERM":
            raise reply
        return (Missing("eval_ro", access.parts[0].pattern),)
    if not reply:
        return None
    return tuple(
        Missing(command, key, is_unknown=answer < 0)
        for (command, key, _), answer in zip(probes(access), reply, strict=True)
        if answer != 1
    )


@cache
def _own() -> tuple[str, ...]:
    """Give what the scripts on the coordinator's own keys call, and what is sent beside them."""
    others = {*SHARD_READERS, *SHARD_WRITERS, *MOVERS}
    return tuple(sorted({*needed_by(name for name in script_names() if name not in others), *SENT_ALONE}))


def needed_by(names: Iterable[str]) -> tuple[str, ...]:
    """Give what scripts call, and what they are called by."""
    needed: set[str] = set()
    for name in names:
        wanted = script(name)
        needed.update(commands_of(wanted), _SCRIPT_COMMANDS[wanted.reads_only])
    return tuple(sorted(needed))


def probe(command: str, key: str) -> Words:
    """Give a command on a key as `missing_rights.lua` takes it."""
    name, _, sub = command.upper().partition("|")
    if command in _WITHOUT_KEY:
        return (name, sub, "", "")
    if name.startswith("EVAL"):
        return (name, "-", "1", key)
    return (name, sub, key, "") if sub else (name, key, "", "")


def probes(access: Access) -> Sequence[tuple[str, str, Words]]:
    """Give each command of a user with a key that its pattern covers, and both as `missing_rights.lua` takes them."""
    return [
        (command, key, probe(command, key))
        for part in access.parts
        for key in (part.pattern.replace("*", "coord-doctor"),)
        for command in part.commands
    ]
