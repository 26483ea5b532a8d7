"""The memory store with what happens to a store: lost answers, crashes around a commit, outages, falling back."""

from __future__ import annotations

import random
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.store.base import (
    Commit,
    Committed,
    Conflict,
    Due,
    Head,
    Loaded,
    OutcomeUnknown,
    Soft,
    Standing,
    Store,
    StoreError,
    StoreUnavailable,
    Tail,
    Touch,
    Touched,
    Turn,
)
from coord.store.memory import MemoryStore
from tests.simulation.checkers import REMEMBERED_MAX, Violation
from tests.simulation.faults import Faults
from tests.simulation.redis import SimulatedRedis
from tests.simulation.sql import SimulatedSql

TAIL_WITH_A_GAP = 0.05
"""How often a log's tail lacks an entry, as that of a log would which somebody has trimmed."""
RealStore: TypeAlias = SimulatedRedis | SimulatedSql
"""A store on a real server, under simulated time."""
Backing: TypeAlias = MemoryStore | RealStore
"""What is behind all."""


class NodeCrash(BaseException):
    """The coordinator died at this point; nothing of it goes on. No `except Exception` may hold it up."""


class SharedStore:
    """The one store that all coordinators of a simulation use, and its past."""

    def __init__(self, memory: Backing, chance: random.Random, faults: Faults) -> None:
        self.memory: Any = memory
        self.chance = chance
        self.faults = faults
        self.away = False
        self.calm = False
        self.fell_back = 0
        self.past: list[Any] = []
        self.committed: Callable[[Commit], None] = lambda _: None
        self.interleave: Callable[[], None] = lambda: None

    def remember(self) -> None:
        """Keep the present state as one to fall back to."""
        self.past = [*self.past[1 - REMEMBERED_MAX :], self.memory.dump()]

    def fall_back(self) -> int | None:
        """Lose the latest commits and renewals, as a failover to a lagging replica does, seldom many; tell which state it is."""
        if not self.past:
            return None
        which = int(len(self.past) * self.chance.random() ** 0.3)
        self.past = self.past[: which + 1]
        self.memory.restore(self.past[which])
        self.fell_back += 1
        self.memory.store_identity = f"store-{self.fell_back}"
        return which


class NodeStore(Store):
    """The shared store as one coordinator sees it."""

    def __init__(self, shared: SharedStore) -> None:
        self._shared = shared
        self._memory: Store = shared.memory

    def commit(self, commit: Commit) -> Committed | Conflict:
        """Write; by chance die before or after it, or lose the answer."""
        shared = self._shared
        if not shared.calm and shared.chance.random() < shared.faults.interleave:
            shared.interleave()
        self._reach()
        dice = 1.0 if shared.calm else shared.chance.random()
        if dice < shared.faults.crash_in_commit / 2:
            raise NodeCrash
        dice -= shared.faults.crash_in_commit / 2
        if 0 <= dice < shared.faults.unknown / 2:
            message = "the commit never arrived"
            raise OutcomeUnknown(message)
        outcome = self._memory.commit(commit)
        if isinstance(outcome, Conflict):
            return outcome
        if not outcome.already:
            shared.committed(commit)
        return self._answer(commit, outcome, dice - shared.faults.unknown / 2)

    def _answer(self, commit: Commit, outcome: Committed, dice: float) -> Committed | Conflict:
        faults = self._shared.faults
        if 0 <= dice < faults.crash_in_commit / 2:
            raise NodeCrash
        dice -= faults.crash_in_commit / 2
        if 0 <= dice < faults.unknown / 2:
            message = "the commit took place, and nobody heard of it"
            raise OutcomeUnknown(message)
        dice -= faults.unknown / 2
        if 0 <= dice < faults.lost_answer:
            return self._again(commit)
        return outcome

    def _again(self, commit: Commit) -> Committed | Conflict:
        """Send the same bytes again, as a store does after a lost answer."""
        outcome = self._memory.commit(commit)
        written = self._memory.tail(commit.key, after=(commit.expected.revision, commit.expected.last[1]), limit=1_000)
        if not isinstance(outcome, Committed) or not outcome.already:
            raise Violation("repeated", f"{commit.key}: a commit that took place is answered {outcome} when it is sent again")
        if len(written) != len(commit.entries):
            raise Violation("repeated", f"{commit.key}: {len(commit.entries)} entries were sent, {len(written)} are in the log")
        return outcome

    def _reach(self) -> None:
        if self._shared.away:
            message = "the store is away"
            raise StoreUnavailable(message)

    def load(self, key: AggregateKey) -> Loaded:
        """Read, when the store is there."""
        self._reach()
        return self._memory.load(key)

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        """Read the log's tail, when the store is there; by chance an entry of it is missing."""
        self._reach()
        found = self._memory.catch_up(key, seen=seen, limit=limit)
        if isinstance(found, Tail) and found.entries and self._shared.chance.random() < TAIL_WITH_A_GAP:
            missing = self._shared.chance.randrange(len(found.entries))
            return replace(found, entries=(*found.entries[:missing], *found.entries[missing + 1 :]))
        return found

    def tail(self, key: AggregateKey, *, after: tuple[int, int], limit: int) -> Sequence[Entry]:
        """Read the log, when the store is there."""
        self._reach()
        return self._memory.tail(key, after=after, limit=limit)

    def latest(self, key: AggregateKey, *, before: tuple[int, int] | None, limit: int) -> Sequence[Entry]:
        """Read the log from its end, when the store is there."""
        self._reach()
        return self._memory.latest(key, before=before, limit=limit)

    def append(self, key: AggregateKey, *, expected: Head, entries: tuple[Entry, ...]) -> Head | None:
        """Append, when the store is there."""
        self._reach()
        return self._memory.append(key, expected=expected, entries=entries)

    def touch(self, touch: Touch) -> Touched:
        """Touch, when the store is there."""
        self._reach()
        return self._memory.touch(touch)

    def touch_many(self, touches: Sequence[Touch]) -> list[Touched | StoreError]:
        """Touch, when the store is there."""
        self._reach()
        return self._memory.touch_many(touches)

    def lease(self, key: GroupKey, member_id: str) -> tuple[int | None, int]:
        """Read a lease, when the store is there."""
        self._reach()
        return self._memory.lease(key, member_id)

    def soft(self, key: GroupKey) -> Soft:
        """Read soft state, when the store is there."""
        self._reach()
        return self._memory.soft(key)

    def due_many(self, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        """Look, when the store is there."""
        self._reach()
        return self._memory.due_many(keys, lease_ttl_ms=lease_ttl_ms, grace=grace)

    def standings(self, keys: Sequence[AggregateKey]) -> list[Standing | StoreError]:
        """Look, when the store is there."""
        self._reach()
        return self._memory.standings(keys)

    def grant_missing_leases(self, key: GroupKey, members: Sequence[str], *, ttl_ms: int) -> None:
        """Grant, when the store is there."""
        self._reach()
        self._memory.grant_missing_leases(key, members, ttl_ms=ttl_ms)

    def streams(self) -> Sequence[str]:
        """List, when the store is there."""
        self._reach()
        return self._memory.streams()

    def index_add(self, key: StreamKey) -> None:
        """Index, when the store is there."""
        self._reach()
        self._memory.index_add(key)

    def index_remove(self, key: StreamKey) -> None:
        """Take out of the index, when the store is there."""
        self._reach()
        self._memory.index_remove(key)

    def take_turn(self, instance: str, *, takeover_ms: int) -> Turn:
        """Ask to tick, when the store is there."""
        self._reach()
        return self._memory.take_turn(instance, takeover_ms=takeover_ms)

    def announce(self, instance: str, *, reads: int, within_ms: int) -> int:
        """Announce, when the store is there."""
        self._reach()
        return self._memory.announce(instance, reads=reads, within_ms=within_ms)

    def last_tick(self) -> tuple[int, int]:
        """Ask for the last tick, when the store is there."""
        self._reach()
        return self._memory.last_tick()

    def append_request(self, entry: bytes) -> None:
        """Keep an audit entry, when the store is there."""
        self._reach()
        self._memory.append_request(entry)

    def requests(self, *, before: str | None, limit: int) -> Sequence[tuple[str, bytes]]:
        """Read those entries, when the store is there."""
        self._reach()
        return self._memory.requests(before=before, limit=limit)

    def identity(self) -> str:
        """Give the identity, when the store is there."""
        self._reach()
        return self._memory.identity()

    def ping(self) -> int:
        """Give the clock, when the store is there."""
        self._reach()
        return self._memory.ping()

    def after_fork(self) -> None:
        """Nothing is inherited."""

    def close(self) -> None:
        """Nothing to close."""
