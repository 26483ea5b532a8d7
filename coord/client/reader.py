"""One thread reads one shard for as long as the member holds it.

Before EVERY call to Redis the local lease is checked, and again after a read came back: what was read when the lease was
over stays pending and is not handled. A reader that is told `lose` sends nothing to Redis any more, whatever its handler
is doing; one that is told `drain` finishes what it has read, acknowledges it, and ends.
"""

from __future__ import annotations

import logging
import random
import threading
from collections.abc import Callable
from datetime import UTC, datetime

from redis.exceptions import RedisError

from coord.client.handling import Entry, Handler, Handling, Permits, ReaderSettings
from coord.client.health import ShardHealth
from coord.client.lease import Lease
from coord.client.shardstream import RawEntry, ShardStream, is_unprovisioned
from coord.client.trace import Trace, now_ns
from coord.wire import Shard, ShardProgress

_NS_PER_MS = 1_000_000
_PREDECESSOR_LOOK_S = 0.05
_log = logging.getLogger("coord.client.reader")


class ShardReader:
    """Reads one shard during one tenancy."""

    def __init__(  # noqa: PLR0913  the parts of one reader, wired in one place
        self,
        shard: int,
        stream: ShardStream,
        *,
        tenancy: int,
        handler: Handler,
        settings: ReaderSettings,
        lease: Lease,
        permits: Permits,
        ended: Callable[[ShardReader], None],
        predecessor: ShardReader | None = None,
        trace: Trace | None = None,
    ) -> None:
        self._thread = threading.Thread(target=self._run, name=f"shard-{shard}", daemon=True)
        self.shard = shard
        self.tenancy = tenancy
        self.health = ShardHealth(shard)
        self.in_flight = 0
        self._stream = stream
        self._settings = settings
        self._lease = lease
        self._handling = Handling(handler, settings, permits, self.health, self)
        self._ended = ended
        self._predecessor = predecessor
        self._trace = trace
        self._draining = False
        self._drain_until_ns = 0
        self._lost = False
        self._wake = threading.Event()
        self._handled: list[str] = []
        self._handled_since_ns = 0
        self._failures = 0
        self._caught_up = False
        """Every pending entry of the shard was worked off, or stands in `poison_ids`."""
        self._started = self._over = False
        # Held for a few instructions only, never during a call: the loop's thread takes it to end the tenancy.
        self._touch_lock = threading.Lock()

    # -- told by the member loop; none of these waits

    def start(self) -> None:
        """Begin to read."""
        self._thread.start()

    def is_alive(self) -> bool:
        """The reader, or its handler, still runs."""
        return self._thread.is_alive()

    def drain(self, *, within_ms: int) -> None:
        """Finish what was read, within a time, then end; what is left of it stays pending for the next holder."""
        self._drain_until_ns = now_ns() + within_ms * _NS_PER_MS
        self._draining = True
        self._wake.set()

    def lose(self) -> None:
        """Send nothing to Redis any more."""
        self._end_tenancy("lost")
        self._wake.set()

    def join(self, timeout_s: float) -> None:
        """Wait for its end."""
        self._thread.join(timeout_s)

    @property
    def lost(self) -> bool:
        """The shard was taken away without a drain."""
        return self._lost

    @property
    def draining(self) -> bool:
        """The shard was revoked."""
        return self._draining

    def progress(self) -> ShardProgress:
        """How far this reader has come, for the heartbeat."""
        seen = self.health
        return ShardProgress(
            shard=Shard(shard_index=self.shard),
            stream_key=self._stream.stream_key,
            last_delivered_id=seen.last_delivered_id,
            last_acked_id=seen.last_acked_id,
            pending_count=self.in_flight + len(seen.poison_ids),
            updated_at=seen.last_call_at,
        )

    # -- the thread

    def _run(self) -> None:
        """Wait for the shard's earlier handler in this process, then take over, read and handle until told to end."""
        try:
            while self._predecessor is not None and self._predecessor.is_alive() and self._wanted():
                self._predecessor.join(_PREDECESSOR_LOOK_S)
            self._predecessor = None
            self._read_until_told()
        finally:
            self.health.state = "ended"
            self._end_tenancy("drained")
            self._ended(self)

    def _wanted(self) -> bool:
        return not (self._lost or self._draining)

    def may_touch(self) -> bool:
        """The shard is held, and its lease runs for long enough to begin a call to Redis."""
        margin_ns = min(self._settings.lease_margin_ms * _NS_PER_MS, self._lease.ttl_ns // 10)
        return not self._lost and self._lease.left_ns() > margin_ns

    def _touch(self) -> int | None:
        """Begin a call to Redis: its time, or None when none may begin any more. In one step with `lose`."""
        with self._touch_lock:
            if not self.may_touch():
                return None
            first, self._started = not self._started, True
            begin = now_ns()
        if first:
            self.health.state = "taking-over"
            if self._trace:
                self._trace.start(self.shard, self.tenancy, begin)
        return begin

    def _end_tenancy(self, why: str) -> None:
        with self._touch_lock:
            self._lost = self._lost or why == "lost"
            ends, self._over = self._started and not self._over, True
            at = now_ns()
        if ends and self._trace:
            self._trace.stop(self.shard, self.tenancy, at, why)

    def _read_until_told(self) -> None:
        swept_ns = 0
        while self._wanted():
            try:
                self._stream.prepare()
                if not self.may_touch():
                    self.pause(20)  # the loop is about to say so; until then nothing is sent
                    continue
                self._ack()  # what an outage kept from being acknowledged
                if not self._caught_up or self._sweep_is_due(swept_ns):
                    self._caught_up, swept_ns = self._take_over(), now_ns()
                    if not self._caught_up:
                        continue
                self._work_off(self._read_unread())
                self._failures = 0
                self.health.state = "reading"
            except RedisError as error:
                # After any error the connection may have swallowed a delivery: work off the pending entries again.
                self._caught_up = False
                self._back_off(error)

    def _sweep_is_due(self, swept_ns: int) -> bool:
        """A read of an earlier holder that Redis answered late leaves entries which no take-over has seen."""
        if now_ns() - swept_ns < self._settings.sweep_interval_ms * _NS_PER_MS or self._touch() is None:
            return False
        return self._stream.others_pending()

    def _take_over(self) -> bool:
        """Claim what earlier holders left pending, whatever its idle time, then work off all own pending entries.

        Returns False when the lease or a hand-over came in between, so that it must be done again.
        Min-idle 0 is safe here and only here: the coordinator grants a shard when its holder has reported it drained or
        its lease is over, so whoever these entries were given to has stopped. They cannot be in a living handler's hands.
        """
        cursor = "0-0"
        while self._wanted() and (begin := self._touch()) is not None:
            cursor, ids, dropped = self._stream.claim(cursor, self._settings.claim_page)
            self.health.claimed += len(ids)
            self.health.bodiless += len(dropped)
            if self._trace:
                self._trace.claim(self.shard, self.tenancy, begin, ids)
            if cursor == "0-0":
                return self._work_off_pending()
        return False

    def _work_off_pending(self) -> bool:
        after_id = "0-0"
        self._caught_up = True
        while self._wanted() and (begin := self._touch()) is not None:
            entries = self._stream.read_pending(after_id, self._settings.batch_max)
            kept = self._kept(begin, entries)
            if not entries:
                return self._caught_up
            after_id = entries[-1][0]
            self._work_off(kept)
        return False

    def _read_unread(self) -> list[RawEntry]:
        # The wait is bounded so that Redis cannot deliver after the lease that was checked a moment ago.
        left_ms = self._lease.left_ns() // _NS_PER_MS
        most_ms = min(self._lease.ttl_ns // _NS_PER_MS // 4, left_ms - self._settings.lease_margin_ms // 2)
        block_ms = min(self._settings.block_ms, most_ms)
        if not self._wanted() or (begin := self._touch()) is None:
            return []
        entries = self._stream.read_unread(self._settings.batch_max, block_ms)
        return self._kept(begin, entries)

    def _kept(self, begin: int, entries: list[RawEntry]) -> list[RawEntry]:
        """Throw a batch away when the lease ended during the call: its entries stay pending for the next holder."""
        kept = self.may_touch()
        if self._trace:
            self._trace.read(self.shard, self.tenancy, begin, [i for i, _ in entries], kept=kept)
        self.health.last_call_at = datetime.now(UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")
        if kept and entries:
            self.health.last_delivered_id = entries[-1][0]
        if entries and not kept:
            self.health.discarded += len(entries)
            self._caught_up = False  # should the lease be renewed after all, they are ours to work off
        return entries if kept else []

    def _work_off(self, entries: list[RawEntry]) -> None:
        self.in_flight = len(entries) + len(self._handled)
        try:
            for record_id, fields in entries:
                if self._lost or (self._draining and now_ns() > self._drain_until_ns):
                    break
                if record_id in self._handled:  # its XACK was not answered: it is pending still, but not to be handled again
                    continue
                if fields is None:  # trimmed or deleted while pending: nobody can handle it, and it would come back for ever
                    self.health.bodiless += 1
                    self._note_handled(record_id)
                elif self._handling.handle(Entry(self.shard, self._stream.stream_key, record_id, fields)):
                    self._note_handled(record_id)
                elif record_id not in self.health.poison_ids:
                    self._caught_up = False  # the handler did not get to it
                if self._handled and now_ns() - self._handled_since_ns > self._settings.ack_delay_ms_max * _NS_PER_MS:
                    self._ack()
            self._ack()
        finally:
            self.in_flight = len(self._handled)

    def _note_handled(self, record_id: str) -> None:
        if not self._handled:
            self._handled_since_ns = now_ns()
        self._handled.append(record_id)

    def _ack(self) -> None:
        if not self._handled or (begin := self._touch()) is None:
            return
        ids = self._handled.copy()
        if self._trace:
            self._trace.ack_begin(self.shard, self.tenancy, begin, ids)
        self._stream.ack(ids)
        if self._trace:
            self._trace.ack(self.shard, self.tenancy, begin, ids)
        self._handled.clear()
        self.in_flight -= len(ids)
        self.health.last_acked_id = ids[-1]

    def _back_off(self, error: RedisError) -> None:
        if not self._wanted():
            return
        self._failures += 1
        self.health.redis_errors += 1
        self.health.last_error = f"{type(error).__name__}: {error}"
        if is_unprovisioned(error):
            # The coordinator provisions; asking at most twice a second finds the stream soon after it is back.
            self.health.state, delay_ms = "unprovisioned", 1_000
        else:
            self.health.state = "redis-away"
            delay_ms = min(self._settings.redis_backoff_ms_max, 100 * 2 ** min(self._failures, 10))
        if self._failures == 1:
            _log.warning("shard %d: %s (%s); going on trying", self.shard, self.health.state, self.health.last_error)
        self.pause(int(delay_ms * random.uniform(0.6, 1.0)))

    def pause(self, delay_ms: int) -> None:
        """Sleep, but wake up when told to drain or lose."""
        self._wake.wait(delay_ms / 1000)
