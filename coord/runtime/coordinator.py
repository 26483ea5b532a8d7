"""Heartbeats: the way from a command to an answer. A heartbeat is always answered; what cannot be decided now is row 0, RETRY."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

import structlog
from msgspec import Struct, structs

from coord.core.commands import Heartbeat
from coord.core.decision import HeartbeatReply
from coord.core.heartbeat import STATUS, answer, may_register
from coord.events.envelope import Actor
from coord.names import JOIN, GroupKey
from coord.projections.group import Group
from coord.refusals import Code, Refused
from coord.runtime.cache import SteadyAnswer
from coord.runtime.executor import Executed, Executor
from coord.runtime.groups import GroupSagas, stream_of
from coord.runtime.heartbeats import Ask, Foreseen, Heartbeats, Outcome, Told
from coord.runtime.requests import Errand
from coord.store.base import CorruptAggregate, StoreError

log: Final = structlog.get_logger(__name__)

MEMBER_ROLES: Final = ("MEMBER",)
UNKNOWN_GROUP_ROW: Final = 4
DUPLICATE_MEMBER_ROW: Final = 7


class Answered(Struct, frozen=True):
    """A heartbeat's answer, and the revision that it was current at (0: unknown).

    `steady`: where the same heartbeat will be answered the same, a place to keep the encoded answer.
    """

    reply: HeartbeatReply
    revision: int
    steady: SteadyAnswer | None = None


class Coordinator:
    """Answers heartbeats. `new_group_start`: where a group that a heartbeat registers starts reading (`0` or `$`)."""

    def __init__(self, executor: Executor, heartbeats: Heartbeats, sagas: GroupSagas, *, new_group_start: str) -> None:
        self._executor = executor
        self._heartbeats = heartbeats
        self._sagas = sagas
        self._new_group_start = new_group_start
        self.terminating = False

    def heartbeat(self, key: GroupKey, command: Heartbeat, report: bytes | None = None) -> Answered:
        """Answer one heartbeat; never raises a StoreError. `report`: the soft report to keep beside the lease."""
        return self.heartbeats(key, ((command, report),))[0]

    def heartbeats(self, key: GroupKey, items: Sequence[tuple[Heartbeat, bytes | None]]) -> list[Answered]:
        """Answer heartbeats of one group, in order; what one is answered is no worse for the others."""
        if self.terminating:
            return [self._retry(key, command) for command, _ in items]
        asks = [Ask(command, errand_of(command, report)) for command, report in items]
        outcomes = self._heartbeats.answer(key, asks)
        return [self._answered(key, ask, outcome) for ask, outcome in zip(asks, outcomes, strict=True)]

    def foresee(self, key: GroupKey, command: Heartbeat, report: bytes | None) -> Foreseen | None:
        """Decide a heartbeat that changes nothing (see `Heartbeats.foresee`)."""
        if self.terminating:
            return None
        return self._heartbeats.foresee(key, Ask(command, errand_of(command, report)))

    def confirm(self, foreseen: Sequence[Foreseen]) -> list[bool | StoreError]:
        """Say of each whether its answer may be given (see `Heartbeats.confirm`)."""
        return self._heartbeats.confirm(foreseen)

    def answered(self, foreseen: Foreseen, outcome: StoreError | None = None) -> Answered:
        """Give the answer that was foreseen, or the one instead of it where the store could not confirm it."""
        return self._answered(foreseen.key, foreseen.ask, outcome or foreseen.told)

    def _answered(self, key: GroupKey, ask: Ask, outcome: Outcome) -> Answered:
        command = ask.command
        if isinstance(outcome, Told) and outcome.reply.row == UNKNOWN_GROUP_ROW and outcome.seen.state is None:
            outcome = self._without_group(key, ask, outcome)
        if isinstance(outcome, Refused):
            return self._retry(key, command)
        if isinstance(outcome, StoreError):
            level = log.error if isinstance(outcome, CorruptAggregate) else log.warning
            level(
                "heartbeat cannot be decided now",
                streamPrefix=key.stream_prefix,
                consumerGroup=key.consumer_group,
                memberId=command.member_id,
                reason=str(outcome),
            )
            return self._retry(key, command)
        if outcome.reply.row == DUPLICATE_MEMBER_ROW:
            log.warning(
                "two processes seem to run under one member id",
                streamPrefix=key.stream_prefix,
                consumerGroup=key.consumer_group,
                memberId=command.member_id,
            )
        return Answered(outcome.reply, outcome.seen.head.revision, outcome.steady)

    def _without_group(self, key: GroupKey, ask: Ask, told: Told) -> Outcome:
        """Row 3, where the heartbeat brings the group into being, or row 4."""
        try:
            return self._registered(key, ask) if self._registers(key, ask.command, told) else told
        except StoreError as error:
            return error

    def _registered(self, key: GroupKey, ask: Ask) -> Outcome:
        brought_up = self._sagas.bring_up(
            key,
            how="heartbeat",
            start_from=self._new_group_start,
            requested_by=ask.command.member_id,
            reason=None,
            errand=Errand(actor=ask.errand.actor, request_id=ask.errand.request_id),
        )
        if isinstance(brought_up, Refused) and brought_up.code != Code.GROUP_ALREADY_EXISTS:
            log.warning("could not register the group", streamPrefix=key.stream_prefix, reason=brought_up.message)
        outcome = self._heartbeats.answer(key, (ask,))[0]
        if isinstance(outcome, Told) and isinstance(brought_up, Executed):
            return structs.replace(outcome, reply=replace(outcome.reply, row=3))
        return outcome

    def _registers(self, key: GroupKey, command: Heartbeat, told: Told) -> bool:
        if command.member_epoch != JOIN:
            return False
        stream = stream_of(self._executor, key.stream)
        return may_register(command, stream, was_deleted=told.seen.past is not None, policy=self._executor.policy)

    def _retry(self, key: GroupKey, command: Heartbeat) -> Answered:
        """Row 0: nothing changes and no lease is renewed; the rest is as last known."""
        seen = self._executor.aggregates.cached(key)
        group = seen.state if seen is not None and isinstance(seen.state, Group) else None
        known = answer(group, command, 0)
        if group is not None and command.member_id in group.members:
            assigned, pending = group.view(command.member_id)
            known = replace(known, assigned=assigned, pending=pending)
        return Answered(replace(known, status=STATUS[0], member_epoch=command.member_epoch), 0)


def errand_of(command: Heartbeat, report: bytes | None) -> Errand:
    """Give on whose behalf a heartbeat is answered."""
    return Errand(actor=Actor(command.member_id, MEMBER_ROLES), request_id=command.request_id, report=report)
