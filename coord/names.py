"""Names of things: aggregate keys, member ids, epochs with a meaning of their own, and what a legal name is.

Source: design page `api.md`, "Limits"; `protocol.md` for the two special epochs.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Struct

JOIN = 0
"""The member epoch by which a member joins, or joins again."""
LEAVE = -1
"""The member epoch by which a member leaves."""

NAME_LENGTH_MAX = 255
TEXT_LENGTH_MAX = 1024
SHARDS_MAX = 16384
"""Highest shard count, and highest number of entries of a shard list on the wire."""
SAFE_INTEGER_MAX = 2**53 - 1
"""Integers on the wire stay below 2**53, so that a JavaScript reader sees what was sent."""

_CONTROL = frozenset(map(chr, (*range(0x20), 0x7F, *range(0x80, 0xA0), 0x2028, 0x2029)))


class StreamKey(Struct, frozen=True, order=True):
    """Names a stream aggregate."""

    stream_prefix: str

    def __str__(self) -> str:
        return self.stream_prefix


class GroupKey(Struct, frozen=True, order=True):
    """Names a group aggregate: one consumer group of one stream."""

    stream_prefix: str
    consumer_group: str

    @property
    def stream(self) -> StreamKey:
        """The stream that this group reads."""
        return StreamKey(self.stream_prefix)

    def __str__(self) -> str:
        return f"{self.stream_prefix}/{self.consumer_group}"


AggregateKey: TypeAlias = StreamKey | GroupKey


def text_fault(text: str, *, length_max: int = NAME_LENGTH_MAX) -> str | None:
    """Say what is wrong with a non-empty text of a request (requestId, memberName, requestedBy); None when it is fine."""
    if not text:
        return "must not be empty"
    if len(text) > length_max:
        return f"must be at most {length_max} characters"
    if text.isascii() and text.isprintable():  # nearly all names are, and each heartbeat brings many
        return None
    if not _CONTROL.isdisjoint(text):
        return "must not contain control characters"
    try:
        text.encode()
    except UnicodeEncodeError:  # a lone surrogate
        return "must be well-formed Unicode"
    return None


def name_fault(name: str) -> str | None:
    """Say what is wrong with a streamPrefix, consumerGroup or memberId; None when it is legal.

    Braces are refused because the name stands inside a Redis Cluster hash tag, the slash because it stands in a path.
    """
    if fault := text_fault(name):
        return fault
    if name != name.strip():
        return "must not begin or end with a blank"
    if not {"/", "{", "}"}.isdisjoint(name):
        return "must not contain '/', '{' or '}'"
    if name in {".", ".."}:
        return "must not be '.' or '..'"
    return None
