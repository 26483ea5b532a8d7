"""Heartbeats of one worker that wait for a thread, so that few threads answer many.

While two threads are at it, one waits for the store and the other computes: a third would only wait for its turn, and what
comes meanwhile is answered in one go with what comes after it. A thread whose store is slow keeps nobody waiting.
Only the main loop uses this, so nothing here is locked. Source: design page `performance.md`, "Combine".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Final, Generic, TypeVar

TOGETHER_MAX: Final = 16
"""So many heartbeats one thread answers in one go: the first of them waits for the last."""
AT_ONCE_MAX: Final = 2
SLOW_S: Final = 0.05
"""A thread that has been at it for longer counts no more."""

T = TypeVar("T")


class Gathering(Generic[T]):
    """Those that wait, and since when threads are busy with others. `clock` gives seconds."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._waiting: list[T] = []
        self._begun_s: dict[int, float] = {}
        self._number = 0

    def __len__(self) -> int:
        return len(self._waiting)

    def add(self, item: T) -> None:
        """Let one wait."""
        self._waiting.append(item)

    def ready(self) -> Iterator[tuple[int, list[T]]]:
        """Take what threads may begin with now: each time a number, to be given back by `end`, and those who waited longest."""
        now_s = self._clock()
        while self._waiting and sum(now_s - begun_s < SLOW_S for begun_s in self._begun_s.values()) < AT_ONCE_MAX:
            self._number += 1
            self._begun_s[self._number] = now_s
            taken, self._waiting = self._waiting[:TOGETHER_MAX], self._waiting[TOGETHER_MAX:]
            yield self._number, taken

    def end(self, number: int) -> None:
        """A thread is done."""
        del self._begun_s[number]
