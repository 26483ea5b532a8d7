"""A consumer: a member of a group that reads the shards it holds.

    consumer = Consumer("http://127.0.0.1:8080/coord/v1", "redis://127.0.0.1:6379", stream_prefix="orders",
                        consumer_group="billing", member_id="billing-0", handler=work)
    consumer.start()
    ...
    consumer.stop()          # drains, acknowledges, leaves
    consumer.wait()          # raises what ended it, if it was no stop

Processing is at-least-once: an entry is acknowledged after its handler returned. The member id is the name of the
Redis consumer, so give a process the same id again when it restarts: new names would pile up in the Redis consumer
group. Make it after a fork, not before. Several consumers of one group in one process may be given one
`HeartbeatBatcher` in place of the coordinator's URLs: their heartbeats then share requests, all else stays apart. One
thread per shard; at most `concurrency` handlers at a time. Handlers may sleep and may compute in Python; C code that
holds the interpreter's lock for longer than the lease stops the heartbeat with it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from coord.client.batching import HeartbeatBatcher
from coord.client.connecting import connect
from coord.client.errors import FatalError
from coord.client.handling import Handler, Permits, ReaderSettings
from coord.client.health import MemberHealth, ShardHealth
from coord.client.host import LoopSettings
from coord.client.http import CoordinatorHttp, Credentials
from coord.client.member import MemberLoop
from coord.client.reader import ShardReader
from coord.client.shardstream import ShardStream
from coord.client.trace import Trace
from coord.names import name_fault
from coord.wire import Capacity, ShardProgress

_DRAIN_MS_MIN = 1_000
_CLOSE_S_MAX = 2.0


def _nothing() -> None:
    """There is no batcher to leave."""


@dataclass(frozen=True, slots=True)
class ConsumerHealth:
    """The member, and each shard that this process reads or is letting go, by shard."""

    member: MemberHealth
    shards: tuple[ShardHealth, ...]

    @property
    def healthy(self) -> bool:
        """The lease runs, and every shard on record is being read."""
        return self.member.healthy and all(s.state == "reading" for s in self.shards)


class Consumer:
    """Reads the shards of `streamPrefix` that the coordinator assigns to this member. See the module for its use."""

    def __init__(  # noqa: PLR0913  one keyword an option
        self,
        coordinator_urls: str | list[str] | tuple[str, ...] | HeartbeatBatcher,
        redis_url: str | Sequence[str],
        *,
        stream_prefix: str,
        consumer_group: str,
        member_id: str,
        handler: Handler,
        member_name: str | None = None,
        concurrency: int = 4,
        credentials: Credentials | None = None,
        reader: ReaderSettings | None = None,
        loop: LoopSettings | None = None,
        redis_timeout_ms: int = 3_000,
        trace: Trace | None = None,
    ) -> None:
        for field, name in (("stream_prefix", stream_prefix), ("consumer_group", consumer_group), ("member_id", member_id)):
            if fault := name_fault(name):
                message = f"{field}: {fault}"
                raise ValueError(message)
        if concurrency < 1:
            message = f"concurrency: must be at least 1, got {concurrency}"
            raise ValueError(message)
        if credentials is not None and isinstance(coordinator_urls, HeartbeatBatcher):
            message = "credentials: a batcher's are those of its CoordinatorHttp"
            raise ValueError(message)
        self._stream_prefix = stream_prefix
        self._consumer_group = consumer_group
        self._member_id = member_id
        self._handler = handler
        self._settings = reader or ReaderSettings()
        self._permits = Permits(concurrency)
        self._trace = trace
        self._redis = connect(redis_url, timeout_ms=max(redis_timeout_ms, 2 * self._settings.block_ms))
        self._carrier: CoordinatorHttp | HeartbeatBatcher = (
            coordinator_urls
            if isinstance(coordinator_urls, HeartbeatBatcher)
            else CoordinatorHttp(coordinator_urls, credentials=credentials)
        )
        self._leave_batcher: Callable[[], None] = _nothing
        self._readers: dict[int, ShardReader] = {}
        self._tenancies = 0
        self.loop = MemberLoop(
            self._carrier,
            self,
            stream_prefix=stream_prefix,
            consumer_group=consumer_group,
            member_id=member_id,
            member_name=member_name,
            settings=loop,
            trace=trace,
        )

    def start(self) -> None:
        """Join the group and read what it assigns. Raises ValueError when the batcher has a member of this id already."""
        if isinstance(self._carrier, HeartbeatBatcher):
            self._leave_batcher = self._carrier.add(
                self._stream_prefix, self._consumer_group, self._member_id, self.loop.beat_along
            )
        self.loop.start()

    def stop(self) -> None:
        """Begin to stop: drain, acknowledge, leave. Returns at once; safe in a signal handler."""
        self.loop.leave()

    def wait(self, timeout_s: float | None = None) -> bool:
        """Wait until it has stopped; False when it has not in time. Raises FatalError, or what else ended it."""
        ended = True
        try:
            ended = self.loop.wait(timeout_s)
        finally:
            if ended:
                self._close()
        return ended

    def health(self) -> ConsumerHealth:
        """Describe the consumer; never blocks."""
        readers = sorted(self._readers.copy().items())
        return ConsumerHealth(self.loop.health(), tuple(reader.health for _, reader in readers if reader.is_alive()))

    # -- the loop's host; called from its thread

    def on_assign(self, shards: frozenset[int]) -> None:
        """Start a reader for each shard; it waits for the shard's earlier handler in this process, if that still runs."""
        for shard in sorted(shards):
            self._tenancies += 1
            earlier = self._readers.get(shard)
            stream_key = f"{self._stream_prefix}:{shard}"
            self._readers[shard] = reader = ShardReader(
                shard,
                ShardStream(self._redis, stream_key=stream_key, consumer_group=self._consumer_group, consumer=self._member_id),
                tenancy=self._tenancies,
                handler=self._handler,
                settings=self._settings,
                lease=self.loop.lease,
                permits=self._permits,
                ended=self._reader_ended,
                predecessor=earlier if earlier is not None and earlier.is_alive() else None,
                trace=self._trace,
            )
            reader.start()

    def on_revoke(self, shards: frozenset[int]) -> None:
        """Drain each shard, within half the rebalance timeout: who takes longer is fenced."""
        within_ms = max(_DRAIN_MS_MIN, self.loop.protocol.rebalance_timeout_ms // 2)
        for shard in shards:
            self._readers[shard].drain(within_ms=within_ms)

    def on_lost(self, shards: frozenset[int]) -> None:
        """Stop each shard's reader from sending anything more."""
        for shard in shards:
            if (reader := self._readers.get(shard)) is not None:  # none when it was starting that failed
                reader.lose()

    def capacity(self) -> Capacity:
        """How many handlers may run, and how many are free."""
        return Capacity(runtime_max_concurrency=self._permits.concurrency, available_concurrency=max(0, self._permits.free))

    def in_flight(self) -> Mapping[int, int]:
        """Entries read and not acknowledged, per shard."""
        return {shard: reader.in_flight for shard, reader in self._readers.items()}

    def progress(self) -> Sequence[ShardProgress]:
        """How far each shard has come."""
        return tuple(reader.progress() for reader in self._readers.values())

    def _close(self) -> None:
        self._leave_batcher()
        if isinstance(self._carrier, CoordinatorHttp):  # a batcher's belongs to whoever made it
            self._carrier.close()
        # A connection closed under a thread that waits on it could hand that thread another connection's bytes: the readers
        # end first, within a block time; where a handler hangs, its connections are left to the process's end.
        until = time.monotonic() + _CLOSE_S_MAX
        for reader in self._readers.values():
            reader.join(max(0.0, until - time.monotonic()))
        if not any(reader.is_alive() for reader in self._readers.values()):
            self._redis.close()

    def _reader_ended(self, reader: ShardReader) -> None:
        """Called from a reader's thread as its last act."""
        if reader.lost:
            return
        if reader.draining:
            self.loop.drained(reader.shard)
        else:
            # A shard that is on record but that nobody reads must not look well.
            reason = f"the reader of shard {reader.shard} ended by itself: {reader.health.last_error}"
            self.loop.fail(FatalError("READER_DIED", reason))
