"""Request ids, paths as the server shows them, and the audit entries of what was refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from coord.events import codec
from coord.events.catalog import AdminRequest
from coord.http.paths import path_parts
from coord.names import GroupKey, StreamKey
from tests.http.face import BASE, Face, basic, configuration, error_of, make_face
from tests.http.odd_names import ILLEGAL, LEGAL, Ask, illegal_names_reach_nothing, legal_names_round_trip

TRACE = "Root=1-67891233-abcdef012345678912345678"


@pytest.mark.parametrize(
    ("headers", "expected"),
    [
        ({"X-Request-Id": "mine"}, "mine"),
        ({"X-Request-Id": "mine", "X-Correlation-Id": "other"}, "mine"),
        ({"X-Correlation-Id": "other", "X-Amzn-Trace-Id": TRACE}, "other"),
        ({"X-Amzn-Trace-Id": TRACE}, TRACE),
        ({"X-Request-Id": "x" * 255}, "x" * 255),
        ({"X-Request-Id": "x" * 256}, None),
        ({"X-Request-Id": ""}, None),
        ({"X-Request-Id": "a\tb"}, None),
        ({"X-Request-Id": "na\u00efve"}, None),
        ({"X-Request-Id": "x" * 256, "X-Correlation-Id": "other"}, "other"),
        ({}, None),
    ],
)
@pytest.mark.parametrize("path", ["//livez", "/nothing", "/monitoring/session"])
def test_a_request_id_is_echoed_and_an_illegal_one_replaced(
    still: Face, headers: dict[str, str], expected: str | None, path: str
) -> None:
    answers = [still.ask("GET", path, headers=headers) for _ in range(2)]
    ids = [answer.headers["x-request-id"] for answer in answers]
    if expected is None:
        assert len(set(ids)) == 2
        assert all(len(each) == 36 for each in ids)
    else:
        assert ids == [expected] * 2


@pytest.mark.parametrize(
    ("raw", "segments", "fault", "trailing"),
    [
        ("/a/b", ("a", "b"), None, False),
        ("/a/b?c=/d#e", ("a", "b"), None, False),
        ("/a/b/", ("a", "b"), None, True),
        ("/", (), None, True),
        ("/a%20b/%E5%90%8D", ("a b", "名"), None, False),
        ("/a/\u00e5\u0090\u008d", ("a", "名"), None, False),
        ("/a%252Fb", ("a%2Fb",), None, False),
        ("/a;x=1/b:c", ("a;x=1", "b:c"), None, False),
        ("http://host:1/a/b?c", ("a", "b"), None, False),
        ("http://host", (), None, True),
        ("/a%2Fb/c", ("a/b", "c"), "encoded slash", False),
        ("/a%2fb", ("a/b",), "encoded slash", False),
        ("/a%00", ("a\x00",), "NUL byte", False),
        ("/a%", ("a%",), "bad percent-encoding", False),
        ("/a%zz", ("a%zz",), "bad percent-encoding", False),
        ("/a%FFb", ("a\ufffdb",), "bad UTF-8", False),
        ("/%C0%AF", ("\ufffd\ufffd",), "bad UTF-8", False),
        ("/%ED%A0%80", ("\ufffd\ufffd\ufffd",), "bad UTF-8", False),
        ("/a//b", ("a", "", "b"), "empty segment", False),
        ("//a", ("", "a"), "empty segment", False),
        ("*", ("*",), None, False),
    ],
)
def test_j1_a_raw_path_is_taken_apart_before_it_is_decoded(
    raw: str, segments: tuple[str, ...], fault: str | None, trailing: bool
) -> None:
    parts = path_parts({"RAW_URI": raw, "PATH_INFO": "/never/looked/at"})
    assert (parts.segments, parts.fault, parts.trailing_slash) == (segments, fault, trailing)


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/streams//producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%00b/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/%FF/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/orders/producer-routing/", (404, "NOT_FOUND")),
        ("/streams/a%2Fb/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%zz/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%252Fb/producer-routing", (404, "STREAM_NOT_FOUND")),
        ("/streams/a;x=1/producer-routing", (404, "STREAM_NOT_FOUND")),
        ("/streams/groups/groups/groups", (404, "GROUP_NOT_FOUND")),
    ],
)
def test_j1_an_odd_path_is_refused_before_routing(still: Face, path: str, expected: tuple[int, str]) -> None:
    assert error_of(still.ask("GET", path)) == expected


@pytest.mark.parametrize(
    ("path_info", "fault"),
    [
        ("/a/b", None),
        ("/a/\u00e5\u0090\u008d", None),
        ("/a//b", "empty segment"),
        ("/a\x00", "NUL byte"),
        ("/a\u00ff", "bad UTF-8"),
    ],
)
def test_j1_a_server_that_shows_no_raw_path_gets_as_close_as_it_can(path_info: str, fault: str | None) -> None:
    """An encoded slash is lost there: it has become a segment's end."""
    assert path_parts({"PATH_INFO": path_info}).fault == fault


def asking(face: Face) -> Ask:
    def ask(method: str, path: str, body: object) -> tuple[int, Any]:
        answer = face.ask(method, path, body, user="legacy")
        return answer.status_code, answer.json

    return ask


@pytest.mark.parametrize("written", LEGAL)
def test_j1_a_legal_name_is_shown_as_it_was_sent_and_audited_so(tmp_path: Path, written: str) -> None:
    face, name = make_face(configuration(tmp_path)), LEGAL[written]
    legal_names_round_trip(asking(face), written, name)
    for key, path in ((StreamKey(name), f"/streams/{name}"), (GroupKey(name, name), f"/streams/{name}/groups/{name}")):
        entries = audited(face, key)
        assert {entry.path for entry in entries} == {BASE + path}, entries
        assert {entry.outcome for entry in entries} == {"SUCCESS"}


@pytest.mark.parametrize("written", ILLEGAL)
def test_j1_an_illegal_name_reaches_nothing(world: Face, written: str) -> None:
    illegal_names_reach_nothing(asking(world), written)


@pytest.mark.parametrize("uri", ["/coord/v1/monitoring/streams", "/livez", "http://h/livez"])
def test_a_route_is_judged_on_one_path_only(still: Face, uri: str) -> None:
    """Were raw and decoded path to disagree, nothing is served: not what was judged, not the other."""
    answer = still.client.simulate_post(
        f"{BASE}/streams/sneaked", json={"requestedBy": "t"}, extras={"RAW_URI": uri}, headers=basic("reader")
    )
    assert answer.status_code in {404, 405}
    assert still.ask("GET", "/streams/sneaked/producer-routing").status_code == 404


def audited(face: Face, key: StreamKey | GroupKey | None = None) -> list[AdminRequest]:
    """Give the audit entries on an aggregate's log, or those that belong to none."""
    if key is None:
        return [msgspec.json.decode(entry, type=AdminRequest) for entry in face.store.state.requests]
    events = [codec.decode(entry).event for entry in face.store.tail(key, after=(0, 0), limit=1000)]
    return [event for event in events if isinstance(event, AdminRequest)]


@pytest.mark.parametrize(
    ("user", "path", "body", "status", "outcome", "code", "key"),
    [
        (None, "/streams/orders/scale", {}, 401, "UNAUTHORIZED", "UNAUTHORIZED", None),
        ("reader", "/streams/orders/scale", {}, 403, "FORBIDDEN", "FORBIDDEN", StreamKey("orders")),
        ("writer", "/streams/orders/scale", {}, 400, "FAILED", "INVALID_REQUEST", StreamKey("orders")),
        ("writer", "/streams/none/scale", {}, 400, "FAILED", "INVALID_REQUEST", None),
        ("writer", "/streams/bad%7B/scale", {}, 400, "FAILED", "INVALID_REQUEST", None),
        (
            "writer",
            "/streams/orders/groups/g",
            {"requestedBy": "t"},
            409,
            "FAILED",
            "GROUP_ALREADY_EXISTS",
            GroupKey("orders", "g"),
        ),
    ],
)
def test_k10_a_refused_mutation_is_audited_as_it_was_answered(
    world: Face, user: str | None, path: str, body: object, status: int, outcome: str, code: str, key: StreamKey | GroupKey | None
) -> None:
    before = len(audited(world, key))
    answer = world.ask("POST", path, body, user=user, headers={"X-Request-Id": "audited", "User-Agent": "tests"})
    assert error_of(answer) == (status, code)
    (entry,) = audited(world, key)[before:]
    assert (entry.outcome, entry.status, entry.error_code, entry.request_id) == (outcome, status, code, "audited")
    assert (entry.method, entry.user_agent, entry.principal) == ("POST", "tests", user)
    assert entry.route.startswith(f"{BASE}/streams/{{streamPrefix}}")
    assert (entry.request_body_sha256 == "") == (status in {401, 403})


def test_a_mutation_that_is_done_is_audited_once_and_without_the_body(world: Face) -> None:
    body = {"targetShardCount": 6, "requestedBy": "ada", "reason": "more load", "secretExtra": "MARKER"}
    assert world.ask("POST", "/streams/orders/scale", body).status_code == 202
    entries = [entry for entry in audited(world, StreamKey("orders")) if entry.action == "SCALE_STREAM"]
    (entry,) = entries
    assert (entry.outcome, entry.status, entry.requested_by, entry.reason) == ("SUCCESS", 202, "ada", "more load")
    assert entry.request_summary == "targetShardCount=6"
    assert len(entry.request_body_sha256) == 64
    assert "MARKER" not in str(entry)


def test_reading_is_never_audited(world: Face) -> None:
    for path in ("/streams/orders/groups/none", "/nothing", "/streams/orders/producer-routing"):
        world.ask("GET", path)
        world.ask("GET", path, user=None)
    assert audited(world) == []
