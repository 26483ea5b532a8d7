"""`python -m tests.failover --topology sentinel|cluster|restore --how kill|freeze --times N`: exit 1 for a broken promise."""

from __future__ import annotations

import argparse
import logging
import sys

import structlog

from tests.failover.judge import Verdict
from tests.failover.run import Plan, run

LISTED_MAX = 40
LIVES_MS = {"sentinel": (2_500, 10_000), "cluster": (2_500, 10_000), "restore": (4_000, 60_000)}
"""Long enough for some members to have been there already when the snapshot was made."""


def main() -> int:
    """Run and tell."""
    parser = argparse.ArgumentParser(prog="python -m tests.failover", description=__doc__)
    parser.add_argument("--topology", choices=["sentinel", "cluster", "restore"], required=True)
    parser.add_argument("--how", choices=["kill", "freeze"], default="kill")
    parser.add_argument("--times", type=int, default=20)
    parser.add_argument("--lease-ms", type=int, default=3_000)
    parser.add_argument("--max-lag-s", type=int, default=1, help="min-replicas-max-lag, with min-replicas-to-write 1; 0: neither")
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    plan = Plan(
        topology=asked.topology, how=asked.how, times=asked.times, lease_ms=asked.lease_ms, max_lag_s=asked.max_lag_s,
        seed=asked.seed, life_ms=LIVES_MS[asked.topology],
    )  # fmt: skip
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR))
    return tell(run(plan, lambda line: print(line, file=sys.stderr, flush=True)))


def tell(verdict: Verdict) -> int:
    """Print a verdict; gives the exit code."""
    print(
        f"{verdict.rounds} failovers; {verdict.revisions_lost} acknowledged revisions lost in {verdict.rounds_with_loss} of them "
        f"({len(verdict.lost_changes)} joins and leaves); {verdict.corrections} correction rounds; "
        f"{len(verdict.double)} double holders in {verdict.tenancies} tenancies\n"
        f"longest time without a change {verdict.away_s_max:.1f} s, converged within {verdict.converged_s:.1f} s, "
        f"all consumed within {verdict.consumed_s:.1f} s\n"
        f"records: {verdict.acknowledged} acknowledged, {verdict.confirmed} of them confirmed; Redis forgot {verdict.forgotten}, "
        f"{len(verdict.lost_records)} of them before they were consumed\nanswers {verdict.statuses}"
    )
    for line in verdict.old_master:
        print(f"old master, {line}")
    for title, lines in (("lost change", verdict.lost_changes), ("lost record", verdict.lost_records)):
        for line in lines[:LISTED_MAX]:
            print(f"{title}: {line}")
        if len(lines) > LISTED_MAX:
            print(f"{title}: and {len(lines) - LISTED_MAX} more")
    for problem in verdict.problems[:LISTED_MAX]:
        print(f"PROBLEM {problem}")
    print("held" if not verdict.problems else f"{len(verdict.problems)} problems")
    return 1 if verdict.problems else 0


if __name__ == "__main__":
    sys.exit(main())
