"""The sticky assignor on 10,000 members and 100,000 shards: a first assignment, one member more, one member less."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, Literal

from ops.bench import pure
from ops.bench.bench import Bench
from ops.bench.lines.line import Line
from ops.bench.results import Bound, Measured

MEMBERS: Final = 10_000
SHARDS: Final = 100_000
REPEATS: Final = 15
REPEATS_QUICK: Final = 5

Change = Literal["first", "join", "leave"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Times:
    """Milliseconds, medians."""

    first_ms: float
    join_ms: float
    leave_ms: float


def times(members: int, shards: int, *, repeats: int) -> Times:
    """Time the three changes."""
    told = pure.assignor_times(members, shards, repeats=repeats)
    return Times(first_ms=told.first_ms, join_ms=told.join_ms, leave_ms=told.leave_ms)


def assignor(bench: Bench, *, change: Change) -> Measured:
    """Give one of the three, measured together at the first of them."""
    repeats = REPEATS_QUICK if bench.effort.quick else REPEATS
    bench.progress.step(f"{MEMBERS} members, {SHARDS} shards, {repeats} times")
    measured = bench.once("assignor", lambda: times(MEMBERS, SHARDS, repeats=repeats))
    return Measured(value={"first": measured.first_ms, "join": measured.join_ms, "leave": measured.leave_ms}[change])


_GOALS_MS: Final[Sequence[tuple[Change, float]]] = (("first", 20), ("join", 5), ("leave", 5))
LINES: Final[Sequence[Line]] = tuple(
    Line(
        name=f"assignor_10000x100000_{change}",
        unit="ms",
        measure=partial(assignor, change=change),
        goal=(Bound("value", "≤", goal_ms),),
    )
    for change, goal_ms in _GOALS_MS
)
