"""The floor: a heartbeat decoded, checked and answered from its own fields, without coordinator and store."""

from __future__ import annotations

import falcon

from coord import wire
from coord.http.inputs import read
from coord.http.request import ApiRequest
from coord.http.resources.base import REVISION_HEADER, answer
from ops.bench.standins import HEADER


class FloorResource:
    """Takes the place of `coord.http.resources.heartbeat.HeartbeatResource`, whatever that is made from."""

    def __init__(self, *_parts: object, max_body_bytes: int, **_more: object) -> None:
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: ApiRequest, resp: falcon.Response, **_names: str) -> None:
        """Answer what the member says it holds."""
        request = read(req, wire.HeartbeatRequest, max_body_bytes=self._max_body_bytes)
        resp.set_header(REVISION_HEADER, "1")
        resp.set_header(HEADER, "floor")
        answer(resp, echoed(request))


def echoed(request: wire.HeartbeatRequest) -> wire.HeartbeatResponse:
    """Give an answer of the same size as the real one."""
    version = request.metadata_version
    return wire.HeartbeatResponse(
        response_to=request.request_id,
        status="OK",
        member_id=request.member_id,
        member_epoch=request.member_epoch,
        heartbeat_interval_ms=3_000,
        rebalance_timeout_ms=60_000,
        group_epoch=request.member_epoch,
        assignment_epoch=request.member_epoch,
        metadata_version=version,
        assignment=wire.Assignment(assigned_shards=request.owned_shards or (), pending_shards=(), metadata_version=version),
        member_lease_ttl_ms=15_000,
    )
