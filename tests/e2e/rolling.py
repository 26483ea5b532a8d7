"""Restarts, one after the other, under steady heartbeats: who was accepted is answered, and nobody loses a lease.

python -m tests.e2e.rolling 120        restarts for two minutes under 200 heartbeats a second
"""

from __future__ import annotations

import http.client
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import urllib3

from coord.client.protocol import MemberProtocol
from coord.wire import Capacity, GroupResponse, HeartbeatResponse
from tests.chaos.coordinators import CoordinatorProcess, login
from tests.servers import free_port, private_redis, wait_until

CAPACITY = Capacity(runtime_max_concurrency=1, available_concurrency=1)
GROUP = "/streams/orders/groups/billing"
LEASE_MS = 6_000
INTERVAL_S = 0.2
REACTION_S = 10.0


class Beater(threading.Thread):
    """A member on a connection that it keeps, which goes to the next coordinator when one does not take it."""

    def __init__(self, name: str, ports: list[int], told: Counter[str]) -> None:
        super().__init__(daemon=True)
        self.member = MemberProtocol(name)
        self.halt = threading.Event()
        self._ports = ports
        self._at = hash(name)
        self._told = told
        self._connection: http.client.HTTPConnection | None = None

    def run(self) -> None:
        """Beat until it is halted."""
        while not self.halt.wait(INTERVAL_S):
            self._beat()
        if self._connection is not None:
            self._connection.close()

    def _beat(self) -> None:
        now = _now_ms()
        self.member.tick(now)
        outgoing = self.member.next_request(now, f"{self.member.member_id}-{now}", capacity=CAPACITY)
        for _ in range(2 * len(self._ports)):
            answer = self._sent(msgspec.json.encode(outgoing.body))
            if answer is not None:
                break
        else:
            answer = None
        if answer is None:
            self._told["nowhere taken"] += 1
            self.member.unanswered(outgoing.attempt)
            return
        self._told[answer.status] += 1
        self.member.answered(_now_ms(), outgoing.attempt, answer)
        for shard in list(self.member.draining):
            self.member.drained(shard)

    def _sent(self, body: bytes) -> HeartbeatResponse | None:
        """Send once; None where it has to be sent elsewhere."""
        is_fresh = self._connection is None
        connection = self._connection or http.client.HTTPConnection(
            "127.0.0.1", self._ports[self._at % len(self._ports)], timeout=REACTION_S
        )
        try:
            if is_fresh:
                connection.connect()
        except OSError:
            self._told["no connection"] += 1
            self._elsewhere(connection)
            return None
        self._connection = connection
        try:
            connection.request(
                "POST", f"/coord/v1{GROUP}/members/{self.member.member_id}/heartbeat", body, {"Content-Type": "application/json"}
            )
            response = connection.getresponse()
            data = response.read()
        except (OSError, http.client.HTTPException) as error:
            # A kept connection may be closed in the moment in which it is used again: nothing of it was accepted.
            self._told[f"{'first' if is_fresh else 'kept'} connection: {type(error).__name__}"] += 1
            self._elsewhere(connection)
            return None
        if response.will_close:
            self._elsewhere(connection)
        if response.status != 200:
            self._told[f"{response.status} {data[:60]!r}"] += 1
            self._elsewhere(connection)
            return None
        return msgspec.json.decode(data, type=HeartbeatResponse)

    def _elsewhere(self, connection: http.client.HTTPConnection) -> None:
        connection.close()
        self._connection = None
        self._at += 1


@dataclass
class Verdict:
    """What the members were told, how often each, and which coordinators restarted how often."""

    told: Counter[str] = field(default_factory=Counter)
    restarts: int = 0
    active: int = 0
    epochs: tuple[int, int] = (0, 0)
    """The group's epoch once all had joined, and at the end: it stands still when nobody was lost."""


def run(folder: Path, *, seconds: float, every_s: float, members: int, restarts_min: int = 2) -> Verdict:
    """Restart two coordinators in turn, each whole (SIGTERM) while the other one serves."""
    verdict = Verdict()
    with ExitStack() as stack:
        redis = stack.enter_context(private_redis())
        coordinators = [CoordinatorProcess(name, free_port(), redis.url, folder, lease_ms=LEASE_MS) for name in ("one", "two")]
        for each in coordinators:
            each.start()
            stack.callback(each.stop)
        _create(coordinators[0], shards=members)
        beaters = [Beater(f"m{number}", [each.port for each in coordinators], verdict.told) for number in range(members)]
        with _beating(beaters):
            wait_until(lambda: _settled(beaters), timeout_s=60, what="each reads one shard")
            begun = _group(coordinators[0])
            until = time.monotonic() + seconds
            while time.monotonic() < until or verdict.restarts < restarts_min:
                coordinator = coordinators[verdict.restarts % len(coordinators)]
                next_at = time.monotonic() + every_s
                assert coordinator.stop() == 0, coordinator.log_tail()
                coordinator.start()
                verdict.restarts += 1
                time.sleep(max(0.0, next_at - time.monotonic()))
            ended = _group(coordinators[0])
            verdict.active = ended.active_members
            verdict.epochs = (begun.group_epoch, ended.group_epoch)
    return verdict


@contextmanager
def _beating(beaters: list[Beater]) -> Iterator[None]:
    for beater in beaters:
        beater.start()
    try:
        yield
    finally:
        for beater in beaters:
            beater.halt.set()
        for beater in beaters:
            beater.join(2 * REACTION_S)


def _settled(beaters: list[Beater]) -> bool:
    return len({shard for beater in beaters if len(beater.member.reading) == 1 for shard in beater.member.reading}) == len(
        beaters
    )


def _create(coordinator: CoordinatorProcess, *, shards: int) -> None:
    answer = urllib3.request(
        "POST",
        f"{coordinator.url}{GROUP}",
        json={"initialShardCount": shards, "requestedBy": "t"},
        headers={"Authorization": login(coordinator.url)},
        timeout=REACTION_S,
        retries=False,
    )
    assert answer.status == 201, answer.data


def _group(coordinator: CoordinatorProcess) -> GroupResponse:
    answer = urllib3.request(
        "GET",
        f"{coordinator.url}/monitoring{GROUP}",
        headers={"Authorization": login(coordinator.url)},
        timeout=REACTION_S,
        retries=False,
    )
    return msgspec.json.decode(answer.data, type=GroupResponse)


def _now_ms() -> int:
    return time.monotonic_ns() // 1_000_000


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as place:
        print(run(Path(place), seconds=float(sys.argv[1]), every_s=5, members=40))
