"""What a run of failovers has to show."""

from __future__ import annotations

import subprocess
import sys
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import urllib3

from coord.bootstrap import open_store
from coord.cli.direct import configuration
from coord.cli.verdict import judge as judge_traces
from coord.events import codec
from coord.events.catalog import (
    CorrectionEnded,
    CorrectionStarted,
    Event,
    MemberJoined,
    MemberLeaving,
    MemberRejoined,
    ReshardingRequested,
)
from coord.names import AggregateKey, GroupKey
from coord.runtime.verify import entries_of
from tests.chaos.coordinators import ROOT, CoordinatorProcess, login
from tests.chaos.ledger import double_holders
from tests.chaos.run import CREATED, KEY
from tests.failover.members import StayingSwarm, TimedLedger
from tests.failover.places import now_s
from tests.failover.records import still_there

if TYPE_CHECKING:
    from tests.failover.run import Round, Stage

CONVERGE_S_MAX = 15.0
"""A correction round (lease and grace, 4 s), a lease (3 s), the rebalance timeout (4 s), five ticks (1 s), and slack."""


@dataclass(slots=True)
class Verdict:
    """What a run showed; `problems` is empty when all held."""

    rounds: int = 0
    rounds_with_loss: int = 0
    revisions_lost: int = 0
    corrections: int = 0
    lost_changes: list[str] = field(default_factory=list)
    """Joins, leaves and reshardings that were acknowledged and forgotten."""
    lost_records: list[str] = field(default_factory=list)
    """Records that Redis acknowledged and forgot; none of them was confirmed by WAIT."""
    forgotten: int = 0
    """Records that Redis acknowledged and does not have, consumed before or not."""
    confirmed: int = 0
    acknowledged: int = 0
    tenancies: int = 0
    double: list[str] = field(default_factory=list)
    away_s_max: float = 0.0
    old_master: list[str] = field(default_factory=list)
    """What each frozen master did when it woke up."""
    converged_s: float = 0.0
    consumed_s: float = 0.0
    statuses: dict[str, int] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def create_groups(coordinator: CoordinatorProcess, shards: int, *keys: GroupKey) -> None:
    """Make the stream and its groups, which read from the beginning."""
    for key in keys:
        answer = urllib3.request(
            "POST",
            f"{coordinator.url}/streams/{key.stream_prefix}/groups/{key.consumer_group}",
            json={"initialShardCount": shards, "requestedBy": "failover", "reason": "failover", "startFrom": "0"},
            headers={"Authorization": login(coordinator.url)},
            timeout=10,
            retries=False,
        )
        assert answer.status == CREATED, answer.data


def log_of(coordinator: CoordinatorProcess, key: AggregateKey) -> list[tuple[int, Event]]:
    """Read a log: revisions and events."""
    store, _ = open_store(configuration(coordinator.folder / f"{coordinator.name}.yaml", None))
    try:
        return [(entry.revision, codec.decode(entry).event) for entry in entries_of(store, key)]
    finally:
        store.close()


def correction_rounds(coordinator: CoordinatorProcess) -> tuple[set[int], set[int]]:
    """Give the revisions of the group's log that opened correction rounds, and those that ended them."""
    log = log_of(coordinator, KEY)
    started = {revision for revision, event in log if isinstance(event, CorrectionStarted)}
    return started, {revision for revision, event in log if isinstance(event, CorrectionEnded)}


def wait_converged(swarm: StayingSwarm, shards: int) -> float:
    """Wait until living members read every shard, each one once; gives how long that took, s."""
    begun = now_s()
    while swarm.held() != list(range(shards)) and now_s() - begun < 2 * CONVERGE_S_MAX:
        time.sleep(0.1)
    return now_s() - begun


def judge(stage: Stage, log: list[tuple[int, Event]], verdict: Verdict) -> None:
    """Compare what was acknowledged, seen and consumed with what is there."""
    _judge_rounds(stage, verdict)
    judge_changes(stage.ledger, stage.rounds, log, verdict)
    _judge_holders(stage, verdict)
    _judge_records(stage, verdict)
    if verdict.converged_s > CONVERGE_S_MAX:
        verdict.problems.append(f"not converged within {CONVERGE_S_MAX} s: {stage.swarm.held()}")
    verdict.problems += [f"the swarm failed: {failure!r}" for failure in (*stage.swarm.failures, *stage.writer.failures)]
    config = stage.coordinators[0].folder / f"{stage.coordinators[0].name}.yaml"
    command = [sys.executable, "-m", "coord", "verify", "--config", str(config)]
    checked = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    if checked.returncode != 0:
        verdict.problems.append(f"coord verify: exit {checked.returncode}: {checked.stdout[-2000:]} {checked.stderr[-500:]}")


def _judge_rounds(stage: Stage, verdict: Verdict) -> None:
    verdict.rounds = len(stage.rounds)
    verdict.rounds_with_loss = sum(one.rolled_back > 0 for one in stage.rounds)
    verdict.revisions_lost = sum(one.rolled_back for one in stage.rounds)
    verdict.corrections = sum(one.rounds_opened for one in stage.rounds)
    verdict.away_s_max = max((one.away_s for one in stage.rounds), default=0.0)
    verdict.problems += [
        f"round {one.number}: another server, and no correction round" for one in stage.rounds if not one.rounds_opened
    ]
    verdict.old_master = [f"round {one.number}: {one.woke}" for one in stage.rounds if one.woke]
    started, ended = correction_rounds(stage.coordinators[0])
    if len(ended) < len(started):
        verdict.problems.append(f"{len(started)} correction rounds were opened, {len(ended)} ended")
    if not verdict.rounds_with_loss:
        verdict.problems.append("no acknowledged commit was lost in any round: the run was not hard enough")


def judge_changes(ledger: TimedLedger, rounds: list[Round], log: list[tuple[int, Event]], verdict: Verdict) -> None:
    """List what was acknowledged and forgotten; outside of a failover nothing may be."""
    there = {f"join {e.member_id} {e.request_id}" for _, e in log if isinstance(e, MemberJoined | MemberRejoined)}
    there |= {f"resharding {e.resharding_id}" for _, e in log if isinstance(e, ReshardingRequested)}
    there |= {f"leave {e.member_id}" for _, e in log if isinstance(e, MemberLeaving)}
    for what, at_s in sorted(ledger.at_s.items(), key=lambda item: item[1]):
        if what in there:
            continue
        one = next((one for one in rounds if one.covers(at_s)), None)
        if one is None:
            verdict.problems.append(f"acknowledged outside of a failover, and not in the log: {what}")
        else:
            verdict.lost_changes.append(f"round {one.number}, {at_s - one.lost_at_s:+.2f} s: {what}")


def _judge_holders(stage: Stage, verdict: Verdict) -> None:
    verdict.tenancies, verdict.statuses = len(stage.ledger.tenancies), dict(stage.ledger.statuses)
    verdict.double = double_holders(stage.ledger.tenancies)
    verdict.problems += [f"two holders: {what}" for what in verdict.double]
    traced = judge_traces(stage.readers.traces)
    verdict.problems += [f"consumers: {what}" for what in traced.violationList]


def _judge_records(stage: Stage, verdict: Verdict) -> None:
    writer, consumed = stage.writer, stage.readers.consumed
    verdict.confirmed, verdict.acknowledged = len(writer.confirmed), len(writer.acknowledged)
    there = still_there(stage.place, stage.shards)
    verdict.forgotten = len(writer.acknowledged - there)
    for record in sorted(writer.acknowledged - consumed):
        text = f"shard {record[0]} {record[1]}"
        if record in writer.confirmed:
            verdict.problems.append(f"confirmed, and not consumed: {text}; Redis {'has' if record in there else 'lost'} it")
        elif record in there:
            verdict.problems.append(f"Redis has it, and nobody consumed it: {text}")
        else:
            verdict.lost_records.append(text)
