"""Heartbeats of a group: those that change nothing in one round trip, those that do committed together.

A steady heartbeat takes no lock and writes no log entry: it is decided on the cached aggregate, and one touch confirms that this
is current and renews the lease. What is left waits for the one thread that decides and commits for all of the group (leader and
followers, see `coord.combining`). Source: design page `performance.md`.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from typing import Final, TypeAlias, TypeVar

from msgspec import Struct, structs

from coord.combining import Abandoned, Combiners, Overdue
from coord.core.commands import Heartbeat
from coord.core.decide import decide_heartbeats
from coord.core.decision import Heard, HeartbeatReply, Moment
from coord.names import JOIN, GroupKey
from coord.projections.group import Group
from coord.refusals import Code, Refused
from coord.runtime.cache import Cached, SteadyAnswer
from coord.runtime.executor import ATTEMPTS_MAX, Executor, guards_of
from coord.runtime.mutex import MutexUnavailable, Turn
from coord.runtime.requests import Errand, Recorded
from coord.store.base import Conflict, LeaseChanges, OutcomeUnknown, StoreError, StoreUnavailable, Touch, Touched

TOGETHER_MAX: Final = 512
"""How many heartbeats of one group are decided together."""
GATHER_S: Final = 0.005
"""How long more are waited for, when others wait already."""
LEASES_ONE_BY_ONE: Final = 2
"""Up to so many leases are read each by itself, more by reading all of the group's soft state."""


class Ask(Struct, frozen=True):
    """One heartbeat to answer, and on whose behalf; `errand.report` is the soft report to keep beside the lease."""

    command: Heartbeat
    errand: Errand


class Told(Struct, frozen=True, kw_only=True):
    """The answer to one heartbeat, and what it was read off: `seen`, after what this heartbeat changed.

    `steady`: where the same heartbeat would be answered the same again.
    """

    reply: HeartbeatReply
    seen: Cached
    steady: SteadyAnswer | None = None


class Renewal(Struct, frozen=True):
    """Members whose leases are renewed, if the group is still as it was `seen`."""

    seen: Cached
    asks: Sequence[Ask]


S = TypeVar("S", "Renewal", "Foreseen")
Outcome: TypeAlias = Told | Refused | StoreError


class Foreseen(Struct, frozen=True, kw_only=True):
    """The answer that a heartbeat has if the store is still as it was seen: not to be given before `confirm` has said so [R]."""

    key: GroupKey
    ask: Ask
    told: Told

    @property
    def seen(self) -> Cached:
        """What it was decided on."""
        return self.told.seen


class Heartbeats:
    """Answers heartbeats for all threads of a process; one waits at most about `wait_s` for others of its group."""

    def __init__(self, executor: Executor, *, wait_s: float) -> None:
        self._executor = executor
        self._wait_s = wait_s
        self._commits = Combiners(self._decided, most=TOGETHER_MAX, gather_s=GATHER_S, pause=executor.pause)
        self._touches = Combiners(self._confirmed, most=TOGETHER_MAX, expected=(StoreError,))

    def answer(self, key: GroupKey, asks: Sequence[Ask]) -> list[Outcome]:
        """Give the outcome of each heartbeat, in order.

        Refused: others kept changing the group, or its mutex is taken; StoreError: what kept this one from being decided.
        """
        known = self._executor.aggregates.cached(key)
        if known is not None and (steady := self._steady(key, known, asks)) is not None:
            return steady
        return list(self._together(key, asks))

    # -- what changes nothing

    def foresee(self, key: GroupKey, ask: Ask) -> Foreseen | None:
        """Decide on what is cached; None for a heartbeat that changes something. Never waits."""
        known = self._executor.aggregates.cached(key)
        if known is None or (steady := self._steady_answer(key, known, ask.command)) is None:
            return None
        return Foreseen(key=key, ask=ask, told=Told(reply=steady.reply, seen=known, steady=steady))

    def confirm(self, foreseen: Sequence[Foreseen]) -> list[bool | StoreError]:
        """Say of each whether it holds, having renewed its lease: one touch for all that were decided on the same state.

        False: its group has moved, and was read for whoever is decided next. StoreError: why nothing is known.
        """
        by_state = _by_state(foreseen)
        touches = [
            self._touch(same[0].key, same[0].seen, [each.ask for each in same if each.told.reply.renews])
            for same in by_state.values()
        ]
        try:
            answers = self._executor.store.touch_many(touches)
        except StoreError as error:  # one of several servers may be away: each group finds out for itself
            return [error if len(by_state) == 1 else False] * len(foreseen)
        outcomes = {
            state: touched if isinstance(touched, StoreError) else self._judged(same[0].key, same[0].seen, touched)
            for (state, same), touched in zip(by_state.items(), answers, strict=True)
        }
        for state, same in by_state.items():
            if outcomes[state] is False:
                with suppress(StoreError):  # whoever is decided next finds out
                    self._executor.aggregates.load(same[0].key)
        return [outcomes[id(each.seen)] for each in foreseen]

    def _steady(self, key: GroupKey, known: Cached, asks: Sequence[Ask]) -> list[Outcome] | None:
        """Answer heartbeats none of which changes anything; None when one does, or when the store has moved."""
        answers: list[SteadyAnswer] = []
        for ask in asks:
            if (found := self._steady_answer(key, known, ask.command)) is None:
                return None
            answers.append(found)
        renewing = [ask for ask, steady in zip(asks, answers, strict=True) if steady.reply.renews]
        try:
            if not self._is_confirmed(key, known, renewing):
                return None
        except StoreError as error:
            return [error] * len(asks)
        return [Told(reply=steady.reply, seen=known, steady=steady) for steady in answers]

    def _steady_answer(self, key: GroupKey, known: Cached, command: Heartbeat) -> SteadyAnswer | None:
        """Decide on what is cached; None when the heartbeat changes something. A joining one is never steady."""
        if command.member_epoch == JOIN or not isinstance(known.state, Group):
            return None
        kept = known.steady.get(command.member_id)
        if kept is not None and command.is_like(kept.command):
            return kept
        heard = decide_heartbeats(known.state, (command,), self._executor.moment(key, known))
        if heard.events:
            return None
        answer = SteadyAnswer(command, heard.replies[0])
        if _is_timeless(known, known.state, command):
            held = known.state.shards_of(command.member_id)
            if held == command.owned:  # one set for both: there is such an answer for each member of each group
                answer.command = structs.replace(command, owned=held)
            known.steady[command.member_id] = answer
        return answer

    def _is_confirmed(self, key: GroupKey, seen: Cached, renewing: Sequence[Ask]) -> bool:
        """Have the store confirm what was decided on, in one touch for all threads that wait for the same."""
        try:
            return self._touches.submit(key, (Renewal(seen, renewing),), wait_s=self._wait_s)[0]
        except Overdue as overdue:
            raise StoreUnavailable(f"{key} is busy") from overdue
        except Abandoned as abandoned:
            raise StoreUnavailable(f"{key}: a touch for several heartbeats failed: {abandoned}") from abandoned

    def _confirmed(self, key: GroupKey, renewals: Sequence[Renewal]) -> list[bool]:
        """One touch for each state of the group that was decided on, nearly always the same one."""
        current = {
            state: self._is_current(key, same[0].seen, [ask for renewal in same for ask in renewal.asks])
            for state, same in _by_state(renewals).items()
        }
        return [current[id(renewal.seen)] for renewal in renewals]

    def _is_current(self, key: GroupKey, seen: Cached, renewing: Sequence[Ask]) -> bool:
        """Have the store confirm what was decided on, and renew the leases of those members."""
        return self._judged(key, seen, self._executor.store.touch(self._touch(key, seen, renewing)))

    def _touch(self, key: GroupKey, seen: Cached, renewing: Sequence[Ask]) -> Touch:
        return Touch(
            key=key,
            revision=seen.head.revision,
            commit_id=seen.head.commit_id,
            identity=seen.identity,
            ttl_ms=self._executor.policy.member_lease_ttl_ms,
            renew=tuple(ask.command.member_id for ask in renewing),
            reports=_reports(renewing),
        )

    def _judged(self, key: GroupKey, seen: Cached, touched: Touched) -> bool:
        self._executor.clock.observe(key, touched.now)
        if not touched.current:
            self._executor.aggregates.doubt(key, seen)
        return touched.current

    # -- what changes something

    def _together(self, key: GroupKey, asks: Sequence[Ask]) -> Sequence[Outcome]:
        try:
            return self._commits.submit(key, asks, wait_s=self._wait_s)
        except Overdue as overdue:
            kind = OutcomeUnknown if overdue.is_under_way else StoreUnavailable
            return [kind(f"{key} is busy")] * len(asks)
        except Abandoned as abandoned:
            return [OutcomeUnknown(f"{key}: the commit of several heartbeats failed: {abandoned}")] * len(asks)

    def _decided(self, key: GroupKey, asks: Sequence[Ask]) -> list[Outcome]:
        """Decide and commit; a member that was heard already waits for the next commit of this leader."""
        outcomes: dict[int, Outcome] = {}
        left = list(range(len(asks)))
        while left:
            now: dict[str, int] = {}
            for place in left:
                now.setdefault(asks[place].command.member_id, place)
            places = list(now.values())
            try:
                outcomes.update(zip(places, self._committed(key, [asks[place] for place in places]), strict=True))
            except StoreError as error:
                outcomes.update(dict.fromkeys(left, error))
                break
            left = [place for place in left if place not in outcomes]
        return [outcomes[place] for place in range(len(asks))]

    def _committed(self, key: GroupKey, asks: Sequence[Ask]) -> Sequence[Outcome]:
        try:
            with self._executor.turn(key) as turn:
                for attempt in range(ATTEMPTS_MAX):
                    told = self._attempt(key, asks, turn)
                    if told is not None:
                        return told
                    self._executor.back_off(attempt)
        except MutexUnavailable as error:
            return [Refused(Code.COORDINATOR_STATE_MUTEX_UNAVAILABLE, str(error))] * len(asks)
        return [Refused(Code.STATE_VERSION_CONFLICT, f"{key} kept changing; try again")] * len(asks)

    def _attempt(self, key: GroupKey, asks: Sequence[Ask], turn: Turn) -> Sequence[Told] | None:
        """Decide all once, and commit; None when the store had moved in between."""
        executor = self._executor
        cached = executor.aggregates.cached(key)
        seen = cached or executor.aggregates.load(key)
        assert seen.state is None or isinstance(seen.state, Group)
        moment = self._moment(key, seen, asks)
        heard = decide_heartbeats(seen.state, [ask.command for ask in asks], moment)
        renewing = [ask for ask, reply in zip(asks, heard.replies, strict=True) if reply.renews]
        if not heard.events:
            if seen.state is not None and not self._is_current(key, seen, renewing):
                return None
            if seen.state is None and cached is not None:
                executor.aggregates.forget(key)
                return None
            return [Told(reply=reply, seen=seen) for reply in heard.replies]
        outcome = executor.commit(
            key,
            seen,
            _recorded(executor, asks, heard),
            heard.after,
            at=moment.now,
            guards=guards_of(heard.leases),
            leases=LeaseChanges(
                ttl_ms=executor.policy.member_lease_ttl_ms,
                renew=heard.leases.renew,
                renew_all=heard.leases.renew_all,
                reports=_reports(renewing),
            ),
        )
        if isinstance(outcome, Conflict):
            if outcome.what == "head":
                turn.contended()
            return None
        return [Told(reply=reply, seen=outcome) for reply in heard.replies]

    def _moment(self, key: GroupKey, seen: Cached, asks: Sequence[Ask]) -> Moment:
        """Read the leases of those that join again: an elder process may run under each."""
        executor = self._executor
        if not isinstance(seen.state, Group):
            return executor.moment(key, seen)
        members = seen.state.members
        joining = [ask.command.member_id for ask in asks if ask.command.member_epoch == JOIN and ask.command.member_id in members]
        leases: dict[str, int | None] = {}
        if len(joining) > LEASES_ONE_BY_ONE:
            soft = executor.store.soft(key)
            executor.clock.observe(key, soft.now)
            leases = {member_id: soft.leases.get(member_id) for member_id in joining}
        else:
            for member_id in joining:
                leases[member_id], now = executor.store.lease(key, member_id)
                executor.clock.observe(key, now)
        return executor.moment(key, seen, leases=leases)


def _by_state(decided: Sequence[S]) -> dict[int, list[S]]:
    """Give those together that were decided on the same state, nearly always all of them."""
    found: dict[int, list[S]] = {}
    for each in decided:
        found.setdefault(id(each.seen), []).append(each)
    return found


def _is_timeless(known: Cached, group: Group, command: Heartbeat) -> bool:
    """Tell whether only the aggregate and the heartbeat decide: no round ends by time, no elder's lease does."""
    member = group.members.get(command.member_id)
    return group.correction is None and known.identity == group.identity and member is not None and not member.elder


def _reports(asks: Sequence[Ask]) -> dict[str, bytes]:
    return {ask.command.member_id: ask.errand.report for ask in asks if ask.errand.report is not None}


def _recorded(executor: Executor, asks: Sequence[Ask], heard: Heard) -> list[Recorded]:
    """Give each event with the cause that it has, in order."""
    causes = {place: executor.cause(asks[place].errand) for place in set(heard.origins)}
    return [Recorded(event, causes[place]) for event, place in zip(heard.events, heard.origins, strict=True)]
