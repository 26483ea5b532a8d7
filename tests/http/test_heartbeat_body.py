"""Heartbeats: what a body means, what fits the schema, and that every answer has every field."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest

from coord import wire
from coord.http.resources.heartbeat import command_of, report_of
from tests.http.face import Face, error_of, heartbeat

PATH = "/streams/orders/groups/g/members/m/heartbeat"
CAPACITY = {"runtimeMaxConcurrency": 4, "availableConcurrency": 4}


def shards(*indices: int) -> list[dict[str, int]]:
    return [{"shardIndex": index} for index in indices]


def revoking(index: int, state: str, in_flight: int = 0) -> dict[str, Any]:
    return {"shard": {"shardIndex": index}, "state": state, "inFlight": in_flight}


def request_of(body: dict[str, Any]) -> wire.HeartbeatRequest:
    return msgspec.convert(body, wire.HeartbeatRequest)


def test_owned_draining_and_revoked_are_told_apart() -> None:
    """Only REVOKED with nothing in flight is given up; duplicates collapse, and the careful one of two counts."""
    body = heartbeat(
        ownedShards=shards(3, 1, 3),
        revokingShards=[
            revoking(4, "REVOKING"),
            revoking(5, "DRAINING", 2),
            revoking(6, "REVOKED"),
            revoking(7, "REVOKED", 1),
            revoking(8, "REVOKED"),
            revoking(8, "REVOKED"),
            revoking(9, "REVOKED"),
            revoking(9, "REVOKED", 3),
        ],
    )
    command = command_of(request_of(body), "m")
    assert command.owned == frozenset({1, 3})
    assert command.draining == frozenset({4, 5, 7, 9})
    assert command.revoked == frozenset({6, 8})


def test_the_soft_report_is_json_with_one_entry_a_shard() -> None:
    progress = [
        {"shard": {"shardIndex": 2}, "lastAckedId": "1-0"},
        {"shard": {"shardIndex": 0}, "pendingCount": 3},
        {"shard": {"shardIndex": 2}, "lastAckedId": "2-0"},
    ]
    report = json.loads(report_of(request_of(heartbeat(shardProgress=progress))))
    assert report["availableConcurrency"] == 4
    assert [(each["shard"]["shardIndex"], each["lastAckedId"], each["pendingCount"]) for each in report["shardProgress"]] == [
        (0, None, 3),
        (2, "2-0", None),
    ]


def test_a_member_joins_and_its_report_is_shown(world: Face) -> None:
    joined = world.ask("POST", PATH, heartbeat(), user=None)
    assert int(joined.headers["x-store-revision"]) >= 1
    epoch = joined.json["memberEpoch"]
    progress = [
        {"shard": {"shardIndex": 1}, "streamKey": "orders:1", "lastDeliveredId": "5-0", "lastAckedId": "4-0", "pendingCount": 1}
    ]
    body = heartbeat(requestId="r-2", memberEpoch=epoch, ownedShards=shards(0, 1, 2, 3), shardProgress=progress)
    body["metadataVersion"] = joined.json["metadataVersion"]
    assert world.ask("POST", PATH, body, user=None).json["status"] == "OK"
    rows = world.ask("GET", "/monitoring/streams/orders/groups/g/consumption").json["progress"]
    assert [(row["shard"]["shardIndex"], row["lastDeliveredId"], row["pendingCount"]) for row in rows] == [(1, "5-0", 1)]
    member = world.ask("GET", "/monitoring/streams/orders/groups/g/members").json["members"][0]
    assert member["activeConsumerWorkers"] == 0
    assert member["runtimeMaxConcurrency"] == 4


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        (PATH, heartbeat(), "OK"),
        (PATH, heartbeat(memberName=None, ownedShards=None, revokingShards=None, shardProgress=None), "OK"),
        (PATH, heartbeat(memberName="A name", unknown={"a": 1}), "OK"),
        (PATH, heartbeat(protocolVersion=2), "UNSUPPORTED_PROTOCOL"),
        (PATH, heartbeat(protocolVersion=2**53 - 1), "UNSUPPORTED_PROTOCOL"),
        (PATH, heartbeat(memberId="other"), "INVALID_REQUEST"),
        (PATH, heartbeat(memberEpoch=-2), "INVALID_REQUEST"),
        (PATH, heartbeat(memberEpoch=-(2**53 - 1)), "INVALID_REQUEST"),
        (PATH, heartbeat(memberEpoch=5), "UNKNOWN_MEMBER_ID"),
        (PATH, heartbeat(memberEpoch=-1), "UNKNOWN_MEMBER_ID"),
        ("/streams/orders/groups/new/members/m/heartbeat", heartbeat(), "OK"),
        ("/streams/none/groups/g/members/m/heartbeat", heartbeat(), "UNKNOWN_MEMBER_ID"),
        ("/streams/orders/groups/g/members/pod:1%20x%E5%90%8D/heartbeat", heartbeat(memberId="pod:1 x名"), "OK"),
    ],
)
def test_a_heartbeat_that_fits_the_schema_is_a_200_with_every_field(
    world: Face, path: str, body: dict[str, Any], status: str
) -> None:
    answer = world.ask("POST", path, body, user=None)
    assert (answer.status_code, answer.json["status"]) == (200, status), answer.text
    told = answer.json
    fields = {field.encode_name for field in msgspec.structs.fields(wire.HeartbeatResponse)}
    assert set(told) == fields
    assert None not in told.values()
    assert set(told["assignment"]) == {"assignedShards", "pendingShards", "metadataVersion"}
    assert (told["responseTo"], told["memberId"]) == (body["requestId"], body["memberId"])
    if status != "OK":
        assert told["memberEpoch"] == body["memberEpoch"]


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"protocolVersion": 0}, "protocolVersion"),
        ({"requestId": ""}, "requestId"),
        ({"requestId": "x" * 256}, "requestId"),
        ({"memberId": "a/b"}, "memberId"),
        ({"memberId": "a{b"}, "memberId"),
        ({"memberName": ""}, "memberName"),
        ({"memberName": "a\x00b"}, "memberName"),
        ({"memberEpoch": 2**53}, "memberEpoch"),
        ({"memberEpoch": -(2**53)}, "memberEpoch"),
        ({"metadataVersion": -2}, "metadataVersion"),
        ({"runtimeConsumerCapacity": {**CAPACITY, "runtimeMaxConcurrency": 0}}, "runtimeConsumerCapacity.runtimeMaxConcurrency"),
        ({"runtimeConsumerCapacity": {**CAPACITY, "availableConcurrency": -1}}, "runtimeConsumerCapacity.availableConcurrency"),
        ({"runtimeConsumerCapacity": {"availableConcurrency": 1}}, "runtimeConsumerCapacity.runtimeMaxConcurrency"),
        ({"ownedShards": {}}, "ownedShards"),
        ({"ownedShards": [1]}, "ownedShards[0]"),
        ({"ownedShards": [{"shardIndex": 0}, {"shardIndex": -1}]}, "ownedShards[1].shardIndex"),
        ({"ownedShards": [{"shardIndex": True}]}, "ownedShards[0].shardIndex"),
        ({"ownedShards": [{"shardIndex": 16_385}]}, "ownedShards[0].shardIndex"),
        ({"ownedShards": [None]}, "ownedShards[0]"),
        ({"revokingShards": [{"shard": {"shardIndex": 1}, "state": "GONE"}]}, "revokingShards[0].state"),
        ({"revokingShards": [{"shard": {"shardIndex": 1}, "state": True}]}, "revokingShards[0].state"),
        ({"revokingShards": [{"state": "REVOKED"}]}, "revokingShards[0].shard"),
        ({"revokingShards": [revoking(1, "REVOKED", -1)]}, "revokingShards[0].inFlight"),
        ({"revokingShards": [{**revoking(1, "REVOKED"), "ackedAt": "a\x00"}]}, "revokingShards[0].ackedAt"),
        ({"revokingShards": [revoking(1, "REVOKED"), revoking(1, "DRAINING")]}, "revokingShards[1].state"),
        ({"shardProgress": [{"shard": {"shardIndex": 1}, "pendingCount": 1.5}]}, "shardProgress[0].pendingCount"),
        ({"shardProgress": [{"shard": {"shardIndex": 1}, "lastAckedId": "x" * 65}]}, "shardProgress[0].lastAckedId"),
        ({"shardProgress": [{"shard": {"shardIndex": 1}, "streamKey": "a\x1b[2J"}]}, "shardProgress[0].streamKey"),
    ],
)
def test_a_body_that_does_not_fit_is_a_400_that_names_the_place(still: Face, changes: dict[str, Any], field: str) -> None:
    answer = still.ask("POST", PATH, heartbeat(**changes), user=None)
    assert error_of(answer) == (400, "INVALID_REQUEST")
    assert [detail.partition(":")[0] for detail in answer.json["details"]] == [field]


HARD_TEXTS = ["a\x7f", "a\x00", "a\n", "a\x85", "\u2028", "名", "a/b", "a\\b", 'a"b', " a", "a", "..", "{}", "\x1f", "x" * 64]


@pytest.mark.parametrize("escaped", [True, False], ids=["escaped", "raw"])
@pytest.mark.parametrize("text", HARD_TEXTS)
def test_texts_are_judged_alike_however_the_body_spells_them(text: str, escaped: bool) -> None:
    """A plain body takes a shorter way to the same judgement, field by field."""
    from coord.http.inputs import decoded
    from coord.http.validation import faults_of

    progress = {"shard": {"shardIndex": 1}, **dict.fromkeys(("streamKey", "lastDeliveredId", "updatedAt"), text)}
    body = heartbeat(requestId=text, memberId=text, memberName=text, shardProgress=[progress])
    body["revokingShards"] = [{**revoking(1, "REVOKED"), "ackedAt": text}]
    _, wrong = decoded(json.dumps(body, ensure_ascii=escaped).encode(), wire.HeartbeatRequest)
    assert sorted(wrong) == sorted(faults_of(body, wire.HeartbeatRequest))


@pytest.mark.parametrize("control", [bytes([code]) for code in range(0x20)])
def test_a_control_character_that_is_not_escaped_is_no_json(control: bytes) -> None:
    """The shorter way rests on this."""
    with pytest.raises(msgspec.DecodeError):
        msgspec.json.decode(b'"a' + control + b'"')


def test_a_list_has_at_most_16384_entries_and_a_long_list_of_faults_is_cut(tmp_path_factory: pytest.TempPathFactory) -> None:
    from coord.http.inputs import decoded

    for count, fine in ((16_384, True), (16_385, False)):
        body = json.dumps(heartbeat(ownedShards=shards(*[7] * count))).encode()
        value, wrong = decoded(body, wire.HeartbeatRequest)
        assert (value is not None, wrong) == (fine, [] if fine else ["ownedShards: must have at most 16384 entries"])
    body = json.dumps(heartbeat(ownedShards=[{}] * 1000)).encode()
    value, wrong = decoded(body, wire.HeartbeatRequest)
    assert value is None
    assert len(wrong) == 51
