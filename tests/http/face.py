"""The HTTP face around a memory store, and what a caller needs to talk to it."""

from __future__ import annotations

import base64
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import falcon
from falcon import testing

from coord.bootstrap import Services, wire
from coord.config import Configuration, load
from coord.http.app import create_app
from coord.http.request import ApiRequest
from coord.names import AggregateKey
from coord.store.base import Commit, Committed, Conflict, Head, Loaded, Tail, Touch, Touched
from coord.store.memory import MemoryStore

BASE = "/coord/v1"
SECRET = "a secret of the tests, long enough to sign tokens with"
OLD_SECRET = "the secret before it, which still verifies old tokens"
PASSWORDS = {
    "writer": "w-pass",
    "reader": "r-pass",
    "member": "m-pass",
    "legacy": "l-pass",
    "monitor": "o-pass",
    "nobody": "n-pass",
    "scoped": "s-pass",
}
USERS = """
coordinator:
  api:
    token-secret: "{secret}"
    previous-token-secrets: ["{old}"]
    authenticate-member-api: {members}
    max-body-bytes: 65536
    users:
      - {{username: writer, password: w-pass, roles: [WRITE]}}
      - {{username: reader, password: r-pass, roles: [READ]}}
      - {{username: member, password: m-pass, roles: [MEMBER]}}
      - {{username: legacy, password: l-pass, roles: [ADMIN]}}
      - {{username: monitor, password: o-pass, roles: [MONITOR]}}
      - {{username: nobody, password: n-pass, roles: []}}
      - {{username: scoped, password: s-pass, roles: [ADMIN], streams: ["orders*", "exact"]}}
      - {{username: blank, password: "   ", roles: [ADMIN]}}
"""


def configuration(folder: Path, *, members_authenticate: bool = False, text: str | None = None) -> Configuration:
    """Load a configuration with one user a role, around a memory store."""
    file = folder / "coordinator.yaml"
    members = str(members_authenticate).lower()
    file.write_text(text or USERS.format(secret=SECRET, old=OLD_SECRET, members=members), encoding="utf-8")
    overrides = {"store.type": "memory", "server.workers": 1}
    return load(file, overrides=overrides, environ={}, secrets_directory=folder / "no-secrets")


def basic(username: str, password: str | None = None) -> dict[str, str]:
    """Give the Basic header of a user."""
    pair = f"{username}:{PASSWORDS[username] if password is None else password}"
    return {"Authorization": "Basic " + base64.b64encode(pair.encode()).decode()}


@dataclass
class Face:
    """An app in this process, around a store that can be made to fail."""

    services: Services
    app: falcon.App[ApiRequest, falcon.Response]
    store: FaultyStore

    @property
    def client(self) -> testing.TestClient:
        return testing.TestClient(self.app)

    def ask(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        user: str | None = "writer",
        headers: Mapping[str, str] | None = None,
        raw: bytes | None = None,
        query: str | None = None,
        address: str | None = None,
    ) -> testing.Result:
        """Send one request; `path` below the base path unless it starts with two slashes. `address`: of who sends it."""
        whole = path[1:] if path.startswith("//") else BASE + path
        sent = {**(basic(user) if user else {}), **(headers or {})}
        if raw is not None:
            sent.setdefault("Content-Type", "application/json")
            sent_body: dict[str, Any] = {"body": raw}
        else:
            sent_body = {} if body is None else {"json": body}
        return self.client.simulate_request(method, whole, headers=sent, query_string=query, remote_addr=address, **sent_body)

    def make_stream(self, stream_prefix: str = "orders", shards: int = 4) -> None:
        made = self.ask("POST", f"/streams/{stream_prefix}", {"initialShardCount": shards, "requestedBy": "test"})
        assert made.status_code == 201, made.text

    def make_group(self, stream_prefix: str = "orders", group: str = "g", shards: int = 4) -> None:
        made = self.ask("POST", f"/streams/{stream_prefix}/groups/{group}", {"initialShardCount": shards, "requestedBy": "test"})
        assert made.status_code == 201, made.text

    def scale(self, count: int, stream_prefix: str = "orders") -> str:
        """Start a resharding and give its id."""
        body = {"targetShardCount": count, "requestedBy": "test", "reason": "test"}
        scaled = self.ask("POST", f"/streams/{stream_prefix}/scale", body)
        assert scaled.status_code == 202, scaled.text
        listed = self.ask("GET", f"/monitoring/streams/{stream_prefix}/migrations").json
        return str(listed["migrations"][-1]["reshardingId"])


class FaultyStore(MemoryStore):
    """A memory store that raises `fault`, once that is set, from whatever reads or writes an aggregate or the index."""

    fault: Exception | None = None

    def load(self, key: AggregateKey) -> Loaded:
        self._fail()
        return super().load(key)

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        self._fail()
        return super().catch_up(key, seen=seen, limit=limit)

    def streams(self) -> Sequence[str]:
        self._fail()
        return super().streams()

    def last_tick(self) -> tuple[int, int]:
        self._fail()
        return super().last_tick()

    def touch(self, touch: Touch) -> Touched:
        self._fail()
        return super().touch(touch)

    def commit(self, commit: Commit) -> Committed | Conflict:
        self._fail()
        return super().commit(commit)

    def _fail(self) -> None:
        if self.fault is not None:
            raise self.fault


def make_face(config: Configuration) -> Face:
    """Wire an app around a fresh memory store whose clock stands still."""
    store = FaultyStore(lambda: 1_700_000_000_000, identity="memory-of-tests")
    services = wire(config, store, None)
    return Face(services=services, app=create_app(services), store=store)


def heartbeat(**changes: Any) -> dict[str, Any]:
    """Give the body of a joining heartbeat of member `m`, with changes; a change to `...` leaves the field out."""
    body = {
        "protocolVersion": 1,
        "requestId": "r-1",
        "memberId": "m",
        "memberEpoch": 0,
        "metadataVersion": 0,
        "runtimeConsumerCapacity": {"runtimeMaxConcurrency": 4, "availableConcurrency": 4},
        **changes,
    }
    return {name: value for name, value in body.items() if value is not ...}


def error_of(result: testing.Result) -> tuple[int, str]:
    """Give status and code, having held the body to its shape."""
    body = result.json
    assert result.headers["content-type"] == "application/json"
    assert set(body) == {"status", "errorCode", "message", "requestId", "details"}
    assert body["requestId"] == result.headers["x-request-id"]
    assert isinstance(body["message"], str)
    assert body["message"]
    return result.status_code, body["errorCode"]
