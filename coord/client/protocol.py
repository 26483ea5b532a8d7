"""The member protocol as a pure state machine: "What a client owes" of design page `protocol.md`.

No clock, no I/O: monotonic milliseconds and fresh request ids come in as arguments, `Change` says what to do. The owner
calls, in any order and from one thread: `tick` often, `next_request` / `answered` / `unanswered` for each heartbeat,
`drained` when a shard's drain has ended, `leave` once.

A request is known by its *attempt*, not by its requestId: a repeated join keeps its requestId, and an answer to its
first sending must not renew the lease that is counted from the second.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from coord.names import JOIN, LEAVE
from coord.wire import PROTOCOL_VERSION, Capacity, HeartbeatRequest, HeartbeatResponse, RevokingShard, Shard, ShardProgress

FATAL_STATUSES = frozenset({"UNSUPPORTED_PROTOCOL", "INVALID_REQUEST"})
STOP_STATUSES = frozenset({"UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"})


@dataclass(frozen=True, slots=True)
class Change:
    """What the owner does now, in this order: `lost` stop at once, `drain` finish what is in flight, `start` read."""

    lost: frozenset[int] = frozenset()
    drain: frozenset[int] = frozenset()
    start: frozenset[int] = frozenset()

    def __bool__(self) -> bool:
        return bool(self.lost or self.drain or self.start)


NOTHING = Change()


@dataclass(frozen=True, slots=True)
class Outgoing:
    """A heartbeat on its way: give `attempt` back with its answer."""

    attempt: int
    sent_ms: int
    body: HeartbeatRequest
    revoked: frozenset[int]


@dataclass(slots=True)
class MemberProtocol:
    """One member of one group. Times are monotonic milliseconds."""

    member_id: str
    member_name: str | None = None
    member_epoch: int = JOIN
    metadata_version: int = 0
    reading: set[int] = field(default_factory=set)
    draining: set[int] = field(default_factory=set)
    revoked: set[int] = field(default_factory=set)
    """Drains that ended and that no answer has acknowledged yet."""
    pending: frozenset[int] = frozenset()
    """What the last OK said that this member waits for."""
    lease_until_ms: int | None = None
    """End of the lease, counted from the sending of the last accepted heartbeat; None without one."""
    lease_ttl_ms: int = 0
    heartbeat_interval_ms: int = 0
    rebalance_timeout_ms: int = 0
    leaving: bool = False
    left: bool = False
    fatal: str | None = None
    lapses: int = 0
    in_flight: Outgoing | None = None
    join_request_id: str | None = None
    attempts: int = 0

    @property
    def ended(self) -> bool:
        """Nothing more is to be sent."""
        return self.left or self.fatal is not None

    def tick(self, now_ms: int) -> Change:
        """End the lease when its time is over: everything stops, drains too, and the member goes on with epoch 0."""
        if self.lease_until_ms is None or now_ms < self.lease_until_ms:
            return NOTHING
        self.lapses += 1
        self.in_flight = None
        return self._lose_all()

    def next_request(
        self,
        now_ms: int,
        request_id: str,
        *,
        capacity: Capacity,
        in_flight: Mapping[int, int] | None = None,
        progress: Sequence[ShardProgress] = (),
    ) -> Outgoing:
        """Build the next heartbeat. `in_flight` gives the unacknowledged entries per draining shard.

        One heartbeat may be in flight, and the lease must have been judged for `now_ms`: both are the owner's duty.
        """
        lapsed = self.lease_until_ms is not None and now_ms >= self.lease_until_ms
        if self.in_flight is not None or self.ended or lapsed:
            message = "a heartbeat is in flight, the member has ended, or its lease was not judged for this moment"
            raise AssertionError(message)
        epoch = LEAVE if self.leaving else self.member_epoch
        if epoch == JOIN:
            self.join_request_id = request_id = self.join_request_id or request_id
        counts = in_flight or {}
        revoking = [
            *(RevokingShard(shard=Shard(shard_index=s), state="DRAINING", in_flight=counts.get(s, 0)) for s in self.draining),
            *(RevokingShard(shard=Shard(shard_index=s), state="REVOKED", in_flight=0) for s in self.revoked),
        ]
        self.attempts += 1
        self.in_flight = Outgoing(
            attempt=self.attempts,
            sent_ms=now_ms,
            revoked=frozenset(self.revoked),
            body=HeartbeatRequest(
                protocol_version=PROTOCOL_VERSION,
                request_id=request_id,
                member_id=self.member_id,
                member_name=self.member_name,
                member_epoch=epoch,
                metadata_version=self.metadata_version,
                runtime_consumer_capacity=capacity,
                owned_shards=tuple(Shard(shard_index=s) for s in sorted(self.reading)),
                revoking_shards=tuple(sorted(revoking, key=lambda r: r.shard.shard_index)),
                shard_progress=tuple(p for p in progress if p.shard.shard_index in self.reading | self.draining),
            ),
        )
        return self.in_flight

    def unanswered(self, attempt: int) -> None:
        """Give a request up (timeout, error, useless answer): unknown is not lost, nothing changes but that it is over."""
        if self.in_flight is not None and self.in_flight.attempt == attempt:
            self.in_flight = None

    def answered(self, now_ms: int, attempt: int, answer: HeartbeatResponse) -> Change:
        """Take the answer to the request of `attempt`; answers to older requests change nothing."""
        lapse = self.tick(now_ms)
        sent = self.in_flight
        if sent is None or sent.attempt != attempt:
            return lapse
        self.in_flight = None
        if answer.response_to != sent.body.request_id or answer.member_id != self.member_id or answer.status == "RETRY":
            return NOTHING
        if answer.status in FATAL_STATUSES:
            self.fatal = answer.status
            return self._lose_all()
        self._learn_times(answer)
        if answer.status in STOP_STATUSES:
            self.metadata_version = answer.metadata_version
            self.left = self.leaving
            return self._lose_all()
        return self._accept(now_ms, sent, answer)

    def drained(self, shard: int) -> None:
        """Note that a drain has ended: nothing of this shard is in flight any more. Meaningless for a lost shard."""
        if shard in self.draining:
            self.draining.discard(shard)
            self.revoked.add(shard)

    def leave(self) -> Change:
        """Begin to leave: all shards drain, and `-1` is repeated until nothing drains. A member that never sent has left."""
        if self.leaving or self.ended:
            return NOTHING
        self.leaving = True
        self.left = self.attempts == 0
        return self._drain(self.reading.copy())

    def _learn_times(self, answer: HeartbeatResponse) -> None:
        # What the coordinator does not know it answers as 0 (api.md): then the last known value stays.
        self.heartbeat_interval_ms = max(0, answer.heartbeat_interval_ms) or self.heartbeat_interval_ms
        self.rebalance_timeout_ms = max(0, answer.rebalance_timeout_ms) or self.rebalance_timeout_ms
        self.lease_ttl_ms = max(0, answer.member_lease_ttl_ms) or self.lease_ttl_ms

    def _accept(self, now_ms: int, sent: Outgoing, answer: HeartbeatResponse) -> Change:
        lease_until_ms = sent.sent_ms + self.lease_ttl_ms
        told_to_leave = sent.body.member_epoch == LEAVE
        if now_ms >= lease_until_ms or (answer.member_epoch <= JOIN and not told_to_leave):
            return NOTHING  # its lease is over before it began, or it names no epoch to go on with: as good as no answer
        self.lease_until_ms = lease_until_ms
        self.metadata_version = answer.metadata_version
        self.join_request_id = None
        self.revoked -= sent.revoked
        if not told_to_leave:
            self.member_epoch = answer.member_epoch
        if self.leaving:
            self.left = told_to_leave and not self.draining and not self.revoked
            return NOTHING
        assigned = {s.shard_index for s in answer.assignment.assigned_shards}
        self.pending = frozenset(s.shard_index for s in answer.assignment.pending_shards)
        change = self._drain(self.reading - assigned)
        if answer.status != "OK":
            return change
        start = frozenset(assigned - self.draining - self.reading)
        self.reading |= start
        self.revoked -= start
        return Change(drain=change.drain, start=start)

    def _drain(self, shards: set[int]) -> Change:
        self.reading -= shards
        self.draining |= shards
        return Change(drain=frozenset(shards))

    def _lose_all(self) -> Change:
        lost = frozenset(self.reading | self.draining)
        self.reading.clear()
        self.draining.clear()
        self.revoked.clear()
        self.pending = frozenset()
        self.lease_until_ms = None
        self.member_epoch = JOIN
        self.join_request_id = None
        return Change(lost=lost)
