"""Answers in Redis, beside the aggregate that they are about."""

from __future__ import annotations

from coord.names import AggregateKey
from coord.rediscommands.commands import RedisCommands
from coord.store.answers import ANSWERS_MAX, ANSWERS_TTL_MS, Swapped, digest_of
from coord.store.redis.faults import told


class RedisAnswers:
    """`coord.store.answers.Answers` on Redis: each step one script."""

    def __init__(self, commands: RedisCommands) -> None:
        self._commands = commands

    def swap(self, key: AggregateKey, name: str, *, seen: bytes | None, put: bytes | None, alone: bool = False) -> Swapped:
        """Put an answer where `seen` is."""
        keys = self._commands.keys.answers(key)
        with told():
            done, there, now = self._commands.swap_answer(
                keys, digest_of(name).hex(), seen or b"", put or b"", ANSWERS_MAX, ANSWERS_TTL_MS, int(alone)
            )
        return Swapped(done=bool(done), there=there or None, now=now)
