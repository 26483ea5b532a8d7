"""A coordinator made of a real socket server and a script, and a small group that answers as the protocol says."""

from __future__ import annotations

import json
import socket
import struct
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, TypeAlias

BASE_PATH = "/coord/v1"


@dataclass
class Call:
    """One request as it came in; `at` is monotonic seconds."""

    method: str
    path: str
    headers: dict[str, str]
    body: dict[str, Any]
    at: float


@dataclass
class Reply:
    """What the server does with a request."""

    body: Any = None
    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    raw: bytes | None = None
    """Sent instead of the JSON body."""
    delay_s: float = 0.0
    reset: bool = False
    cut_at: int | None = None
    """Announce the whole body, send so many bytes of it, close."""


Script: TypeAlias = Callable[[Call], Reply]


class ScriptedCoordinator:
    """Serves whatever its script says, and remembers the calls."""

    def __init__(self, script: Script | None = None) -> None:
        self.script = script or (lambda _call: Reply(status=503))
        self.calls: list[Call] = []
        self.released = threading.Event()
        outer = self

        class _Server(ThreadingHTTPServer):
            daemon_threads = True
            block_on_close = False

            def handle_error(self, request: object, client_address: object) -> None:
                """A client that went away is part of many scripts."""

        class _Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002  the base's name
                """Stay silent."""

            def do_GET(self) -> None:
                self._serve()

            def do_POST(self) -> None:
                self._serve()

            def _serve(self) -> None:
                data = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                headers = {k.lower(): v for k, v in self.headers.items()}
                call = Call(self.command, self.path, headers, json.loads(data) if data else {}, time.monotonic())
                outer.calls.append(call)
                reply = outer.script(call)
                outer.released.wait(reply.delay_s)
                if reply.reset:
                    self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                    self.close_connection = True
                    self.connection.close()
                    return
                content = reply.raw if reply.raw is not None else json.dumps(reply.body).encode()
                self.send_response(reply.status)
                for name, value in reply.headers.items():
                    self.send_header(name, value)
                self.send_header("Content-Length", str(len(content) if reply.status != 304 else 0))
                self.end_headers()
                if reply.status != 304:
                    self.wfile.write(content if reply.cut_at is None else content[: reply.cut_at])
                if reply.cut_at is not None:
                    self.close_connection = True

        self._server = _Server(("127.0.0.1", 0), _Handler)
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}{BASE_PATH}"
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
        self._thread.start()

    def heartbeats(self) -> list[Call]:
        """The heartbeats so far, those in lists each for itself."""
        return [each for c in self.calls for each in alone(c)]

    def lists(self) -> list[Call]:
        """The lists of heartbeats so far."""
        return [c for c in self.calls if c.path.endswith("/heartbeats")]

    def close(self) -> None:
        """Stop serving; delayed answers are let go."""
        self.released.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


def alone(call: Call) -> list[Call]:
    """Give the heartbeats of a request, a list's as if each had come alone."""
    if call.path.endswith("/heartbeat"):
        return [call]
    items = call.body["heartbeats"] if call.path.endswith("/heartbeats") else []
    return [replace(call, path=f"{call.path[:-1]} of a list", body=item) for item in items]


def answer_each(call: Call, of: Script) -> Reply:
    """Answer a list by what `of` answers each."""
    return Reply({"responses": [of(each).body for each in alone(call)]})


def answer(call: Call, *, status: str = "OK", epoch: int = 1, assigned: list[int] | None = None, **other: Any) -> Reply:
    """A well-formed heartbeat answer to a call."""
    shards = [{"shardIndex": i} for i in assigned or []]
    version = other.pop("metadataVersion", 1)
    return Reply(
        {
            "responseTo": call.body["requestId"],
            "status": status,
            "memberId": call.body["memberId"],
            "memberEpoch": epoch,
            "heartbeatIntervalMs": 100,
            "rebalanceTimeoutMs": 3000,
            "groupEpoch": 1,
            "assignmentEpoch": 1,
            "metadataVersion": version,
            "memberLeaseTtlMs": 1000,
            "assignment": {"assignedShards": shards, "pendingShards": [], "metadataVersion": version},
            **other,
        }
    )


class SmallGroup:
    """Members, who is to own what, and revoke before assign: enough of a coordinator to drive clients against.

    The test says who shall own a shard (`give`); it goes to its new owner when the old one's report, leave or lapse
    frees it.
    """

    def __init__(self, *, interval_ms: int = 100, lease_ms: int = 1000, rebalance_ms: int = 4000) -> None:
        self.times: dict[str, Any] = {"heartbeatIntervalMs": interval_ms, "rebalanceTimeoutMs": rebalance_ms}
        self.set_lease(lease_ms)
        self.target: dict[int, str] = {}
        self.holder: dict[int, str] = {}
        self.granted_at: dict[int, float] = {}
        self.leases: dict[str, float] = {}
        self.left: set[str] = set()
        self.refused: set[str] = set()
        self.progress: dict[str, list[dict[str, Any]]] = {}
        self.fail: Callable[[Call], Reply | None] = lambda _call: None
        self.epoch = 1
        self.shard_count = 0
        self.prefix = "orders"
        self._lock = threading.Lock()

    def set_lease(self, lease_ms: int) -> None:
        """Say how long leases last that are given from now on."""
        self.times["memberLeaseTtlMs"] = lease_ms
        self.lease_s = lease_ms / 1000

    def give(self, **shards_of: list[int]) -> None:
        """Say who shall own what: `give(m1=[0, 1], m2=[2])`; shards not named go to nobody."""
        with self._lock:
            self.target = {shard: member for member, shards in shards_of.items() for shard in shards}

    def __call__(self, call: Call) -> Reply:
        if (failure := self.fail(call)) is not None:
            return failure
        if call.path.endswith("/producer-routing"):
            return self._routing(call)
        with self._lock:
            return answer_each(call, self._heartbeat) if call.path.endswith("/heartbeats") else self._heartbeat(call)

    def _routing(self, call: Call) -> Reply:
        tag = f'"{self.shard_count}"'
        if call.headers.get("if-none-match") == tag:
            return Reply(status=304, headers={"ETag": tag})
        keys = [f"{self.prefix}:{i}" for i in range(self.shard_count)]
        shards = [{"shardIndex": i, "streamKey": key, "redisSlot": 0} for i, key in enumerate(keys)]
        body = {
            "streamPrefix": self.prefix,
            "metadataVersion": 1,
            "shardCount": self.shard_count,
            "streamKeyPattern": f"{self.prefix}:{{shardIndex}}",
            "shards": shards,
            "consumerGroup": None,
        }
        return Reply(body, headers={"ETag": tag})

    def _heartbeat(self, call: Call) -> Reply:
        member, epoch, now = call.body["memberId"], call.body["memberEpoch"], time.monotonic()
        if member in self.refused:
            return answer(call, status="INVALID_REQUEST", epoch=epoch, **self.times)
        for shard, holder in list(self.holder.items()):
            if now > self.leases.get(holder, 0) and holder != member:
                del self.holder[shard]
        if epoch > 0 and now > self.leases.get(member, 0):
            return answer(call, status="FENCED_MEMBER_EPOCH", epoch=self.epoch, **self.times)
        self.leases[member] = now + self.lease_s
        owned = {s["shardIndex"] for s in call.body["ownedShards"]}
        undone = {r["shard"]["shardIndex"] for r in call.body["revokingShards"] if r["state"] != "REVOKED"}
        self.progress[member] = call.body["shardProgress"]
        for shard, holder in list(self.holder.items()):
            if holder == member and self.target.get(shard) != member and shard not in owned | undone:
                del self.holder[shard]
        if epoch == -1:
            for shard in [s for s, h in self.holder.items() if h == member and s not in owned | undone]:
                del self.holder[shard]
            self.left.add(member)
            return answer(call, epoch=-1, **self.times)
        for shard, wanted in self.target.items():
            if wanted == member and shard not in self.holder:
                self.holder[shard] = member
                self.granted_at[shard] = now
        self.epoch += 1
        mine = sorted(s for s, h in self.holder.items() if h == member and self.target.get(s) == member)
        return answer(call, epoch=self.epoch, assigned=mine, **self.times)
