"""A14: several heartbeats in one request; each is answered as if it had come alone, whatever became of the others."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import falcon
import jsonschema
import msgspec
import pytest

from coord import wire
from coord.http.openapi import description
from coord.store.base import StoreUnavailable
from tests.http.face import BASE, Face, basic, configuration, error_of, heartbeat, make_face
from tests.http.served import Served, serving

PATH = "/streams/orders/groups/g/heartbeats"
FIELDS = {field.encode_name for field in msgspec.structs.fields(wire.HeartbeatResponse)}


def beat(member: str, **changes: Any) -> dict[str, Any]:
    return heartbeat(**{"memberId": member, "requestId": f"request of {member}", **changes})


def listed(*items: object) -> dict[str, Any]:
    return {"heartbeats": list(items)}


def send(face: Face, *items: object) -> list[dict[str, Any]]:
    """Send a list, hold the answer to its shape, give the responses."""
    answer = face.ask("POST", PATH, listed(*items), user=None)
    assert answer.status_code == 200, answer.text
    assert set(answer.json) == {"responses"}
    responses: list[dict[str, Any]] = answer.json["responses"]
    assert len(responses) == len(items)
    for each in responses:
        assert set(each) == FIELDS
        assert None not in each.values()
    return responses


def test_members_join_and_go_on_together_answered_in_their_order(world: Face) -> None:
    names = ["c", "a", "b"]
    told = send(world, *map(beat, names))
    assert [(each["responseTo"], each["memberId"], each["status"]) for each in told] == [
        (f"request of {name}", name, "OK") for name in names
    ]
    for _ in range(3):  # the first lets go of what the others get
        told = send(
            world,
            *(
                beat(
                    each["memberId"],
                    memberEpoch=each["memberEpoch"],
                    metadataVersion=each["metadataVersion"],
                    ownedShards=each["assignment"]["assignedShards"],
                )
                for each in told
            ),
        )
    owned = [[shard["shardIndex"] for shard in each["assignment"]["assignedShards"]] for each in told]
    assert sorted(shard for shards in owned for shard in shards) == [0, 1, 2, 3]
    assert sorted(map(len, owned)) == [1, 1, 2]
    members = world.ask("GET", "/monitoring/streams/orders/groups/g/members").json["members"]
    assert [(each["memberId"], each["state"]) for each in members] == [(name, "ACTIVE") for name in sorted(names)]


def test_one_alone_is_answered_as_by_the_single_endpoint(world: Face) -> None:
    """Same status, same fields, and the report is kept beside the lease."""
    single = world.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", beat("m"), user=None)
    progress = [{"shard": {"shardIndex": 1}, "lastDeliveredId": "5-0", "pendingCount": 1}]
    told = single.json
    body = beat("m", memberEpoch=told["memberEpoch"], metadataVersion=told["metadataVersion"], shardProgress=progress)
    body["ownedShards"] = told["assignment"]["assignedShards"]
    (again,) = send(world, body)
    assert again == told
    rows = world.ask("GET", "/monitoring/streams/orders/groups/g/consumption").json["progress"]
    assert [(row["memberId"], row["lastDeliveredId"]) for row in rows] == [("m", "5-0")]


def test_the_header_tells_the_latest_revision_of_what_was_done(world: Face) -> None:
    answer = world.ask("POST", PATH, listed(*(beat(name) for name in "abc")), user=None)
    revision = world.ask("GET", "/monitoring/streams/orders/groups/g").json["storeRevision"]
    assert int(answer.headers["x-store-revision"]) == revision > 1
    bad = world.ask("POST", PATH, listed({}), user=None)
    assert bad.headers["x-store-revision"] == "0"


@pytest.mark.parametrize(
    ("changes", "status"),
    [
        ({"memberEpoch": 7}, "UNKNOWN_MEMBER_ID"),
        ({"memberEpoch": -2}, "INVALID_REQUEST"),
        ({"protocolVersion": 9}, "UNSUPPORTED_PROTOCOL"),
    ],
)
def test_a_refused_member_does_not_touch_the_others(world: Face, changes: dict[str, Any], status: str) -> None:
    told = send(world, beat("a"), beat("x", **changes), beat("b"))
    assert [each["status"] for each in told] == ["OK", status, "OK"]


BAD_ITEMS: list[tuple[str, bytes, tuple[str, str, int]]] = [
    ("number", b"5", ("", "", 0)),
    ("null", b"null", ("", "", 0)),
    ("list", b"[]", ("", "", 0)),
    ("empty", b"{}", ("", "", 0)),
    ("a field missing", b'{"requestId":"r","memberId":"x","memberEpoch":3}', ("r", "x", 3)),
    ("types", b'{"requestId":7,"memberId":["x"],"memberEpoch":"3"}', ("", "", 0)),
    ("true is no number", b'{"requestId":"r","memberId":"x","memberEpoch":true}', ("r", "x", 0)),
    ("beyond 2**53", b'{"requestId":"r","memberId":"x","memberEpoch":9007199254740992}', ("r", "x", 0)),
    ("beyond 2**64", b'{"requestId":"r","memberId":"x","memberEpoch":' + b"9" * 30 + b"}", ("r", "x", 0)),
    ("beyond any float", b'{"requestId":"r","memberId":"x","memberEpoch":1e400}', ("", "", 0)),
    ("an illegal name", json.dumps(beat("a/b", memberEpoch=4)).encode(), ("request of a/b", "a/b", 4)),
    ("a long name", json.dumps(beat("x" * 300)).encode(), ("request of " + "x" * 300, "x" * 300, 0)),
    ("a wrong place deep inside", json.dumps(beat("x", ownedShards=[{"shardIndex": -1}])).encode(), ("request of x", "x", 0)),
    ("bad UTF-8", b'{"requestId":"r","memberId":"\xff"}', ("", "", 0)),
    ("nested deeply", b'{"requestId":"r","memberId":' + b"[" * 900 + b"]" * 900 + b"}", ("r", "", 0)),
]


@pytest.mark.parametrize(("kind", "item", "echo"), BAD_ITEMS, ids=[kind for kind, _, _ in BAD_ITEMS])
def test_a_bad_item_is_its_own_invalid_request(world: Face, kind: str, item: bytes, echo: tuple[str, str, int]) -> None:
    """What can be echoed is; the items before and after it are served."""
    good = [json.dumps(beat(name)).encode() for name in "ab"]
    answer = world.ask("POST", PATH, raw=b'{"heartbeats":[' + b",".join([good[0], item, good[1]]) + b"]}", user=None)
    assert answer.status_code == 200, answer.text
    first, bad, last = answer.json["responses"]
    assert [each["status"] for each in (first, bad, last)] == ["OK", "INVALID_REQUEST", "OK"]
    assert (bad["responseTo"], bad["memberId"], bad["memberEpoch"]) == echo
    assert set(bad) == FIELDS
    assert None not in bad.values()
    assert bad["assignment"] == {"assignedShards": [], "pendingShards": [], "metadataVersion": 0}


def test_unknown_fields_are_ignored_in_the_list_and_in_its_items(world: Face) -> None:
    answer = world.ask("POST", PATH, {**listed(beat("a", unknown=[1])), "unknown": {}}, user=None)
    assert [each["status"] for each in answer.json["responses"]] == ["OK"]


@pytest.mark.parametrize(
    ("body", "fault"),
    [
        (["x"], "body: must be a JSON object"),
        ({}, "heartbeats: is required"),
        ({"heartbeats": None}, "heartbeats: must be a list"),
        ({"heartbeats": {}}, "heartbeats: must be a list"),
        ({"heartbeats": "x"}, "heartbeats: must be a list"),
        ({"heartbeats": []}, "heartbeats: must not be empty"),
        ({"heartbeats": [0] * 257}, "heartbeats: must have at most 256 entries"),
        (listed(beat("a"), beat("b"), beat("a", requestId="2")), "heartbeats[2].memberId: is given twice"),
        (listed({"memberId": "a"}, beat("a")), "heartbeats[1].memberId: is given twice"),
    ],
)
def test_what_is_no_such_list_is_a_400_that_names_the_field_and_serves_nobody(world: Face, body: object, fault: str) -> None:
    answer = world.ask("POST", PATH, body, user=None)
    assert error_of(answer) == (400, "INVALID_REQUEST")
    assert answer.json["details"] == [fault]
    assert world.ask("GET", "/monitoring/streams/orders/groups/g/members").json["members"] == []


@pytest.mark.parametrize("item", [b"{", b'"\\ud800"', b"01", b"[" * 20_000 + b"]" * 20_000])
def test_an_item_that_is_no_json_leaves_no_list(still: Face, item: bytes) -> None:
    answer = still.ask("POST", PATH, raw=b'{"heartbeats":[' + json.dumps(beat("a")).encode() + b"," + item + b"]}", user=None)
    assert error_of(answer) == (400, "INVALID_REQUEST")
    assert answer.json["details"][0].startswith("body: ")


def test_a_list_has_at_most_256_items(world: Face) -> None:
    """The most that fits is served; what does not fit the schema counts too."""
    told = send(world, *[0] * 255, beat("a"))
    assert [each["status"] for each in told] == ["INVALID_REQUEST"] * 255 + ["OK"]


def test_bad_items_are_told_to_the_log_once_a_request(world: Face, capsys: pytest.CaptureFixture[str]) -> None:
    """Their answers have no place for a reason, and strangers must not be able to fill the log."""
    send(world, beat("a"), beat("b", ownedShards=[{"shardIndex": 99_999}]), *[0] * 200)
    said = [line for line in capsys.readouterr().out.splitlines() if "do not fit" in line]
    assert len(said) == 1
    assert "heartbeats[1].ownedShards[0].shardIndex: must be from 0 to 16384" in said[0]
    assert "201" in said[0]  # as text or as JSON, whichever a test before this one chose


def test_with_the_store_away_each_is_told_to_retry(world: Face) -> None:
    told = send(world, beat("a"), beat("b"))
    world.store.fault = StoreUnavailable("it is away")
    again = send(world, *(beat(each["memberId"], memberEpoch=each["memberEpoch"]) for each in told), 0)
    assert [each["status"] for each in again] == ["RETRY", "RETRY", "INVALID_REQUEST"]
    assert [each["memberEpoch"] for each in again[:2]] == [each["memberEpoch"] for each in told]


def test_a_list_may_bring_a_group_into_being(world: Face) -> None:
    answer = world.ask("POST", "/streams/orders/groups/new/heartbeats", listed(beat("a"), beat("b")), user=None)
    assert [each["status"] for each in answer.json["responses"]] == ["OK", "OK"]
    assert world.ask("GET", "/monitoring/streams/orders/groups/new").json["activeMembers"] == 2


def test_an_answer_fits_its_description(world: Face) -> None:
    document = description(BASE)
    schema = {"$ref": "#/components/schemas/HeartbeatsResponse", "components": document["components"]}
    answer = world.ask("POST", PATH, listed(beat("a"), 0, beat("b")), user=None)
    jsonschema.validate(answer.json, schema)
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate({"responses": [{}]}, schema)


@pytest.mark.parametrize(
    ("user", "stream", "status"),
    [
        (None, "orders", falcon.HTTP_401),
        ("reader", "orders", falcon.HTTP_403),
        ("nobody", "orders", falcon.HTTP_403),
        ("member", "orders", falcon.HTTP_200),
        ("scoped", "payments", falcon.HTTP_403),
    ],
)
def test_where_members_authenticate_a_list_needs_member(tmp_path: Path, user: str | None, stream: str, status: str) -> None:
    guarded = make_face(configuration(tmp_path, members_authenticate=True))
    guarded.make_stream()
    for path in (f"/streams/{stream}/groups/g/heartbeats", f"/streams/{stream}/groups/g/members/a/heartbeat"):
        body = listed(beat("a")) if path.endswith("s") else beat("a")
        answer = guarded.ask("POST", path, body, user=None, headers=basic(user) if user else {})
        assert answer.status == status, path


# -- over real gunicorn and a real Redis


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    with serving(tmp_path_factory.mktemp("served"), "--embedded-redis", "--workers", "2") as running:
        create = {"initialShardCount": 4, "requestedBy": "tester", "reason": "a test"}
        assert running.ask("POST", f"{BASE}/streams/orders", create).status == 201
        yield running


@pytest.mark.e2e
def test_members_of_one_process_share_a_request_to_a_real_server(served: Served) -> None:
    """Without credentials, over two workers: they converge, and the bad item among them keeps nobody from it."""
    names = [f"m{index}" for index in range(4)]
    bodies = {name: beat(name) for name in names}
    owned: dict[str, list[int]] = {}
    for _ in range(6):
        answer = served.ask("POST", BASE + PATH, listed(0, *bodies.values()), credentials=False)
        assert answer.status == 200, answer.body
        assert int(answer.headers["x-store-revision"]) > 0
        bad, *told = answer.json["responses"]
        assert [bad["status"], *(each["status"] for each in told)] == ["INVALID_REQUEST", *["OK"] * 4]
        for name, each in zip(names, told, strict=True):
            assigned = each["assignment"]["assignedShards"]
            owned[name] = [shard["shardIndex"] for shard in assigned]
            bodies[name] = beat(
                name, memberEpoch=each["memberEpoch"], metadataVersion=each["metadataVersion"], ownedShards=assigned
            )
    assert sorted(owned.values()) == [[0], [1], [2], [3]]
    assert served.ask("POST", BASE + PATH, listed()).code == (400, "INVALID_REQUEST")
    assert served.ask("GET", BASE + PATH).code == (405, "METHOD_NOT_ALLOWED")
    assert served.ask("OPTIONS", BASE + PATH).headers["allow"] == "OPTIONS, POST"
