"""The coordinator over HTTP: what is asked again, what ends a member, who is asked next."""

from __future__ import annotations

import socket
import time
from typing import Any

import pytest

from coord.client import CoordinatorHttp, Credentials, FatalError, RetriableError
from coord.wire import Capacity, HeartbeatRequest
from tests.client.scripted import Call, Reply, ScriptedCoordinator, answer

BODY = HeartbeatRequest(
    protocol_version=1,
    request_id="r1",
    member_id="m 1",
    member_epoch=0,
    metadata_version=0,
    runtime_consumer_capacity=Capacity(runtime_max_concurrency=1, available_concurrency=1),
)


GIANTS = ("9" * 5_000, str(2**63), str(2**64), str(-(2**63) - 1), "1e999", "NaN")
UNREADABLE = (
    *(opening * depth for opening in (b"[", b'{"unknown":', b'{"assignment":') for depth in (1_000, 100_000)),
    *(b'{"responseTo": "r1", "memberEpoch": %b}' % number.encode() for number in GIANTS),
    b'{"responseTo": "\\ud800"}',
)
"""J6: deeper than any reader goes, and numbers that no field holds."""


def error(status: int, code: str) -> Reply:
    return Reply({"status": "X", "errorCode": code, "message": "no", "requestId": None, "details": []}, status=status)


def beat(*urls: str, timeout_ms: int = 2_000, credentials: Credentials | None = None) -> Any:
    http = CoordinatorHttp(urls, credentials=credentials)
    try:
        return http.heartbeat("or ders", "g%1", BODY, timeout_ms=timeout_ms)
    finally:
        http.close()


def test_names_are_encoded_in_the_path(coordinator: ScriptedCoordinator) -> None:
    coordinator.script = answer
    assert beat(coordinator.url).status == "OK"
    assert coordinator.calls[0].path == "/coord/v1/streams/or%20ders/groups/g%251/members/m%201/heartbeat"


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (Reply({}, status=500), "http-500"),
        (error(503, "STORE_UNAVAILABLE"), "http-503"),
        (error(429, "RATE_LIMIT_EXCEEDED"), "http-429"),
        (Reply(raw=b"<html>gone fishing</html>"), "body"),
        (Reply(raw=b"<html>no backend</html>", status=404), "http-404"),
        (Reply(raw=b"", status=302, headers={"Location": "http://127.0.0.1:1/"}), "http-302"),
        (Reply({"responseTo": "r1", "status": "OK", "memberId": "m 1"}, cut_at=20), "connection"),
        (Reply(raw=b'{"responseTo": "r1", "sta'), "body"),
        (Reply(raw=b'\xff\xfe{"a"'), "body"),
        (Reply(reset=True), "connection"),
        *((Reply(raw=raw), "body") for raw in UNREADABLE),
        *((Reply(raw=raw, status=503), "http-503") for raw in UNREADABLE),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_i1_what_is_no_answer_is_asked_again(coordinator: ScriptedCoordinator, reply: Reply, kind: str) -> None:
    coordinator.script = lambda _call: reply
    with pytest.raises(RetriableError) as caught:
        beat(coordinator.url)
    assert caught.value.kind == kind
    assert len(coordinator.calls) == 1, "never repeated behind the caller's back"


@pytest.mark.parametrize(
    ("field", "value", "kind"),
    [
        ("responseTo", "another", "wrong-answer"),
        ("memberId", "m2", "wrong-answer"),
        ("status", "SOMETHING_NEW", "body"),
        ("memberEpoch", "5", "body"),
    ],
)
def test_i1_an_answer_to_another_request_is_none(coordinator: ScriptedCoordinator, field: str, value: object, kind: str) -> None:

    def changed(call: Call) -> Reply:
        reply = answer(call)
        reply.body[field] = value
        return reply

    coordinator.script = changed
    with pytest.raises(RetriableError) as caught:
        beat(coordinator.url)
    assert caught.value.kind == kind


def test_i1_no_answer_in_time_and_no_such_host(coordinator: ScriptedCoordinator) -> None:
    coordinator.script = lambda call: Reply(delay_s=5)
    begin = time.monotonic()
    with pytest.raises(RetriableError) as caught:
        beat(coordinator.url, timeout_ms=150)
    assert caught.value.kind == "timeout"
    assert time.monotonic() - begin < 4, "the answer would come after five seconds"
    with pytest.raises(RetriableError) as caught:
        beat("http://no-such-host.invalid/coord/v1")
    assert caught.value.kind == "dns"


def test_a_retry_after_header_is_passed_on(coordinator: ScriptedCoordinator) -> None:
    coordinator.script = lambda _call: Reply({}, status=503, headers={"Retry-After": "2"})
    with pytest.raises(RetriableError) as caught:
        beat(coordinator.url)
    assert caught.value.retry_after_ms == 2_000


@pytest.mark.parametrize(
    ("reply", "code"),
    [
        (error(401, "UNAUTHORIZED"), "UNAUTHORIZED"),
        (Reply(raw=b"<html>", status=403), "HTTP_403"),
        (error(400, "INVALID_REQUEST"), "INVALID_REQUEST"),
        (error(404, "NOT_FOUND"), "NOT_FOUND"),
    ],
)
def test_i7_refusals_are_fatal(coordinator: ScriptedCoordinator, reply: Reply, code: str) -> None:
    coordinator.script = lambda _call: reply
    with pytest.raises(FatalError) as caught:
        beat(coordinator.url)
    assert caught.value.code == code


def test_base_urls_are_asked_in_turn_and_the_one_that_answers_is_kept(coordinator: ScriptedCoordinator) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        dead = f"http://127.0.0.1:{closed.getsockname()[1]}/coord/v1"
    terminating = ScriptedCoordinator(lambda _call: error(503, "COORDINATOR_TERMINATING"))
    try:
        coordinator.script = answer
        http = CoordinatorHttp([dead, terminating.url, coordinator.url])
        for _ in range(3):
            assert http.heartbeat("orders", "g", BODY).status == "OK"
        http.close()
        assert (len(terminating.calls), len(coordinator.calls)) == (1, 3)
    finally:
        terminating.close()


@pytest.mark.parametrize("url", ["", "ftp://host/x", "host:8080", "http:///x", "http://user:secret@host/coord/v1"])
def test_a_wrong_base_url_is_refused_without_showing_secrets(url: str) -> None:
    with pytest.raises(ValueError, match="base URL") as caught:
        CoordinatorHttp([url])
    assert "secret" not in str(caught.value)


class Doorkeeper:
    """Gives out numbered tokens and accepts only the newest."""

    def __init__(self) -> None:
        self.logins = 0

    def __call__(self, call: Call) -> Reply:
        if call.path.endswith("/auth/login"):
            if call.body != {"username": "u", "password": "p"}:
                return error(401, "UNAUTHORIZED")
            self.logins += 1
            roles = {
                "accessToken": f"t{self.logins}",
                "tokenType": "Bearer",
                "expiresAt": "x",
                "expiresInSeconds": 1,
                "roles": [],
            }
            return Reply(roles)
        return answer(call) if call.headers.get("authorization") == f"Bearer t{self.logins}" else error(401, "UNAUTHORIZED")


def test_a_user_logs_in_once_and_once_more_when_the_token_is_refused(coordinator: ScriptedCoordinator) -> None:
    door = Doorkeeper()
    coordinator.script = door
    http = CoordinatorHttp(coordinator.url, credentials=Credentials(username="u", password="p"))
    assert http.heartbeat("orders", "g", BODY).status == "OK"
    assert http.heartbeat("orders", "g", BODY).status == "OK"
    assert door.logins == 1
    door.logins = 7  # the token expired
    assert http.heartbeat("orders", "g", BODY).status == "OK"
    assert door.logins == 8
    http.close()


def test_wrong_credentials_and_a_refused_token_are_fatal(coordinator: ScriptedCoordinator) -> None:
    coordinator.script = Doorkeeper()
    with pytest.raises(FatalError, match="UNAUTHORIZED"):
        beat(coordinator.url, credentials=Credentials(username="u", password="wrong"))
    with pytest.raises(FatalError, match="UNAUTHORIZED"):
        beat(coordinator.url, credentials=Credentials(token="old"))


def test_credentials_show_no_secret_and_need_a_pair() -> None:
    shown = repr(Credentials(username="u", password="p4ss"))
    assert "p4ss" not in shown
    with pytest.raises(ValueError, match="password"):
        Credentials(username="u")
