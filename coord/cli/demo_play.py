"""The course of one demo: one thread that looks, shows, and takes the steps that are due."""

from __future__ import annotations

import contextlib
import signal
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from coord.cli.context import Api, NotReachable, RequestRefused, decoded, os_user
from coord.cli.demo_counts import Counts
from coord.cli.demo_processes import Program, Programs, wait_for
from coord.cli.demo_report import Happened, Report
from coord.cli.demo_story import (
    GROUP,
    MEMBERS_FIRST,
    ROUTING_LEASE_MS,
    ROUTING_REFRESH_MS,
    SHARDS_FIRST,
    Step,
)
from coord.cli.demo_table import Ownership, Stage
from coord.refusals import Code
from coord.wire import CreateGroupRequest, GroupResponse, MembersResponse, MigrationsResponse, ScaleRequest

FRAME_S: Final = 0.25
START_TIMEOUT_S: Final = 30.0
CATCH_UP_TIMEOUT_S: Final = 30.0
LEAVE_TIMEOUT_S: Final = 20.0
PRODUCER_TIMEOUT_S: Final = 10.0
PRODUCE_ATTEMPTS_MORE: Final = 20
BLOCK_MS: Final = 250
ASKED_AGAIN: Final = (Code.ACTIVE_MIGRATION_EXISTS, Code.METADATA_SYNC_IN_PROGRESS)


@dataclass(slots=True)
class Play:
    """Plays the demo against a coordinator that it starts; what happened stands in `report`."""

    api: Api
    programs: Programs
    stage: Stage
    report: Report
    counts: Counts
    traces: Path
    stream: str
    rate: float = field(kw_only=True)
    work_ms: int = field(kw_only=True)
    ownership: Ownership = field(default_factory=Ownership)
    members: dict[str, Program] = field(default_factory=dict)
    producer: Program | None = None
    _mourned: set[str] = field(default_factory=set)

    def open(self, config: Path) -> None:
        """Start the coordinator, make stream and group, start members and producer. Raises NotReachable."""
        coordinator = self.programs.start("coordinator", ["serve", "--config", str(config)], dies_by=signal.SIGTERM)
        self._await_coordinator(coordinator)
        self.stage.tell(f"stream {self.stream} with {SHARDS_FIRST} shards, group {GROUP}")
        request = CreateGroupRequest(initial_shard_count=SHARDS_FIRST, requested_by=os_user(), reason="demo", start_from="0")
        self.api.post("streams", self.stream, "groups", GROUP, body=request)
        for name in MEMBERS_FIRST:
            self._start_member(name)
        self.producer = self.programs.start("producer", self._producing())
        self.stage.begin()
        self._happened(f"{len(MEMBERS_FIRST)} members and a producer of {self.rate:g} records a second have started")

    def run(self, steps: tuple[Step, ...]) -> None:
        """Take each step when it is due; a step that is refused because another resharding runs is taken later."""
        left = list(steps)
        while self.stage.elapsed_s < self.report.seconds:
            if left and self.stage.elapsed_s >= left[0].at_s and self._took(left[0]):
                left.pop(0)
            self._frame()
        self.report.problems += [f"not reached in time: {step.text}" for step in left]

    def close(self) -> None:
        """Stop producing, let the members catch up, have them leave."""
        assert self.producer is not None
        self.producer.ask_to_end()
        while self.producer.is_running and not wait_for(self.producer, FRAME_S) and self._within(PRODUCER_TIMEOUT_S):
            self._frame()
        if self.producer.end(PRODUCER_TIMEOUT_S) != 0:
            self.report.problems.append(f"the producer did not publish every record: {self.producer.last_words()}")
        self._happened("the producer has stopped; the members catch up")
        began = time.monotonic()
        while not self._caught_up() and time.monotonic() - began < CATCH_UP_TIMEOUT_S:
            self._frame()
        self.report.catchUpMs = int((time.monotonic() - began) * 1000)
        self._look()
        self._judge_topology()
        living = [program for program in self.members.values() if program.is_running]
        self._happened("the members leave")
        for program in living:
            program.ask_to_end()
        until = time.monotonic() + LEAVE_TIMEOUT_S
        while any(program.is_running for program in living) and time.monotonic() < until:
            self._frame()
        for program in living:
            if (code := program.end(1.0)) != 0:
                self.report.problems.append(f"{program.name} did not leave in order (exit {code}): {program.last_words()}")
        self.counts.look()
        self.report.ownershipMoves = self.counts.moves

    # -- the steps

    def _took(self, step: Step) -> bool:
        """Take a step; False when it must be tried again."""
        match step.kind:
            case "kill":
                for name in step.names:
                    self.members[name].kill()
            case "start":
                for name in step.names:
                    self._start_member(name)
            case "scale":
                try:
                    self._scale(step.shards)
                except NotReachable:
                    return False
                except RequestRefused as refusal:
                    if refusal.code not in ASKED_AGAIN:
                        raise
                    return False
        self._happened(step.text)
        return True

    def _scale(self, shards: int) -> None:
        request = ScaleRequest(target_shard_count=shards, requested_by=os_user(), reason="demo")
        self.api.post("streams", self.stream, "scale", body=request)

    def _start_member(self, name: str) -> None:
        arguments = ["--stream", self.stream, "--group", GROUP, "--member-id", name, "--trace", str(self.traces)]
        pace = ["--work-ms", str(self.work_ms), "--block-ms", str(BLOCK_MS)]
        self.members[name] = self.programs.start(name, ["consume", *arguments, *pace])

    def _producing(self) -> list[str]:
        pace = ["--rate", f"{self.rate:g}", "--refresh-ms", str(ROUTING_REFRESH_MS), "--routing-lease-ms", str(ROUTING_LEASE_MS)]
        return ["produce", "--stream", self.stream, "--trace", str(self.traces), "--retry", str(PRODUCE_ATTEMPTS_MORE), *pace]

    # -- looking

    def _frame(self) -> None:
        """Look, show, wait for the next frame."""
        began = time.monotonic()
        self._look()
        self.stage.show(self.ownership, self.counts)
        for program in self.programs.ended_by_themselves():
            if program.name not in self._mourned:
                self._mourned.add(program.name)
                what = f"{program.name} ended by itself (exit {program.process.returncode}): {program.last_words()}"
                self.report.problems.append(what)
                self.stage.tell(what)
        time.sleep(max(0.0, FRAME_S - (time.monotonic() - began)))

    def _look(self) -> None:
        """Ask the coordinator and read the traces; a coordinator that does not answer now may answer at the next look."""
        self.counts.look()
        base = ("monitoring", "streams", self.stream, "groups", GROUP)
        with contextlib.suppress(NotReachable):
            self.ownership = Ownership(
                group=decoded(self.api.get(*base), GroupResponse),
                members=decoded(self.api.get(*base, "members"), MembersResponse).members,
            )

    def _caught_up(self) -> bool:
        """Everything that was produced has been acknowledged, and no resharding is under way."""
        group = self.ownership.group
        return self.counts.pending == 0 and group is not None and group.active_migration is None

    def _judge_topology(self) -> None:
        """Note which shard counts the stream has had, and whether the last resharding has ended."""
        try:
            found = decoded(self.api.get("monitoring", "streams", self.stream, "migrations"), MigrationsResponse)
        except NotReachable as error:
            self.report.problems.append(f"the coordinator does not tell its migrations: {error.message}")
            return
        ended = [each for each in found.migrations if each.state == "DEPRECATED"]
        self.report.shardCounts = (SHARDS_FIRST, *(each.to_shard_count for each in ended))
        self.report.problems += [
            f"the resharding {each.from_shard_count} -> {each.to_shard_count} is {each.state}: {'; '.join(each.drain_blockers)}"
            for each in found.migrations
            if each.state != "DEPRECATED"
        ]

    def _happened(self, what: str) -> None:
        self.report.steps.append(Happened(atMs=int(self.stage.elapsed_s * 1000), what=what))
        self.stage.tell(what)

    def _within(self, grace_s: float) -> bool:
        return self.stage.elapsed_s < self.report.seconds + grace_s

    def _await_coordinator(self, coordinator: Program) -> None:
        """Wait until it answers. Raises NotReachable with what it said last."""
        until = time.monotonic() + START_TIMEOUT_S
        while time.monotonic() < until and coordinator.is_running:
            try:
                self.api.get("monitoring", "health")
            except NotReachable:
                time.sleep(0.1)
            else:
                return
        raise NotReachable(f"the coordinator did not start: {coordinator.last_words()}")
