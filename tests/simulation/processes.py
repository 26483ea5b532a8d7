"""Member processes: the real client protocol (`coord.client.protocol`), crashing, hanging, leaving, of three styles.

`ours` is the client as shipped. `silent` never sends revokingShards: it stops a shard at once and says nothing. `loud` leaves
as the Spring starter does, naming each shard as owned and as REVOKED. `naming` knows no revokingShards: what it still drains it
names as owned.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Literal

from msgspec.structs import replace

from coord.client.protocol import MemberProtocol, Outgoing
from coord.names import LEAVE
from coord.streams.shards import shard_key
from coord.wire import Capacity, HeartbeatRequest, HeartbeatResponse, RevokingShard, Shard
from tests.simulation.shards import SimulatedShards

Style = Literal["ours", "silent", "loud", "naming"]
CAPACITY = Capacity(runtime_max_concurrency=2, available_concurrency=2)
ANSWER_WAIT_MS = 6_000
BATCH = 50


@dataclass(slots=True)
class Process:
    """One process. `number` tells processes under one id apart."""

    number: int
    member_id: str
    style: Style
    chance: random.Random
    slow_drains: float = 0.33
    up: bool = True
    hung_until_ms: int = 0
    next_beat_ms: int = 0
    lives: int = 0
    pause_ms: int = field(init=False)
    """Its longest time between two heartbeats."""
    drains: float = field(init=False)
    """How likely it ends a drain in a tick."""
    protocol: MemberProtocol = field(init=False)

    def __post_init__(self) -> None:
        """Begin the first life."""
        self.pause_ms = self.chance.choice((3_000, 3_000, 7_000))
        self.drains = 0.05 if self.chance.random() < self.slow_drains else 0.4
        self.protocol = MemberProtocol(self.member_id)

    def start(self, now_ms: int) -> None:
        """Begin a new life: nothing is known of an earlier one."""
        self.lives += 1
        self.up, self.hung_until_ms, self.next_beat_ms = True, 0, now_ms
        self.protocol = MemberProtocol(self.member_id)

    def runs(self, now_ms: int) -> bool:
        """Tell whether it does anything now."""
        return self.up and now_ms >= self.hung_until_ms

    def touching(self, now_ms: int) -> set[int]:
        """Give the shards that it may read or acknowledge at this moment; one that hangs may go on at any moment."""
        lease = self.protocol.lease_until_ms
        if not self.up or lease is None or now_ms >= lease:
            return set()
        return self.protocol.reading | self.protocol.draining

    def work(self, now_ms: int, shards: SimulatedShards, stream: str, group: str, *, stuck: bool = False) -> None:
        """Judge the lease, read and acknowledge, end drains."""
        self.protocol.tick(now_ms)
        for shard in sorted(self.protocol.reading):
            key = shard_key(stream, shard)
            shards.acknowledge(key, group, self._consumer)
            shards.read(key, group, self._consumer, BATCH)
        for shard in sorted(self.protocol.draining):
            if self.style == "silent" or (not stuck and self.chance.random() < self.drains):
                shards.acknowledge(shard_key(stream, shard), group, self._consumer)
                self.protocol.drained(shard)

    def heartbeat(self, now_ms: int) -> Outgoing | None:
        """Give the heartbeat to send now, if it is time for one; gives up on one that is unanswered for too long."""
        flying = self.protocol.in_flight
        if flying is not None:
            if now_ms - flying.sent_ms < ANSWER_WAIT_MS:
                return None
            self.protocol.unanswered(flying.attempt)
            self.next_beat_ms = now_ms
        if now_ms < self.next_beat_ms:
            return None
        request_id = f"{self.number}-{self.lives}-{self.protocol.attempts}"
        return self.protocol.next_request(now_ms, request_id, capacity=CAPACITY)

    def said(self, body: HeartbeatRequest) -> HeartbeatRequest:
        """Give the request as a client of this style words it."""
        if self.style == "silent":
            return replace(body, revoking_shards=())
        if self.style == "loud" and body.member_epoch == LEAVE:
            given_up = sorted({r.shard.shard_index for r in body.revoking_shards or ()})
            owned = tuple(Shard(shard_index=s) for s in given_up)
            done = tuple(RevokingShard(shard=shard, state="REVOKED", in_flight=0) for shard in owned)
            return replace(body, owned_shards=owned, revoking_shards=done)
        if self.style == "naming" and body.member_epoch != LEAVE:
            draining = [r.shard for r in body.revoking_shards or () if r.state == "DRAINING"]
            return replace(body, owned_shards=(*(body.owned_shards or ()), *draining), revoking_shards=())
        return body

    def leave(self) -> None:
        """Begin to leave. A loud or silent client stops all it reads before it says so."""
        self.protocol.leave()
        if self.style != "ours":
            for shard in sorted(self.protocol.draining):
                self.protocol.drained(shard)

    def take(self, now_ms: int, attempt: int, answer: HeartbeatResponse) -> None:
        """Take an answer."""
        before = self.protocol.in_flight
        self.protocol.answered(now_ms, attempt, answer)
        if self.style == "silent":
            for shard in sorted(self.protocol.draining):
                self.protocol.drained(shard)
        if before is not None and before.attempt == attempt:
            urgent = answer.status in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH")
            self.next_beat_ms = now_ms + (0 if urgent else self.chance.randint(1, self.pause_ms // 1_000) * 1_000)
        if self.protocol.ended:
            self.up = False

    @property
    def _consumer(self) -> str:
        return f"{self.member_id}/{self.number}"
