"""The tick over 10,000 groups of 10 members in which nothing happens."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Final

import msgspec

from coord.names import GroupKey
from ops.bench.bench import SHARDS_PER_MEMBER, Bench
from ops.bench.history import plant, settled_group
from ops.bench.lines.line import Line
from ops.bench.planting import store_at
from ops.bench.results import Bound, Measured
from ops.bench.servers import ROOT
from ops.bench.ticking import Told

GROUPS: Final = 10_000
GROUPS_QUICK: Final = 1_000
GROUPS_PER_STREAM: Final = 1_000
MEMBERS: Final = 10
TICKS: Final = 5
TICKS_QUICK: Final = 2
IDLE_S: Final = 20
IDLE_QUICK_S: Final = 4
PREFIX: Final = "bench-tick"
TIMEOUT_S: Final = 600


def tick(bench: Bench) -> Measured:
    """Write the groups, then have a process tick over them."""
    redis_url, quick = bench.redis().url, bench.effort.quick
    groups = GROUPS_QUICK if quick else GROUPS
    with store_at(redis_url, PREFIX) as store:
        shape = settled_group(MEMBERS, shards=MEMBERS * SHARDS_PER_MEMBER, identity=store.identity())
        names = [GroupKey(f"stream-{number // GROUPS_PER_STREAM}", f"group-{number:05}") for number in range(groups)]
        plant(store, shape, names, bench.progress.step)
    ticks, idle_s = (TICKS_QUICK, IDLE_QUICK_S) if quick else (TICKS, IDLE_S)
    bench.progress.step(f"{groups} groups: ticks until all are known, {ticks} more, then {idle_s} s of idling")
    ran = subprocess.run(
        [sys.executable, "-m", "ops.bench.ticking", redis_url, PREFIX, str(groups), str(ticks), str(idle_s)],
        check=False,
        capture_output=True,
        text=True,
        cwd=ROOT,
        timeout=TIMEOUT_S,
    )
    if ran.returncode != 0:
        raise RuntimeError(f"ticking failed: {ran.stderr.strip()[-500:]}")
    told = msgspec.json.decode(ran.stdout, type=Told)
    fields = {"groups": groups, "members": MEMBERS, "first_ms": told.first_ms, "idle_share": told.idle_share}
    return Measured(value=told.tick_ms, fields=fields)


LINES: Final[Sequence[Line]] = (
    Line(
        name="tick_10000_groups",
        unit="ms",
        measure=tick,
        goal=(Bound("value", "≤", 100), Bound("idle_share", "≤", 0.05)),
    ),
)
