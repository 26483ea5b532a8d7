"""Heartbeats that reach a real worker at one moment: one thread answers them, and one touch confirms them all."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.http.face import heartbeat
from tests.http.served import BASE, Served, Wire, serving
from tests.servers import private_redis, wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.slow]

MEMBERS = 12
SHARDS = 24
QUIET = {"member-lease-ttl": "10m", "rebalance-timeout": "10m", "loop": {"tick-interval": "2m"}}
"""What touches there are, heartbeats have caused."""
REDIS_TIMEOUT_S = 2


@dataclass
class Member:
    """A member on a connection of its own."""

    name: str
    wire: Wire
    says: dict[str, Any] = field(default_factory=dict)

    def send(self, group: str = "g", **changes: Any) -> None:
        body = json.dumps(heartbeat(memberId=self.name, requestId=f"by-{self.name}", **(self.says | changes))).encode()
        head = f"POST {BASE}/streams/orders/groups/{group}/members/{self.name}/heartbeat HTTP/1.1\r\nHost: test\r\n"
        self.wire.send(f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body)

    def hear(self) -> dict[str, Any]:
        told: dict[str, Any] = self.wire.receive().json
        assert (told["memberId"], told["responseTo"]) == (self.name, f"by-{self.name}")
        if told["status"] == "OK":
            self.says = {
                "memberEpoch": told["memberEpoch"],
                "metadataVersion": told["metadataVersion"],
                "ownedShards": told["assignment"]["assignedShards"],
            }
        return told


@dataclass
class Place:
    """A server of one worker, its Redis, and members that have settled."""

    served: Served
    redis: redis.Redis
    redis_url: str
    members: list[Member]

    @contextmanager
    def at_one_moment(self) -> Iterator[None]:
        """Hold the worker within the block, so that it finds all that came meanwhile at once."""
        (worker,) = self.served.workers()
        os.kill(worker, signal.SIGSTOP)
        try:
            yield
        finally:
            os.kill(worker, signal.SIGCONT)

    def touches(self) -> int:
        """How often a script was called."""
        stats: Mapping[str, Any] = self.redis.info("commandstats")
        return sum(int(stats.get(f"cmdstat_{name}", {}).get("calls", 0)) for name in ("evalsha", "eval"))

    def settle(self) -> None:
        """Let all go on until nothing changes any more."""

        def is_settled() -> bool:
            before = [dict(member.says) for member in self.members]
            for member in self.members:
                member.send()
                member.hear()
            return before == [member.says for member in self.members]

        wait_until(is_settled, what="nothing changes any more")


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    with ExitStack() as stack:
        server = stack.enter_context(private_redis())
        config = json.dumps({"coordinator": QUIET | {"redis": {"url": server.url, "timeout-ms": REDIS_TIMEOUT_S * 1000}}})
        served = stack.enter_context(serving(tmp_path / "s", "--workers", "1", config=config))
        client = stack.enter_context(redis.Redis(host="127.0.0.1", port=server.port))
        wait_until(lambda: len(served.workers()) == 1, what="the worker runs")
        who = {"requestedBy": "t", "reason": "r"}
        assert served.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": SHARDS, **who}).status == 201
        assert served.ask("POST", f"{BASE}/streams/orders/groups/g", who).status == 201
        members = [Member(f"m{number}", stack.enter_context(Wire(served.port))) for number in range(MEMBERS)]
        place = Place(served, client, server.url, members)
        place.settle()
        yield place


def test_one_touch_confirms_them_all_and_renews_each_lease(place: Place) -> None:
    before, now_ms = place.touches(), int(time.time() * 1000)
    with place.at_one_moment():
        for member in place.members:
            member.send()
    assert {member.hear()["status"] for member in place.members} == {"OK"}
    assert place.touches() - before == 1
    leases: Any = place.redis.zrange(next(iter(place.redis.scan_iter("*leases*"))), 0, -1, withscores=True)
    assert len(leases) == MEMBERS
    assert min(deadline for _, deadline in leases) > now_ms + 590_000


def test_who_changes_something_among_them_is_answered_too(place: Place) -> None:
    """A leave, a fenced epoch, a body that does not fit, a client that is gone: each its own answer, nobody else's."""
    leaving, fenced, misfit, gone, *others = place.members
    with place.at_one_moment():
        leaving.send(memberEpoch=-1)
        fenced.send(memberEpoch=1)
        misfit.send(protocolVersion="one")
        gone.send()
        gone.wire.socket.close()
        gone.wire.stream.close()
        for member in others:
            member.send()
    assert leaving.hear()["memberEpoch"] == -1
    assert fenced.hear()["status"] == "FENCED_MEMBER_EPOCH"
    assert misfit.wire.receive().code == (400, "INVALID_REQUEST")
    assert {member.hear()["status"] for member in others} == {"OK"}
    misfit.send()
    assert misfit.hear()["status"] == "OK", "its connection goes on"


def test_a_group_that_another_coordinator_changed_is_read_anew(place: Place, tmp_path: Path) -> None:
    """What this worker has kept is behind: nobody is answered from it."""
    config = json.dumps({"coordinator": QUIET | {"redis": {"url": place.redis_url}}})
    with serving(tmp_path / "other", "--workers", "1", config=config) as other, Wire(other.port) as wire:
        newcomer = Member("new", wire)
        newcomer.send()
        epoch = newcomer.hear()["groupEpoch"]
    with place.at_one_moment():
        for member in place.members:
            member.send()
    assert min(member.hear()["groupEpoch"] for member in place.members) >= epoch


def test_all_are_told_to_retry_at_once_when_redis_hangs(place: Place) -> None:
    """One time-out for all of them, not one after another, and none for being run once more."""
    place.redis.client_pause((REDIS_TIMEOUT_S + 60) * 1000)
    begun = time.monotonic()
    with place.at_one_moment():
        for member in place.members:
            member.send()
    assert {member.hear()["status"] for member in place.members} == {"RETRY"}
    assert time.monotonic() - begun < 3 * REDIS_TIMEOUT_S
