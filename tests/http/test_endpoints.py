"""Every endpoint, right and with each kind of wrong input: exact status and code, never a 500."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import pytest
from falcon import testing

from coord.http.routes import ROUTES, Operation, Route
from tests.http.face import BASE, Face, basic, error_of, heartbeat

WHO: dict[str, Any] = {"requestedBy": "tester", "reason": "a test"}
CREATE: dict[str, Any] = {"initialShardCount": 4, **WHO}
SCALE: dict[str, Any] = {"targetShardCount": 6, **WHO}
BODIES: dict[str, dict[str, Any]] = {
    "loginCoordinatorApi": {"username": "writer", "password": "w-pass"},
    "createStreamGroup": CREATE,
    "deleteStream": WHO,
    "adoptStream": {"shardCount": 2, **WHO},
    "scaleStreamShards": SCALE,
    "destroyRedisConsumerGroup": WHO,
    "createCoordinatorGroup": CREATE,
    "deleteCoordinatorGroup": WHO,
    "startGroupResharding": SCALE,
    "rollbackReshardingMigration": WHO,
    "completeReshardingMigration": {"force": False, **WHO},
    "sendConsumerHeartbeat": heartbeat(),
    "sendConsumerHeartbeats": {"heartbeats": [heartbeat()]},
}
EACH = [(route, method, op) for route in ROUTES for method, op in route.operations.items()]
WITH_BODY = [each for each in EACH if each[2].body]
WITH_NAMES = [each for each in EACH if each[0].parameters]


def named(each: object) -> str:
    return each.id if isinstance(each, Operation) else getattr(each, "path", str(each))


def path_of(route: Route, **names: str) -> str:
    """Fill a path: `orders`, `g`, `m` unless told otherwise."""
    values = {
        "streamPrefix": "orders",
        "consumerGroup": "g",
        "memberId": "m",
        "reshardingId": "reshard-x",
        "name": "other",
        **names,
    }
    return re.sub(r"\{(\w+)\}", lambda match: values[match[1]], route.path)


# -- right


def joined(world: Face) -> None:
    beat = world.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat(), user=None)
    assert beat.json["status"] == "OK"


def test_every_operation_with_a_body_has_a_right_one() -> None:
    assert set(BODIES) == {op.id for _, _, op in WITH_BODY}


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/auth/login", BODIES["loginCoordinatorApi"], 200),
        ("POST", "/streams/new", CREATE, 201),
        ("POST", "/streams/new", {"requestedBy": "t"}, 201),
        ("POST", "/streams/new", {"requestedBy": "t", "reason": None, "initialShardCount": None, "startFrom": None}, 201),
        ("POST", "/streams/new", {**CREATE, "startFrom": "0", "unknown": {"field": []}}, 201),
        ("POST", "/streams/名 a:b;x=1", CREATE, 201),
        ("GET", "/streams/orders/producer-routing", None, 200),
        ("GET", "/streams/orders/groups/not-yet/producer-routing", None, 200),
        ("POST", "/streams/orders/scale", SCALE, 202),
        ("POST", "/streams/orders/scale", {**SCALE, "deprecatedAfter": "tomorrow"}, 202),
        ("POST", "/streams/orders/scale", {**SCALE, "targetShardCount": 0}, 202),
        ("POST", "/streams/orders/scale", {**SCALE, "reason": "two\nlines"}, 202),
        ("POST", "/streams/orders/groups/h", CREATE, 201),
        ("POST", "/streams/brand-new/groups/h", CREATE, 201),
        ("GET", "/streams/orders/groups/g", None, 200),
        ("DELETE", "/streams/orders/groups/g", WHO, 200),
        ("DELETE", "/streams/orders/groups/g", {**WHO, "force": True}, 200),
        ("POST", "/streams/orders/groups/g/scale", SCALE, 202),
        ("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat(), 200),
        ("GET", "/monitoring/health", None, 200),
        ("GET", "/monitoring/session", None, 200),
        ("GET", "/monitoring/compatibility", None, 200),
        ("GET", "/monitoring/groups", None, 200),
        ("GET", "/monitoring/streams", None, 200),
        ("GET", "/monitoring/streams/orders", None, 200),
        ("GET", "/monitoring/streams/orders/migrations", None, 200),
        ("GET", "/monitoring/streams/orders/groups/g", None, 200),
        ("GET", "/monitoring/streams/orders/groups/g/members", None, 200),
        ("GET", "/monitoring/streams/orders/groups/g/assignments", None, 200),
        ("GET", "/monitoring/streams/orders/groups/g/consumption", None, 200),
        ("GET", "/monitoring/streams/orders/groups/g/migrations", None, 200),
        ("GET", "//livez", None, 200),
        ("GET", "//readyz", None, 200),
        ("GET", "//actuator/health", None, 200),
        ("GET", "//actuator/info", None, 200),
        ("GET", "//v3/api-docs", None, 200),
        ("GET", "//docs", None, 200),
        ("GET", "//scalar", None, 200),
    ],
)
def test_a_right_request_is_answered(world: Face, method: str, path: str, body: object, status: int) -> None:
    """A mutation tells its revision; every answer its request id."""
    answer = world.ask(method, path, body)
    assert answer.status_code == status, answer.text
    assert answer.headers["x-request-id"]
    if method in {"POST", "DELETE"} and "login" not in path:
        assert int(answer.headers["x-store-revision"]) >= 1


def test_migrations_are_shown_rolled_back_and_completed(world: Face) -> None:
    migration = f"/streams/orders/groups/g/migrations/{world.scale(6)}"
    assert world.ask("GET", migration).json["toShardCount"] == 6
    assert error_of(world.ask("POST", f"{migration}/complete", WHO)) == (422, "COMPLETION_NOT_ALLOWED")
    assert error_of(world.ask("POST", "/streams/orders/scale", {**SCALE, "targetShardCount": 8})) == (
        409,
        "ACTIVE_MIGRATION_EXISTS",
    )
    for _ in range(2):  # rolling back again gives the record again
        answer = world.ask("POST", f"{migration}/rollback", WHO)
        assert (answer.status_code, answer.json["state"]) in {(202, "ROLLED_BACK"), (202, "ROLLING_BACK")}
        assert answer.headers["x-store-revision"]
    assert world.ask("POST", f"{migration}/complete", {**WHO, "force": True}).json["state"] in {"ROLLED_BACK", "ROLLING_BACK"}


def test_a_scale_to_the_same_count_is_a_noop(world: Face) -> None:
    answer = world.ask("POST", "/streams/orders/groups/g/scale", {**SCALE, "targetShardCount": 4})
    assert (answer.status_code, answer.json["reshardingId"], answer.json["state"]) == (202, "noop", "DEPRECATED")


def test_deleting_takes_its_fields_from_the_query_too(world: Face) -> None:
    """Proxies drop the bodies of DELETE."""
    path = "/streams/orders/groups/g"
    assert error_of(world.ask("DELETE", path, query="requestedBy=t")) == (400, "INVALID_REQUEST")
    assert error_of(world.ask("DELETE", path, query="requestedBy=t&reason=r&force=1"))[1] == "INVALID_REQUEST"
    assert error_of(world.ask("DELETE", path, query="requestedBy=t&requestedBy=u&reason=r"))[1] == "INVALID_REQUEST"
    assert error_of(world.ask("DELETE", path, query="requestedBy=%FF&reason=r"))[1] == "INVALID_REQUEST"
    answer = world.ask("DELETE", path, query="requestedBy=t&reason=a+b&force=false&other=x")
    assert (answer.status_code, answer.json["consumerGroup"]) == (200, "g")
    assert world.ask("DELETE", "/streams/orders", query="requestedBy=t&reason=r").status_code == 200


def test_routing_has_an_etag(world: Face) -> None:
    first = world.ask("GET", "/streams/orders/producer-routing")
    tag = first.headers["etag"]
    assert tag == f'"{first.json["metadataVersion"]}"'
    for given, status in ((tag, 304), (f'W/{tag}, "x"', 304), ("*", 304), ('"0"', 200), ("", 200)):
        again = world.ask("GET", "/streams/orders/producer-routing", headers={"If-None-Match": given})
        assert (again.status_code, again.headers["etag"]) == (status, tag)
        assert bool(again.text) == (status == 200)
    assert world.ask("GET", "/streams/orders/groups/nobody/producer-routing").json["consumerGroup"] == "nobody"


def test_pages_follow_each_other(face: Face) -> None:
    for index in range(5):
        face.make_stream(f"s{index}")
        face.make_group(f"s{index}")
    for kind in ("streams", "groups"):
        seen: list[str] = []
        cursor = ""
        for _ in range(5):
            page = face.ask("GET", f"/monitoring/{kind}", query=f"limit=2&cursor={cursor}").json
            seen += [entry["streamPrefix"] for entry in page[kind]]
            cursor = page["nextCursor"]
            if cursor is None:
                break
        assert seen == [f"s{index}" for index in range(5)]


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("limit=0", 200),
        ("limit=-5", 200),
        ("limit=1000000", 200),
        ("limit=" + "9" * 5000, 200),
        ("limit=%2B3", 200),
        ("cursor=", 200),
        ("unknown=1", 200),
        ("limit=", 400),
        ("limit=x", 400),
        ("limit=1.5", 400),
        ("limit=1e3", 400),
        ("limit=%D9%A3", 400),
        ("limit=1&limit=2", 400),
        ("cursor=nonsense", 400),
        ("cursor=" + "A" * 3000, 400),
        ("limit=%FF", 400),
        ("&".join(f"a{index}=1" for index in range(200)), 400),
    ],
)
@pytest.mark.parametrize("path", ["/monitoring/groups", "/monitoring/streams"])
def test_limits_are_clamped_and_nonsense_is_refused(still: Face, path: str, query: str, expected: int) -> None:
    answer = still.ask("GET", path, query=query)
    assert answer.status_code == expected
    if expected == 400:
        assert error_of(answer) == (400, "INVALID_REQUEST")


# -- what is not there, or in the way


@pytest.mark.parametrize(
    ("method", "path", "body", "expected"),
    [
        ("POST", "/streams/orders", CREATE, (409, "STREAM_PREFIX_ALREADY_EXISTS")),
        ("DELETE", "/streams/orders", WHO, (409, "STREAM_HAS_GROUPS")),
        ("DELETE", "/streams/none", WHO, (404, "STREAM_NOT_FOUND")),
        ("POST", "/streams/none/adopt", {"shardCount": 1, **WHO}, (503, "REDIS_NOT_CONFIGURED")),
        ("DELETE", "/streams/orders/consumer-groups/other", WHO, (503, "REDIS_NOT_CONFIGURED")),
        ("GET", "/streams/none/producer-routing", None, (404, "STREAM_NOT_FOUND")),
        ("GET", "/streams/none/groups/g/producer-routing", None, (404, "STREAM_NOT_FOUND")),
        ("POST", "/streams/none/scale", SCALE, (404, "STREAM_NOT_FOUND")),
        ("POST", "/streams/orders/groups/g", CREATE, (409, "GROUP_ALREADY_EXISTS")),
        ("POST", "/streams/orders/groups/g", {**CREATE, "initialShardCount": 9}, (409, "GROUP_ALREADY_EXISTS")),
        ("POST", "/streams/orders/groups/h", {**CREATE, "initialShardCount": 9}, (409, "STREAM_SHARD_TOPOLOGY_CONFLICT")),
        ("GET", "/streams/orders/groups/none", None, (404, "GROUP_NOT_FOUND")),
        ("DELETE", "/streams/orders/groups/none", WHO, (404, "GROUP_NOT_FOUND")),
        ("POST", "/streams/orders/groups/none/scale", SCALE, (404, "GROUP_NOT_FOUND")),
        ("GET", "/streams/orders/groups/g/migrations/none", None, (404, "MIGRATION_NOT_FOUND")),
        ("POST", "/streams/orders/groups/g/migrations/none/rollback", WHO, (404, "MIGRATION_NOT_FOUND")),
        ("POST", "/streams/orders/groups/g/migrations/none/complete", WHO, (404, "MIGRATION_NOT_FOUND")),
        ("GET", "/monitoring/streams/none", None, (404, "STREAM_NOT_FOUND")),
        ("GET", "/monitoring/streams/none/migrations", None, (404, "STREAM_NOT_FOUND")),
        ("GET", "/monitoring/streams/orders/groups/none", None, (404, "GROUP_NOT_FOUND")),
        ("GET", "/monitoring/streams/orders/groups/none/members", None, (404, "GROUP_NOT_FOUND")),
        ("GET", "/monitoring/streams/orders/groups/none/assignments", None, (404, "GROUP_NOT_FOUND")),
        ("GET", "/monitoring/streams/orders/groups/none/consumption", None, (404, "GROUP_NOT_FOUND")),
        ("GET", "/monitoring/streams/orders/groups/none/migrations", None, (404, "GROUP_NOT_FOUND")),
    ],
)
def test_what_is_missing_or_in_the_way_has_its_code(
    world: Face, method: str, path: str, body: object, expected: tuple[int, str]
) -> None:
    assert error_of(world.ask(method, path, body)) == expected


def test_a_group_with_live_members_is_deleted_by_force_only(world: Face) -> None:
    joined(world)
    assert error_of(world.ask("DELETE", "/streams/orders/groups/g", WHO)) == (409, "GROUP_HAS_ACTIVE_MEMBERS")
    assert world.ask("DELETE", "/streams/orders/groups/g", {**WHO, "force": True}).status_code == 200


# -- wrong, in every way, at every endpoint

WHOLE_BODIES: list[tuple[str, bytes]] = [
    ("null", b"null"),
    ("list", b"[]"),
    ("text", b'"x"'),
    ("number", b"7"),
    ("cut", b"{"),
    ("trailing", b"{}}"),
    ("BOM", b"\xef\xbb\xbf{}"),
    ("UTF-16", '{"a": 1}'.encode("utf-16")),
    ("gzip", b"\x1f\x8b\x08\x00\x00"),
    ("bad UTF-8", b'{"requestedBy": "\xff"}'),
    ("NUL byte", b'{"requestedBy": "a\x00"}'),
    ("lone surrogate", b'{"requestedBy": "\\ud800"}'),
    ("NaN", b'{"targetShardCount": NaN}'),
    ("Infinity", b'{"targetShardCount": Infinity}'),
    ("1e999", b'{"targetShardCount": 1e999}'),
    ("5000 digits", b'{"targetShardCount": ' + b"9" * 5000 + b"}"),
    ("depth 1000", b'{"x": ' + b"[" * 1000 + b"]" * 1000 + b"}"),
    ("depth 30000", b"[" * 30_000),
    ("deep objects", b'{"x":' * 8_000),
]


@pytest.mark.parametrize(("kind", "raw"), WHOLE_BODIES, ids=[kind for kind, _ in WHOLE_BODIES])
@pytest.mark.parametrize(("route", "method", "operation"), WITH_BODY, ids=named)
def test_j3_j6_a_body_that_is_no_fitting_json_is_a_400(
    still: Face, route: Route, method: str, operation: Operation, kind: str, raw: bytes
) -> None:
    assert error_of(still.ask(method, path_of(route), raw=raw)) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(("route", "method", "operation"), WITH_BODY, ids=named)
def test_no_body_is_a_400_that_says_so(still: Face, route: Route, method: str, operation: Operation) -> None:
    for raw in (b"", b"  \n"):
        answer = still.ask(method, path_of(route), raw=raw)
        if operation.id == "loginCoordinatorApi":
            assert answer.status_code in {200, 400}
        else:
            assert error_of(answer) == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("content_type", "status"),
    [
        ("application/json", None),
        ("APPLICATION/JSON; charset=UTF-8", None),
        ('application/json;charset="utf-8"', None),
        ("application/vnd.api+json", None),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("application/json; charset=utf-16", 415),
        ("nonsense", 415),
        ("application/jsonp", 415),
        ("multipart/form-data; boundary=x", 415),
    ],
)
@pytest.mark.parametrize(("route", "method", "operation"), WITH_BODY, ids=named)
def test_j3_only_json_in_utf_8_is_read(
    still: Face, route: Route, method: str, operation: Operation, content_type: str, status: int | None
) -> None:
    answer = still.ask(method, path_of(route), raw=b"{}", headers={"Content-Type": content_type})
    assert error_of(answer) == ((400, "INVALID_REQUEST") if status is None else (415, "UNSUPPORTED_MEDIA_TYPE"))


EMPTY_OR_ODD: dict[str, bytes | None] = {
    kind: raw for kind, raw in WHOLE_BODIES if kind in {"null", "list", "text", "cut", "BOM", "UTF-16", "gzip"}
}
EMPTY_OR_ODD |= {"none": None, "empty": b"", "form": b"requestedBy=t&reason=r&initialShardCount=2"}


@pytest.mark.parametrize("content_type", [None, "application/json", "application/json; charset=utf-8", "text/plain", "nonsense"])
@pytest.mark.parametrize("kind", EMPTY_OR_ODD)
def test_j3_no_body_under_any_type_is_more_than_a_400_or_a_415(still: Face, kind: str, content_type: str | None) -> None:
    """Only a login goes without a body, by the Basic header, and a GET ignores what it gets."""
    raw, headers = EMPTY_OR_ODD[kind], {} if content_type is None else {"Content-Type": content_type}

    def ask(method: str, path: str) -> testing.Result:
        sent = {**basic("legacy"), **headers}
        return still.client.simulate_request(method, path, headers=sent, **({} if raw is None else {"body": raw}))

    for route, method, operation in EACH:
        answer = ask(method, f"{BASE if route.under_base else ''}{path_of(route)}")
        told = (route.path, method, answer.status_code, answer.text)
        if operation.body and (raw or operation.id != "loginCoordinatorApi"):
            assert error_of(answer) in {(400, "INVALID_REQUEST"), (415, "UNSUPPORTED_MEDIA_TYPE")}, told
        else:
            assert answer.status_code in {200, 404}, told  # made-up groups and migrations are not there


@pytest.mark.parametrize(("route", "method", "operation"), WITH_BODY, ids=named)
def test_a_compressed_body_is_not_read(still: Face, route: Route, method: str, operation: Operation) -> None:
    answer = still.ask(method, path_of(route), raw=b"{}", headers={"Content-Encoding": "gzip"})
    assert error_of(answer) == (415, "UNSUPPORTED_MEDIA_TYPE")


@pytest.mark.parametrize(("route", "method", "operation"), EACH, ids=named)
def test_a_body_beyond_the_limit_is_a_413(still: Face, route: Route, method: str, operation: Operation) -> None:
    path = path_of(route) if route.under_base else f"/{path_of(route)}"
    assert error_of(still.ask(method, path, raw=b"{" + b" " * 65_536)) == (413, "PAYLOAD_TOO_LARGE")


def wrong_values(field: str, value: object) -> list[object]:
    """Give values of the wrong kind or beyond the limits for a field with this right value."""
    if field == "force":
        return [1, "true", [], {}]
    if isinstance(value, dict):
        return [1, [], "x", True]
    if isinstance(value, int):
        beyond = [2**63, 2**64, -(2**63) - 1, 10**400]
        return [True, 1.0, "1", [], {}, 1e300, None, *beyond]
    return [1, True, [], {}, "a\x00b", "x" * 1025, *([] if field in {"reason", "password", "username"} else ["a\nb", "x" * 256])]


FIELD_CASES: list[tuple[Route, str, Operation, str, object]] = [
    (route, method, op, field, wrong)
    for route, method, op in WITH_BODY
    for field, value in BODIES[op.id].items()
    for wrong in wrong_values(field, value)
    if not (field == "initialShardCount" and wrong is None)  # optional: null means absent
    if not (op.id == "loginCoordinatorApi" and wrong == "a\x00b")  # credentials are compared, never kept
]


@pytest.mark.parametrize(("route", "method", "operation", "field", "wrong"), FIELD_CASES)
def test_a_wrong_field_is_named(still: Face, route: Route, method: str, operation: Operation, field: str, wrong: object) -> None:
    """Strict types, limits, control characters, giant numbers."""
    answer = still.ask(method, path_of(route), {**BODIES[operation.id], field: wrong})
    assert error_of(answer) == (400, "INVALID_REQUEST")
    if not (isinstance(wrong, int) and abs(wrong) > 2**70):  # no JSON number that any reader keeps
        assert any(detail.startswith(field) for detail in answer.json["details"]), answer.text


@pytest.mark.parametrize(("route", "method", "operation"), WITH_BODY, ids=named)
def test_every_wrong_field_is_listed_at_once(still: Face, route: Route, method: str, operation: Operation) -> None:
    required = [name for name in BODIES[operation.id] if name not in {"force", "initialShardCount"}]
    if operation.id in {"createStreamGroup", "createCoordinatorGroup"}:
        required.remove("reason")
    answer = still.ask(method, path_of(route, streamPrefix="bad{"), dict.fromkeys(required))
    message = answer.json["message"]
    assert error_of(answer) == (400, "INVALID_REQUEST")
    assert message == "; ".join(answer.json["details"])
    named_fields = {detail.partition(":")[0] for detail in answer.json["details"]}
    assert named_fields == {*required, *({"streamPrefix"} if route.parameters else ())}


@pytest.mark.parametrize(("count", "status"), [(0, 400), (-1, 400), (16_385, 400), (16_384, 201), (1, 201)])
def test_the_bounds_of_a_shard_count(face: Face, count: int, status: int) -> None:
    assert face.ask("POST", "/streams/orders", {**CREATE, "initialShardCount": count}).status_code == status


# -- names

BAD_NAMES = [
    "a%7Bb",
    "a%7Db",
    "%20a",
    "a%20",
    ".",
    "..",
    "%2e%2e",
    "a%0Ab",
    "a%7Fb",
    "x" * 256,
    "x" * 1000,
    "a%C2%85b",
    "%E2%80%A8",
]


@pytest.mark.parametrize("name", BAD_NAMES)
@pytest.mark.parametrize(("route", "method", "operation"), WITH_NAMES, ids=named)
def test_j1_an_illegal_name_is_a_400_that_names_the_parameter(
    still: Face, route: Route, method: str, operation: Operation, name: str
) -> None:
    for parameter in route.parameters:
        answer = still.ask(method, path_of(route, **{parameter: name}), BODIES.get(operation.id))
        assert error_of(answer) == (400, "INVALID_REQUEST")
        assert any(detail.startswith(f"{parameter}:") for detail in answer.json["details"]), answer.text


def check_methods(still: Face, method: str, expected: Callable[[Route], bool]) -> None:
    for route in ROUTES:
        path = path_of(route) if route.under_base else f"/{path_of(route)}"
        answer = still.ask(method, path)
        allowed = set(answer.headers.get("allow", "").split(", "))
        if not expected(route) and method != "HEAD":
            assert error_of(answer) == (405, "METHOD_NOT_ALLOWED"), (method, route.path)
            assert set(route.operations) < allowed
        if method == "OPTIONS":
            assert (answer.status_code, answer.text) == (204, "")
            assert set(route.operations) < allowed


@pytest.mark.filterwarnings("ignore:Unknown REQUEST_METHOD")
@pytest.mark.parametrize("method", ["PUT", "PATCH", "TRACE", "FOO", "WEBSOCKET", "PROPFIND", "Get"])
def test_an_unknown_method_is_a_405_that_lists_the_known_ones(still: Face, method: str) -> None:
    check_methods(still, method, lambda _: False)


@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "HEAD", "OPTIONS"])
def test_a_method_that_a_path_lacks_is_a_405(still: Face, method: str) -> None:
    check_methods(still, method, lambda route: method in route.allowed)


def test_head_is_get_without_the_body(still: Face) -> None:
    for path in ("//livez", "/streams/orders/groups/g", "/streams/orders/producer-routing", "/monitoring/streams"):
        head, get = still.ask("HEAD", path), still.ask("GET", path)
        assert (head.status_code, head.text) == (200, "")
        assert head.headers["content-length"] == get.headers["content-length"]
