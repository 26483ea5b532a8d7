"""The coordinator over HTTP: one bounded attempt per call, strict reading of answers, two kinds of failure.

No call is repeated behind the caller's back: a heartbeat's lease is counted from its sending, so only the member loop may
decide to send again. With several base URLs one call asks each in turn, within the call's own time.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import TypeVar
from urllib.parse import quote, urlsplit

import msgspec
import urllib3
from urllib3.exceptions import HTTPError, NameResolutionError
from urllib3.exceptions import TimeoutError as UrllibTimeoutError

from coord.client.errors import FatalError, RetriableError
from coord.refusals import Code
from coord.wire import (
    Body,
    ErrorResponse,
    HeartbeatRequest,
    HeartbeatResponse,
    HeartbeatsRequest,
    LoginRequest,
    LoginResponse,
    ProducerRoutingResponse,
)

ANSWER_BYTES_MAX = 8 * 1024 * 1024
"""A routing of 16384 shards with long names stays below it."""
_CHUNK_BYTES = 64 * 1024
_RETRY_AFTER_DIGITS_MAX = 6
_ALWAYS_FATAL = frozenset({HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN})
_ASK_AGAIN = frozenset({HTTPStatus.REQUEST_TIMEOUT, HTTPStatus.TOO_EARLY, HTTPStatus.TOO_MANY_REQUESTS})
_NO_ANSWER = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""What decoding raises when a body is none of ours; the last for one that nests without end."""

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Credentials:
    """A Bearer token, or a username and password that are exchanged for one. Never shown in a repr."""

    token: str | None = field(default=None, repr=False)
    username: str | None = field(default=None, repr=False)
    password: str | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if self.token is None and (self.username is None or self.password is None):
            message = "credentials need a token, or a username and a password"
            raise ValueError(message)


@dataclass(frozen=True, slots=True)
class _Reply:
    status: int
    body: bytes
    etag: str | None
    retry_after_ms: int | None


class _Answers(Body, frozen=True, kw_only=True):
    """`wire.HeartbeatsResponse` with its answers left as they came."""

    responses: tuple[msgspec.Raw, ...]


class CoordinatorHttp:
    """Calls the coordinator. `base_urls` include the API's base path (`http://host:8080/coord/v1`). Thread-safe.

    `connections`: how many are kept open to each; calls beyond that make one of their own.
    """

    def __init__(
        self,
        base_urls: str | list[str] | tuple[str, ...],
        *,
        credentials: Credentials | None = None,
        timeout_ms: int = 5_000,
        connections: int = 4,
    ) -> None:
        urls = (base_urls,) if isinstance(base_urls, str) else tuple(base_urls)
        for url in urls:
            parts = urlsplit(url)
            if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
                message = f"base URL must be http(s)://host[:port]/path without credentials, got host {parts.hostname!r}"
                raise ValueError(message)
        if not urls:
            message = "at least one base URL is needed"
            raise ValueError(message)
        self._urls = tuple(url.rstrip("/") for url in urls)
        self._first = 0
        self._credentials = credentials
        self._token = credentials.token if credentials else None
        self._login_lock = threading.Lock()
        self._timeout_ms = timeout_ms
        self._pool = urllib3.PoolManager(num_pools=len(self._urls), maxsize=connections, retries=False)

    def close(self) -> None:
        """Close all connections."""
        self._pool.clear()

    def heartbeat(
        self, stream_prefix: str, consumer_group: str, body: HeartbeatRequest, *, timeout_ms: int | None = None
    ) -> HeartbeatResponse:
        """POST a heartbeat; raises RetriableError (also for an answer to another request) or FatalError."""
        path = f"{_group_path(stream_prefix, consumer_group)}/members/{_segment(body.member_id)}/heartbeat"
        reply = self._call("POST", path, msgspec.json.encode(body), {}, timeout_ms)
        return _answer_to(body, reply.body)

    def heartbeats(
        self, stream_prefix: str, consumer_group: str, bodies: Sequence[HeartbeatRequest], *, timeout_ms: int | None = None
    ) -> list[HeartbeatResponse | RetriableError]:
        """POST heartbeats of several members of one group; what each is answered, in their order.

        Raises RetriableError or FatalError for the request as a whole.
        """
        path = f"{_group_path(stream_prefix, consumer_group)}/heartbeats"
        reply = self._call("POST", path, msgspec.json.encode(HeartbeatsRequest(heartbeats=tuple(bodies))), {}, timeout_ms)
        answers = _decode(reply, _Answers).responses
        if len(answers) != len(bodies):
            kind = "wrong-answer"
            raise RetriableError(kind, f"{len(bodies)} heartbeats were answered by {len(answers)}")
        return [_answer_or_error(body, bytes(raw)) for body, raw in zip(bodies, answers, strict=True)]

    def routing(
        self, stream_prefix: str, *, etag: str | None = None, timeout_ms: int | None = None
    ) -> tuple[ProducerRoutingResponse, str | None] | None:
        """GET the producer routing of a stream and its ETag; None when `etag` still names the newest."""
        headers = {"If-None-Match": etag} if etag else {}
        reply = self._call("GET", f"/streams/{_segment(stream_prefix)}/producer-routing", None, headers, timeout_ms)
        if reply.status == HTTPStatus.NOT_MODIFIED and etag:
            return None
        return _decode(reply, ProducerRoutingResponse), reply.etag

    def _call(self, method: str, path: str, body: bytes | None, headers: dict[str, str], timeout_ms: int | None) -> _Reply:
        deadline = time.monotonic() + (timeout_ms or self._timeout_ms) / 1000
        first = self._first
        for turn in range(len(self._urls)):
            index = (first + turn) % len(self._urls)
            try:
                reply = self._authorised(method, self._urls[index], path, body, headers, deadline)
            except RetriableError:
                self._first = (index + 1) % len(self._urls)  # the next call begins elsewhere, even when this one has no time left
                if turn + 1 == len(self._urls) or time.monotonic() >= deadline:
                    raise
            else:
                self._first = index
                return reply
        message = "unreachable: the last turn returns or raises"
        raise AssertionError(message)

    def _authorised(
        self, method: str, base: str, path: str, body: bytes | None, headers: dict[str, str], deadline: float
    ) -> _Reply:
        if self._credentials is None:
            return _judged(self._send(method, base + path, body, headers, deadline))
        token = self._token or self._login(base, deadline, stale=None)
        reply = self._send(method, base + path, body, {**headers, "Authorization": f"Bearer {token}"}, deadline)
        if reply.status == HTTPStatus.UNAUTHORIZED and self._credentials.username is not None:
            token = self._login(base, deadline, stale=token)
            reply = self._send(method, base + path, body, {**headers, "Authorization": f"Bearer {token}"}, deadline)
        return _judged(reply)

    def _login(self, base: str, deadline: float, *, stale: str | None) -> str:
        """Exchange username and password for a token, once for all threads that found `stale` refused."""
        with self._login_lock:
            if self._token is not None and self._token != stale:
                return self._token
            given = self._credentials
            if given is None or given.username is None or given.password is None:
                raise FatalError(Code.UNAUTHORIZED, "no username and password to log in with")
            body = msgspec.json.encode(LoginRequest(username=given.username, password=given.password))
            reply = _judged(self._send("POST", base + "/auth/login", body, {}, deadline))
            self._token = _decode(reply, LoginResponse).access_token
            return self._token

    def _send(self, method: str, url: str, body: bytes | None, headers: dict[str, str], deadline: float) -> _Reply:
        remaining = deadline - time.monotonic()
        if remaining <= 0:
            raise RetriableError("timeout", "no time left for this call")
        sent = {"Accept": "application/json", **headers} | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            response = self._pool.request(
                method,
                url,
                body=body,
                headers=sent,
                redirect=False,
                retries=False,
                preload_content=False,
                timeout=urllib3.Timeout(total=remaining),
            )
            content = _content(response, deadline)
        except NameResolutionError as error:
            raise RetriableError("dns", "the coordinator's host name does not resolve") from error
        except UrllibTimeoutError as error:
            raise RetriableError("timeout", f"no answer within {int(remaining * 1000)} ms") from error
        except (HTTPError, OSError, ValueError) as error:
            raise RetriableError("connection", type(error).__name__) from error
        return _Reply(
            response.status, content, response.headers.get("ETag"), _retry_after_ms(response.headers.get("Retry-After"))
        )


def _answer_to(body: HeartbeatRequest, content: bytes) -> HeartbeatResponse:
    answer = _decoded(content, HeartbeatResponse)
    if answer.response_to != body.request_id or answer.member_id != body.member_id:
        kind = "wrong-answer"
        raise RetriableError(kind, f"the answer is to request {answer.response_to!r} of member {answer.member_id!r}")
    return answer


def _answer_or_error(body: HeartbeatRequest, content: bytes) -> HeartbeatResponse | RetriableError:
    """Judge each answer of a list by itself: a useless one is no other member's misfortune."""
    try:
        return _answer_to(body, content)
    except RetriableError as error:
        return error


def _group_path(stream_prefix: str, consumer_group: str) -> str:
    return f"/streams/{_segment(stream_prefix)}/groups/{_segment(consumer_group)}"


def _segment(name: str) -> str:
    return quote(name, safe="")


def _content(response: urllib3.BaseHTTPResponse, deadline: float) -> bytes:
    """Read a bounded body; a connection that holds an unread rest is closed, never given to the next request."""
    content = bytearray()
    try:
        while chunk := response.read1(_CHUNK_BYTES):
            content += chunk
            if len(content) > ANSWER_BYTES_MAX or time.monotonic() > deadline:
                kind = "body" if len(content) > ANSWER_BYTES_MAX else "timeout"
                raise RetriableError(kind, f"the answer was cut off after {len(content)} bytes")
    except BaseException:
        response.close()
        raise
    response.release_conn()
    return bytes(content)


def _retry_after_ms(text: str | None) -> int | None:
    return (
        int(text) * 1000
        if text is not None and text.isascii() and text.isdigit() and len(text) <= _RETRY_AFTER_DIGITS_MAX
        else None
    )


def _judged(reply: _Reply) -> _Reply:
    """Let 200 and 304 pass; sort the rest into ask-again and stop."""
    if reply.status in {HTTPStatus.OK, HTTPStatus.NOT_MODIFIED}:
        return reply
    if reply.status in _ALWAYS_FATAL:
        raise FatalError(_error_code(reply) or f"HTTP_{reply.status}", _error_message(reply), http_status=reply.status)
    code = _error_code(reply)
    if (
        HTTPStatus.BAD_REQUEST <= reply.status < HTTPStatus.INTERNAL_SERVER_ERROR
        and reply.status not in _ASK_AGAIN
        and code is not None
    ):
        raise FatalError(code, _error_message(reply), http_status=reply.status)
    # What is no answer of a coordinator (a proxy's HTML page, a redirect) says nothing about the member.
    raise RetriableError(
        f"http-{reply.status}",
        code or "not an answer of a coordinator",
        retry_after_ms=reply.retry_after_ms,
        http_status=reply.status,
    )


def _error(reply: _Reply) -> ErrorResponse | None:
    try:
        return msgspec.json.decode(reply.body, type=ErrorResponse)
    except _NO_ANSWER:
        return None


def _error_code(reply: _Reply) -> str | None:
    error = _error(reply)
    return error.error_code if error else None


def _error_message(reply: _Reply) -> str:
    error = _error(reply)
    return error.message if error else f"HTTP {reply.status}"


def _decode(reply: _Reply, answer: type[_Answer]) -> _Answer:
    return _decoded(reply.body, answer)


def _decoded(content: bytes, answer: type[_Answer]) -> _Answer:
    try:
        return msgspec.json.decode(content, type=answer)
    except _NO_ANSWER as error:
        raise RetriableError("body", f"no {answer.__name__}: {error}") from error
