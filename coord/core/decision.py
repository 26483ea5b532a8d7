"""The outcome of a command, and what it was decided on.

`Refused` (see `coord.refusals`): nothing is recorded. `Accepted`: record `events`, and send `reply` only once they are durable;
without events, send `reply` once the store has confirmed that the aggregate decided on is current.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from coord.events.catalog import Event, Shards
from coord.projections.aggregate import Aggregate
from coord.projections.group import Group
from coord.projections.stream import Resharding
from coord.refusals import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Timings (ms) and limits, from the configuration; they apply at once and are never stored."""

    heartbeat_interval_ms: int = 3_000
    member_lease_ttl_ms: int = 15_000
    rebalance_timeout_ms: int = 60_000
    stale_member_retention_ms: int = 600_000
    failover_grace_ms: int = 10_000
    routing_grace_ms: int = 10_000
    watch_retired_ms: int = 3_600_000
    auto_register: bool = True
    groups_per_stream: int = 1_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Past:
    """A tombstone's counters, from which a group or stream made again goes on. `registration`: the one that ended with it."""

    epoch: int
    metadata_version: int
    latest_lease: int = 0
    registration: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """When and where a command is decided.

    `now`: the store's clock, ms; `identity`: the store's; `revision`: the one that this decision would make; `leases`: the
    deadlines of joining members' leases as read (None, or missing: no entry); `latest_lease`: the latest of all leases (0: none);
    `past`: the tombstone, where the aggregate was deleted; `level`: the highest level of events that every live instance
    reads (see `coord.events.codec`): an event of a higher one must not be emitted yet.
    """

    now: int
    identity: str
    revision: int
    policy: Policy
    leases: Mapping[str, int | None] = field(default_factory=dict)
    latest_lease: int = 0
    past: Past | None = None
    level: int = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class HeartbeatReply:
    """What a heartbeat is answered; `row` is the row of the table that fired."""

    row: int
    status: str
    member_epoch: int
    group_epoch: int = 0
    assignment_epoch: int = 0
    metadata_version: int = 0
    assigned: Shards = ()
    pending: Shards = ()
    renews: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A command other than a heartbeat was carried out; `migration` is the resharding that it was about."""

    migration: Resharding | None = None


Reply: TypeAlias = HeartbeatReply | Done


@dataclass(frozen=True, slots=True, kw_only=True)
class Leases:
    """Soft state that the decision rests on, and what it does to it; the terms of `coord.store.base`."""

    lapsed: tuple[str, ...] = ()
    unchanged: Mapping[str, int | None] = field(default_factory=dict)
    none_running: bool = False
    latest_at_most: int | None = None
    renew: tuple[str, ...] = ()
    renew_all: bool = False
    remove: tuple[str, ...] = ()


NO_LEASES = Leases()


@dataclass(frozen=True, slots=True, kw_only=True)
class Accepted:
    """Record `events`, which make `after`; then send `reply`."""

    events: tuple[Event, ...]
    reply: Reply
    after: Aggregate | None
    leases: Leases = NO_LEASES


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """Heartbeats decided together: one reply each, in their order, all read off the state that they make together.

    `origins`: for each event the place of the heartbeat that caused it.
    """

    events: tuple[Event, ...]
    origins: tuple[int, ...]
    replies: tuple[HeartbeatReply, ...]
    after: Group | None
    leases: Leases = NO_LEASES


Decision: TypeAlias = Accepted | Refused
