"""Replay: how many events a second are folded, and verified, over a log that the real rules made; and the way to a past state."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from coord.events import codec
from coord.names import GroupKey
from coord.projections.aggregate import encode, fold
from coord.runtime.history import state_at
from coord.runtime.verify import verify_aggregate
from coord.store.memory import MemoryStore
from ops.bench import longlog
from ops.bench.bench import SHARDS_PER_MEMBER, Bench
from ops.bench.history import History, commit_log, settled_group
from ops.bench.lines.line import Line
from ops.bench.planting import store_at
from ops.bench.results import Bound, Measured

EVENTS: Final = 50_000
EVENTS_QUICK: Final = 6_000
LONG: Final = 1_000_000
LONG_QUICK: Final = 20_000
SAMPLES: Final = 20
EVENTS_PER_SECOND: Final = 100_000


def replay(bench: Bench, *, members: int) -> Measured:
    """Fold a log in memory, decode and fold it, verify it from a store; the median of some repeats each."""
    bench.progress.step(f"{members} members join and settle")
    history = settled_group(members, shards=members * SHARDS_PER_MEMBER, identity="memory")
    history.until(EVENTS_QUICK if bench.effort.quick else EVENTS, bench.progress.step)
    entries = history.entries()
    envelopes = [codec.decode(entry) for entry in entries]
    key = history.key
    folded = fold(None, envelopes, key=key)
    if folded is None or encode(folded) != encode(history.group):
        raise RuntimeError("the fold of the log is not the group that was decided")
    store = _store_of(history)

    def verify() -> None:
        if findings := verify_aggregate(store, key).findings:
            raise RuntimeError(f"the log does not verify: {findings[0]}")

    def rate(name: str, timed: Callable[[], object]) -> float:
        bench.progress.step(f"{name}: {len(entries):,} events, {bench.effort.repeats} times")
        return len(entries) / statistics.median(_seconds(timed) for _ in range(bench.effort.repeats))

    fold_rate = rate("fold", lambda: fold(None, envelopes, key=key))
    fields = {
        "events": len(entries),
        "revisions": len(history.revisions),
        "decode_and_fold_per_second": rate("decode and fold", lambda: fold(None, map(codec.decode, entries), key=key)),
        "verify_per_second": rate("verify", verify),
    }
    return Measured(value=fold_rate, fields=fields)


def past_state(bench: Bench) -> Measured:
    """Ask for the state at revisions of a long log, by `coord.runtime.history.state_at`."""
    with store_at(bench.redis().url, "bench-past") as store:
        history = longlog.write(store, events=LONG_QUICK if bench.effort.quick else LONG, tell=bench.progress.step)
        bench.progress.step(f"{SAMPLES} past states")
        median, longest = longlog.median_seconds(store, history, state_at, samples=SAMPLES)
    return Measured(value=longest, fields={"median": median, "revisions": history.group.store_revision, "samples": SAMPLES})


def _store_of(history: History) -> MemoryStore:
    """Give a store that holds the log and the group."""
    store = MemoryStore(lambda: time.time_ns() // 1_000_000)
    key: GroupKey = history.key
    commit_log(store, key, history.revisions, encode(history.group), ())
    return store


def _seconds(timed: Callable[[], object]) -> float:
    began = time.perf_counter()
    timed()
    return time.perf_counter() - began


LINES: Final[Sequence[Line]] = (
    *(
        Line(
            name=f"replay_events_per_second_{members}",
            unit="1/s",
            measure=partial(replay, members=members),
            goal=(Bound("value", "≥", EVENTS_PER_SECOND), Bound("verify_per_second", "≥", EVENTS_PER_SECOND)),
        )
        for members in (100, 1000)
    ),
    Line(name="state_at_revision", unit="s (longest)", measure=past_state, goal=(Bound("value", "<", 1),)),
)
