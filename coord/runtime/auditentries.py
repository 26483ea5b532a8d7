"""Audit entries as they are shown: what the log's event says, with its place and time. Also the form in `:requests` and sinks."""

from __future__ import annotations

from typing import Any, Final

from msgspec import structs

from coord.events.catalog import AdminRequest, AdminRequestsSuppressed
from coord.events.envelope import Envelope
from coord.names import AggregateKey, GroupKey
from coord.runtime.requests import RequestInfo
from coord.runtime.shown import iso
from coord.wire import AuditEntry

SUPPRESSED: Final = "REQUESTS_SUPPRESSED"
"""The action under which requests are shown that a log had no more room for in their minute."""


def entry_of(request: AdminRequest, key: AggregateKey, *, at: int, coordinator_id: str, revision: int) -> AuditEntry:
    """Give the entry of a request that is on the log of `key`; `at` ms, store clock."""
    told = structs.asdict(request)
    return AuditEntry(timestamp=iso(at), coordinator_id=coordinator_id, revision=revision, **_names(key), **told)


def stray_entry_of(request: AdminRequest, info: RequestInfo, *, at: int, coordinator_id: str) -> AuditEntry:
    """Give the entry of a request that is on no log, with the names that it gave; `at` ms, this process's clock."""
    names: dict[str, Any] = {"stream_prefix": info.stream_prefix, "consumer_group": info.consumer_group}
    return AuditEntry(timestamp=iso(at), coordinator_id=coordinator_id, **names, **structs.asdict(request))


def suppressed_entry_of(
    suppressed: AdminRequestsSuppressed, key: AggregateKey, *, at: int, coordinator_id: str, revision: int
) -> AuditEntry:
    """Give the entry that says how many are missing."""
    return AuditEntry(
        timestamp=iso(at),
        coordinator_id=coordinator_id,
        action=SUPPRESSED,
        outcome="FAILED",
        request_summary=f"{suppressed.count} more refused requests since {iso(suppressed.since)}, not kept one by one",
        revision=revision,
        **_names(key),
    )


def shown(envelope: Envelope, key: AggregateKey) -> AuditEntry | None:
    """Give a log entry as an audit entry, None for an event that is none."""
    at, coordinator_id, revision = envelope.at, envelope.cause.coordinator_id, envelope.revision
    match envelope.event:
        case AdminRequest() as request:
            return entry_of(request, key, at=at, coordinator_id=coordinator_id, revision=revision)
        case AdminRequestsSuppressed() as suppressed:
            return suppressed_entry_of(suppressed, key, at=at, coordinator_id=coordinator_id, revision=revision)
        case _:
            return None


def _names(key: AggregateKey) -> dict[str, Any]:
    return {
        "stream_prefix": key.stream_prefix,
        "consumer_group": key.consumer_group if isinstance(key, GroupKey) else None,
    }
