"""Canonical JSON of log entries: envelope and event in struct order, no spaces, integers only.

The stored name of an event is a literal in `NAMES`, never a class path, so that classes may be renamed. Raises
`UnknownEvent` for a type or version that this release does not know, `MalformedEntry` for anything unreadable.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import Raw, Struct

from coord.events import catalog, chain, upcast
from coord.events.catalog import Event
from coord.events.envelope import Actor, Cause, Entry, Envelope

LEVEL: Final = 1
"""The level of events that this release reads: it rises with each release that adds an event type or version."""
_INTRODUCED: Final[Mapping[type[Event], int]] = {}
"""The level that brought an event type (or its present version), where that is past 1."""
_LATER: Final[Mapping[type[Event], int]] = {}
"""Current version of each event type that is past 1."""

NAMES: Final[Mapping[str, type[Event]]] = {
    kind.__name__: kind
    for kind in (
        catalog.StreamCreated,
        catalog.StreamAdopted,
        catalog.StreamDeleted,
        catalog.GroupRegistered,
        catalog.GroupRemoved,
        catalog.ReshardingRequested,
        catalog.TopologyActivated,
        catalog.DrainStarted,
        catalog.DrainProved,
        catalog.RollbackRequested,
        catalog.ReshardingEnded,
        catalog.ShardReopened,
        catalog.RetiredShardDeleted,
        catalog.StreamIdentityChanged,
        catalog.GroupCreated,
        catalog.GroupAdopted,
        catalog.GroupDeleted,
        catalog.MemberJoined,
        catalog.MemberRejoined,
        catalog.MemberLeaving,
        catalog.MemberExpired,
        catalog.MemberFenced,
        catalog.MemberPruned,
        catalog.MemberUpdated,
        catalog.TargetComputed,
        catalog.RevocationRequested,
        catalog.ShardsFreed,
        catalog.ShardsGranted,
        catalog.OwnershipReported,
        catalog.TopologyFollowed,
        catalog.CorrectionStarted,
        catalog.CorrectionAcknowledged,
        catalog.CorrectionEnded,
        catalog.AdminRequest,
        catalog.AdminRequestsSuppressed,
        catalog.Snapshot,
    )
}
NAME_OF: Final[Mapping[type[Event], str]] = {kind: name for name, kind in NAMES.items()}


class MalformedEntry(ValueError):
    """A log entry that cannot be read."""


class UnknownEvent(MalformedEntry):
    """A type or version from a newer release."""


class _Body(Struct, frozen=True, rename="camel", kw_only=True):
    """The stored body of an entry, in the order in which it is written."""

    type: str
    v: int
    at: int
    command_id: str
    actor: Actor
    request_id: str | None
    coordinator_id: str
    data: Raw
    prev: str


_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode_body: Final = msgspec.json.Decoder(_Body).decode
_decoders: Final = {name: msgspec.json.Decoder(kind) for name, kind in NAMES.items()}


def version_of(kind: type[Event]) -> int:
    """Give the version in which events of this type are written."""
    return _LATER.get(kind, 1)


def level_of(kind: type[Event]) -> int:
    """Give the level that an instance must read before events of this type may be emitted."""
    return _INTRODUCED.get(kind, 1)


def encode(event: Event, *, at: int, cause: Cause, prev: str) -> bytes:
    """Give the stored body of an event that follows the chain value `prev`."""
    kind = type(event)
    return _encode(
        _Body(
            type=NAME_OF[kind],
            v=version_of(kind),
            at=at,
            command_id=cause.command_id,
            actor=cause.actor,
            request_id=cause.request_id,
            coordinator_id=cause.coordinator_id,
            data=Raw(_encode(event)),
            prev=prev,
        )
    )


def decode(entry: Entry) -> Envelope:
    """Read a stored entry. The chain is not verified here: `coord.runtime.verify` walks it."""
    try:
        stored = _decode_body(entry.body)
        event = _decode_event(stored.type, stored.v, stored.data)
    except UnknownEvent:
        raise
    except (msgspec.MsgspecError, KeyError, RecursionError) as error:
        message = f"entry {entry.entry_id} is unreadable: {error}"
        raise MalformedEntry(message) from error
    cause = Cause(
        command_id=stored.command_id, actor=stored.actor, request_id=stored.request_id, coordinator_id=stored.coordinator_id
    )
    return Envelope(
        revision=entry.revision, index=entry.index, at=stored.at, cause=cause, event=event, prev=stored.prev, chain=entry.chain
    )


def seal(events: Sequence[Event], *, revision: int, first: int, at: int, cause: Cause, prev: str) -> tuple[Entry, ...]:
    """Give the stored entries of events of one revision, each chained to the one before; indices run from `first`."""
    sealed: list[Entry] = []
    for index, event in enumerate(events, first):
        body = encode(event, at=at, cause=cause, prev=prev)
        prev = chain.link(prev, body)
        sealed.append(Entry(revision=revision, index=index, body=body, chain=prev))
    return tuple(sealed)


def _decode_event(name: str, version: int, data: Raw) -> Event:
    kind = NAMES.get(name)
    if kind is None or version > version_of(kind) or version < 1:
        message = f"event {name} version {version} is not known to this release; a newer coord is needed to read this log"
        raise UnknownEvent(message)
    if version == version_of(kind):
        return _decoders[name].decode(data)
    lifted: dict[str, Any] = upcast.lift(name, version, version_of(kind), msgspec.json.decode(data))
    return msgspec.convert(lifted, kind)
