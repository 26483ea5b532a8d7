"""Between the member loop, who carries its heartbeats, and who reads the shards."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from coord.wire import Capacity, HeartbeatRequest, HeartbeatResponse, ShardProgress


class HeartbeatCall(Protocol):
    """Who carries heartbeats to the coordinator: `CoordinatorHttp`, or a `HeartbeatBatcher`."""

    def heartbeat(
        self, stream_prefix: str, consumer_group: str, body: HeartbeatRequest, *, timeout_ms: int | None = None
    ) -> HeartbeatResponse:
        """Ask once, within `timeout_ms`; raises RetriableError or FatalError."""


class ShardHost(Protocol):
    """Who reads the shards. All calls come from the loop's thread and must return at once."""

    def on_assign(self, shards: frozenset[int]) -> None:
        """Start reading these."""

    def on_revoke(self, shards: frozenset[int]) -> None:
        """Drain these; call `MemberLoop.drained` for each when nothing of it is in flight any more."""

    def on_lost(self, shards: frozenset[int]) -> None:
        """Stop these at once: nothing may reach Redis any more."""

    def capacity(self) -> Capacity:
        """How many handlers may run, and how many are free."""

    def in_flight(self) -> Mapping[int, int]:
        """Entries read and not acknowledged, per shard."""

    def progress(self) -> Sequence[ShardProgress]:
        """How far each shard has come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LoopSettings:
    """Timing of the member loop, milliseconds. None: derived from the lease that the coordinator tells."""

    request_timeout_ms: int | None = None
    """Default: a third of the lease, so that one lost request leaves time for two more."""
    first_timeout_ms: int = 3_000
    first_interval_ms: int = 1_000
    """Used until the first answer tells the real one."""
    start_spread_ms: int = 200
    """First contact is spread over this time, so that a fleet that starts at once does not stay in step."""
    backoff_ms_min: int = 50
    leave_timeout_ms: int = 10_000
    hasten_ms: int = 20
    """A drain that ended is reported after this time rather than at the next interval."""
