"""What is asked of a server that may hang, for callers who may not: asked now and then in a thread, waited for a moment only.

However many look, there is one question at a time, and one a while. Source: scenario J11.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from concurrent.futures import TimeoutError as Unanswered
from typing import Generic, TypeVar

T = TypeVar("T")


class Glance(Generic[T]):
    """One question and what it gave last.

    `fresh_s`: so long an answer is good. `patience_s`: so long after a question was asked its answer is waited for; one that
    takes longer goes on, and its answer is there for whoever looks later.
    """

    def __init__(self, ask: Callable[[], T], *, fresh_s: float, patience_s: float) -> None:
        self._ask = ask
        self._fresh_s = fresh_s
        self._patience_s = patience_s
        self._lock = threading.Lock()
        self._answer: Future[T] | None = None
        self._asked_at = float("-inf")
        self._answered_at = float("-inf")

    def begin(self) -> Future[T]:
        """Ask, unless that is under way or was lately; waits for nothing."""
        with self._lock:
            now = time.monotonic()
            if self._answer is None or (self._answer.done() and now - self._answered_at >= self._fresh_s):
                self._answer, self._asked_at = Future(), now
                threading.Thread(target=self._run, args=(self._answer,), name="glance", daemon=True).start()
            return self._answer

    def look(self) -> T | None:
        """Give the answer, None when it does not come in time. Raises what the question raised."""
        answer = self.begin()
        try:
            return answer.result(max(0.0, self._asked_at + self._patience_s - time.monotonic()))
        except Unanswered:
            return None

    def _run(self, answer: Future[T]) -> None:
        try:
            given = self._ask()
        except Exception as error:  # noqa: BLE001  whoever looks gets it
            self._answered_at = time.monotonic()
            answer.set_exception(error)
        else:
            self._answered_at = time.monotonic()
            answer.set_result(given)
