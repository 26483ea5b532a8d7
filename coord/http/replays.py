"""Mutations that come again: the first answer is given again, nothing is done.

The key is `Idempotency-Key`, else `X-Request-Id` when the client sent one (never a trace header, never an id made here), and
counts together with principal, method and path. Under an `X-Request-Id` another content is simply another request.
Source: design page `api.md`, "Idempotency".
"""

from __future__ import annotations

import hashlib
import io
from typing import Any, Final

import falcon

from coord.http.errors import RefusedError, refusal
from coord.http.gate import key_of
from coord.http.inputs import body_bytes, read
from coord.http.request import ApiRequest
from coord.http.resources.base import REVISION_HEADER
from coord.names import NAME_LENGTH_MAX
from coord.refusals import Code, Refused
from coord.runtime.admin import Admin
from coord.runtime.idempotency import Answer, Begun, Idempotency, KeyedRequest, Reused, UnderWay, digest

REPLAY_HEADER: Final = "Idempotent-Replay"


class Replays:
    """Falcon middleware, after the gate: who gets as far as this may make the mutation."""

    def __init__(self, idempotency: Idempotency, admin: Admin, *, max_body_bytes: int) -> None:
        self._idempotency = idempotency
        self._admin = admin
        self._max_body_bytes = max_body_bytes

    def process_resource(self, req: ApiRequest, resp: falcon.Response, resource: object, params: dict[str, Any]) -> None:
        """Answer a repeated mutation, or claim its key and let it pass."""
        request = self._keyed(req)
        if request is None:
            return
        beginning = self._idempotency.begin(request)
        match beginning:
            case Begun():
                req.call.begun = beginning
            case Answer():
                self._replay(req, resp, request, beginning)
            case Reused():
                raise refusal(Code.IDEMPOTENCY_KEY_REUSED, "this Idempotency-Key came with another body before")
            case UnderWay():
                message = "the first request with this key is still being carried out; try again"
                raise RefusedError(Refused(Code.STATE_VERSION_CONFLICT, message), {"Retry-After": "1"})

    def process_response(self, req: ApiRequest, resp: falcon.Response, resource: object, req_succeeded: bool) -> None:  # noqa: FBT001  Falcon's signature
        """Remember the answer, or free the key."""
        begun = req.call.begun
        if begun is None:
            return
        revision = resp.get_header(REVISION_HEADER) or "0"
        self._idempotency.finish(begun, status=resp.status_code, revision=int(revision), body=resp.data or b"")

    def _keyed(self, req: ApiRequest) -> KeyedRequest | None:
        call = req.call
        scope, operation, principal = key_of(call.params), call.operation, call.principal
        if scope is None or operation is None or operation.action is None or principal is None:
            return None
        key, is_request_id = _key(req)
        if key is None:
            return None
        body = body_bytes(req, self._max_body_bytes)
        req.env["wsgi.input"] = io.BytesIO(body)  # the responder reads it again
        req.env["wsgi.input_terminated"] = True
        fingerprint = digest(body, req.query_string)
        name = digest("request id" if is_request_id else "key", key, principal.name, req.method, *_path(req))
        return KeyedRequest(
            scope=scope,
            action=operation.action,
            success_status=operation.success,
            name=digest(name, fingerprint) if is_request_id else name,
            fingerprint=fingerprint,
            body_sha256=hashlib.sha256(body).hexdigest(),
            principal=principal.name,
            request_id=call.request_id,
        )

    def _replay(self, req: ApiRequest, resp: falcon.Response, request: KeyedRequest, told: Answer) -> None:
        operation = req.call.operation
        assert operation is not None, "only a mutation is replayed"
        if operation.body is not None:
            read(req, operation.body, max_body_bytes=self._max_body_bytes)  # for the audit entry: who asks, and why
        resp.status = told.status
        resp.content_type = falcon.MEDIA_JSON
        resp.data = told.text()
        if operation.tells_revision:
            resp.set_header(REVISION_HEADER, str(told.revision))
        resp.set_header(REPLAY_HEADER, "true")
        resp.complete = True
        self._admin.record_replayed(request.scope, req.info(), status=told.status, revision=told.revision)


def _key(req: ApiRequest) -> tuple[str | None, bool]:
    """Give the key of a request, and whether it is its X-Request-Id. Raises the 400 for an illegal Idempotency-Key."""
    given = req.env.get("HTTP_IDEMPOTENCY_KEY")
    if given is not None:
        key = given.strip()
        if not _is_legal(key):
            fault = f"Idempotency-Key: must be 1 to {NAME_LENGTH_MAX} printable ASCII characters"
            raise refusal(Code.INVALID_REQUEST, fault, (fault,))
        return key, False
    sent = (req.env.get("HTTP_X_REQUEST_ID") or "").strip()
    return (sent, True) if _is_legal(sent) else (None, True)


def _is_legal(key: str) -> bool:
    return 0 < len(key) <= NAME_LENGTH_MAX and key.isascii() and key.isprintable()


def _path(req: ApiRequest) -> tuple[str, ...]:
    """Give what a path names: the same however it is encoded."""
    call = req.call
    return (call.route_template or "", *call.params.values())
