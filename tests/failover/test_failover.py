"""The short form of `python -m tests.failover`: one failover of each kind, and a restore."""

from __future__ import annotations

import sys

import pytest

from coord.events.catalog import MemberLeaving
from tests.failover.judge import Verdict, judge_changes
from tests.failover.members import TimedLedger
from tests.failover.run import How, Plan, Round, Topology, run


def play(plan: Plan) -> Verdict:
    verdict = run(plan, lambda line: print(line, file=sys.stderr, flush=True))
    assert verdict.problems == []
    assert verdict.double == []
    assert verdict.rounds == verdict.rounds_with_loss == plan.times
    assert verdict.corrections >= plan.times
    assert verdict.tenancies > 5
    assert verdict.confirmed > 5
    return verdict


@pytest.mark.parametrize("topology", ["sentinel", "cluster"])
@pytest.mark.parametrize("how", ["kill", "freeze"])
@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_a_failover_that_forgets_commits_gives_no_shard_to_two(topology: Topology, how: How) -> None:
    """F1, F2, F4: acknowledged commits are lost, a correction round opens and ends, nobody reads what another reads."""
    play(Plan(topology=topology, how=how, times=1, members=18, settle_s=2.0))


@pytest.mark.e2e
@pytest.mark.slow
@pytest.mark.timeout(300)
def test_an_old_snapshot_under_live_members_gives_no_shard_to_two() -> None:
    """Joins, leaves and a scaling after the snapshot are forgotten; members of before and of after find together."""
    verdict = play(Plan(topology="restore", how="kill", times=1, members=18, settle_s=2.0, older_s=8.0, life_ms=(4_000, 40_000)))
    assert any("resharding" in what for what in verdict.lost_changes)


def test_what_is_forgotten_outside_of_a_failover_is_a_problem() -> None:
    """The judge lists what was lost while the replicas lagged, and accuses what was lost at any other time."""
    ledger, verdict = TimedLedger(), Verdict()
    rounds = [Round(1, lagging_from_s=10.0, lost_at_s=11.0, acknowledged=5)]
    ledger.at_s = {"leave kept": 9.0, "leave early": 9.5, "leave lost": 10.5, "leave late": 14.0}
    judge_changes(ledger, rounds, [(1, MemberLeaving(member_id="kept", foreign=()))], verdict)
    assert verdict.lost_changes == ["round 1, -0.50 s: leave lost"]
    assert [problem.rsplit(" ", 1)[1] for problem in verdict.problems] == ["early", "late"]
