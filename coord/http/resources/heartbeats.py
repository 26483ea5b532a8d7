"""A14: heartbeats of several members of one group in one request; each is judged and answered by itself.

400 only for what is no such list. An item that does not fit the schema is answered `INVALID_REQUEST`, the others are served.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Final

import falcon
import msgspec
import structlog
from msgspec import Meta, Raw

from coord import wire
from coord.core.decision import Policy
from coord.http.errors import invalid
from coord.http.inputs import decoded, read
from coord.http.request import ApiRequest
from coord.http.resources.base import ENCODER, REVISION_HEADER, answer_encoded
from coord.http.resources.heartbeat import command_of, encoded, report_of
from coord.names import SAFE_INTEGER_MAX, GroupKey
from coord.runtime.coordinator import Coordinator

_LOG: Final = structlog.get_logger(__name__)
_NOTHING_ASSIGNED: Final = wire.Assignment(assigned_shards=(), pending_shards=(), metadata_version=0)


class HeartbeatList(wire.Body, frozen=True, kw_only=True):
    """`wire.HeartbeatsRequest` with its items left as they came, so that a bad one spoils no other."""

    heartbeats: Annotated[tuple[Raw, ...], Meta(min_length=1, max_length=wire.HEARTBEATS_MAX)]


@dataclass(frozen=True, slots=True)
class Misfit:
    """An item that does not fit the schema: why, and what of it can be echoed (`""` and 0 for the rest)."""

    faults: list[str]
    request_id: str
    member_id: str
    member_epoch: int


class HeartbeatsResource:
    """`…/groups/{consumerGroup}/heartbeats`."""

    def __init__(self, coordinator: Coordinator, policy: Policy, *, max_body_bytes: int) -> None:
        self._coordinator = coordinator
        self._policy = policy
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Answer a list of heartbeats; the revision told is the latest that any of them was answered at."""
        listed = read(req, HeartbeatList, max_body_bytes=self._max_body_bytes).heartbeats
        items = [item_of(bytes(raw)) for raw in listed]
        if faults := _given_twice(items):
            raise invalid(faults)
        requests = [item for item in items if isinstance(item, wire.HeartbeatRequest)]
        _tell_misfits(req, items)
        commands = [(command_of(request, request.member_id), report_of(request)) for request in requests]
        answered = self._coordinator.heartbeats(GroupKey(stream_prefix, consumer_group), commands)
        replies = (encoded(request, each, self._policy) for request, each in zip(requests, answered, strict=True))
        responses = [ENCODER.encode(refused(item, self._policy)) if isinstance(item, Misfit) else next(replies) for item in items]
        resp.set_header(REVISION_HEADER, str(max((each.revision for each in answered), default=0)))
        answer_encoded(resp, b'{"responses":[' + b",".join(responses) + b"]}")


def item_of(body: bytes) -> wire.HeartbeatRequest | Misfit:
    """Read one item by the same checks as the body of a single heartbeat."""
    request, faults = decoded(body, wire.HeartbeatRequest)
    if request is not None and not faults:
        return request
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError):
        value = None
    told = value if isinstance(value, dict) else {}
    epoch = told.get("memberEpoch")
    return Misfit(
        faults=faults,
        request_id=_text(told.get("requestId")),
        member_id=_text(told.get("memberId")),
        member_epoch=epoch if type(epoch) is int and abs(epoch) <= SAFE_INTEGER_MAX else 0,
    )


def refused(item: Misfit, policy: Policy) -> wire.HeartbeatResponse:
    """Give the answer to an item that does not fit: what is not known of it is 0."""
    return wire.HeartbeatResponse(
        response_to=item.request_id,
        status="INVALID_REQUEST",
        member_id=item.member_id,
        member_epoch=item.member_epoch,
        heartbeat_interval_ms=policy.heartbeat_interval_ms,
        rebalance_timeout_ms=policy.rebalance_timeout_ms,
        group_epoch=0,
        assignment_epoch=0,
        metadata_version=0,
        assignment=_NOTHING_ASSIGNED,
        member_lease_ttl_ms=policy.member_lease_ttl_ms,
    )


def _text(value: object) -> str:
    return value if isinstance(value, str) else ""


def _given_twice(items: list[wire.HeartbeatRequest | Misfit]) -> list[str]:
    """List the items whose memberId is that of an earlier one; an item without any names no member."""
    seen: set[str] = set()
    faults: list[str] = []
    for index, item in enumerate(items):
        if item.member_id and item.member_id in seen:
            faults.append(f"heartbeats[{index}].memberId: is given twice")
        seen.add(item.member_id)
    return faults


def _tell_misfits(req: ApiRequest, items: list[wire.HeartbeatRequest | Misfit]) -> None:
    """Log why items were refused, which their answers cannot say: one line a request, however many they are."""
    misfits = [(index, item) for index, item in enumerate(items) if isinstance(item, Misfit)]
    if misfits:
        index, first = misfits[0]
        _LOG.warning(
            "heartbeats do not fit the schema",
            count=len(misfits),
            first=f"heartbeats[{index}].{first.faults[0]}",
            request_id=req.call.request_id,
        )
