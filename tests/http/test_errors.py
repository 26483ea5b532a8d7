"""Every code has a status, every error our body."""

from __future__ import annotations

from pathlib import Path

import falcon
import pytest
from falcon import testing

from coord.http.app import App
from coord.http.errors import STATUS_NAME, STATUS_OF, add_error_handlers, refusal
from coord.http.request import ApiRequest
from coord.names import GroupKey, StreamKey
from coord.refusals import Code
from coord.store.base import CorruptAggregate, OutcomeUnknown, StoreUnavailable
from tests.http.face import Face, configuration, error_of, heartbeat, make_face


def test_every_code_has_a_status_and_every_status_a_name() -> None:
    """A new code cannot reach a client as a 500."""
    assert set(STATUS_OF) == set(Code)
    assert set(STATUS_OF.values()) == set(STATUS_NAME)


@pytest.mark.parametrize("accept", ["*/*", "text/html", "application/xml", "application/vnd.odd+zip", ";;;broken", ""])
@pytest.mark.parametrize(
    ("method", "path", "user", "expected"),
    [
        ("POST", "/streams/orders/scale", "writer", (400, "INVALID_REQUEST")),
        ("GET", "/monitoring/groups", None, (401, "UNAUTHORIZED")),
        ("POST", "/streams/orders/scale", "reader", (403, "FORBIDDEN")),
        ("GET", "/nothing/here", "writer", (404, "NOT_FOUND")),
        ("PATCH", "/streams/orders", "writer", (405, "METHOD_NOT_ALLOWED")),
    ],
)
def test_j4_an_error_is_our_json_whatever_the_caller_accepts(
    world: Face, accept: str, method: str, path: str, user: str | None, expected: tuple[int, str]
) -> None:
    assert error_of(world.ask(method, path, user=user, headers={"Accept": accept})) == expected


class Refusing:
    """A resource that refuses."""

    def __init__(self, code: Code) -> None:
        self.code = code

    def on_get(self, req: ApiRequest, resp: falcon.Response) -> None:
        raise refusal(self.code, "because", ("this", "that"))


@pytest.mark.parametrize("code", list(Code))
def test_a_refusal_is_answered_with_its_status_whatever_its_code(code: Code) -> None:
    """503 and 429 say when to come again, 401 how to prove who one is."""
    app: App = falcon.App(request_type=ApiRequest)
    add_error_handlers(app)
    app.add_route("/refusing", Refusing(code))
    answer = testing.TestClient(app).simulate_get("/refusing")
    assert error_of(answer) == (STATUS_OF[code], code)
    assert answer.json["status"] == STATUS_NAME[STATUS_OF[code]]
    assert answer.json["details"] == ["this", "that"]
    assert ("retry-after" in answer.headers) == (STATUS_OF[code] in {429, 503})
    assert ("www-authenticate" in answer.headers) == (code == Code.UNAUTHORIZED)


@pytest.mark.parametrize(
    ("error", "expected", "told"),
    [
        (StoreUnavailable("gone"), (503, "STORE_UNAVAILABLE"), "nothing was changed"),
        (OutcomeUnknown("gone"), (503, "STORE_UNAVAILABLE"), "did not say"),
        (CorruptAggregate(StreamKey("orders"), "a gap"), (409, "COORDINATOR_METADATA_CORRUPT"), "a gap"),
    ],
)
@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("GET", "/monitoring/streams/orders", None),
        ("POST", "/streams/orders/scale", {"targetShardCount": 6, "requestedBy": "t", "reason": "t"}),
        ("GET", "/streams/orders/producer-routing", None),
    ],
)
def test_a_broken_world_is_told_as_what_it_is(
    world: Face, error: Exception, expected: tuple[int, str], told: str, method: str, path: str, body: object
) -> None:
    world.store.fault = error
    answer = world.ask(method, path, body)
    assert error_of(answer) == expected
    assert told in answer.json["message"]
    assert ("retry-after" in answer.headers) == (expected[0] == 503)


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), CorruptAggregate(GroupKey("orders", "g"), "a gap")])
def test_a_heartbeat_is_told_to_retry_when_the_world_is_broken(world: Face, error: Exception) -> None:
    """A 5xx would end the threads of existing clients."""
    joined = world.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat(), user=None)
    assert joined.json["status"] == "OK"
    world.store.fault = error
    epoch = joined.json["memberEpoch"]
    answer = world.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat(memberEpoch=epoch), user=None)
    assert (answer.status_code, answer.json["status"], answer.json["memberEpoch"]) == (200, "RETRY", epoch)
    assert answer.headers["x-store-revision"] == "0"


def test_health_tells_a_store_that_is_away(face: Face) -> None:
    """Readiness does not depend on it unless so configured; the probes are open."""
    face.store.fault = StoreUnavailable("gone")
    health = face.ask("GET", "/monitoring/health")
    assert (health.status_code, health.json["status"], health.json["store"]) == (200, "DOWN", "DOWN")
    told = {path: face.ask("GET", f"//{path}", user=None) for path in ("livez", "readyz", "actuator/health")}
    assert {path: answer.status_code for path, answer in told.items()} == {"livez": 200, "readyz": 200, "actuator/health": 503}
    assert told["actuator/health"].json == {"status": "DOWN"}


def test_readiness_needs_the_store_where_that_is_configured(tmp_path: Path) -> None:
    text = "coordinator: {server: {readyz-needs-store: true}}"
    face = make_face(configuration(tmp_path, text=text))
    assert face.ask("GET", "//readyz", user=None).status_code == 200
    face = make_face(configuration(tmp_path, text=text))
    face.store.fault = StoreUnavailable("gone")
    assert face.ask("GET", "//readyz", user=None).status_code == 503


def test_a_process_that_stops_turns_work_away(world: Face) -> None:
    """Mutations 503, heartbeats RETRY, not ready; reads go on."""
    world.services.terminating = True
    body = {"targetShardCount": 6, "requestedBy": "t", "reason": "t"}
    scaled = world.ask("POST", "/streams/orders/scale", body)
    assert error_of(scaled) == (503, "COORDINATOR_TERMINATING")
    assert int(scaled.headers["retry-after"]) >= 1
    beat = world.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat(), user=None)
    assert (beat.status_code, beat.json["status"]) == (200, "RETRY")
    assert world.ask("GET", "//readyz", user=None).status_code == 503
    assert world.ask("GET", "//livez", user=None).status_code == 200
    assert world.ask("GET", "/streams/orders/groups/g").status_code == 200


def test_our_bug_is_a_500_with_the_request_id_and_no_traceback(face: Face) -> None:
    face.store.fault = AssertionError("an invariant with a s3cret")
    answer = face.ask("GET", "/monitoring/streams", headers={"X-Request-Id": "find-me"})
    assert error_of(answer) == (500, "INTERNAL_ERROR")
    assert "find-me" in answer.json["message"]
    assert "s3cret" not in answer.text
