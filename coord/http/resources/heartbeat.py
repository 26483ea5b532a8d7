"""A13: a member's heartbeat. Always 200, the outcome in `status`; 400 only for a body that does not fit the schema."""

from __future__ import annotations

from typing import Final, cast

import falcon

from coord import wire
from coord.core.commands import Heartbeat
from coord.core.decision import HeartbeatReply, Policy
from coord.http.inputs import read
from coord.http.request import ApiRequest
from coord.http.resources.base import ENCODER, REVISION_HEADER, answer_encoded
from coord.http.together import FORESEEING, Foreseeing
from coord.names import GroupKey
from coord.projections.group import NO_SHARDS
from coord.runtime.coordinator import Answered, Coordinator
from coord.runtime.reports import SoftReport

_BEFORE_ECHO: Final = b'{"responseTo":'


class HeartbeatResource:
    """`…/members/{memberId}/heartbeat`."""

    def __init__(self, coordinator: Coordinator, policy: Policy, *, max_body_bytes: int) -> None:
        self._coordinator = coordinator
        self._policy = policy
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str, member_id: str) -> None:
        """Answer one heartbeat."""
        request = read(req, wire.HeartbeatRequest, max_body_bytes=self._max_body_bytes)
        key = GroupKey(stream_prefix, consumer_group)
        command, report = command_of(request, member_id), report_of(request)
        foreseeing: Foreseeing | None = req.env.get(FORESEEING)
        if foreseeing is None:
            answered = self._coordinator.heartbeat(key, command, report=report)
        else:
            answered = foreseeing.heartbeat(self._coordinator, key, command, report)
        resp.set_header(REVISION_HEADER, str(answered.revision))
        answer_encoded(resp, encoded(request, answered, self._policy))


def command_of(request: wire.HeartbeatRequest, path_member_id: str) -> Heartbeat:
    """Give the command that a body is. A shard said twice counts as draining when either says so."""
    draining = revoked = NO_SHARDS
    if revoking := request.revoking_shards:
        draining = frozenset(each.shard.shard_index for each in revoking if each.state != "REVOKED" or each.in_flight)
        revoked = frozenset(each.shard.shard_index for each in revoking) - draining
    return Heartbeat(
        path_member_id=path_member_id,
        member_id=request.member_id,
        member_name=request.member_name,
        request_id=request.request_id,
        protocol_version=request.protocol_version,
        member_epoch=request.member_epoch,
        metadata_version=request.metadata_version,
        runtime_max_concurrency=request.runtime_consumer_capacity.runtime_max_concurrency,
        owned=frozenset(shard.shard_index for shard in request.owned_shards or ()),
        draining=draining,
        revoked=revoked,
    )


def report_of(request: wire.HeartbeatRequest) -> bytes:
    """Give the soft report of a body; the last of several progress entries of one shard counts."""
    by_shard = {progress.shard.shard_index: progress for progress in request.shard_progress or ()}
    return ENCODER.encode(
        SoftReport(
            available_concurrency=request.runtime_consumer_capacity.available_concurrency,
            shard_progress=tuple(by_shard[shard] for shard in sorted(by_shard)),
        )
    )


def encoded(request: wire.HeartbeatRequest, answered: Answered, policy: Policy) -> bytes:
    """Give the bytes of an answer; those of a steady one are made once, all but the request id that they echo."""
    echo = ENCODER.encode(request.request_id)
    steady = answered.steady
    if steady is not None and steady.encoded is not None:
        return _BEFORE_ECHO + echo + steady.encoded
    body = ENCODER.encode(response_of(request, answered.reply, policy))
    if steady is not None:
        before = _BEFORE_ECHO + echo
        assert body.startswith(before), "responseTo is the first field of an answer"
        steady.encoded = body[len(before) :]
    return body


def response_of(request: wire.HeartbeatRequest, reply: HeartbeatReply, policy: Policy) -> wire.HeartbeatResponse:
    """Give the body of an answer: every field there, none of them null."""
    return wire.HeartbeatResponse(
        response_to=request.request_id,
        status=cast(wire.HeartbeatStatus, reply.status),
        member_id=request.member_id,
        member_epoch=reply.member_epoch,
        heartbeat_interval_ms=policy.heartbeat_interval_ms,
        rebalance_timeout_ms=policy.rebalance_timeout_ms,
        group_epoch=reply.group_epoch,
        assignment_epoch=reply.assignment_epoch,
        metadata_version=reply.metadata_version,
        assignment=wire.Assignment(
            assigned_shards=tuple(map(wire.shard, sorted(reply.assigned))),
            pending_shards=tuple(map(wire.shard, sorted(reply.pending))),
            metadata_version=reply.metadata_version,
        ),
        member_lease_ttl_ms=policy.member_lease_ttl_ms,
    )
