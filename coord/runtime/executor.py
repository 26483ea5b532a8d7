"""One command on one aggregate: load, decide, commit, answer. Conflicts are decided again on the aggregate as it has become.

Heartbeats have a way of their own (`coord.runtime.heartbeats`), which commits by the same step. A decision without events is
answered only once the store has confirmed that the aggregate it was made on is current. The lock of an aggregate keeps threads of
one process from wasting work on each other; what makes updates safe is the guard of the commit.
"""

from __future__ import annotations

import random
import time
import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import groupby
from typing import Final

from msgspec import Raw

from coord.core.commands import Command, DeleteGroup, Heartbeat, Tick
from coord.core.decide import decide
from coord.core.decision import Accepted, Leases, Moment, Policy, Reply
from coord.events import codec
from coord.events.catalog import Snapshot
from coord.events.envelope import Cause, Entry
from coord.names import AggregateKey, GroupKey
from coord.projections.aggregate import Aggregate, encode
from coord.projections.group import Group
from coord.refusals import Code, Refused
from coord.runtime.auditentries import entry_of
from coord.runtime.auditsinks import AuditDelivery, LogSink
from coord.runtime.cache import Aggregates, Cached
from coord.runtime.clock import StoreClock
from coord.runtime.commitlog import log_committed
from coord.runtime.locks import KeyLocks
from coord.runtime.mutex import MutexUnavailable, StateMutex, Turn
from coord.runtime.requests import Errand, Recorded, Replication
from coord.store.base import (
    Commit,
    Conflict,
    Head,
    LeaseChanges,
    LeaseGuards,
    Store,
    StoreError,
    Touch,
)

ATTEMPTS_MAX: Final = 12
LOCK_WAIT_S: Final = 5.0
BACKOFF_MAX_S: Final = 0.05


@dataclass(frozen=True, slots=True, kw_only=True)
class Executed:
    """A command was accepted, and recorded if it changed something: `at` (ms, store clock).

    `before` is the state that it was decided on.
    """

    reply: Reply
    before: Aggregate | None
    after: Aggregate | None
    revision: int
    changed: bool
    at: int
    seen: Cached


class Executor:
    """Executes commands. Shared by all threads of a process."""

    def __init__(  # noqa: PLR0913  one keyword a part
        self,
        *,
        store: Store,
        aggregates: Aggregates,
        clock: StoreClock,
        policy: Policy,
        coordinator_id: str,
        snapshot_every: int,
        lock_wait_s: float = LOCK_WAIT_S,
        mutex: StateMutex | None = None,
        delivery: AuditDelivery | None = None,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self.store = store
        self.aggregates = aggregates
        self.clock = clock
        self.policy = policy
        self.coordinator_id = coordinator_id
        self.level = 1
        """The highest level of events that every live instance is known to read; the ticker keeps it."""
        self._snapshot_every = snapshot_every
        self.pause = pause
        self._locks = KeyLocks(lock_wait_s)
        self.mutex = mutex or StateMutex(None)
        self.delivery = delivery or AuditDelivery(LogSink())

    def execute(self, key: AggregateKey, command: Command, errand: Errand) -> Executed | Refused:
        """Carry out a command, or refuse it; the conflicts of others are retried within a bound, then STATE_VERSION_CONFLICT.

        Raises StoreUnavailable, OutcomeUnknown, CorruptAggregate.
        """
        assert not isinstance(command, Heartbeat), "heartbeats are answered by coord.runtime.heartbeats"
        outcome = self._in_turn(key, command, errand)
        if errand.audit is not None and isinstance(outcome, Executed) and outcome.changed:  # no sink keeps others waiting
            entry = entry_of(errand.audit, key, at=outcome.at, coordinator_id=self.coordinator_id, revision=outcome.revision)
            self.delivery.deliver(entry, key, gone=outcome.after is None)
        return outcome

    def _in_turn(self, key: AggregateKey, command: Command, errand: Errand) -> Executed | Refused:
        try:
            with self.turn(key) as turn:
                for attempt in range(ATTEMPTS_MAX):
                    outcome = self._attempt(key, command, errand, turn)
                    if outcome is not None:
                        return outcome
                    self.back_off(attempt)
        except MutexUnavailable as error:
            return Refused(Code.COORDINATOR_STATE_MUTEX_UNAVAILABLE, str(error))
        return Refused(Code.STATE_VERSION_CONFLICT, f"{key} kept changing; try again")

    @contextmanager
    def turn(self, key: AggregateKey) -> Iterator[Turn]:
        """Hold the lock of an aggregate in this process, and its mutex where it is contended."""
        with self._locks.held(key), self.mutex.around(key) as turn:
            yield turn

    def back_off(self, attempt: int) -> None:
        """Pause before another attempt, by chance, longer after several."""
        self.pause(random.uniform(0, BACKOFF_MAX_S) * min(attempt, 4) / 4)

    def _attempt(self, key: AggregateKey, command: Command, errand: Errand, turn: Turn) -> Executed | Refused | None:
        """Decide once; None when the store had moved in between."""
        cached = self.aggregates.cached(key)
        seen = cached or self.aggregates.load(key)
        moment = self._moment_for(key, command, seen)
        decision = decide(seen.state, command, moment, key=key)
        if isinstance(decision, Refused):
            if cached is None:
                return decision
            self.aggregates.doubt(key, seen)  # a refusal is judged on current state
            return None
        if not decision.events:
            return self._confirmed(key, seen, decision, fresh=cached is None)
        outcome = self._committed(key, seen, decision, errand, at=moment.now)
        if isinstance(outcome, Conflict):
            if outcome.what == "lease" and isinstance(command, Tick):
                return Refused(Code.STATE_VERSION_CONFLICT, f"{key}: a lease was renewed meanwhile")  # look again first
            if outcome.what == "head":
                turn.contended()
            return None
        return outcome

    def _confirmed(self, key: AggregateKey, seen: Cached, decision: Accepted, *, fresh: bool) -> Executed | None:
        """Make sure that what was decided on is current: it was just read, or a touch says so, or it is read again."""
        if not fresh:
            if not isinstance(key, GroupKey) or seen.state is None:
                self.aggregates.doubt(key, seen)
                return None
            touched = self.store.touch(
                Touch(key=key, revision=seen.head.revision, commit_id=seen.head.commit_id, identity=seen.identity)
            )
            self.clock.observe(key, touched.now)
            if not touched.current:
                self.aggregates.doubt(key, seen)
                return None
        return self._executed(seen, decision, seen, changed=False, at=self.clock.now(key))

    def _committed(self, key: AggregateKey, seen: Cached, decision: Accepted, errand: Errand, *, at: int) -> Executed | Conflict:
        cause = self.cause(errand)
        events = (*decision.events, errand.audit) if errand.audit is not None else decision.events
        outcome = self.commit(
            key,
            seen,
            [Recorded(event, cause) for event in events],
            decision.after,
            at=at,
            guards=guards_of(decision.leases),
            leases=changes_of(decision.leases, self.policy.member_lease_ttl_ms),
            replication=errand.replication,
        )
        if isinstance(outcome, Conflict):
            return outcome
        return self._executed(seen, decision, outcome, changed=True, at=at)

    def commit(
        self,
        key: AggregateKey,
        seen: Cached,
        recorded: Sequence[Recorded],
        after: Aggregate | None,
        *,
        at: int,
        guards: LeaseGuards,
        leases: LeaseChanges,
        replication: Replication | None = None,
    ) -> Cached | Conflict:
        """Write events and the aggregate that they make, as one revision; `at` is the time that they were decided at.

        `replication`: replicas are waited for, as configured, and it is noted there who has the commit.
        Gives what is stored then. What this process knows of the aggregate is kept up to date, whatever comes of it.
        """
        assert all(codec.level_of(type(each.event)) <= self.level for each in recorded), "an event that not all can read"
        aggregate = encode(after) if after is not None else None
        commit = Commit(
            key=key,
            expected=seen.head,
            identity=seen.identity,
            commit_id=uuid.uuid4().hex,
            entries=self._entries(seen.head, recorded, at, aggregate),
            aggregate=aggregate,
            guards=guards,
            leases=leases,
            waits=replication is not None,
        )
        try:
            outcome = self.store.commit(commit)
        except StoreError:
            self.aggregates.forget(key)
            raise
        self.clock.observe(key, outcome.now)
        if isinstance(outcome, Conflict):
            self.aggregates.doubt(key, seen)
            return outcome
        if replication is not None:
            replication.note(outcome.replicas)
        log_committed(key, recorded, commit.head_after.revision)
        stored = Cached(state=after, head=outcome.head, identity=seen.identity)
        if after is None:
            self.aggregates.forget(key)
        else:
            self.aggregates.keep(key, stored)
        return stored

    def _entries(self, head: Head, recorded: Sequence[Recorded], at: int, aggregate: bytes | None) -> tuple[Entry, ...]:
        """Seal the events, and now and then a snapshot, into one revision that follows the head."""
        revision = head.revision + 1
        entries: tuple[Entry, ...] = ()
        chain = head.chain
        for cause, group in groupby(recorded, key=lambda each: each.cause):
            events = [each.event for each in group]
            entries += codec.seal(events, revision=revision, first=len(entries), at=at, cause=cause, prev=chain)
            chain = entries[-1].chain
        if aggregate is not None and revision % self._snapshot_every == 0:
            snapshot = Snapshot(revision=revision, chain=chain, aggregate=Raw(aggregate))
            entries += codec.seal((snapshot,), revision=revision, first=len(entries), at=at, cause=recorded[-1].cause, prev=chain)
        return entries

    def cause(self, errand: Errand) -> Cause:
        """Give the cause of one command's events."""
        return Cause(
            command_id=uuid.uuid4().hex, actor=errand.actor, request_id=errand.request_id, coordinator_id=self.coordinator_id
        )

    def _executed(self, before: Cached, decision: Accepted, seen: Cached, *, changed: bool, at: int) -> Executed:
        return Executed(
            reply=decision.reply,
            before=before.state,
            after=decision.after if changed else before.state,
            revision=seen.head.revision,
            changed=changed,
            at=at,
            seen=seen,
        )

    def moment(
        self, key: AggregateKey, seen: Cached, *, leases: Mapping[str, int | None] | None = None, latest_lease: int = 0
    ) -> Moment:
        """Give when and where a command on what was seen is decided."""
        return Moment(
            now=self.clock.now(key),
            identity=seen.identity,
            revision=seen.head.revision + 1,
            policy=self.policy,
            leases=leases or {},
            latest_lease=latest_lease,
            past=seen.past,
            level=self.level,
        )

    def _moment_for(self, key: AggregateKey, command: Command, seen: Cached) -> Moment:
        """Read the soft state that the command's rules look at, where they look at any."""
        if isinstance(key, GroupKey) and isinstance(seen.state, Group) and isinstance(command, DeleteGroup):
            soft = self.store.soft(key)
            self.clock.observe(key, soft.now)
            return self.moment(key, seen, latest_lease=max(soft.leases.values(), default=0))
        return self.moment(key, seen)


def guards_of(leases: Leases) -> LeaseGuards:
    """Translate what a decision rests on into what the store checks."""
    return LeaseGuards(
        lapsed=leases.lapsed,
        unchanged=leases.unchanged,
        none_running=leases.none_running,
        latest_at_most=leases.latest_at_most,
    )


def changes_of(leases: Leases, ttl_ms: int) -> LeaseChanges:
    """Translate what a decision does to soft state into what the store writes."""
    return LeaseChanges(ttl_ms=ttl_ms, renew=leases.renew, renew_all=leases.renew_all, remove=leases.remove)
