"""A request with what the gate has found out about it."""

from __future__ import annotations

import hashlib
import os
import random
import time
from dataclasses import dataclass, field
from typing import Any, Final

import falcon
import msgspec
from falcon.request import RequestOptions

from coord.config.secret import MASK
from coord.http.routes import Operation, Role, Route
from coord.names import NAME_LENGTH_MAX, name_fault
from coord.refusals import Code
from coord.runtime.idempotency import Begun
from coord.runtime.requests import Replication, RequestInfo

REQUEST_ID_HEADERS = ("HTTP_X_REQUEST_ID", "HTTP_X_CORRELATION_ID", "HTTP_X_AMZN_TRACE_ID")
AUDITED_LENGTH_MAX = 1024
"""Longest header, path or query string that an audit entry keeps."""
_PAIRS_MAX = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class Principal:
    """Who is calling. `roles` in the order READ, WRITE, MEMBER; `streams`: patterns of the prefixes that it may touch."""

    name: str
    roles: tuple[Role, ...]
    streams: tuple[str, ...] = ("*",)

    def may_touch(self, stream_prefix: str) -> bool:
        """Say whether a stream lies in its scope: `orders*` means all that begin so."""
        return any(
            stream_prefix.startswith(pattern[:-1]) if pattern.endswith("*") else stream_prefix == pattern
            for pattern in self.streams
        )


@dataclass(slots=True)
class Call:
    """What is known of a request so far; the gate and the resource fill it in."""

    request_id: str
    started_ns: int
    route: Route | None = None
    route_template: str | None = None
    falcon_template: str | None = None
    operation: Operation | None = None
    params: dict[str, str] = field(default_factory=dict)
    principal: Principal | None = None
    client_address: str | None = None
    body_sha256: str = ""
    requested_by: str | None = None
    reason: str | None = None
    summary: str = ""
    error_code: Code | None = None
    begun: Begun | None = None
    replication: Replication | None = None


_chance: Final = random.Random()
"""Makes request ids: asking the system for chance would give the interpreter away to another thread, at each request."""
os.register_at_fork(after_in_child=_chance.seed)


class ApiRequest(falcon.Request):
    """Falcon's request with a `call` beside it."""

    __slots__ = ("call",)

    def __init__(self, env: dict[str, Any], options: RequestOptions | None = None) -> None:
        super().__init__(env, options=options)
        if self.method == "WEBSOCKET":  # Falcon keeps this word for itself; to us it is a method that no path answers
            self.method = "UNKNOWN"
        self.call = Call(request_id=request_id_of(env), started_ns=time.monotonic_ns())

    def note_body(self, body: bytes) -> None:
        """Remember a body by its hash, for the audit entry."""
        self.call.body_sha256 = hashlib.sha256(body).hexdigest()

    def info(self) -> RequestInfo:
        """Give what the audit entry and the events' cause say of this request; only for operations that change something."""
        call = self.call
        assert call.operation is not None, "only a matched request is described"
        principal = call.principal
        call.replication = call.replication or Replication()
        return RequestInfo(
            action=call.operation.action or "",
            success_status=call.operation.success,
            principal=principal.name if principal else None,
            roles=principal.roles if principal else (),
            requested_by=call.requested_by,
            reason=call.reason,
            request_id=call.request_id,
            client_address=call.client_address,
            user_agent=_readable(self.env.get("HTTP_USER_AGENT")),
            method=self.method,
            route=call.route_template or "",
            path=_readable(self.path) or "",
            query_string=_readable(_told_query(self.query_string, call.operation)) or "",
            request_summary=call.summary,
            request_body_sha256=call.body_sha256,
            started_ns=call.started_ns,
            stream_prefix=_name(call.params.get("stream_prefix")),
            consumer_group=_name(call.params.get("consumer_group")),
            replication=call.replication,
        )


def request_id_of(env: dict[str, Any]) -> str:
    """Give the first legal id that the caller, or what stands before us, sent; else make one."""
    for header in REQUEST_ID_HEADERS:
        given = env.get(header, "").strip()
        if given and len(given) <= NAME_LENGTH_MAX and given.isascii() and given.isprintable():
            return str(given)
    made = f"{_chance.getrandbits(128):032x}"
    return f"{made[:8]}-{made[8:12]}-{made[12:16]}-{made[16:20]}-{made[20:]}"


def _told_query(query_string: str, operation: Operation) -> str:
    """Give a query string for the record: values of parameters that the operation does not know may be anybody's secrets."""
    known: set[str] = {*operation.query}
    if operation.body is not None and operation.body_in_query:
        known |= {field.encode_name for field in msgspec.structs.fields(operation.body)}
    told = []
    for pair in query_string.split("&", _PAIRS_MAX)[:_PAIRS_MAX]:
        name, equals, _ = pair.partition("=")
        told.append(pair if name in known else f"{name}{equals}{MASK}" if equals else MASK if pair else "")
    return "&".join(told)


def _name(text: str | None) -> str | None:
    """Give a name of a path, None for one that is no legal name."""
    return None if text is None or name_fault(text) else text


def _readable(text: str | None) -> str | None:
    """Bound a text from outside, and keep what no store or log can carry out of it."""
    if not text:
        return None
    return "".join(letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text[:AUDITED_LENGTH_MAX])
