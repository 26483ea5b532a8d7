"""What members were told and when, and what was acknowledged to them; judged after the run."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from coord.events import codec
from coord.events.catalog import (
    Event,
    MemberExpired,
    MemberFenced,
    MemberJoined,
    MemberLeaving,
    MemberRejoined,
    ReshardingRequested,
)
from coord.names import AggregateKey
from coord.runtime.verify import entries_of
from coord.store.base import Store

MEMBERSHIP = (MemberJoined, MemberRejoined, MemberLeaving, MemberExpired, MemberFenced)


@dataclass(frozen=True, slots=True)
class Tenancy:
    """A member might read a shard from `begin_ms` to `end_ms` (monotonic).

    That is from the answer that gave it until it let go, or its lease ended.
    """

    shard: int
    member_id: str
    begin_ms: float
    end_ms: float


@dataclass(slots=True)
class Ledger:
    """Thread-safe notes."""

    tenancies: list[Tenancy] = field(default_factory=list)
    joins: set[tuple[str, str]] = field(default_factory=set)
    leaves: set[str] = field(default_factory=set)
    reshardings: set[str] = field(default_factory=set)
    revisions: dict[AggregateKey, int] = field(default_factory=dict)
    statuses: Counter[str] = field(default_factory=Counter)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tenancy(self, tenancy: Tenancy) -> None:
        """Note a tenancy that has ended."""
        with self.lock:
            self.tenancies.append(tenancy)

    def answered(self, key: AggregateKey, revision: int, status: str) -> None:
        """Note an answer and the revision that it acknowledged."""
        with self.lock:
            self.statuses[status] += 1
            self.revisions[key] = max(self.revisions.get(key, 0), revision)

    def joined(self, member_id: str, request_id: str) -> None:
        """Note an acknowledged join."""
        with self.lock:
            self.joins.add((member_id, request_id))

    def left(self, member_id: str) -> None:
        """Note an acknowledged leave."""
        with self.lock:
            self.leaves.add(member_id)

    def scaled(self, resharding_id: str) -> None:
        """Note an acknowledged resharding."""
        with self.lock:
            self.reshardings.add(resharding_id)


def double_holders(tenancies: Iterable[Tenancy]) -> list[str]:
    """Give every overlap of two members on one shard."""
    found: list[str] = []
    by_shard: dict[int, list[Tenancy]] = {}
    for tenancy in tenancies:
        by_shard.setdefault(tenancy.shard, []).append(tenancy)
    for shard, on_shard in sorted(by_shard.items()):
        latest: Tenancy | None = None
        for tenancy in sorted(on_shard, key=lambda t: t.begin_ms):
            if latest is not None and latest.member_id != tenancy.member_id and tenancy.begin_ms < latest.end_ms:
                over = latest.end_ms - tenancy.begin_ms
                found.append(f"shard {shard}: {tenancy.member_id} began {over:.0f} ms before {latest.member_id} ended")
            if latest is None or tenancy.end_ms > latest.end_ms:
                latest = tenancy
    return found


def missing_from_log(ledger: Ledger, store: Store) -> tuple[list[str], int]:
    """Give every acknowledged change that no log holds, and how many membership changes the logs hold."""
    events: list[Event] = []
    missing: list[str] = []
    for key, acknowledged in ledger.revisions.items():
        last = 0
        for entry in entries_of(store, key):
            last = entry.revision
            events.append(codec.decode(entry).event)
        if last < acknowledged:
            missing.append(f"{key}: revision {acknowledged} was acknowledged, the log ends at {last}")
    joins = {(e.member_id, e.request_id) for e in events if isinstance(e, MemberJoined | MemberRejoined)}
    leaves = {e.member_id for e in events if isinstance(e, MemberLeaving)}
    reshardings = {e.resharding_id for e in events if isinstance(e, ReshardingRequested)}
    missing += [f"join {member} {request}" for member, request in sorted(ledger.joins - joins)]
    missing += [f"leave {member}" for member in sorted(ledger.leaves - leaves)]
    missing += [f"resharding {name}" for name in sorted(ledger.reshardings - reshardings)]
    return missing, sum(isinstance(event, MEMBERSHIP) for event in events)
