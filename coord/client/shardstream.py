"""The Redis commands that a member sends for one shard, each a single bounded call.

Replies are read raw (RESP2): an entry is an id and its fields as bytes, or an id alone when the record is gone but is
still pending. Nothing here creates a stream key or a Redis consumer group: that is the coordinator's.
"""

from __future__ import annotations

from typing import TypeAlias, cast

import redis

from coord.client.dataplane import DataPlane, Word

RawEntry: TypeAlias = tuple[str, dict[bytes, bytes] | None]


def is_unprovisioned(error: Exception) -> bool:
    """Tell whether Redis said that the stream or its Redis consumer group is not there (at present)."""
    return isinstance(error, redis.ResponseError) and str(error).startswith(("NOGROUP", "UNBLOCKED the stream"))


class ShardStream:
    """One shard's stream, read by one Redis consumer of one Redis consumer group. Raises redis.RedisError."""

    def __init__(self, plane: DataPlane, *, stream_key: str, consumer_group: str, consumer: str) -> None:
        self.stream_key = stream_key
        self._plane = plane
        self._group = consumer_group
        self._consumer = consumer

    def prepare(self) -> None:
        """Find out where the shard is, so that no call is sent later than it was begun; touches no shard."""
        self._plane.prepare()

    def claim(self, cursor: str, count: int) -> tuple[str, list[str], list[str]]:
        """Move up to `count` pending entries of anybody to this consumer, whatever their idle time.

        Returns the next cursor (`0-0`: done), the ids claimed, and the ids dropped because their records are gone.
        """
        reply = self._execute("XAUTOCLAIM", self.stream_key, self._group, self._consumer, 0, cursor, "COUNT", count, "JUSTID")
        following, claimed, dropped = cast("list[object]", reply)
        return _text(following), _ids(claimed), _ids(dropped)

    def read_pending(self, after_id: str, count: int) -> list[RawEntry]:
        """Read this consumer's own pending entries with ids above `after_id`."""
        reply = self._execute(
            "XREADGROUP", "GROUP", self._group, self._consumer, "COUNT", count, "STREAMS", self.stream_key, after_id
        )
        return _entries(reply)

    def read_unread(self, count: int, block_ms: int) -> list[RawEntry]:
        """Read entries that no consumer of the group has been given, waiting at most `block_ms` (at least 1)."""
        reply = self._execute(
            "XREADGROUP",
            "GROUP",
            self._group,
            self._consumer,
            "COUNT",
            count,
            "BLOCK",
            max(1, block_ms),
            "STREAMS",
            self.stream_key,
            ">",
        )
        return _entries(reply)

    def ack(self, ids: list[str]) -> int:
        """Acknowledge; returns how many were still pending."""
        return int(cast("int", self._execute("XACK", self.stream_key, self._group, *ids)))

    def others_pending(self) -> bool:
        """Tell whether another consumer of the group has pending entries."""
        summary = cast("list[list[list[bytes]] | None]", self._execute("XPENDING", self.stream_key, self._group))
        return any(_text(name) != self._consumer for name, _count in summary[3] or ())

    def _execute(self, *command: Word) -> object:
        return self._plane.call(self.stream_key, *command)


def _text(value: object) -> str:
    return value.decode() if isinstance(value, bytes) else str(value)


def _ids(values: object) -> list[str]:
    return [_text(v) for v in cast("list[object]", values)]


def _entries(reply: object) -> list[RawEntry]:
    if not reply:
        return []
    streams = cast("list[tuple[bytes, list[tuple[bytes, list[bytes] | None]]]]", reply)
    return [
        (_text(record_id), None if flat is None else dict(zip(flat[::2], flat[1::2], strict=True)))
        for record_id, flat in streams[0][1]
    ]
