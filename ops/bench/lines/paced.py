"""Members that heartbeat every three seconds, as real ones do: how long does each wait for its answer?"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Final

from coord.names import GroupKey
from ops.bench import load_paced
from ops.bench.bench import KEY_PREFIX, SHARDS_PER_MEMBER, Bench
from ops.bench.history import plant, requests_of, settled_group
from ops.bench.lines.line import Line
from ops.bench.load_wrk import Request
from ops.bench.planting import store_at
from ops.bench.results import Bound, Measured

GROUP: Final = 1000
SMALL: Final = 100
SMALL_GROUPS: Final = 20
SECONDS: Final = 30.0
SECONDS_QUICK: Final = 3.0
"""One period, after one that warms up."""
GENERATOR_LATE_MS_MAX: Final = 2.0
"""A generator that is itself later than this measures itself: once more, then marked invalid."""


def paced(bench: Bench, *, members: int) -> Measured:
    """Measure so many members: one group of 1000, the others in groups of 100."""
    requests = bench.group(GROUP).requests()
    if members > GROUP:
        requests = requests + bench.once("small groups", lambda: _small_groups(bench))
    measured = _paced(bench, requests)
    return measured if measured.valid else _paced(bench, requests)


def _paced(bench: Bench, requests: Sequence[Request]) -> Measured:
    seconds = SECONDS_QUICK if bench.effort.quick else SECONDS
    bench.progress.step(f"{len(requests)} members, each every 3 s, for {seconds + 3:g} s")
    file = bench.fresh_folder() / "order"
    report = load_paced.send(file, requests, kind="paced", port=bench.server().port, seconds=seconds)
    fields = {
        "p50_ms": report.p50_ms,
        "max_ms": report.max_ms,
        "errors": report.errors,
        "answered": report.answered,
        "generator_late_p99_ms": report.late_p99_ms,
        "connections": len(requests),
    }
    return Measured(value=report.p99_ms, fields=fields, valid=report.late_p99_ms <= GENERATOR_LATE_MS_MAX)


def _small_groups(bench: Bench) -> list[Request]:
    with store_at(bench.redis().url, KEY_PREFIX) as store:
        shape = settled_group(SMALL, shards=SMALL * SHARDS_PER_MEMBER, identity=store.identity())
        names = [GroupKey(f"paced-{number:02}", "group") for number in range(SMALL_GROUPS)]
        plant(store, shape, names, bench.progress.step)
    return requests_of(shape, names)


LINES: Final[Sequence[Line]] = tuple(
    Line(
        name=f"paced_{members}",
        unit="ms (p99)",
        measure=partial(paced, members=members),
        goal=(Bound("value", "≤", p99_ms), Bound("errors", "≤", 0)),
    )
    for members, p99_ms in ((1000, 10), (3000, 20))
)
