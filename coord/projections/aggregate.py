"""evolve and fold: the one way from facts to state, live and in replay.

`evolve` never decides: it looks at no configuration and no time, and cannot fail on an event that a decision recorded. It
works on a private draft (a group may be changed in place); `fold` makes that draft. Entries that tell of requests, and
snapshots, change no state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TypeAlias, cast, get_args

from coord.events.catalog import Event, GroupEvent, LogEvent, StreamEvent
from coord.events.envelope import Envelope
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.group_facts import evolve_group
from coord.projections.stored import decode_group, decode_stream, encode
from coord.projections.stream import Stream
from coord.projections.stream_facts import evolve_stream

Aggregate: TypeAlias = Group | Stream

# By exact type: asking a union of twenty costs more than folding an event.
_GROUP_EVENTS: Final = frozenset(get_args(GroupEvent))
_STREAM_EVENTS: Final = frozenset(get_args(StreamEvent))
_LOG_EVENTS: Final = frozenset(get_args(LogEvent))

__all__ = ["Aggregate", "decode", "draft_of", "encode", "evolve", "fold"]


def evolve(state: Aggregate | None, event: Event, *, key: AggregateKey, revision: int, at: int) -> Aggregate | None:
    """Give the state after one event of that revision and time (ms). A group passed in belongs to the caller and is changed.

    Raises ValueError for an event of the other kind of aggregate.
    """
    kind = type(event)
    if kind in _GROUP_EVENTS and isinstance(key, GroupKey) and not isinstance(state, Stream):
        return evolve_group(state, cast(GroupEvent, event), key=(key.stream_prefix, key.consumer_group), revision=revision, at=at)
    if kind in _STREAM_EVENTS and isinstance(key, StreamKey) and not isinstance(state, Group):
        return evolve_stream(state, cast(StreamEvent, event), prefix=key.stream_prefix, revision=revision, at=at)
    if kind in _LOG_EVENTS:
        return state
    raise _foreign(event, key)


def draft_of(state: Aggregate | None) -> Aggregate | None:
    """Give a private copy to evolve; a stream is immutable and is its own."""
    return state.draft() if isinstance(state, Group) else state


def fold(state: Aggregate | None, log: Iterable[Envelope], *, key: AggregateKey) -> Aggregate | None:
    """Give the state after all these entries; `state` itself is left as it was."""
    state = draft_of(state)
    for entry in log:
        state = evolve(state, entry.event, key=key, revision=entry.revision, at=entry.at)
    return state


def decode(key: AggregateKey, data: bytes) -> Aggregate:
    """Read a stored aggregate of this key; `MalformedAggregate` when it cannot be read."""
    return decode_group(data) if isinstance(key, GroupKey) else decode_stream(data)


def _foreign(event: Event, key: AggregateKey) -> ValueError:
    return ValueError(f"{type(event).__name__} is no event of {key}")
