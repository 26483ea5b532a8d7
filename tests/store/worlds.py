"""The worlds that the contract is run in: a store, and the hands of fate for what is under it."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from coord.names import GroupKey
from coord.rediscommands.keys import AggregateKeys
from coord.rediscommands.link import Reply
from coord.store.memory import MemoryStore
from coord.store.redis.store import RedisStore


@dataclass
class MemoryWorld:
    store: MemoryStore
    now: int = 1_700_000_000_000

    def wait(self, ms: int) -> None:
        self.now += ms

    def lose_log(self, key: GroupKey) -> None:
        record = self.store.state.records[key]
        if record.metadata is None:
            del self.store.state.records[key]
        record.log.clear()

    def lose_last_entry(self, key: GroupKey) -> None:
        self.store.state.records[key].log.pop()

    def lose_metadata(self, key: GroupKey) -> None:
        self.store.state.records[key].metadata = None

    def set_versions(self, key: GroupKey, schema: int, layout: int) -> None:
        record = self.store.state.records[key]
        assert record.metadata is not None
        record.metadata = replace(record.metadata, schema_version=schema, layout_version=layout)

    def set_revision(self, key: GroupKey, revision: int) -> None:
        record = self.store.state.records[key]
        assert record.metadata is not None
        record.metadata = replace(record.metadata, head=replace(record.metadata.head, revision=revision))


@dataclass
class RedisWorld:
    """Any Redis: what fate does goes the way of the store's own commands, to whichever node holds the key."""

    store: RedisStore

    def wait(self, ms: int) -> None:
        time.sleep((ms + 1) / 1000)

    def lose_log(self, key: GroupKey) -> None:
        self._call("DEL", self._keys(key).events)

    def lose_last_entry(self, key: GroupKey) -> None:
        ((identifier, _),) = self._call("XREVRANGE", self._keys(key).events, "+", "-", "COUNT", 1)
        self._call("XDEL", self._keys(key).events, identifier)

    def lose_metadata(self, key: GroupKey) -> None:
        self._call("DEL", self._keys(key).metadata)

    def set_versions(self, key: GroupKey, schema: int, layout: int) -> None:
        self._call("HSET", self._keys(key).metadata, "schemaVersion", schema, "layoutVersion", layout)

    def set_revision(self, key: GroupKey, revision: int) -> None:
        self._call("HSET", self._keys(key).metadata, "revision", revision)

    def _keys(self, key: GroupKey) -> AggregateKeys:
        return self.store._commands.keys.aggregate(key)

    def _call(self, command: str, key: str, *arguments: str | bytes | int) -> Reply:
        return self.store._commands._template.call(key, command, key, *arguments)
