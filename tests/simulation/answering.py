"""The two ways to the answers of heartbeats: decided for a list of them, or foreseen one by one and confirmed together."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from coord.core.commands import Heartbeat
from coord.http.together import Declined, Foreseeing, confirmed
from coord.names import GroupKey
from coord.runtime.coordinator import Answered, Coordinator

AnswersOf: TypeAlias = Callable[[Coordinator, GroupKey, Sequence[Heartbeat]], Sequence[Answered | None]]


def plain_answers(coordinator: Coordinator, key: GroupKey, commands: Sequence[Heartbeat]) -> Sequence[Answered | None]:
    """Answer as one request that brings several heartbeats."""
    return coordinator.heartbeats(key, [(command, None) for command in commands])


def foreseen_answers(coordinator: Coordinator, key: GroupKey, commands: Sequence[Heartbeat]) -> Sequence[Answered | None]:
    """Answer as a server thread that has several heartbeats at hand; None for those that are to be answered by themselves."""
    requests = [Foreseeing() for _ in commands]
    answers: list[Answered | None] = []
    for request, command in zip(requests, commands, strict=True):
        try:
            answers.append(request.heartbeat(coordinator, key, command, None))
        except Declined:
            answers.append(None)
    for place, holds in enumerate(confirmed(requests)):
        if not holds:
            failed = requests[place].failure is not None
            answers[place] = requests[place].heartbeat(coordinator, key, commands[place], None) if failed else None
    return answers
