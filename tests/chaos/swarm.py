"""Members in threads: the real client protocol over plain HTTP, through any of the coordinators; they live for seconds only."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import urllib3

from coord.client.protocol import Change, MemberProtocol
from coord.names import JOIN, LEAVE, GroupKey
from coord.wire import Capacity, HeartbeatResponse
from tests.chaos.ledger import Ledger, Tenancy

CAPACITY = Capacity(runtime_max_concurrency=1, available_concurrency=1)
OK = 200
STEP_S = 0.01
JOIN_WAIT_S = 15.0


def now_ms() -> int:
    """Monotonic ms."""
    return time.monotonic_ns() // 1_000_000


@dataclass(slots=True)
class Member:
    """One logical member; `ends_ms` is when it goes, `gracefully` or by vanishing."""

    protocol: MemberProtocol
    ends_ms: int
    gracefully: bool
    next_beat_ms: int = 0
    number: int = 0
    begun: dict[int, int] = field(default_factory=dict)


class Swarm:
    """`count` members at any time, in `threads` threads."""

    def __init__(self, urls: Sequence[str], key: GroupKey, ledger: Ledger, *, count: int, threads: int, seed: int) -> None:
        self._urls = urls
        self._key = key
        self._ledger = ledger
        self._stop = threading.Event()
        self.failures: list[BaseException] = []
        self._threads = [
            threading.Thread(target=self._run, args=(count // threads, random.Random(seed + n), n), daemon=True)
            for n in range(threads)
        ]

    def start(self) -> None:
        """Let them live."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End them all; their tenancies end now."""
        self._stop.set()
        for thread in self._threads:
            thread.join(JOIN_WAIT_S)

    def _run(self, count: int, chance: random.Random, thread: int) -> None:
        http = urllib3.PoolManager(maxsize=2, retries=False, timeout=urllib3.Timeout(connect=1.0, read=1.5))
        serial = 0
        members: list[Member] = []
        try:
            while not self._stop.is_set():
                while len(members) < count:
                    serial += 1
                    members.append(self._born(f"m{thread}-{serial}", chance))
                for member in list(members):
                    if not self._live(member, chance, http):
                        members.remove(member)
                time.sleep(STEP_S)
        except BaseException as error:
            self.failures.append(error)
            raise
        finally:
            for member in members:
                self._ended(member, list(member.begun), now_ms())

    @staticmethod
    def _born(member_id: str, chance: random.Random) -> Member:
        life_ms = int(chance.uniform(2_000, 6_000))
        return Member(MemberProtocol(member_id), now_ms() + life_ms, gracefully=chance.random() < 0.6)

    def _live(self, member: Member, chance: random.Random, http: urllib3.PoolManager) -> bool:
        """Take one member a step on; False when it is gone."""
        protocol = member.protocol
        lease_until_ms = protocol.lease_until_ms
        self._note(member, protocol.tick(now_ms()), lease_until_ms)
        if now_ms() >= member.ends_ms:
            if not member.gracefully:
                self._ended(member, list(member.begun), now_ms())
                return False
            if not protocol.leaving:
                self._note(member, protocol.leave(), lease_until_ms)
                member.next_beat_ms = now_ms()
        for shard in list(protocol.draining):
            protocol.drained(shard)
            self._ended(member, [shard], now_ms())
        if protocol.ended:
            return False
        if now_ms() >= member.next_beat_ms:
            self._beat(member, chance, http)
        return not protocol.ended

    def _beat(self, member: Member, chance: random.Random, http: urllib3.PoolManager) -> None:
        protocol = member.protocol
        member.number += 1
        sent_ms = now_ms()
        outgoing = protocol.next_request(sent_ms, f"{protocol.member_id}-{member.number}", capacity=CAPACITY)
        url = (
            f"{chance.choice(self._urls)}/streams/{self._key.stream_prefix}/groups/{self._key.consumer_group}"
            f"/members/{protocol.member_id}/heartbeat"
        )
        member.next_beat_ms = sent_ms + int(chance.uniform(300, 500))
        try:
            answer = http.request("POST", url, body=msgspec.json.encode(outgoing.body))
        except urllib3.exceptions.HTTPError:
            protocol.unanswered(outgoing.attempt)
            return
        if answer.status != OK:
            protocol.unanswered(outgoing.attempt)
            self._ledger.answered(self._key, 0, str(answer.status))
            return
        response = msgspec.json.decode(answer.data, type=HeartbeatResponse)
        revision = int(answer.headers.get("X-Store-Revision", "0"))
        self._ledger.answered(self._key, revision, response.status)
        self._acknowledge(outgoing.body.member_epoch, outgoing.body.request_id, response)
        lease_until_ms = protocol.lease_until_ms
        self._note(member, protocol.answered(now_ms(), outgoing.attempt, response), lease_until_ms)

    def _acknowledge(self, epoch: int, request_id: str, response: HeartbeatResponse) -> None:
        if epoch == JOIN and response.status in ("OK", "REVOKE_PENDING"):
            self._ledger.joined(response.member_id, request_id)
        if epoch == LEAVE and response.status == "OK":
            self._ledger.left(response.member_id)

    def _note(self, member: Member, change: Change, lease_until_ms: int | None) -> None:
        """Note what began and ended.

        A lease ended when its time was over, however late this thread, which has other members to serve, came to see it.
        """
        if change.lost:
            self._ended(member, list(change.lost), min(now_ms(), now_ms() if lease_until_ms is None else lease_until_ms))
        for shard in change.start:
            member.begun[shard] = now_ms()

    def _ended(self, member: Member, shards: list[int], at_ms: int) -> None:
        for shard in shards:
            begun = member.begun.pop(shard, None)
            if begun is not None:
                self._ledger.tenancy(Tenancy(shard, member.protocol.member_id, begun, at_ms))
