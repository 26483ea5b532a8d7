"""Heartbeats that one thread answers in one go: no answer leaves before the store has confirmed what it rests on."""

from __future__ import annotations

import json
import socket
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest
from falcon import testing

from coord.http.engines.connections import HELD_BYTES_MAX, Output
from coord.http.together import FORESEEING, Declined, Foreseeing, confirmed, is_heartbeat
from coord.names import AggregateKey, GroupKey
from coord.store.base import Head, Loaded, StoreUnavailable, Tail
from tests.http.face import Face, basic, configuration, heartbeat, make_face

PATH = "/streams/orders/groups"
KEY = GroupKey("orders", "g")


class Together:
    """Requests to one app that are answered together."""

    def __init__(self, face: Face) -> None:
        self.face = face
        self.requests: list[Foreseeing] = []

    def beat(
        self,
        member: str,
        *,
        group: str = "g",
        again: Foreseeing | None = None,
        headers: Mapping[str, str] = MappingProxyType({}),
        **changes: Any,
    ) -> dict[str, Any]:
        """Run one heartbeat up to its answer. Raises Declined."""
        request = again or Foreseeing()
        body = json.dumps(heartbeat(memberId=member, **changes))
        path = f"{PATH}/{group}/members/{member}/heartbeat"
        environ = testing.create_environ(
            "/coord/v1" + path, method="POST", body=body, headers={"Content-Type": "application/json", **headers}
        )
        environ[FORESEEING] = request
        answer = b"".join(self.face.app(environ, testing.StartResponseMock()))
        if again is None:
            self.requests.append(request)
        told: dict[str, Any] = json.loads(answer)
        return told

    def confirmed(self) -> list[bool]:
        return confirmed(self.requests)


def steady(face: Face, member: str, *, group: str = "g", user: str = "writer") -> Mapping[str, Any]:
    """Let a member join and settle; gives what it says from then on."""
    path = f"{PATH}/{group}/members/{member}/heartbeat"
    says: dict[str, Any] = {}
    for _ in range(4):
        told = face.ask("POST", path, heartbeat(memberId=member, **says), user=user).json
        says = {
            "memberEpoch": told["memberEpoch"],
            "metadataVersion": told["metadataVersion"],
            "ownedShards": told["assignment"]["assignedShards"],
        }
    return says


@pytest.fixture
def touches(world: Face, monkeypatch: pytest.MonkeyPatch) -> list[tuple[str, ...]]:
    """Whose leases were renewed, touch by touch."""
    seen: list[tuple[str, ...]] = []
    real = world.store.touch

    def touch(wanted: Any) -> Any:
        seen.append(wanted.renew)
        return real(wanted)

    monkeypatch.setattr(world.store, "touch", touch)
    return seen


def test_what_changes_nothing_is_answered_as_ever_and_confirmed_by_one_touch(world: Face, touches: list[tuple[str, ...]]) -> None:
    says = steady(world, "m")
    alone = world.ask("POST", f"{PATH}/g/members/m/heartbeat", heartbeat(**says)).json
    touches.clear()
    together = Together(world)
    assert together.beat("m", **says) == alone
    assert together.beat("m", **says) == alone
    assert touches == [], "not asked yet"
    assert together.confirmed() == [True, True]
    assert touches == [("m", "m")]


def test_what_changes_something_or_is_new_is_declined(world: Face, touches: list[tuple[str, ...]]) -> None:
    together = Together(world)
    with pytest.raises(Declined):
        together.beat("m")
    says = steady(world, "m")
    touches.clear()
    revision = world.store.load(KEY).head.revision
    for changes in ({"memberEpoch": -1}, {"memberEpoch": 0}):
        with pytest.raises(Declined):
            together.beat("m", **{**says, **changes})
    assert (touches, world.store.load(KEY).head.revision) == ([], revision)


def test_a_group_that_changes_in_between_is_not_confirmed(world: Face) -> None:
    """Each group by itself: what rests on the other one holds."""
    says, others = steady(world, "m"), steady(world, "n", group="g2")
    together = Together(world)
    together.beat("m", **says)
    together.beat("n", group="g2", **others)
    world.ask("POST", f"{PATH}/g/members/new/heartbeat", heartbeat(memberId="new"))
    assert together.confirmed() == [False, True]
    assert together.requests[0].failure is None


def test_a_group_that_has_moved_is_read_once_for_all(world: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    says = steady(world, "m")
    reads: list[object] = []
    real = world.store.catch_up

    def catch_up(key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        reads.append(key)
        return real(key, seen=seen, limit=limit)

    monkeypatch.setattr(world.store, "catch_up", catch_up)
    together = Together(world)
    for _ in range(3):
        together.beat("m", **says)
    touch = world.store.touch
    monkeypatch.setattr(world.store, "touch", lambda wanted: replace(touch(wanted), current=False))
    assert together.confirmed() == [False, False, False]
    monkeypatch.setattr(world.store, "touch", touch)
    together = Together(world)
    for _ in range(3):
        assert together.beat("m", **says)["status"] == "OK"
    assert reads == [KEY]
    assert together.confirmed() == [True, True, True]


def test_a_store_that_hangs_is_waited_for_by_nobody_who_is_only_looked_at(world: Face) -> None:
    """Where nothing is cached, each would wait its whole time, one after another."""
    says = steady(world, "m")
    world.services.executor.aggregates.forget(KEY)
    world.store.fault = AssertionError("the store was asked")
    for epoch in (says["memberEpoch"], 0):
        with pytest.raises(Declined):
            Together(world).beat("m", **{**says, "memberEpoch": epoch})


def test_a_store_that_is_away_is_asked_once_and_told_by_the_answer(world: Face, touches: list[tuple[str, ...]]) -> None:
    says = steady(world, "m")
    together = Together(world)
    together.beat("m", **says)
    world.store.fault = StoreUnavailable("away")
    touches.clear()
    assert together.confirmed() == [False]
    again = together.beat("m", again=together.requests[0], **says)
    assert (again["status"], again["memberEpoch"], len(touches)) == ("RETRY", says["memberEpoch"], 1)


def test_who_terminates_foresees_nothing(world: Face) -> None:
    says = steady(world, "m")
    world.services.terminating = True
    with pytest.raises(Declined):
        Together(world).beat("m", **says)


def test_a_password_that_is_not_remembered_is_verified_by_a_thread_of_its_own(tmp_path: Path) -> None:
    face = make_face(configuration(tmp_path, members_authenticate=True))
    face.make_stream()
    face.make_group()
    with pytest.raises(Declined):
        Together(face).beat("m", headers=basic("member"))
    says = steady(face, "m", user="member")
    together = Together(face)
    assert together.beat("m", headers=basic("member"), **says)["status"] == "OK"
    assert together.beat("m", **says)["errorCode"] == "UNAUTHORIZED"
    assert together.confirmed() == [True, True]


def test_an_answer_that_rests_on_nothing_needs_no_confirmation(world: Face) -> None:
    together = Together(world)
    assert together.beat("m", protocolVersion="one")["errorCode"] == "INVALID_REQUEST"
    assert together.confirmed() == [True]


@pytest.mark.parametrize(
    ("request_line", "expected"),
    [
        (b"POST /coord/v1/streams/a/groups/b/members/c/heartbeat HTTP/1.1\r\n", True),
        (b"GET /coord/v1/streams/a/groups/b/members/c/heartbeat HTTP/1.1\r\n", False),
        (b"POST /coord/v1/streams/a/groups/b/heartbeats HTTP/1.1\r\n", False),
        (b"POST /coord/v1/login HTTP/1.1\r\nX: /heartbeat HTTP/1.1\r\n", False),
        (b"POST /heartbeat HTTP/1.1", False),
    ],
)
def test_a_heartbeat_is_known_by_its_first_line(request_line: bytes, expected: bool) -> None:
    assert is_heartbeat(request_line) is expected


def test_no_answer_is_too_long_to_be_kept_back() -> None:
    """What is sent in parts, for want of room, would leave before it is confirmed."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.setblocking(False)
        output = Output(ours, seconds=5)
        output.foreseeing = Foreseeing()
        output.sendall(b"x" * (HELD_BYTES_MAX + 1))
        with pytest.raises(BlockingIOError):
            theirs.recv(1)
        output.discard()
        output.foreseeing = None
        output.sendall(b"y")
        output.flush()
        assert theirs.recv(9) == b"y"
