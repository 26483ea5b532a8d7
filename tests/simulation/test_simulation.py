"""The simulator itself as a test: a few hundred seeds hold, and a run can be repeated."""

from __future__ import annotations

from concurrent.futures import ProcessPoolExecutor
from functools import partial

import pytest

from tests.servers import private_redis
from tests.simulation.__main__ import simulate
from tests.simulation.faults import VARIANTS
from tests.simulation.logs import end_at_surprises
from tests.simulation.redis import SimulatedRedis, simulated_scripts
from tests.simulation.simulation import Outcome, Simulation
from tests.simulation.sql import private_postgresql, simulated_sql
from tests.store.sql_servers import PostgresqlServer

TICKS = 2_000
MEMORY_SEEDS = 200
REDIS_SEEDS = 10
SQL_SEEDS = (0, 3, 5, 8, 13)
SQL_TICKS = 300


@pytest.fixture(autouse=True)
def quiet() -> None:
    """Log nothing: a run commits thousands of events."""
    end_at_surprises(for_good=False)


def silence() -> None:
    """Log nothing, but take an exception that nobody expected for a violation."""
    end_at_surprises()


def one(seed: int) -> Outcome:
    """Run one seed in a process of its own."""
    return simulate(seed, TICKS)


def repeat(outcome: Outcome, options: str = "") -> str:
    """Say how to see a failure again."""
    return f"{outcome.violation}; repeat with: python -m tests.simulation --seed {outcome.seed} --ticks {TICKS}{options}"


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_seeds_hold_on_memory() -> None:
    """No seed breaks a promise; all rows of the heartbeat table but 1 to 3 (bad requests, registration) fire."""
    with ProcessPoolExecutor(2, initializer=silence) as pool:
        outcomes = list(pool.map(one, range(MEMORY_SEEDS), chunksize=4))
    assert [repeat(outcome) for outcome in outcomes if outcome.violation] == []
    assert {outcome.variant for outcome in outcomes} == set(VARIANTS)
    fired = {row for outcome in outcomes for row in outcome.rows}
    assert fired >= set(range(18)) - {1, 2, 3}


@pytest.mark.slow
@pytest.mark.timeout(300)
def test_seeds_hold_on_redis() -> None:
    """The same on a real Redis: its scripts are the store."""
    with simulated_scripts(), private_redis() as server:
        outcomes = [simulate(seed, TICKS // 4, store=partial(SimulatedRedis, server.url)) for seed in range(REDIS_SEEDS)]
    assert [repeat(outcome, " --redis") for outcome in outcomes if outcome.violation] == []


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_seeds_hold_on_postgresql() -> None:
    """The same on a real PostgreSQL: its statements are the store. The variants of these seeds fall back, twins and all."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    with private_postgresql() as server:
        outcomes = [simulate(seed, SQL_TICKS, store=partial(simulated_sql, server)) for seed in SQL_SEEDS]
    assert [repeat(outcome, " --postgresql") for outcome in outcomes if outcome.violation] == []


def test_a_run_can_be_repeated() -> None:
    """The same seed takes the same way."""
    first, second = (Simulation(11).run(300) for _ in range(2))
    assert (first.rows, first.commits, first.events, first.produced) == (
        second.rows,
        second.commits,
        second.events,
        second.produced,
    )
    assert first.trace == second.trace
    assert first.heartbeats > 100
