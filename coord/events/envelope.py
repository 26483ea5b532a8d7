"""An event as the log holds it: with its place, time, cause and chain value."""

from __future__ import annotations

from dataclasses import dataclass

from msgspec import Struct

from coord.events.catalog import Event


class Actor(Struct, frozen=True, rename="camel"):
    """Who caused an event: an authenticated principal, a member, or the coordinator itself (`ticker`, `resharder`)."""

    principal: str
    roles: tuple[str, ...] = ()


class Cause(Struct, frozen=True, kw_only=True):
    """Why events are recorded; the same for all events of one command. Stamped once, at the edge."""

    command_id: str
    actor: Actor
    request_id: str | None
    coordinator_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """A log entry as stored: `body` is canonical JSON (see `coord.events.codec`), `chain` the hex chain value after it."""

    revision: int
    index: int
    body: bytes
    chain: str

    @property
    def entry_id(self) -> str:
        """The id in the log: `<revision>-<index>`."""
        return f"{self.revision}-{self.index}"


class Envelope(Struct, frozen=True, kw_only=True):
    """An event with its revision and its index within it, its time (ms, store clock), cause and chain values (hex)."""

    revision: int
    index: int
    at: int
    cause: Cause
    event: Event
    prev: str
    chain: str

    @property
    def entry_id(self) -> str:
        """The id of the log entry: `<revision>-<index>`."""
        return f"{self.revision}-{self.index}"
