"""A producer: publishes records to the shards of a stream, by routing version 1.

    with Producer("http://127.0.0.1:8080/coord/v1", "redis://127.0.0.1:6379", stream_prefix="orders") as producer:
        producer.publish("customer-7", {"amount": "12"})

Publishing never queues: each record is in Redis when the call returns, or the call raises. The routing is refreshed by
time in a thread of its own, so that new shards are found while all goes well; it is a lease: without a successful refresh
for `routing_lease_ms` publishing fails closed, because shards that left the routing may be read by nobody. After a
scaling a key may move to another shard, so its newer records can be handled before its older ones.
"""

from __future__ import annotations

import itertools
import logging
import random
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import Self, TypeAlias

from redis.exceptions import ResponseError

from coord.client.connecting import connect
from coord.client.dataplane import Command
from coord.client.errors import (
    CoordinatorError,
    FatalError,
    NoShardsError,
    PublishError,
    PublishUncertainError,
    RetriableError,
    RoutingExpiredError,
    ShardGoneError,
)
from coord.client.http import CoordinatorHttp, Credentials
from coord.client.routing import shard_for
from coord.client.trace import Trace, now_ns
from coord.names import name_fault
from coord.refusals import Code
from coord.wire import ProducerRoutingResponse

Fields: TypeAlias = Mapping[str | bytes, str | bytes | int | float]
_NS_PER_MS = 1_000_000
_log = logging.getLogger("coord.client.producer")


@dataclass(frozen=True, slots=True)
class Published:
    """Where a record is."""

    shard: int
    stream_key: str
    id: str


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of one record of a batch: exactly one of both is set."""

    published: Published | None
    error: PublishError | None


@dataclass(frozen=True, slots=True)
class Record:
    """One record of a batch. A key of None spreads over the shards."""

    key: str | None
    fields: Fields


@dataclass(frozen=True, slots=True)
class _Route:
    """A routing, and when it was asked for: its lease runs from the sending."""

    answer: ProducerRoutingResponse
    etag: str | None
    asked_ns: int


class Producer:
    """Publishes to one stream. Thread-safe. Make it after a fork, not before."""

    def __init__(  # noqa: PLR0913  one keyword an option
        self,
        coordinator_urls: str | list[str] | tuple[str, ...],
        redis_url: str | Sequence[str],
        *,
        stream_prefix: str,
        credentials: Credentials | None = None,
        refresh_ms: int = 10_000,
        routing_lease_ms: int = 60_000,
        http_timeout_ms: int = 3_000,
        redis_timeout_ms: int = 3_000,
        trace: Trace | None = None,
    ) -> None:
        if fault := name_fault(stream_prefix):
            message = f"stream_prefix: {fault}"
            raise ValueError(message)
        if not 0 < refresh_ms < routing_lease_ms:
            message = f"refresh_ms: must be above 0 and below routing_lease_ms ({routing_lease_ms}), got {refresh_ms}"
            raise ValueError(message)
        self._stream_prefix = stream_prefix
        self._refresh_ms = refresh_ms
        self._routing_lease_ms = routing_lease_ms
        self._http_timeout_ms = http_timeout_ms
        self._http = CoordinatorHttp(coordinator_urls, credentials=credentials, timeout_ms=http_timeout_ms)
        self._redis = connect(redis_url, timeout_ms=redis_timeout_ms)
        self._trace = trace
        self._route: _Route | None = None
        self._last_error: str | None = None
        self._next_shard = itertools.count(random.randrange(16384))
        self._refresh_lock = threading.Lock()
        self._closed = threading.Event()
        self._refresher = threading.Thread(target=self._keep_fresh, name=f"routing-{stream_prefix}", daemon=True)
        self.refreshes = 0
        """Routing answers fetched so far."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Stop refreshing and close all connections."""
        self._closed.set()
        self._redis.close()
        self._http.close()

    def publish(self, key: str | None, fields: Fields) -> Published:
        """Publish one record; raises a PublishError when it is not (or not surely) in Redis."""
        outcome = self.publish_many([Record(key, fields)])[0]
        if outcome.published is None:
            raise outcome.error or AssertionError
        return outcome.published

    def publish_many(self, records: Sequence[Record]) -> list[Outcome]:
        """Publish a batch, over one connection to each Redis server; one outcome per record, in order.

        Records of shards that Redis does not have are tried once more after one refresh of the routing.
        """
        outcomes: list[Outcome | None] = [None] * len(records)
        self._attempt(records, range(len(records)), outcomes)
        gone = [i for i, o in enumerate(outcomes) if o is not None and isinstance(o.error, ShardGoneError)]
        if gone:
            stale = self._route
            self._refresh(unless_newer_than=stale, with_etag=False)
            self._attempt(records, gone, outcomes)
        return [o for o in outcomes if o is not None]

    def shard_count(self) -> int:
        """How many shards the routing has that publishing uses now; raises as publishing would."""
        return self._routing().shard_count

    # -- publishing

    def _attempt(self, records: Sequence[Record], positions: Sequence[int], outcomes: list[Outcome | None]) -> None:
        try:
            routing = self._routing()
        except PublishError as error:
            for i in positions:
                outcomes[i] = Outcome(None, error)
            return
        routes = [routing.shards[self._position(records[i].key, routing.shard_count)] for i in positions]
        # NOMKSTREAM: a key that does not exist is a shard that nobody will read, never one to make.
        commands: list[tuple[str, Command]] = [
            (
                route.stream_key,
                ("XADD", route.stream_key, "NOMKSTREAM", "*", *itertools.chain.from_iterable(records[i].fields.items())),
            )
            for i, route in zip(positions, routes, strict=True)
        ]
        begin = now_ns()
        replies = self._redis.batch(commands)
        for i, route, reply in zip(positions, routes, replies, strict=True):
            outcomes[i] = outcome = _outcome(route.shard_index, route.stream_key, reply)
            if outcome.published is not None and self._trace:
                self._trace.xadd(route.shard_index, outcome.published.id, begin)

    def _position(self, key: str | None, shard_count: int) -> int:
        return next(self._next_shard) % shard_count if key is None else shard_for(key, shard_count)

    # -- routing

    def _routing(self) -> ProducerRoutingResponse:
        if self._closed.is_set():
            raise PublishError("the producer is closed")
        route = self._route
        if route is None:
            self._refresh(unless_newer_than=None, with_etag=False)
            route = self._route
        if not self._refresher.is_alive():
            self._start_refresher()
        if route is None or now_ns() - route.asked_ns > self._routing_lease_ms * _NS_PER_MS:
            message = f"no routing of {self._stream_prefix!r} within {self._routing_lease_ms} ms: {self._last_error}"
            raise RoutingExpiredError(message)
        if route.answer.shard_count == 0 or not route.answer.shards:
            message = f"stream {self._stream_prefix!r} has no shards at present"
            raise NoShardsError(message)
        return route.answer

    def _start_refresher(self) -> None:
        with self._refresh_lock:
            if self._refresher.ident is None:
                self._refresher.start()

    def _refresh(self, *, unless_newer_than: _Route | None, with_etag: bool) -> None:
        """Fetch the routing, once for all threads that hold the same stale one; a failure leaves what is known."""
        with self._refresh_lock:
            route = self._route
            if route is not unless_newer_than:
                return
            asked_ns = now_ns()
            try:
                etag = route.etag if route and with_etag else None
                fetched = self._http.routing(self._stream_prefix, etag=etag, timeout_ms=self._http_timeout_ms)
                if fetched is not None:
                    _check(fetched[0])
            except CoordinatorError as error:
                self._last_error = str(error)
                if isinstance(error, FatalError) and error.code == Code.STREAM_NOT_FOUND:
                    self._route = None  # deleted: fail closed now, not when the routing's lease ends
                return
            self.refreshes += 1
            self._last_error = None
            if fetched is None and route is not None:
                self._route = _Route(route.answer, route.etag, asked_ns)
            elif fetched is not None:
                # Whatever its metadataVersion: a stream made anew may count from lower numbers.
                self._route = _Route(fetched[0], fetched[1], asked_ns)

    def _keep_fresh(self) -> None:
        failures = 0
        while not self._closed.wait(self._delay_ms(failures) / 1000):
            self._refresh(unless_newer_than=self._route, with_etag=True)
            if self._last_error is None:
                failures = 0
                continue
            failures += 1
            if failures == 1:
                _log.warning("routing of %s: %s; trying again", self._stream_prefix, self._last_error)

    def _delay_ms(self, failures: int) -> int:
        delay_ms = self._refresh_ms if failures == 0 else min(self._refresh_ms, 100 * 2 ** min(failures, 10))
        return int(delay_ms * random.uniform(0.8, 1.0))


def _check(answer: ProducerRoutingResponse) -> None:
    """Refuse a routing whose shards are not exactly 0 .. shardCount-1: hashing by it would scatter keys."""
    if [s.shard_index for s in answer.shards] != list(range(answer.shard_count)):
        kind = "routing"
        raise RetriableError(kind, f"the routing's shards are not 0 to {answer.shard_count - 1} in order")


def _outcome(shard: int, stream_key: str, reply: object) -> Outcome:
    if isinstance(reply, bytes):
        return Outcome(Published(shard, stream_key, reply.decode()), None)
    if reply is None:
        return Outcome(None, ShardGoneError(f"Redis has no stream {stream_key!r}"))
    if isinstance(reply, ResponseError):
        return Outcome(None, PublishError(f"Redis refused the record for {stream_key!r}: {reply}"))
    return Outcome(None, PublishUncertainError(f"Redis gave no answer for {stream_key!r}: {reply!r}"))
