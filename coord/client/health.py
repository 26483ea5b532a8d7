"""What a member, its shards and its counts look like from outside."""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field

POISON_IDS_MAX = 100


@dataclass(slots=True)
class ShardHealth:
    """What one shard's reader has seen. `claimed` counts entries taken over at the start, own ones included."""

    shard: int
    state: str = "waiting"
    """waiting (for the handler of an earlier tenancy), taking-over, reading, unprovisioned, redis-away, ended"""
    last_call_at: str | None = None
    last_delivered_id: str | None = None
    last_acked_id: str | None = None
    handled: int = 0
    claimed: int = 0
    bodiless: int = 0
    redis_errors: int = 0
    handler_errors: int = 0
    discarded: int = 0
    poison_ids: deque[str] = field(default_factory=lambda: deque(maxlen=POISON_IDS_MAX))
    last_error: str | None = None


@dataclass(frozen=True, slots=True)
class MemberHealth:
    """The member as it is. `failures` counts unanswered heartbeats by kind; times in milliseconds, None = never."""

    state: str
    """starting, joining, member, leaving, left, failed"""
    member_epoch: int
    assigned: tuple[int, ...]
    draining: tuple[int, ...]
    pending: tuple[int, ...]
    lease_left_ms: int | None
    last_accepted_age_ms: int | None
    heartbeats: int
    accepted: int
    lapses: int
    statuses: dict[str, int]
    failures: dict[str, int]
    failures_in_a_row: int
    last_error: str | None
    fatal: str | None

    @property
    def healthy(self) -> bool:
        """The member holds a running lease."""
        return self.fatal is None and self.lease_left_ms is not None and self.lease_left_ms > 0


@dataclass(slots=True)
class MemberCounts:
    """What the member loop has counted. Written by its thread alone."""

    heartbeats: int = 0
    accepted: int = 0
    last_accepted_ms: int | None = None
    statuses: Counter[str] = field(default_factory=Counter)
    failures: Counter[str] = field(default_factory=Counter)
    failures_in_a_row: int = 0
    last_error: str | None = None
