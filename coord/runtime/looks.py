"""Looks at groups: asks the store what is due, thousands of groups in a few round trips, and does it.

A group that is as it was read, and of which nothing is due, costs its share of a look and nothing else. Source: design page
`protocol.md`, "Time".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, TypeAlias

import structlog

from coord.core.commands import Tick
from coord.core.decide import decide
from coord.core.decision import Accepted, Moment
from coord.core.membership import UNDER_LEASE
from coord.names import GroupKey
from coord.projections.group import Group
from coord.runtime.cache import Cached
from coord.runtime.clock import NS_PER_MS
from coord.runtime.executor import Executed, Executor
from coord.runtime.groups import TICKER, GroupSagas
from coord.runtime.requests import Errand
from coord.runtime.watches import NEVER, NOW, GroupWatch
from coord.store.base import CorruptAggregate, Due, StoreError
from coord.streams.provisioning import ProvisioningFailed

log: Final = structlog.get_logger(__name__)

LOOKS_AT_ONCE: Final = 200
"""How many groups are looked at before what was told of them is taken note of: a clock is compared while its time is fresh."""
ACTING_SHARE: Final = 1.0
READING_SHARE: Final = 0.25
"""How much of a tick's interval may go into what is due, and into reading groups of which nothing is known yet."""
Pending: TypeAlias = tuple[GroupWatch, Due, float]
"""A group of which something is to be done, what the look said, and when it was (ms, monotonic)."""


class GroupLooks:
    """The looks of one ticker. `is_over` tells when to stop half-way."""

    def __init__(self, executor: Executor, sagas: GroupSagas, *, interval_ms: int, is_over: Callable[[], bool]) -> None:
        self._executor = executor
        self._sagas = sagas
        self._interval_ms = interval_ms
        self._is_over = is_over

    def look(self, watches: Sequence[GroupWatch], *, grace: bool) -> None:
        """Look at these groups and do what is due; trouble with one group stops that one only."""
        pending: list[Pending] = []
        away: list[StoreError] = []
        for start in range(0, len(watches), LOOKS_AT_ONCE):
            if self._is_over():
                return
            chunk = watches[start : start + LOOKS_AT_ONCE]
            answers, looked_ms = self._ask(chunk, grace=grace)
            for watch, due in zip(chunk, answers, strict=True):
                if isinstance(due, CorruptAggregate):
                    self._executor.aggregates.corrupt.found(watch.key)
                    _tell(watch.key, due)
                    watch.forget()
                elif isinstance(due, StoreError):
                    away.append(due)
                    watch.due_ms = NOW
                elif watch.is_settled(due):
                    watch.looked(due, looked_ms)
                else:
                    self._executor.clock.observe(watch.key, due.now)
                    pending.append((watch, due, looked_ms))
        if away:
            log.error("groups cannot be ticked", count=len(away), reason=str(away[0]))
        self._act_on(pending)

    def follow(self, watches: Sequence[GroupWatch]) -> None:
        """Let these groups follow their stream, which has just moved on."""
        for watch in watches:
            if self._is_over():
                return
            with _guarded(watch):
                self._complete(watch)

    def _ask(self, watches: Sequence[GroupWatch], *, grace: bool) -> tuple[list[Due | StoreError], float]:
        """Ask what is due, and when that was; where a clock has jumped, ask again for a grace."""
        store, lease_ttl_ms = self._executor.store, self._executor.policy.member_lease_ttl_ms
        keys = [watch.key for watch in watches]
        answers = store.due_many(keys, lease_ttl_ms=lease_ttl_ms, grace=grace)
        looked_ms = self._now_ms()
        for watch, due in zip(watches, answers, strict=True):
            if not isinstance(due, StoreError) and not watch.jumps.has_looked:
                watch.takes_over(due, looked_ms, lease_ttl_ms=lease_ttl_ms)
        # The clock that judges a group's leases is watched for each group: in a cluster every node has its own.
        jumped = [
            place
            for place, (watch, due) in enumerate(zip(watches, answers, strict=True))
            if not isinstance(due, StoreError) and watch.jumps.jumped(due.now)
        ]
        if jumped:
            log.warning("the clock of groups' stores jumped", count=len(jumped), first=str(keys[jumped[0]]))
            anew = store.due_many([keys[place] for place in jumped], lease_ttl_ms=lease_ttl_ms, grace=True)
            for place, due in zip(jumped, anew, strict=True):
                answers[place] = due
        return answers, looked_ms

    def _act_on(self, pending: list[Pending]) -> None:
        """Do what is due, within a bound of time: who takes over finds all groups unread, and reads them over a few ticks.

        What is left over of what is due is looked at again in the next tick, and comes first in it.
        """
        pending.sort(key=lambda each: (_is_unread(each[0], each[1]), each[0].tried_ms))
        began_ms = self._now_ms()
        for watch, due, looked_ms in pending:
            watch.looked_ms = looked_ms
            is_unread = _is_unread(watch, due)
            if self._is_over() or self._now_ms() - began_ms > self._interval_ms * (READING_SHARE if is_unread else ACTING_SHARE):
                watch.due_ms = NEVER if is_unread else NOW
                continue
            with _guarded(watch):
                watch.tried_ms = looked_ms
                self._act(watch, due, looked_ms)

    def _act(self, watch: GroupWatch, due: Due, looked_ms: float) -> None:
        """Complete the group, and decide what is due. A renewal between look and commit wins: the next tick looks again."""
        aggregates, policy = self._executor.aggregates, self._executor.policy
        seen = aggregates.cached(watch.key)
        if seen is None or (seen.head.revision, seen.head.commit_id) != (due.revision, due.commit_id):
            seen = aggregates.latest(watch.key)
        group = self._complete(watch, seen)
        if group is None:
            return
        command = Tick(lapsed=watch.lapsed(due, looked_ms), grace=due.grace_until > due.now)
        is_decided = True
        if self._would_change(watch.key, group, command, identity=due.identity):
            ticked = self._executor.execute(watch.key, command, Errand(actor=TICKER))
            is_decided = isinstance(ticked, Executed)
            if isinstance(ticked, Executed) and isinstance(ticked.after, Group):
                group = ticked.after
        under_lease = [m.member_id for m in group.members.values() if m.state in UNDER_LEASE]
        if due.entries < len(under_lease):
            self._executor.store.grant_missing_leases(watch.key, under_lease, ttl_ms=policy.member_lease_ttl_ms)
        known = aggregates.cached(watch.key) or seen
        if is_decided and isinstance(known.state, Group):
            watch.take(known, policy)
            watch.looked(due, looked_ms)

    def _would_change(self, key: GroupKey, group: Group, command: Tick, *, identity: str) -> bool:
        """Decide without recording: most groups that are read anew are settled, and need no round trip to confirm it."""
        executor = self._executor
        revision = group.store_revision + 1
        moment = Moment(
            now=executor.clock.now(key), identity=identity, revision=revision, policy=executor.policy, level=executor.level
        )
        decision = decide(group, command, moment, key=key)
        return not isinstance(decision, Accepted) or bool(decision.events)

    def _complete(self, watch: GroupWatch, seen: Cached | None = None) -> Group | None:
        stream, name = watch.of.stream, watch.key.consumer_group
        try:
            return self._sagas.complete(stream, name, seen)
        except ProvisioningFailed as error:
            log.warning("group is not provisioned yet", streamPrefix=stream.stream_prefix, consumerGroup=name, reason=str(error))
            return None

    def _now_ms(self) -> float:
        return self._executor.clock.monotonic_ns() / NS_PER_MS


def _is_unread(watch: GroupWatch, due: Due) -> bool:
    return watch.commit_id is None and not due.lapsed


@contextmanager
def _guarded(watch: GroupWatch) -> Iterator[None]:
    """Let trouble with one group be told, and no more; it is looked at again in the next tick, unless what is done says when."""
    watch.due_ms = NOW
    try:
        yield
    except StoreError as error:
        watch.forget()
        _tell(watch.key, error)
    except Exception:
        watch.forget()
        log.exception("group tick failed", streamPrefix=watch.key.stream_prefix, consumerGroup=watch.key.consumer_group)


def _tell(key: GroupKey, error: StoreError) -> None:
    log.error("group cannot be ticked", streamPrefix=key.stream_prefix, consumerGroup=key.consumer_group, reason=str(error))
