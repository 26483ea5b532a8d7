"""Names as they stand in a path, in the place of a stream, a group and a member; the same for an app and for a real server."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from tests.http.face import heartbeat

LEGAL: Final = {"a%252Fb": "a%2Fb", "pod:1": "pod:1", "a%20b": "a b", "%E5%90%8D": "名", ";x=1": ";x=1", "x" * 255: "x" * 255}
"""As written in the path: as it is named."""
ILLEGAL: Final = ("a%2Fb", ".", "..", "%2e%2e", "%00", "x" * 1000, "", "a%2Fheartbeat")
WHO: Final = {"requestedBy": "tester", "reason": "a test"}
Ask = Callable[[str, str, object], tuple[int, Any]]
"""Method, path below the base path, body: status and body of the answer."""


def legal_names_round_trip(ask: Ask, written: str, name: str) -> None:
    """A stream, a group and a member of that name are made, shown under just that name, and removed."""
    group = f"/streams/{written}/groups/{written}"
    assert ask("POST", f"/streams/{written}", {"initialShardCount": 2, **WHO})[0] == 201
    assert ask("POST", group, {"initialShardCount": 2, **WHO})[0] == 201
    status, told = ask("POST", f"{group}/members/{written}/heartbeat", heartbeat(memberId=name))
    assert (status, told["status"], told["memberId"]) == (200, "OK", name)
    members = ask("GET", f"/monitoring{group}/members", None)[1]["members"]
    assert [member["memberId"] for member in members] == [name]
    told = ask("GET", f"/monitoring/streams/{written}", None)[1]
    assert (told["streamPrefix"], told["consumerGroups"]) == (name, [name])
    told = ask("GET", group, None)[1]
    assert (told["streamPrefix"], told["consumerGroup"], list(told["targetAssignmentSummary"])) == (name, name, [name])
    assert ask("DELETE", group, {**WHO, "force": True})[0] == 200
    assert ask("DELETE", f"/streams/{written}", WHO)[0] == 200


def illegal_names_reach_nothing(ask: Ask, written: str, *, shows_raw_path: bool = True) -> None:
    """In every place 400; 404 behind a slash at the end, and where the server shows no raw path. Nothing comes of it."""
    refused, nowhere = (400, "INVALID_REQUEST"), (404, "NOT_FOUND")
    lost = {nowhere, (405, "METHOD_NOT_ALLOWED")}
    body = {"initialShardCount": 2, **WHO}
    before = ask("GET", "/monitoring/groups", None)
    for method, path, sent in (
        ("POST", f"/streams/{written}", body),
        ("POST", f"/streams/{written}/groups/g", body),
        ("GET", f"/streams/{written}/producer-routing", None),
        ("POST", f"/streams/orders/groups/{written}", body),
        ("DELETE", f"/streams/orders/groups/{written}", WHO),
        ("GET", f"/monitoring/streams/orders/groups/{written}/members", None),
        ("POST", f"/streams/orders/groups/g/members/{written}/heartbeat", heartbeat()),
    ):
        status, told = ask(method, path, sent)
        expected = {nowhere} if path.endswith("/") else {refused}
        assert (status, told["errorCode"]) in expected | (set() if shows_raw_path else lost), (method, path)
    assert ask("GET", "/monitoring/groups", None) == before
