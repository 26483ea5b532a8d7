"""A coordinator that is killed again and again, on an append-only Redis, loses nothing that it acknowledged."""

from __future__ import annotations

import sys

import pytest

from tests.chaos.ledger import Tenancy, double_holders
from tests.chaos.run import Plan, run
from tests.store.sql_servers import PostgresqlServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]


def test_twenty_kills_lose_nothing() -> None:
    """Two workers are killed 20 times, and Redis every fifth time, while members come and go and the stream is scaled."""
    plan = Plan(
        seconds=30,
        coordinators=1,
        members=20,
        kill_every_s=(0.8, 1.6),
        kills_min=20,
        changes_min=200,
        redis_every=5,
    )
    verdict = run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    assert verdict.problems == []
    assert verdict.redis_kills >= 4
    assert verdict.acknowledged > 50
    assert verdict.tenancies > 5


def test_two_coordinators_share_one_group() -> None:
    """The short form of `python -m tests.chaos`: two coordinators, each killed now and then."""
    plan = Plan(seconds=20, kills_min=4, changes_min=300, seed=7)
    verdict = run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    assert verdict.problems == []


def test_two_coordinators_share_one_database() -> None:
    """The short form of `python -m tests.chaos --store postgresql`: the database is killed too, and comes back as it was."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    plan = Plan(seconds=20, kills_min=4, changes_min=200, seed=11, store="postgresql", database_every=3)
    verdict = run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    assert verdict.problems == []
    assert verdict.database_kills >= 1


@pytest.mark.parametrize(
    ("tenancies", "found"),
    [
        ([Tenancy(0, "a", 0, 10), Tenancy(0, "b", 10, 20)], 0),
        ([Tenancy(0, "a", 0, 11), Tenancy(0, "b", 10, 20)], 1),
        ([Tenancy(0, "a", 0, 11), Tenancy(1, "b", 10, 20)], 0),
        ([Tenancy(0, "a", 0, 50), Tenancy(0, "a", 5, 9), Tenancy(0, "b", 10, 20)], 1),
    ],
)
def test_the_judge_sees_two_holders(tenancies: list[Tenancy], found: int) -> None:
    """Overlaps of two members are found, also behind a shorter tenancy of the first; those of one member are none."""
    assert len(double_holders(tenancies)) == found
