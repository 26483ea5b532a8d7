"""How long it takes from the start of `coord serve` until it is ready."""

from __future__ import annotations

import statistics
import time
from collections.abc import Sequence
from typing import Final

from ops.bench.bench import Bench
from ops.bench.lines.line import Line
from ops.bench.results import Bound, Measured
from ops.bench.servers import serving

STARTS_QUICK: Final = 2


def start(bench: Bench) -> Measured:
    """Start it several times, its Redis running already; the median counts."""
    redis_url = bench.redis().url
    starts = STARTS_QUICK if bench.effort.quick else bench.effort.repeats
    spent: list[float] = []
    for turn in range(1, starts + 1):
        bench.progress.step(f"start {turn} of {starts}")
        began = time.monotonic()
        with serving(bench.fresh_folder(), redis_url, key_prefix="bench-start"):
            spent.append(time.monotonic() - began)
    return Measured(value=statistics.median(spent), fields={"starts": starts, "slowest": max(spent)})


LINES: Final[Sequence[Line]] = (Line(name="start_ready_seconds", unit="s", measure=start, goal=(Bound("value", "<", 1.5),)),)
