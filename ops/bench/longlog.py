"""A long log in a store, with snapshots, as a group has it after years; and how long the way to its past is."""

from __future__ import annotations

import random
import statistics
import time
from collections.abc import Callable
from typing import Final, TypeAlias

from msgspec import Raw

from coord.events import codec
from coord.events.catalog import Snapshot
from coord.names import GroupKey
from coord.projections.aggregate import Aggregate, encode
from coord.store.base import EMPTY_HEAD, Commit, Committed, Head, LeaseChanges, Store
from ops.bench.history import CAUSE, HOUR_MS, History, sealed, settled_group

MEMBERS: Final = 10
SHARDS: Final = 40
SNAPSHOT_EVERY: Final = 1_000
"""The default of `events.snapshot-every`."""

StateAt: TypeAlias = Callable[[Store, GroupKey, int], Aggregate | None]
"""Gives an aggregate as it was after a revision."""


def write(store: Store, *, events: int, tell: Callable[[str], None]) -> History:
    """Write a log of at least so many events, members coming and going; gives where it ends."""
    history = settled_group(MEMBERS, shards=SHARDS, identity=store.identity())
    head, written, newcomers = EMPTY_HEAD, 0, 0
    while written < events:
        while len(history.revisions) < SNAPSHOT_EVERY:
            newcomers += 1
            history.turn_over(newcomers)
        written += sum(len(revision.events) for revision in history.revisions)
        head = _committed(store, history, head)
        history.revisions.clear()
        tell(f"{written:,} of {events:,} events written")
    return history


def _committed(store: Store, history: History, head: Head) -> Head:
    """Write the revisions that a history has gathered, and a snapshot after them."""
    entries = sealed(history.revisions, prev=head.chain)
    last, aggregate = entries[-1], encode(history.group)
    snapshot = Snapshot(revision=last.revision, chain=last.chain, aggregate=Raw(aggregate))
    at = history.revisions[-1].at
    entries += codec.seal((snapshot,), revision=last.revision, first=last.index + 1, at=at, cause=CAUSE, prev=last.chain)
    commit = Commit(
        key=history.key,
        expected=head,
        identity=store.identity(),
        commit_id=f"bench-{last.revision}",
        entries=tuple(entries),
        aggregate=aggregate,
        leases=LeaseChanges(ttl_ms=HOUR_MS, renew=tuple(history.group.active())),
    )
    outcome = store.commit(commit)
    assert isinstance(outcome, Committed), outcome
    return outcome.head


def median_seconds(store: Store, history: History, state_at: StateAt, *, samples: int) -> tuple[float, float]:
    """Ask for the state at revisions spread over the whole log; gives the median and the longest time, seconds.

    Raises RuntimeError when an answer is not of the revision that was asked for.
    """
    chosen = random.Random(1)
    spent: list[float] = []
    for _ in range(samples):
        revision = chosen.randint(1, history.group.store_revision)
        began = time.perf_counter()
        state = state_at(store, history.key, revision)
        spent.append(time.perf_counter() - began)
        if state is None or state.store_revision != revision:
            raise RuntimeError(f"asked for revision {revision}, got {state and state.store_revision}")
    return statistics.median(spent), max(spent)
