"""One structured log line for each committed event."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from coord.events.catalog import AdminRequest, OwnershipReported
from coord.names import AggregateKey, GroupKey
from coord.runtime.requests import Recorded

log: Final = structlog.get_logger("coord.commit")

_FIELDS: Final = {
    "member_id": "memberId",
    "member_epoch": "memberEpoch",
    "epoch": "assignmentEpoch",
    "reason": "reason",
    "requested_by": "requestedBy",
    "resharding_id": "reshardingId",
}


def log_committed(key: AggregateKey, recorded: Sequence[Recorded], revision: int) -> None:
    """Log each event at info; plain heartbeat confirmations at debug. Audit entries have sinks of their own."""
    for each in recorded:
        event, cause = each.event, each.cause
        if isinstance(event, AdminRequest):
            continue
        fields = {wire: value for name, wire in _FIELDS.items() if (value := getattr(event, name, None)) is not None}
        level = log.debug if isinstance(event, OwnershipReported) else log.info
        level(
            "event committed",
            eventType=type(event).__name__,
            streamPrefix=key.stream_prefix,
            consumerGroup=key.consumer_group if isinstance(key, GroupKey) else None,
            revision=revision,
            requestId=cause.request_id,
            coordinatorId=cause.coordinator_id,
            **fields,
        )
