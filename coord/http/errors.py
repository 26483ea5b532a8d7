"""From what went wrong to what the caller is told: one table, one body, one place.

* `RefusedError`     a refusal on its way out of a resource or the gate
* `StoreUnavailable` 503, `CorruptAggregate` 409: broken worlds that the runtime raises
* Falcon's errors    its own judgement of a request (bad header), told as ours
* anything else      our bug: 500 with the requestId, the traceback in the log

Source: design page `api.md`, "Error codes".
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import falcon
import msgspec
import structlog

from coord.http.request import ApiRequest
from coord.refusals import Code, Refused
from coord.store.base import CorruptAggregate, OutcomeUnknown, StoreUnavailable
from coord.wire import ErrorResponse

STATUS_OF: Final[Mapping[Code, int]] = MappingProxyType(
    {
        Code.INVALID_REQUEST: 400,
        Code.UNAUTHORIZED: 401,
        Code.FORBIDDEN: 403,
        Code.NOT_FOUND: 404,
        Code.STREAM_NOT_FOUND: 404,
        Code.GROUP_NOT_FOUND: 404,
        Code.MIGRATION_NOT_FOUND: 404,
        Code.SHARD_NOT_FOUND: 404,
        Code.REVISION_NOT_FOUND: 404,
        Code.METHOD_NOT_ALLOWED: 405,
        Code.GROUP_ALREADY_EXISTS: 409,
        Code.STREAM_PREFIX_ALREADY_EXISTS: 409,
        Code.GROUP_HAS_ACTIVE_MEMBERS: 409,
        Code.ACTIVE_MIGRATION_EXISTS: 409,
        Code.METADATA_SYNC_IN_PROGRESS: 409,
        Code.STREAM_SHARD_TOPOLOGY_CONFLICT: 409,
        Code.STATE_VERSION_CONFLICT: 409,
        Code.COORDINATOR_METADATA_CORRUPT: 409,
        Code.IDEMPOTENCY_KEY_REUSED: 409,
        Code.STREAM_HAS_GROUPS: 409,
        Code.CONSUMER_GROUP_COORDINATED: 409,
        Code.GROUP_LIMIT_REACHED: 409,
        Code.HISTORY_TRIMMED: 410,
        Code.PAYLOAD_TOO_LARGE: 413,
        Code.UNSUPPORTED_MEDIA_TYPE: 415,
        Code.ROLLBACK_NOT_ALLOWED: 422,
        Code.COMPLETION_NOT_ALLOWED: 422,
        Code.RATE_LIMIT_EXCEEDED: 429,
        Code.INTERNAL_ERROR: 500,
        Code.REDIS_NOT_CONFIGURED: 503,
        Code.REDIS_STREAM_PROVISIONING_FAILED: 503,
        Code.COORDINATOR_STATE_MUTEX_UNAVAILABLE: 503,
        Code.COORDINATOR_TERMINATING: 503,
        Code.STORE_UNAVAILABLE: 503,
    }
)
STATUS_NAME: Final[Mapping[int, str]] = MappingProxyType(
    {
        400: "BAD_REQUEST",
        401: "UNAUTHORIZED",
        403: "FORBIDDEN",
        404: "NOT_FOUND",
        405: "METHOD_NOT_ALLOWED",
        409: "CONFLICT",
        410: "GONE",
        413: "PAYLOAD_TOO_LARGE",
        415: "UNSUPPORTED_MEDIA_TYPE",
        422: "UNPROCESSABLE_ENTITY",
        429: "TOO_MANY_REQUESTS",
        500: "INTERNAL_SERVER_ERROR",
        503: "SERVICE_UNAVAILABLE",
    }
)
CHALLENGE: Final = 'Basic realm="redis-stream-coordinator", Bearer'
RETRY_AFTER_S: Final = 1
_CODE_OF_FALCON: Final[Mapping[int, Code]] = MappingProxyType(
    {
        404: Code.NOT_FOUND,
        405: Code.METHOD_NOT_ALLOWED,
        413: Code.PAYLOAD_TOO_LARGE,
        415: Code.UNSUPPORTED_MEDIA_TYPE,
    }
)
_LOG = structlog.get_logger(__name__)
_ENCODER: Final = msgspec.json.Encoder()


class RefusedError(Exception):
    """Carries a refusal, and headers that go with it, to the error handler."""

    def __init__(self, refused: Refused, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(refused.code)
        self.refused = refused
        self.headers = dict(headers or {})


def refusal(code: Code, message: str, details: tuple[str, ...] = (), **headers: str) -> RefusedError:
    """Make a refusal to raise; keyword arguments are headers."""
    return RefusedError(Refused(code, message, details), headers)


def invalid(faults: list[str]) -> RefusedError:
    """Make the 400 that lists every wrong field."""
    return refusal(Code.INVALID_REQUEST, "; ".join(faults), tuple(faults))


def error_body(refused: Refused, request_id: str | None) -> bytes:
    """Give the body of an error."""
    status = STATUS_OF[refused.code]
    return _ENCODER.encode(
        ErrorResponse(
            status=STATUS_NAME[status],
            error_code=refused.code,
            message=refused.message,
            request_id=request_id,
            details=refused.details,
        )
    )


def headers_of(code: Code) -> dict[str, str]:
    """Give the headers that every answer with this code has."""
    status = STATUS_OF[code]
    if status == falcon.http_status_to_code(401):
        return {"WWW-Authenticate": CHALLENGE}
    if status in {429, 503}:
        return {"Retry-After": str(RETRY_AFTER_S)}
    return {}


def _answer(req: ApiRequest, resp: falcon.Response, refused: Refused, headers: Mapping[str, str] | None = None) -> None:
    req.call.error_code = refused.code
    resp.status = STATUS_OF[refused.code]
    resp.content_type = falcon.MEDIA_JSON
    resp.text = None
    resp.media = None
    resp.stream = None
    resp.data = error_body(refused, req.call.request_id)
    for name, value in (headers_of(refused.code) | dict(headers or {})).items():
        resp.set_header(name, value)
    resp.set_header("X-Request-Id", req.call.request_id)


def on_refused(req: ApiRequest, resp: falcon.Response, error: RefusedError, params: dict[str, Any]) -> None:
    """Answer a refusal."""
    _answer(req, resp, error.refused, error.headers)


def on_store_unavailable(req: ApiRequest, resp: falcon.Response, error: StoreUnavailable, params: dict[str, Any]) -> None:
    """Answer 503; a commit of unknown outcome says so."""
    message = "the store cannot be reached, nothing was changed; try again"
    if isinstance(error, OutcomeUnknown):
        message = "the store did not say whether the change took place; read the state, then try again"
    _LOG.warning("store unavailable", request_id=req.call.request_id, path=req.path, detail=str(error))
    _answer(req, resp, Refused(Code.STORE_UNAVAILABLE, message))


def on_corrupt(req: ApiRequest, resp: falcon.Response, error: CorruptAggregate, params: dict[str, Any]) -> None:
    """Answer 409: this group or stream stands still until it is repaired, and nothing is written over it."""
    _LOG.error("metadata corrupt", request_id=req.call.request_id, key=str(error.key), detail=error.why)
    _answer(req, resp, Refused(Code.COORDINATOR_METADATA_CORRUPT, f"the stored metadata of {error.key} is corrupt: {error.why}"))


def on_falcon_error(req: ApiRequest, resp: falcon.Response, error: falcon.HTTPError, params: dict[str, Any]) -> None:
    """Tell Falcon's own judgement of a request as ours."""
    if error.status_code >= falcon.http_status_to_code(500):
        on_bug(req, resp, error, params)
        return
    code = _CODE_OF_FALCON.get(error.status_code, Code.INVALID_REQUEST)
    message = error.description or error.title or "the request is malformed"
    _answer(req, resp, Refused(code, message), dict(error.headers or {}))


def on_bug(req: ApiRequest, resp: falcon.Response, error: Exception, params: dict[str, Any]) -> None:
    """Answer 500 and leave the traceback in the log."""
    _LOG.error(
        "internal error",
        request_id=req.call.request_id,
        method=req.method,
        route=req.call.route_template,
        exc_info=error,
    )
    message = f"the coordinator has a bug; its log has the traceback under requestId {req.call.request_id}"
    _answer(req, resp, Refused(Code.INTERNAL_ERROR, message))


def add_error_handlers(app: falcon.App[ApiRequest, falcon.Response]) -> None:
    """Let every exception end in one of the handlers above."""
    app.add_error_handler(Exception, on_bug)
    app.add_error_handler(falcon.HTTPError, on_falcon_error)
    app.add_error_handler(StoreUnavailable, on_store_unavailable)
    app.add_error_handler(CorruptAggregate, on_corrupt)
    app.add_error_handler(RefusedError, on_refused)
