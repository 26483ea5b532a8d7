"""Where audit entries go besides the log of the aggregate: lines of the structured log, or lists in Redis.

A sink never fails a request. What it does not take goes to the structured log at error, is counted, and degrades the health
until the sink takes an entry again. Source: design page `config-and-observability.md`, "Audit".
"""

from __future__ import annotations

import threading
from typing import Any, Final, Protocol

import msgspec
import structlog

from coord.names import AggregateKey
from coord.wire import AuditEntry

log: Final = structlog.get_logger("coord.audit")


class AuditSink(Protocol):
    """Takes entries that are stored already."""

    def take(self, entry: AuditEntry, key: AggregateKey | None, *, gone: bool) -> None:
        """Take an entry. `key`: the aggregate on whose log it is, None when it is on none; `gone`: it has been deleted by it."""


class LogSink:
    """One line of the structured log an entry, whose renderer escapes and redacts each value."""

    def take(self, entry: AuditEntry, key: AggregateKey | None, *, gone: bool) -> None:  # noqa: ARG002  the sink's signature
        """Log an entry; its time is `at`, since a line has a `timestamp` of its own."""
        fields = told(entry)
        log.info("audit", at=fields.pop("timestamp"), **fields)


class AuditLists(Protocol):
    """Lists of JSON texts in Redis, the newest last: `coord.rediscommands.commands.RedisCommands`."""

    def push_audit(self, key: AggregateKey, entry: bytes, *, kept: int, ttl_ms: int | None) -> object:
        """Add an entry and drop all but the newest `kept`; raises what Redis did not do.

        `ttl_ms`: the whole list goes after this time, unless something is added (None: it stays).
        """


class ListSink:
    """A trimmed list for each stream and group; what is on no log is in the bounded `:requests` alone, whoever sends it."""

    def __init__(self, lists: AuditLists, *, kept: int, gone_ttl_ms: int) -> None:
        self._lists = lists
        self._kept = kept
        self._gone_ttl_ms = gone_ttl_ms

    def take(self, entry: AuditEntry, key: AggregateKey | None, *, gone: bool) -> None:
        """Add an entry to its list."""
        if key is not None:
            self._lists.push_audit(key, msgspec.json.encode(entry), kept=self._kept, ttl_ms=self._gone_ttl_ms if gone else None)


class AuditDelivery:
    """Hands entries to the sink and counts what gets lost. Safe for threads; never raises."""

    def __init__(self, sink: AuditSink) -> None:
        self._sink = sink
        self._lock = threading.Lock()
        self._failing = False
        self.unwritten = 0
        """Entries that this process could not store, or not hand to the sink; for the counter `audit_unwritten`."""

    def deliver(self, entry: AuditEntry, key: AggregateKey | None, *, gone: bool = False) -> None:
        """Hand an entry to the sink."""
        try:
            self._sink.take(entry, key, gone=gone)
        except Exception as error:  # noqa: BLE001  whatever is wrong with a sink, the request was answered by the store
            self._lose("audit entry could not be delivered", entry, error)
        else:
            self._failing = False

    def not_stored(self, entry: AuditEntry, error: Exception) -> None:
        """Tell of an entry that no store took: the log line is all that is left of it."""
        self._lose("audit entry could not be stored", entry, error)

    def concerns(self) -> tuple[str, ...]:
        """Say that entries are being lost, while they are."""
        return ("audit entries could not be written where they belong; the log has them",) if self._failing else ()

    def _lose(self, what: str, entry: AuditEntry, error: Exception) -> None:
        with self._lock:
            self.unwritten += 1
            self._failing = True
        log.error(what, reason=str(error), entry=told(entry))


def told(entry: AuditEntry) -> dict[str, Any]:
    """Give an entry's fields that say something, by their names on the wire."""
    fields: dict[str, Any] = msgspec.to_builtins(entry)
    return {name: value for name, value in fields.items() if value not in (None, "", [])}
