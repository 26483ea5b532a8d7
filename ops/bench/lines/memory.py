"""Memory of a worker: with 100 groups of 100 members, and whether it stays so over millions of heartbeats."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from coord.names import GroupKey
from ops.bench import load_wrk
from ops.bench.bench import SHARDS_PER_MEMBER, Bench
from ops.bench.history import plant, requests_of, settled_group
from ops.bench.lines.line import Line
from ops.bench.planting import store_at
from ops.bench.results import Bound, Measured
from ops.bench.servers import Serving, serving

GROUPS: Final = 100
MEMBERS: Final = 100
HEARTBEATS: Final = 2_000_000
HEARTBEATS_QUICK: Final = 10_000
WARM_HEARTBEATS: Final = 20 * GROUPS * MEMBERS
WARM_S: Final = 10
WARM_QUICK_S: Final = 3
LOAD_S: Final = 20
LOAD_QUICK_S: Final = 2
OK: Final = '"status":"OK"'
PREFIX: Final = "bench-memory"
GROWTH_MAX: Final = 1.05


def worker_rss(bench: Bench) -> Measured:
    """Let every worker answer for every group, then look at the largest."""
    server, requests = _loaded(bench)
    seconds = WARM_QUICK_S if bench.effort.quick else WARM_S
    bench.progress.step(f"{GROUPS * MEMBERS} members heartbeat for {seconds} s")
    run = load_wrk.run(server.origin, requests, seconds=seconds, expect=OK)
    if run.wrong:
        raise RuntimeError(f"{run.wrong} of {run.answered} answers were errors or not OK")
    sizes = [rss_mb(pid) for pid in server.workers()]
    fields = {"workers": len(sizes), "smallest_mb": min(sizes), "groups": GROUPS, "members": MEMBERS, "heartbeats": run.answered}
    return Measured(value=max(sizes), fields=fields)


def growth(bench: Bench) -> Measured:
    """Compare memory after two million heartbeats with that once every worker has what it keeps.

    That is an answer for each member, and each of its threads, which start one by one as load asks for them.
    """
    server, requests = _loaded(bench)
    workers = server.workers()
    quick = bench.effort.quick
    _send(bench, server, requests, "warming up", HEARTBEATS_QUICK if quick else WARM_HEARTBEATS)
    before = max(rss_mb(pid) for pid in workers)
    sent = _send(bench, server, requests, f"{before:.0f} MB before", HEARTBEATS_QUICK if quick else HEARTBEATS)
    if server.workers() != workers:
        raise RuntimeError("a worker was replaced while its memory was watched")
    after = max(rss_mb(pid) for pid in workers)
    return Measured(value=after, fields={"before_mb": before, "heartbeats": sent, "growth": after / before})


def _send(bench: Bench, server: Serving, requests: Path, what: str, wanted: int) -> int:
    """Send at least so many heartbeats; gives how many."""
    answered, began = 0, time.monotonic()
    while answered < wanted:
        bench.progress.step(f"{what}: {answered:,} of {wanted:,} heartbeats after {time.monotonic() - began:.0f} s")
        run = load_wrk.run(server.origin, requests, seconds=LOAD_QUICK_S if bench.effort.quick else LOAD_S)
        if run.wrong or not run.answered:
            raise RuntimeError(f"{run.wrong} of {run.answered} answers were errors")
        answered += run.answered
    return answered


def rss_mb(pid: int) -> float:
    """Give the resident memory of a process, MB of 2^20 bytes."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} tells no VmRSS")


def _loaded(bench: Bench) -> tuple[Serving, Path]:
    """Give a server that has all groups in its store, and the heartbeats of all their members."""
    return bench.once("memory", lambda: _make(bench))


def _make(bench: Bench) -> tuple[Serving, Path]:
    redis_url = bench.redis().url
    with store_at(redis_url, PREFIX) as store:
        bench.progress.step(f"{MEMBERS} members settle")
        shape = settled_group(MEMBERS, shards=MEMBERS * SHARDS_PER_MEMBER, identity=store.identity())
        names = [GroupKey(f"stream-{number:03}", "group") for number in range(GROUPS)]
        plant(store, shape, names, bench.progress.step)
    file = load_wrk.write_requests(bench.fresh_folder() / "heartbeats", requests_of(shape, names))
    return bench.open(serving(bench.fresh_folder(), redis_url, key_prefix=PREFIX)), file


LINES: Final[Sequence[Line]] = (
    Line(name="worker_rss_mb", unit="MB", measure=worker_rss, goal=(Bound("value", "<", 100),)),
    Line(name="rss_after_2m_heartbeats_mb", unit="MB", measure=growth, goal=(Bound("growth", "≤", GROWTH_MAX),)),
)
