"""One run of failovers, from start to verdict."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from coord.runtime.embedded import free_port
from tests.chaos.coordinators import CoordinatorProcess
from tests.chaos.run import KEY, scale
from tests.failover.judge import Verdict, correction_rounds, create_groups, judge, log_of, wait_converged
from tests.failover.members import StayingSwarm, TimedLedger
from tests.failover.places import GROUP_KEY, Alone, BehindSentinels, InCluster, Place, accepts_writes_s, make_lag, now_s
from tests.failover.records import READERS, Readers, Writer, still_there
from tests.store.redis_server import RedisServer

Topology = Literal["sentinel", "cluster", "restore"]
How = Literal["kill", "freeze"]
SHARDS = 12
ROUND_S_MAX = 30.0
LATE_S = 2.5
"""An answer that was under way when the master was lost is noted this late at most."""


@dataclass(slots=True, kw_only=True)
class Plan:
    """What to do, how often."""

    topology: Topology
    how: How
    times: int
    lease_ms: int = 3_000
    grace_ms: int = 1_000
    noticed_after_ms: int = 1_200
    lag_s: float = 0.7
    asleep_s: float = 6.0
    """How long a frozen master sleeps."""
    older_s: float = 12.0
    """How old a snapshot is when it is put back."""
    members: int = 24
    life_ms: tuple[int, int] = (2_500, 10_000)
    readers: int = 2
    settle_s: float = 5.0
    pause_s: float = 2.0
    """Between a correction round's end and the next failover: shards are granted and moved again."""
    max_lag_s: int = 1
    """`min-replicas-max-lag`, with `min-replicas-to-write` 1; 0 sets neither."""
    seed: int = 1


@dataclass(slots=True)
class Round:
    """One failover."""

    number: int
    lagging_from_s: float
    lost_at_s: float
    acknowledged: int
    """The group's highest acknowledged revision by then."""
    rolled_back: int = 0
    """Acknowledged revisions of the group that the new master's log does not have."""
    rounds_opened: int = 0
    woke: str = ""
    """What a frozen master did when it woke up."""
    away_s: float = 0.0
    """Until the next acknowledged membership change."""

    def covers(self, at_s: float) -> bool:
        """Whether an acknowledgement at this time may be forgotten without breaking a promise."""
        return self.lagging_from_s <= at_s <= self.lost_at_s + LATE_S


@dataclass(slots=True)
class Stage:
    """All that runs."""

    plan: Plan
    place: Place
    coordinators: list[CoordinatorProcess]
    ledger: TimedLedger
    swarm: StayingSwarm
    writer: Writer
    readers: Readers
    shards: int = SHARDS
    rounds: list[Round] = field(default_factory=list)


def run(plan: Plan, say: Callable[[str], None]) -> Verdict:
    """Start everything, fail over, stop it, judge."""
    verdict = Verdict()
    with tempfile.TemporaryDirectory(prefix="coord-failover-") as name:
        folder = Path(name)
        stage = set_stage(plan, place_of(plan), folder)
        try:
            open_stage(stage)
            say(f"{plan.members} members, {plan.readers} readers, {SHARDS} shards; waiting for all to settle")
            time.sleep(plan.settle_s)
            for number in range(1, plan.times + 1):
                if number > 1:
                    stage.place.wait_whole()  # the old master is a replica again
                    time.sleep(plan.pause_s)
                stage.rounds.append(one := lose(stage, number))
                say(
                    f"round {number}: {one.rolled_back} of {one.acknowledged} acknowledged revisions lost, "
                    f"{one.rounds_opened} correction round(s), next change after {one.away_s:.1f} s"
                )
            finish(stage, verdict)
        finally:
            close_stage(stage)
    return verdict


def place_of(plan: Plan) -> Place:
    """Start the servers."""
    match plan.topology:
        case "sentinel":
            return BehindSentinels(down_after_ms=plan.noticed_after_ms, max_lag_s=plan.max_lag_s)
        case "cluster":
            return InCluster(node_timeout_ms=plan.noticed_after_ms, max_lag_s=plan.max_lag_s)
        case "restore":
            return Alone()


def set_stage(plan: Plan, place: Place, folder: Path) -> Stage:
    """Make everything, start nothing."""
    coordinators = [
        CoordinatorProcess(
            f"coordinator-{number}", free_port(), "", folder, workers=1, lease_ms=plan.lease_ms, redis=place.redis,
            failover_grace_ms=plan.grace_ms,
        )
        for number in range(2)
    ]  # fmt: skip
    ledger = TimedLedger()
    urls = [coordinator.url for coordinator in coordinators]
    swarm = StayingSwarm(urls, ledger, count=plan.members, threads=6, seed=plan.seed, life_ms=plan.life_ms)
    return Stage(plan, place, coordinators, ledger, swarm, Writer(place, SHARDS), Readers(folder / "trace"))


def open_stage(stage: Stage) -> None:
    """Start everything."""
    for coordinator in stage.coordinators:
        coordinator.start()
    create_groups(stage.coordinators[0], SHARDS, KEY, READERS)
    stage.readers.traces.mkdir()
    stage.readers.start(stage.coordinators, stage.place.url, count=stage.plan.readers)
    stage.swarm.start()
    stage.writer.start()


def lose(stage: Stage, number: int) -> Round:
    """Have the store forget something, and wait until everybody has got over it."""
    opened_before = correction_rounds(stage.coordinators[0])
    one = restore(stage, stage.place, number) if isinstance(stage.place, Alone) else fail_over(stage, number)
    one.away_s = _next_change_s(stage, one)
    _note_corrections(stage, one, opened_before)
    stage.ledger.forget_revisions()
    return one


def restore(stage: Stage, place: Alone, number: int) -> Round:
    """Keep a snapshot, go on for several leases, put the snapshot back. All leases in it are long over."""
    stage.writer.confirmed |= stage.writer.acknowledged & still_there(place, SHARDS)  # what the snapshot will hold
    saved_at_s, snapshot = now_s(), place.snapshot()
    time.sleep(stage.plan.older_s / 2)
    scale(stage.coordinators[number % 2], SHARDS + 4, stage.ledger)
    time.sleep(stage.plan.older_s / 2)
    acknowledged = stage.ledger.revisions.get(KEY, 0)
    one = Round(number, saved_at_s, now_s(), acknowledged)
    place.put_back(snapshot)
    return one


def fail_over(stage: Stage, number: int) -> Round:
    """Make the replicas lag, lose the master, wait for another, bring the old one back."""
    place, plan = stage.place, stage.plan
    old = place.holder(GROUP_KEY)
    replicas = place.replicas(old)
    lagging_from_s = now_s()
    make_lag(old, replicas, GROUP_KEY)
    time.sleep(plan.lag_s)
    acknowledged = stage.ledger.revisions.get(KEY, 0)
    if plan.how == "kill":
        old.stop()
    else:
        old.freeze()
    one = Round(number, lagging_from_s, now_s(), acknowledged)
    for replica in replicas:
        replica.thaw()
    new = _successor(stage, old)
    if plan.how == "kill":
        place.bring_back(old, new)
    else:
        time.sleep(max(0.0, one.lost_at_s + plan.asleep_s - now_s()))
        old.thaw()
        took_s, said = accepts_writes_s(old, GROUP_KEY, s_max=ROUND_S_MAX)
        one.woke = f"took writes for {took_s:.3f} s, then: {said}"
    return one


def _successor(stage: Stage, old: RedisServer) -> RedisServer:
    """Give the server that is the master instead, by its own word."""
    until = now_s() + ROUND_S_MAX
    while now_s() < until:
        new = stage.place.holder(GROUP_KEY)
        if new is not old:
            return new
        time.sleep(0.1)
    raise AssertionError("no replica took over")


def _next_change_s(stage: Stage, one: Round) -> float:
    """Wait until a change is acknowledged that the old master cannot have answered any more; gives how long that took, s."""
    until = now_s() + ROUND_S_MAX
    while stage.ledger.progress_s < one.lost_at_s + LATE_S and now_s() < until:
        time.sleep(0.05)
    later = [at for at in list(stage.ledger.at_s.values()) if at > one.lost_at_s + 0.5]
    return min(later, default=now_s()) - one.lost_at_s


def _note_corrections(stage: Stage, one: Round, before: tuple[set[int], set[int]]) -> None:
    """Wait until every round that this failover opened has ended, then note what the log has lost."""
    until = now_s() + ROUND_S_MAX
    while True:
        started, ended = correction_rounds(stage.coordinators[0])
        fresh = started - before[0]
        if (fresh and len(ended) >= len(started)) or now_s() > until:
            break
        time.sleep(0.3)
    one.rounds_opened = len(fresh)
    first = min((revision for revision in fresh), default=None)
    if first is not None:
        one.rolled_back = max(0, one.acknowledged - (first - 1))


def finish(stage: Stage, verdict: Verdict) -> None:
    """Let it come to rest, and judge."""
    stage.swarm.stay()
    verdict.converged_s = wait_converged(stage.swarm, SHARDS)
    stage.writer.stop()
    due = stage.writer.confirmed | (stage.writer.acknowledged & still_there(stage.place, SHARDS))
    verdict.consumed_s = stage.readers.wait_for(due)
    stage.swarm.stop()
    verdict.problems += stage.readers.stop()
    log = log_of(stage.coordinators[0], KEY) + log_of(stage.coordinators[0], KEY.stream)
    for coordinator in stage.coordinators:
        if coordinator.stop() != 0:
            verdict.problems.append(f"{coordinator.name} did not stop cleanly: {coordinator.log_tail()}")
    judge(stage, log, verdict)


def close_stage(stage: Stage) -> None:
    """End everything, whatever happened."""
    stage.swarm.stop()
    stage.writer.stop()
    stage.readers.stop()
    for coordinator in stage.coordinators:
        coordinator.kill()
    stage.place.close()
