"""What other threads tell the member loop, through its queue."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeAlias

from coord.wire import HeartbeatResponse


@dataclass(frozen=True, slots=True)
class Answer:
    """An HTTP call came back, one way or the other."""

    attempt: int
    response: HeartbeatResponse | None
    error: Exception | None


@dataclass(frozen=True, slots=True)
class Drained:
    """A reader has let go of a shard."""

    shard: int


@dataclass(frozen=True, slots=True)
class Leave:
    """The owner wants to leave."""


@dataclass(frozen=True, slots=True)
class BeatAlong:
    """Another member of this process is about to send, and there is room beside it."""


@dataclass(frozen=True, slots=True)
class Fail:
    """A reader met what it cannot go on with."""

    error: BaseException


Item: TypeAlias = Answer | Drained | Leave | BeatAlong | Fail
