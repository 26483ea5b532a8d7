"""Work of threads that wait for one place, done by one of them in one go: leader and followers.

Who comes while nobody works there leads, and goes on at once; who comes meanwhile waits. A leader takes what waits together
with its own work, once, then hands leadership to the first that still waits, so that its own caller is not kept. Used for
touches (one pipeline for all that wait for one server) and for group commit. Source: design page `performance.md`.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Generic, TypeVar
from weakref import WeakValueDictionary

K = TypeVar("K")
T = TypeVar("T")
R = TypeVar("R")


class Overdue(Exception):
    """Nobody did the work in the time allowed. `is_under_way`: a leader has taken it, and may do it yet."""

    def __init__(self, *, is_under_way: bool) -> None:
        super().__init__("the work of another thread for the same place has not ended in time")
        self.is_under_way = is_under_way


class Abandoned(Exception):
    """The leader that had taken the work failed in an unforeseen way; nothing says what became of it."""


class _Ticket(Generic[T, R]):
    """What one thread wants done. `done` is held until it may go on: with results, with a failure, or as the leader."""

    __slots__ = ("done", "failure", "is_taken", "items", "leads", "results")

    def __init__(self, items: Sequence[T]) -> None:
        self.items = items
        self.results: Sequence[R] = ()
        self.failure: BaseException | None = None
        self.is_taken = False
        self.leads = False
        self.done = threading.Lock()


class Combiner(Generic[T, R]):
    """One place where work is combined.

    `run` does a list of items and gives a result for each, in order; what it raises is raised for each item's caller when it
    is an `expected` kind of failure, and as `Abandoned` otherwise (the leader itself gets the original). `most`: about how
    many items a leader takes. `gather_s`: how long a leader waits for more when it finds others waiting already.
    """

    def __init__(
        self,
        run: Callable[[Sequence[T]], Sequence[R]],
        *,
        most: int,
        expected: tuple[type[Exception], ...] = (),
        gather_s: float = 0.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = run
        self._most = most
        self._expected = expected
        self._gather_s = gather_s
        self._pause = pause
        self._guard = threading.Lock()
        self._waiting: deque[_Ticket[T, R]] = deque()
        self._is_led = False

    def submit(self, items: Sequence[T], *, wait_s: float) -> Sequence[R]:
        """Have items done, and give their results. Raises `Overdue` after about `wait_s` of waiting for others."""
        ticket: _Ticket[T, R] = _Ticket(items)
        with self._guard:
            if self._is_led:
                ticket.done.acquire()
                self._waiting.append(ticket)
            else:
                self._is_led = ticket.leads = True
        if not ticket.leads:
            self._await(ticket, wait_s)
        if ticket.leads:
            self._lead(ticket)
        if ticket.failure is not None:
            raise ticket.failure
        return ticket.results

    def _await(self, ticket: _Ticket[T, R], wait_s: float) -> None:
        try:
            if ticket.done.acquire(timeout=max(wait_s, 0)):
                return
        except BaseException:  # this thread is told to end: nobody else may wait for it to lead
            self._withdraw(ticket)
            raise
        with self._guard:
            if ticket.leads or ticket.failure is not None or ticket.results:
                return
            if not ticket.is_taken:
                self._waiting.remove(ticket)
        raise Overdue(is_under_way=ticket.is_taken)

    def _withdraw(self, ticket: _Ticket[T, R]) -> None:
        with self._guard:
            if not ticket.is_taken and not ticket.leads:
                self._waiting.remove(ticket)
        if ticket.leads:
            self._hand_over()

    def _lead(self, own: _Ticket[T, R]) -> None:
        if self._gather_s and self._waiting:
            self._pause(self._gather_s)
        batch = self._take(own)
        try:
            done = self._run([item for ticket in batch for item in ticket.items])
        except BaseException as error:
            self._hand_over()
            for ticket in batch[1:]:
                ticket.failure = error if isinstance(error, self._expected) else Abandoned(repr(error))
                ticket.done.release()
            raise
        self._hand_over()
        at = 0
        for ticket in batch:
            ticket.results = done[at : at + len(ticket.items)]
            at += len(ticket.items)
            if ticket is not own:
                ticket.done.release()

    def _take(self, own: _Ticket[T, R]) -> list[_Ticket[T, R]]:
        batch, count = [own], len(own.items)
        with self._guard:
            while self._waiting and count + len(self._waiting[0].items) <= self._most:
                ticket = self._waiting.popleft()
                ticket.is_taken = True
                count += len(ticket.items)
                batch.append(ticket)
        return batch

    def _hand_over(self) -> None:
        with self._guard:
            if not self._waiting:
                self._is_led = False
                return
            heir = self._waiting.popleft()
            heir.leads = True
        heir.done.release()


class Combiners(Generic[K, T, R]):
    """A `Combiner` for each key, kept only while somebody uses it. `run` is given the key first; the rest is as there."""

    def __init__(
        self,
        run: Callable[[K, Sequence[T]], Sequence[R]],
        *,
        most: int,
        expected: tuple[type[Exception], ...] = (),
        gather_s: float = 0.0,
        pause: Callable[[float], None] = time.sleep,
    ) -> None:
        self._run = run
        self._make = partial(Combiner[T, R], most=most, expected=expected, gather_s=gather_s, pause=pause)
        self._guard = threading.Lock()
        self._in_use: WeakValueDictionary[K, Combiner[T, R]] = WeakValueDictionary()

    def submit(self, key: K, items: Sequence[T], *, wait_s: float) -> Sequence[R]:
        """Have items of a key done, and give their results."""
        with self._guard:
            combiner = self._in_use.get(key)
            if combiner is None:
                combiner = self._in_use[key] = self._make(partial(self._run, key))
        return combiner.submit(items, wait_s=wait_s)
