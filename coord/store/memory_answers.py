"""Answers of one process, for the memory store."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from threading import Lock
from typing import Final

from coord.names import AggregateKey
from coord.store.answers import ANSWERS_MAX, ANSWERS_TTL_MS, Swapped

AGGREGATES_MAX: Final = 1_000
"""Aggregates whose answers are kept; the one that changed longest ago goes first."""


class MemoryAnswers:
    """`coord.store.answers.Answers` in this process. `clock` gives ms."""

    def __init__(self, clock: Callable[[], int]) -> None:
        self._clock = clock
        self._lock = Lock()
        self._kept: OrderedDict[AggregateKey, tuple[int, OrderedDict[str, bytes]]] = OrderedDict()

    def swap(self, key: AggregateKey, name: str, *, seen: bytes | None, put: bytes | None, alone: bool = False) -> Swapped:
        """Put an answer where `seen` is."""
        with self._lock:
            now = self._clock()
            changed_at, answers = self._kept.get(key, (now, OrderedDict()))
            if now - changed_at >= ANSWERS_TTL_MS:
                answers = OrderedDict()
            there = answers.get(name)
            if there != seen:
                return Swapped(done=False, there=there, now=now)
            if alone:
                answers = OrderedDict()
            answers.pop(name, None)
            if put is not None:
                answers[name] = put
            while len(answers) > ANSWERS_MAX:
                answers.popitem(last=False)
            self._keep(key, now, answers)
            return Swapped(done=True, there=there, now=now)

    def _keep(self, key: AggregateKey, now: int, answers: OrderedDict[str, bytes]) -> None:
        self._kept.pop(key, None)
        if answers:
            self._kept[key] = (now, answers)
        while len(self._kept) > AGGREGATES_MAX:
            self._kept.popitem(last=False)
