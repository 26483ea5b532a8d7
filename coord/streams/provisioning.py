"""Shards are made before routing names them, and proved drained before they are taken away.

Making is idempotent and never moves a Redis consumer group that exists. A proof is one script at one moment; an error,
or no answer, is no proof. Source: design page `protocol.md`, "Streams, groups and resharding".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import RedisFault, Refused
from coord.rediscommands.link import Reply
from coord.streams.shards import shard_key

_START: Final = re.compile(r"\$|\d{1,20}(-\d{1,20})?")
_BLOCKERS: Final = {
    b"pending": "group {group}: {detail} pending",
    b"gone": "group {group}: {detail} pending entries without data",
    b"unread": "group {group}: unread entries after {detail}",
    b"nobody": "no consumer group: {detail} entries that nobody read",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Provisioned:
    """What a call made: shard keys that did not exist, and Redis consumer groups as (shard key, name)."""

    keys: tuple[str, ...] = ()
    groups: tuple[tuple[str, str], ...] = ()


class ProvisioningFailed(Exception):
    """A shard could not be made. `made` is what had been made before, to be removed or built on."""

    def __init__(self, key: str, why: str, *, made: Provisioned | None = None) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why
        self.made = Provisioned() if made is None else made


class NoProof(Exception):
    """Redis did not say whether a shard is drained: it is to be held for undrained."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proof:
    """What Redis says of a shard at one moment: drained when nothing is in the way. `blockers` are texts for people."""

    key: str
    blockers: tuple[str, ...]

    @property
    def is_drained(self) -> bool:
        """Whether all was read and acknowledged by every Redis consumer group."""
        return not self.blockers


class ShardStreams:
    """The shards of all streams on one Redis. Each method's calls are bounded by the settings' timeout, batch by batch."""

    def __init__(self, commands: RedisCommands) -> None:
        self._commands = commands

    @property
    def commands(self) -> RedisCommands:
        """The way to that Redis, for what else is kept there."""
        return self._commands

    def is_reachable(self) -> bool:
        """Tell whether the shards' Redis answers."""
        try:
            self._commands.time_ms()
        except RedisFault:
            return False
        return True

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process, where no store on the same Redis does."""
        self._commands.after_fork()

    def close(self) -> None:
        """Close all connections, where no store on the same Redis does."""
        self._commands.close()

    def provision(self, stream_prefix: str, shards: Iterable[int], groups: Mapping[str, str]) -> Provisioned:
        """Make these shards and Redis consumer groups (name -> id that it starts after, `0` for all) where missing.

        Raises ProvisioningFailed for the first shard that could not be made; the others have been.
        """
        keys = [shard_key(stream_prefix, shard) for shard in shards]
        for name, start in groups.items():
            if not _START.fullmatch(start):
                raise ProvisioningFailed(keys[0] if keys else stream_prefix, f"group {name} cannot start from {start!r}")
        if not keys:
            return Provisioned()
        try:
            replies = self._commands.provision_shards(keys, groups)
        except RedisFault as error:
            raise ProvisioningFailed(keys[0], str(error)) from error
        return _made(keys, replies)

    def remove_created(self, created: Provisioned) -> tuple[str, ...]:
        """Take a provisioning back: remove the keys that it made, if they never held an entry and have no other groups.

        Gives the keys that were removed. Raises ProvisioningFailed when Redis does not answer.
        """
        if not created.keys:
            return ()
        names = sorted({name for _, name in created.groups})
        replies = self._each(created.keys, lambda: self._commands.remove_shards(created.keys, names))
        return tuple(key for key, reply in zip(created.keys, replies, strict=True) if reply == 1)

    def missing(self, stream_prefix: str, shards: Iterable[int]) -> tuple[str, ...]:
        """Give the keys of those shards that are no stream, in order."""
        keys = [shard_key(stream_prefix, shard) for shard in shards]
        replies = self._each(keys, lambda: self._commands.types(keys)) if keys else []
        return tuple(key for key, reply in zip(keys, replies, strict=True) if reply != b"stream")

    def prove_drained(self, stream_prefix: str, shard: int) -> Proof:
        """Ask whether every Redis consumer group, ours or not, has read and acknowledged all. Raises NoProof without an answer.

        A shard that does not exist is drained; one with entries and no Redis consumer group is not: nobody read them.
        """
        key = shard_key(stream_prefix, shard)
        try:
            return _proof(key, self._commands.prove_drained(key))
        except RedisFault as error:
            raise NoProof(f"{key}: {error}") from error

    def delete_if_drained(self, stream_prefix: str, shard: int) -> Proof:
        """Remove a shard in the script that proves it drained; the proof tells whether it is gone."""
        key = shard_key(stream_prefix, shard)
        try:
            return _proof(key, self._commands.delete_drained(key))
        except RedisFault as error:
            raise NoProof(f"{key}: {error}") from error

    def destroy_consumer_group(self, stream_prefix: str, shards: Iterable[int], name: str) -> dict[str, int]:
        """Destroy a Redis consumer group on these shards; gives how many entries were pending, for each shard that had it."""
        keys = [shard_key(stream_prefix, shard) for shard in shards]
        replies = self._each(keys, lambda: self._commands.destroy_groups(keys, name)) if keys else []
        return {key: reply for key, reply in zip(keys, replies, strict=True) if reply >= 0}

    @staticmethod
    def _each(keys: Iterable[str], ask: Callable[[], list[Reply]]) -> list[Reply]:
        """Give the replies, one a key; an error instead of an answer is raised with its key."""
        keys = tuple(keys)
        try:
            replies = ask()
        except RedisFault as error:
            raise ProvisioningFailed(keys[0], str(error)) from error
        for key, reply in zip(keys, replies, strict=True):
            if isinstance(reply, Refused):
                raise ProvisioningFailed(key, str(reply))
        return replies


def _made(keys: list[str], replies: list[Reply]) -> Provisioned:
    """Collect what was made; the first failure is raised with all of it."""
    new: list[str] = []
    groups: list[tuple[str, str]] = []
    failures: list[tuple[str, str]] = []
    for key, reply in zip(keys, replies, strict=True):
        if isinstance(reply, Refused):
            failures.append((key, str(reply)))
        elif reply[0] == b"corrupt":
            failures.append((key, reply[1].decode(errors="replace")))
        else:
            if reply[1]:
                new.append(key)
            groups.extend((key, name.decode()) for name in reply[2])
    made = Provisioned(keys=tuple(new), groups=tuple(groups))
    if failures:
        raise ProvisioningFailed(*failures[0], made=made)
    return made


def _proof(key: str, reply: list[Reply]) -> Proof:
    blockers = [
        _BLOCKERS[kind].format(group=_text(group), detail=_text(detail))
        for kind, group, detail in zip(reply[::3], reply[1::3], reply[2::3], strict=True)
    ]
    return Proof(key=key, blockers=tuple(blockers))


def _text(value: bytes | int) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value)
