"""The member loop: a thread that gives `MemberProtocol` a clock and HTTP.

The thread itself never waits for the network: each heartbeat is sent by a short-lived thread of its own, and its answer
comes back through a queue. So the lease watchdog, giving up on a request, and leaving are all on time, however long an
HTTP call hangs. It shares no lock with handlers or blocking reads: readers see the lease as one integer.
"""

from __future__ import annotations

import logging
import queue
import random
import threading
import time
import uuid

from coord.client.errors import FatalError, RetriableError
from coord.client.health import MemberCounts, MemberHealth
from coord.client.host import HeartbeatCall, LoopSettings, ShardHost
from coord.client.inbox import Answer, BeatAlong, Drained, Fail, Item, Leave
from coord.client.lease import Lease
from coord.client.protocol import Change, MemberProtocol, Outgoing
from coord.client.trace import Trace
from coord.names import JOIN, LEAVE
from coord.wire import HeartbeatResponse

_NS_PER_MS = 1_000_000
_log = logging.getLogger("coord.client.member")


class MemberLoop:
    """Keeps one member of one group alive and tells `host` what to read. Raises the fatal error to whoever calls `wait`."""

    def __init__(
        self,
        http: HeartbeatCall,
        host: ShardHost,
        *,
        stream_prefix: str,
        consumer_group: str,
        member_id: str,
        member_name: str | None = None,
        settings: LoopSettings | None = None,
        trace: Trace | None = None,
    ) -> None:
        self.lease = Lease()
        self.protocol = MemberProtocol(member_id, member_name)
        self._http = http
        self._host = host
        self._stream_prefix = stream_prefix
        self._consumer_group = consumer_group
        self._settings = settings or LoopSettings()
        self._trace = trace
        self._inbox: queue.SimpleQueue[Item] = queue.SimpleQueue()
        self._counts = MemberCounts()
        self._next_beat_ms = 0
        self._give_up_ms = 0
        self._leave_by_ms: int | None = None
        self._fatal: BaseException | None = None
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"member-{member_id}", daemon=True)

    # -- called by the owner, from any thread

    def start(self) -> None:
        """Begin to heartbeat."""
        self._thread.start()

    def leave(self) -> None:
        """Begin to leave: drain, report, say goodbye. `wait` returns when it is done."""
        self._inbox.put(Leave())

    def drained(self, shard: int) -> None:
        """Note that nothing of a revoked shard is in flight any more."""
        self._inbox.put(Drained(shard))

    def beat_along(self) -> None:
        """Send now what is due within half an interval: another member of this process sends anyway."""
        self._inbox.put(BeatAlong())

    def fail(self, error: BaseException) -> None:
        """End the member at once because its owner is broken; `wait` raises the error."""
        self._inbox.put(Fail(error))

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until the member has ended; False when it has not in time. Raises what ended it, if it was no leave."""
        ended = self._ended.wait(timeout_s)
        if ended and self._fatal is not None:
            raise self._fatal
        return ended

    def health(self) -> MemberHealth:
        """Describe the member; never blocks."""
        protocol, counts, now_ms = self.protocol, self._counts, _now_ms()
        until_ms, seen_ms = protocol.lease_until_ms, counts.last_accepted_ms
        return MemberHealth(
            state=self._state(),
            member_epoch=protocol.member_epoch,
            assigned=tuple(sorted(protocol.reading.copy())),
            draining=tuple(sorted(protocol.draining.copy())),
            pending=tuple(sorted(protocol.pending)),
            lease_left_ms=None if until_ms is None else until_ms - now_ms,
            last_accepted_age_ms=None if seen_ms is None else now_ms - seen_ms,
            heartbeats=counts.heartbeats,
            accepted=counts.accepted,
            lapses=protocol.lapses,
            statuses=dict(counts.statuses.copy()),
            failures=dict(counts.failures.copy()),
            failures_in_a_row=counts.failures_in_a_row,
            last_error=counts.last_error,
            fatal=None if self._fatal is None else str(self._fatal),
        )

    def _state(self) -> str:
        if self._fatal is not None:
            return "failed"
        if self._ended.is_set():
            return "left"
        if self.protocol.leaving:
            return "leaving"
        if self.protocol.lease_until_ms is not None:
            return "member"
        return "joining" if self._thread.is_alive() else "starting"

    # -- the thread

    def _run(self) -> None:
        self._next_beat_ms = _now_ms() + random.randint(0, self._settings.start_spread_ms)
        try:
            while not self.protocol.ended and self._fatal is None:
                self._turn()
        except BaseException as error:  # noqa: BLE001  whatever broke the loop must reach the owner, or a dead member looks well
            self._fatal = error
        finally:
            self._end()

    def _turn(self) -> None:
        """Take what came in, judge the lease, give up on a late request, send when it is time."""
        item = self._next_item()
        now_ms = _now_ms()
        self._apply(self.protocol.tick(now_ms))
        if item is not None:
            self._take(item, now_ms)
        if self.protocol.ended or self._fatal is not None:
            return
        now_ms = _now_ms()
        waiting = self.protocol.in_flight
        if waiting is not None and now_ms >= self._give_up_ms:
            self.protocol.unanswered(waiting.attempt)
            self._failed(RetriableError("timeout", "no answer in time"), now_ms)
        if self._leave_by_ms is not None and now_ms >= self._leave_by_ms:
            _log.warning("member %s leaves without an answer; its lease will lapse", self.protocol.member_id)
            self.protocol.left = True
        elif self.protocol.in_flight is None and now_ms >= self._next_beat_ms:
            self._send(now_ms)

    def _next_item(self) -> Item | None:
        due = [self._give_up_ms if self.protocol.in_flight is not None else self._next_beat_ms]
        due += [at for at in (self.protocol.lease_until_ms, self._leave_by_ms) if at is not None]
        try:
            return self._inbox.get(timeout=max(0, min(due) - _now_ms()) / 1000)
        except queue.Empty:
            return None

    def _take(self, item: Item, now_ms: int) -> None:
        match item:
            case Answer():
                self._take_answer(item, now_ms)
            case Drained(shard):
                self.protocol.drained(shard)
                self._hasten(now_ms + self._settings.hasten_ms)
            case Leave():
                self._begin_to_leave(now_ms)
            case BeatAlong():
                if self.protocol.in_flight is None and self._next_beat_ms <= now_ms + self._interval_ms() // 2:
                    self._hasten(now_ms)
            case Fail(error):
                self._fatal = error

    def _begin_to_leave(self, now_ms: int) -> None:
        self._apply(self.protocol.leave())
        self._leave_by_ms = now_ms + self._settings.leave_timeout_ms + self.protocol.rebalance_timeout_ms // 2
        waiting = self.protocol.in_flight
        # A join that may still arrive after the goodbye would bring the member back: wait for its answer.
        if waiting is not None and waiting.body.member_epoch != JOIN:
            self.protocol.unanswered(waiting.attempt)
        self._next_beat_ms = now_ms

    def _take_answer(self, answer: Answer, now_ms: int) -> None:
        sent = self.protocol.in_flight
        if sent is None or sent.attempt != answer.attempt:
            return  # an older request's
        if answer.error is not None or answer.response is None:
            self.protocol.unanswered(answer.attempt)
            if isinstance(answer.error, RetriableError):
                self._failed(answer.error, now_ms)
            else:
                self._fatal = answer.error
            return
        self._take_response(sent, answer.response, now_ms)

    def _take_response(self, sent: Outgoing, response: HeartbeatResponse, now_ms: int) -> None:
        self._counts.statuses[response.status] += 1
        change = self.protocol.answered(now_ms, sent.attempt, response)
        if self.protocol.fatal is not None:
            self._fatal = FatalError(self.protocol.fatal, f"the coordinator refuses member {self.protocol.member_id!r}")
        elif response.status == "RETRY":
            self._failed(RetriableError("retry", "the coordinator could not decide"), now_ms)
        elif response.status in {"UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"}:
            self._counts.failures_in_a_row = 0
            _log.warning("member %s: %s; everything stopped, joining again", self.protocol.member_id, response.status)
            # Refused to a join means that there is nothing to join yet; else a join is the next thing to say.
            self._next_beat_ms = now_ms + (self._spread(self._interval_ms(), 1.0, 1.5) if sent.body.member_epoch == JOIN else 0)
        elif self.protocol.lease_until_ms is None or self.protocol.lease_until_ms != sent.sent_ms + self.protocol.lease_ttl_ms:
            self._failed(RetriableError("late", "the answer came after its lease"), now_ms)
        else:
            self._accepted(sent, now_ms)
        self._apply(change)
        if self.protocol.leaving and sent.body.member_epoch != LEAVE:
            self._next_beat_ms = now_ms
        elif self.protocol.revoked:
            self._hasten(now_ms + self._settings.hasten_ms)

    def _accepted(self, sent: Outgoing, now_ms: int) -> None:
        self._counts.accepted += 1
        self._counts.failures_in_a_row = 0
        self._counts.last_accepted_ms = now_ms
        until_ns, ttl_ns = (sent.sent_ms + self.protocol.lease_ttl_ms) * _NS_PER_MS, self.protocol.lease_ttl_ms * _NS_PER_MS
        if self._trace:  # before a reader can use it: no read may stand in the trace without its lease
            self._trace.lease(sent=sent.sent_ms * _NS_PER_MS, until=until_ns, epoch=self.protocol.member_epoch)
        self.lease.ttl_ns, self.lease.until_ns = ttl_ns, until_ns
        self._next_beat_ms = max(now_ms, sent.sent_ms + self._spread(self._interval_ms(), 0.8, 1.0))

    def _failed(self, error: RetriableError, now_ms: int) -> None:
        counts = self._counts
        counts.failures[error.kind] += 1
        counts.failures_in_a_row += 1
        counts.last_error = str(error)
        if counts.failures_in_a_row == 1:
            _log.warning("heartbeat of member %s: %s; trying again", self.protocol.member_id, error)
        interval_ms = self._interval_ms()
        delay_ms = min(interval_ms, self._settings.backoff_ms_min * 2 ** min(counts.failures_in_a_row, 16))
        if error.retry_after_ms is not None:
            delay_ms = max(delay_ms, min(error.retry_after_ms, interval_ms))  # politeness ends where the lease would
        self._next_beat_ms = now_ms + self._spread(delay_ms, 0.5, 1.0)

    def _send(self, now_ms: int) -> None:
        self._apply(self.protocol.tick(now_ms))
        outgoing = self.protocol.next_request(
            now_ms,
            uuid.uuid4().hex,
            capacity=self._host.capacity(),
            in_flight=self._host.in_flight(),
            progress=self._host.progress(),
        )
        timeout_ms = self._settings.request_timeout_ms or self.protocol.lease_ttl_ms // 3 or self._settings.first_timeout_ms
        self._give_up_ms = now_ms + timeout_ms
        self._counts.heartbeats += 1
        threading.Thread(
            target=self._post, args=(outgoing, timeout_ms), name=f"heartbeat-{outgoing.attempt}", daemon=True
        ).start()

    def _post(self, outgoing: Outgoing, timeout_ms: int) -> None:
        try:
            response = self._http.heartbeat(self._stream_prefix, self._consumer_group, outgoing.body, timeout_ms=timeout_ms)
        except Exception as error:  # noqa: BLE001  every failure is the loop's to judge
            self._inbox.put(Answer(outgoing.attempt, None, error))
        else:
            self._inbox.put(Answer(outgoing.attempt, response, None))

    def _apply(self, change: Change) -> None:
        if self.protocol.lease_until_ms is None:
            self.lease.until_ns = 0
        if change.lost:
            self._host.on_lost(change.lost)
            self._hasten(_now_ms())
        if change.drain:
            self._host.on_revoke(change.drain)
        if change.start:
            self._host.on_assign(change.start)

    def _end(self) -> None:
        self.lease.until_ns = 0
        held = frozenset(self.protocol.reading | self.protocol.draining)
        try:
            if held:
                self._host.on_lost(held)
        finally:
            self._ended.set()

    def _hasten(self, at_ms: int) -> None:
        # Back-off stays: what failed a moment ago is not hastened.
        if self._counts.failures_in_a_row == 0:
            self._next_beat_ms = min(self._next_beat_ms, at_ms)

    def _interval_ms(self) -> int:
        return self.protocol.heartbeat_interval_ms or self._settings.first_interval_ms

    @staticmethod
    def _spread(delay_ms: int, low: float, high: float) -> int:
        return int(delay_ms * random.uniform(low, high))


def _now_ms() -> int:
    return time.monotonic_ns() // _NS_PER_MS
