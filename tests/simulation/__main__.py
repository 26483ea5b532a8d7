"""Run seeds: `python -m tests.simulation --seed 7 --ticks 2000`, or `--seeds 200 --from 0`.

`--redis`, `--postgresql`: on a real store.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable, Iterable
from contextlib import ExitStack, closing
from functools import partial

from tests.servers import private_redis
from tests.simulation.faults import VARIANTS
from tests.simulation.logs import end_at_surprises
from tests.simulation.redis import SimulatedRedis, simulated_scripts
from tests.simulation.simulation import Outcome, Simulation
from tests.simulation.sql import private_postgresql, simulated_sql
from tests.simulation.store import RealStore


def simulate(seed: int, ticks: int, *, variant: str | None = None, store: Callable[[], RealStore] | None = None) -> Outcome:
    """Run one seed, on memory or on an empty store of a real server."""
    if store is None:
        return Simulation(seed, variant=variant).run(ticks)
    with closing(store()) as real:
        return Simulation(seed, variant=variant, real=real).run(ticks)


def arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.simulation", description=__doc__)
    parser.add_argument("--seed", type=int, help="run this seed only")
    parser.add_argument("--seeds", type=int, default=20, help="how many seeds")
    parser.add_argument("--from", type=int, default=0, dest="first", help="the first seed")
    parser.add_argument("--ticks", type=int, default=2000, help="ticks with faults; as many as it takes to calm follow")
    parser.add_argument("--variant", choices=list(VARIANTS), help="instead of the one of the seed's number")
    parser.add_argument("--trace", type=int, default=40, help="how many lines of the trace to show of a failure")
    real = parser.add_mutually_exclusive_group()
    real.add_argument("--redis", action="store_true", help="on a private real Redis, under simulated time")
    real.add_argument("--postgresql", action="store_true", help="on a private real PostgreSQL, under simulated time")
    return parser.parse_args()


def main() -> int:
    """Run; exit 1 with the line that repeats a failing run."""
    asked = arguments()
    end_at_surprises()
    seeds = [asked.seed] if asked.seed is not None else range(asked.first, asked.first + asked.seeds)
    with ExitStack() as stack:
        store: Callable[[], RealStore] | None = None
        if asked.redis:
            stack.enter_context(simulated_scripts())
            store = partial(SimulatedRedis, stack.enter_context(private_redis()).url)
        elif asked.postgresql:
            store = partial(simulated_sql, stack.enter_context(private_postgresql()))
        return run(asked, seeds, store)


def run(asked: argparse.Namespace, seeds: Iterable[int], store: Callable[[], RealStore] | None) -> int:
    """Run the seeds one after another."""
    began, done, failed, heartbeats, commits = time.monotonic(), 0, 0, 0, 0
    for seed in seeds:
        outcome = simulate(seed, asked.ticks, variant=asked.variant, store=store)
        done += 1
        heartbeats += outcome.heartbeats
        commits += outcome.commits
        if outcome.violation is not None:
            failed += 1
            print(f"seed {seed} ({outcome.variant}), tick {outcome.ticks}, {outcome.checker}: {outcome.violation}")
            print("\n".join(outcome.trace[len(outcome.trace) - asked.trace :]))
            options = (f" --variant '{asked.variant}'" if asked.variant else "") + (
                " --redis" if asked.redis else " --postgresql" if asked.postgresql else ""
            )
            print(f"repeat with: python -m tests.simulation --seed {seed} --ticks {asked.ticks}{options}", flush=True)
        if done % 10 == 0:
            print(f"{done} runs, {failed} failed, {time.monotonic() - began:.0f} s", file=sys.stderr, flush=True)
    spent = time.monotonic() - began
    print(f"{done} runs, {failed} violations, {heartbeats} heartbeats, {commits} commits, {spent:.1f} s")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
