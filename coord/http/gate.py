"""What stands before every resource, in the order that decides what is audited and counted.

body size -> authentication -> role -> scope -> rate limit -> method and path -> validation -> command

The gate finds the route itself, on the raw path, and Falcon's router must agree: so an unknown path says 401 to strangers,
and no odd encoding reaches a resource that was not judged. Source: design page `api.md`.
"""

from __future__ import annotations

import logging
import time
from typing import Any, Final

import falcon
import structlog

from coord.http.addresses import AddressJudge
from coord.http.auth import Authenticator, Verdict, Wait
from coord.http.errors import RefusedError, refusal
from coord.http.mutationlimit import MutationLimit
from coord.http.paths import PathParts, path_parts
from coord.http.request import ApiRequest, Principal
from coord.http.routes import Operation
from coord.http.routetable import RouteTable
from coord.http.together import FORESEEING, Declined
from coord.names import AggregateKey, GroupKey, StreamKey, name_fault
from coord.refusals import Code, Refused
from coord.runtime.admin import Admin

NS_PER_MS: Final = 1_000_000
_ERRORS_FROM: Final = 400
_LOG = structlog.get_logger(__name__)


class Gate:
    """Falcon middleware: judges a request before routing, and settles audit and access log after the answer."""

    def __init__(
        self,
        table: RouteTable,
        authenticator: Authenticator,
        admin: Admin,
        *,
        addresses: AddressJudge,
        limit: MutationLimit | None,
        max_body_bytes: int,
        members_authenticate: bool,
    ) -> None:
        self._table = table
        self._authenticator = authenticator
        self._admin = admin
        self._addresses = addresses
        self._limit = limit
        self._max_body_bytes = max_body_bytes
        self._members_authenticate = members_authenticate
        self._tells_all = bool(_LOG.bind().is_enabled_for(logging.DEBUG))

    def process_request(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Let a request pass, or raise what it is refused with."""
        call = req.call
        resp.set_header("X-Request-Id", call.request_id)
        call.client_address = self._addresses.client_address(req.env)
        path = path_parts(req.env)
        self._note_route(req, path)
        if (req.content_length or 0) > self._max_body_bytes:
            raise too_large(self._max_body_bytes)
        if self._needs_authentication(req, path):
            call.principal = self._authenticated(req)
            self._authorize(req, call.principal)
            self._count(req, call.principal)
        if path.fault:
            raise refusal(Code.INVALID_REQUEST, f"path: {path.fault}", (f"path: {path.fault}",))
        if call.route is None or path.trailing_slash:
            raise refusal(Code.NOT_FOUND, "there is nothing at this path")
        if call.operation is None:
            allowed = ", ".join(call.route.allowed)
            if req.method != "OPTIONS":
                raise refusal(Code.METHOD_NOT_ALLOWED, f"this path answers {allowed}", Allow=allowed)
            resp.status = falcon.HTTP_204
            resp.set_header("Allow", allowed)
            resp.complete = True

    def process_resource(self, req: ApiRequest, resp: falcon.Response, resource: object, params: dict[str, Any]) -> None:
        """Hold Falcon's router to the route that was judged, parameters included."""
        if req.uri_template != req.call.falcon_template:
            raise refusal(Code.NOT_FOUND, "there is nothing at this path")
        params.update(req.call.params)

    def process_response(self, req: ApiRequest, resp: falcon.Response, resource: object, req_succeeded: bool) -> None:  # noqa: FBT001  Falcon's signature
        """Write the audit entry of a refused mutation, and one line about the request."""
        call, status = req.call, resp.status_code
        if call.operation and call.operation.action and status >= _ERRORS_FROM:
            code = call.error_code or Code.INTERNAL_ERROR
            key = key_of(call.params) if call.principal else None  # strangers write into no log of a stream or group
            self._admin.record_refused(key, req.info(), outcome=_outcome(status), status=status, error_code=code)
        is_notable = call.operation is not None and (call.operation.action or call.operation.id == "loginCoordinatorApi")
        if not is_notable and not self._tells_all:
            return
        log = _LOG.info if is_notable else _LOG.debug
        log(
            "request",
            method=req.method,
            route=call.route_template,
            status=status,
            error_code=call.error_code,
            duration_ms=(time.monotonic_ns() - call.started_ns) // NS_PER_MS,
            principal=call.principal.name if call.principal else None,
            client_address=call.client_address,
            request_id=call.request_id,
        )

    def _note_route(self, req: ApiRequest, path: PathParts) -> None:
        found = self._table.match(path.segments)
        if found is None or path.trailing_slash:
            return
        call = req.call
        matched, call.params = found
        call.route, call.route_template, call.falcon_template = matched.route, matched.template, matched.falcon_template
        call.operation = matched.route.operation(req.method)

    def _needs_authentication(self, req: ApiRequest, path: PathParts) -> bool:
        if not self._table.is_under_base(path.segments):
            return False
        route, operation = req.call.route, req.call.operation
        if route is None:
            return True
        judged = (operation,) if operation else tuple(route.operations.values())
        return any(self._is_guarded(each) for each in judged)

    def _is_guarded(self, operation: Operation) -> bool:
        return operation.role is not None and (operation.role != "MEMBER" or self._members_authenticate)

    def _authenticated(self, req: ApiRequest) -> Principal:
        header = req.env.get("HTTP_AUTHORIZATION")
        if req.env.get(FORESEEING) is not None and self._authenticator.may_take_long(header):
            raise Declined  # others would wait for it
        return proved(self._authenticator.authenticate(header, address=req.call.client_address))

    def _count(self, req: ApiRequest, principal: Principal) -> None:
        """Hold mutations to their rate; reads and heartbeats have none."""
        operation = req.call.operation
        if self._limit is None or operation is None or operation.action is None:
            return
        key = key_of(req.call.params)
        if key is None:
            return
        if wait_s := self._limit.wait_s(key, principal.name):
            raise too_many(f"more than {self._limit.per_minute} mutations of {key} in a minute", wait_s=wait_s)

    def _authorize(self, req: ApiRequest, principal: Principal) -> None:
        operation = req.call.operation
        if operation and operation.role and operation.role not in principal.roles:
            raise refusal(Code.FORBIDDEN, f"{operation.role} is needed")
        stream_prefix = req.call.params.get("stream_prefix")
        if stream_prefix is not None and not principal.may_touch(stream_prefix):
            raise refusal(Code.FORBIDDEN, "this stream is not in the scope of the user")


def proved(verdict: Verdict) -> Principal:
    """Give who it is. Raises the 401 or the 429."""
    if isinstance(verdict, Wait):
        raise too_many("too many failed logins, or too many at once; nothing was judged", wait_s=verdict.seconds)
    if verdict is None:
        raise unauthorized()
    return verdict


def unauthorized() -> Exception:
    """Make the 401, which never says what was wrong."""
    return refusal(Code.UNAUTHORIZED, "valid credentials are needed: a Bearer token, or Basic")


def too_many(message: str, *, wait_s: int) -> Exception:
    """Make the 429; `wait_s`: whole seconds until it makes sense to come back."""
    return RefusedError(Refused(Code.RATE_LIMIT_EXCEEDED, message), {"Retry-After": str(max(1, wait_s))})


def too_large(max_body_bytes: int) -> Exception:
    """Make the 413."""
    return refusal(Code.PAYLOAD_TOO_LARGE, f"the body must be at most {max_body_bytes} bytes")


def _outcome(status: int) -> str:
    if status >= 500:  # noqa: PLR2004  server errors begin here
        return "ERROR"
    return {401: "UNAUTHORIZED", 403: "FORBIDDEN"}.get(status, "FAILED")


def key_of(params: dict[str, str]) -> AggregateKey | None:
    """Give the aggregate that a path names, None where a name is no legal one."""
    stream_prefix, consumer_group = params.get("stream_prefix"), params.get("consumer_group")
    if stream_prefix is None or name_fault(stream_prefix):
        return None
    if consumer_group is None:
        return StreamKey(stream_prefix)
    return None if name_fault(consumer_group) else GroupKey(stream_prefix, consumer_group)
