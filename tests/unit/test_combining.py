"""Leader and followers: what waits together is done together, nobody waits for ever, and a failure reaches who it concerns."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager

import pytest

from coord.combining import Abandoned, Combiner, Overdue
from tests.servers import wait_until

LONG_S = 30.0


class Work:
    """Doubles numbers, each list only once it is let; keeps what it was given."""

    def __init__(self, fails: Callable[[Sequence[int]], None] = lambda items: None) -> None:
        self.lists: list[list[int]] = []
        self.gate = threading.Semaphore(0)
        self.fails = fails

    def __call__(self, items: Sequence[int]) -> list[int]:
        self.lists.append(list(items))
        assert self.gate.acquire(timeout=LONG_S)
        self.fails(items)
        return [2 * item for item in items]


@contextmanager
def threads() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(16) as pool:
        yield pool


def led_by_one(
    pool: ThreadPoolExecutor, combiner: Combiner[int, int], work: Work, *others: Sequence[int], wait_s: float = LONG_S
) -> list[Future[Sequence[int]]]:
    """Have a first thread at work with [0], and others waiting, in their order."""
    asked = [pool.submit(combiner.submit, [0], wait_s=wait_s)]
    wait_until(lambda: work.lists, what="the first is at work")
    for number, items in enumerate(others, 1):
        asked.append(pool.submit(combiner.submit, items, wait_s=wait_s))
        wait_until(lambda number=number: len(combiner._waiting) == number, what="the next waits")  # type: ignore[misc]  # bound at once
    return asked


def test_who_finds_nobody_goes_on_alone() -> None:
    work = Work()
    work.gate.release()
    assert Combiner(work, most=10).submit([1, 2], wait_s=0) == [2, 4]
    assert work.lists == [[1, 2]]


def test_who_waits_together_is_served_together_each_with_its_own() -> None:
    work = Work()
    combiner = Combiner(work, most=10)
    with threads() as pool:
        asked = led_by_one(pool, combiner, work, [1], [2, 3], [4])
        work.gate.release(2)
        assert [list(each.result(LONG_S)) for each in asked] == [[0], [2], [4, 6], [8]]
    assert work.lists == [[0], [1, 2, 3, 4]]


def test_a_leader_takes_no_more_than_it_may_and_leads_once() -> None:
    """Its own caller is not kept for the work of those who come later."""
    work = Work()
    combiner = Combiner(work, most=2)
    with threads() as pool:
        asked = led_by_one(pool, combiner, work, [1], [2], [3])
        work.gate.release()
        assert asked[0].result(LONG_S) == [0]
        work.gate.release(2)
        assert [list(each.result(LONG_S)) for each in asked[1:]] == [[2], [4], [6]]
    assert work.lists == [[0], [1, 2], [3]]


def test_more_than_the_most_in_one_request_is_done_whole() -> None:
    work = Work()
    work.gate.release()
    assert Combiner(work, most=2).submit([1, 2, 3], wait_s=0) == [2, 4, 6]


def test_a_foreseen_failure_is_everybodys_and_the_next_begin_afresh() -> None:
    def fails(items: Sequence[int]) -> None:
        if 1 in items:
            raise KeyError(1)

    work = Work(fails)
    combiner = Combiner(work, most=10, expected=(KeyError,))
    with threads() as pool:
        asked = led_by_one(pool, combiner, work, [1], [2])
        work.gate.release(2)
        assert asked[0].result(LONG_S) == [0]
        for each in asked[1:]:
            with pytest.raises(KeyError):
                each.result(LONG_S)
        work.gate.release()
        assert combiner.submit([5], wait_s=0) == [10]


def test_followers_of_a_leader_that_fails_unforeseen_are_told() -> None:
    def fails(items: Sequence[int]) -> None:
        if 1 in items:
            raise ZeroDivisionError

    work = Work(fails)
    combiner = Combiner(work, most=10)
    with threads() as pool:
        asked = led_by_one(pool, combiner, work, [1], [2])
        work.gate.release(2)
        with pytest.raises(ZeroDivisionError):
            asked[1].result(LONG_S)
        with pytest.raises(Abandoned):
            asked[2].result(LONG_S)
        work.gate.release()
        assert combiner.submit([5], wait_s=0) == [10]


def test_nobody_waits_longer_than_allowed_and_who_gives_up_is_not_served() -> None:
    work = Work()
    combiner = Combiner(work, most=10)
    with threads() as pool:
        first = led_by_one(pool, combiner, work)[0]
        with pytest.raises(Overdue) as overdue:
            combiner.submit([1], wait_s=0.01)
        assert not overdue.value.is_under_way
        work.gate.release()
        assert first.result(LONG_S) == [0]
        work.gate.release()
        assert combiner.submit([2], wait_s=0) == [4]
    assert work.lists == [[0], [2]]


def test_who_gives_up_on_work_that_was_taken_is_told_that_it_may_be_done_yet() -> None:
    work = Work()
    combiner = Combiner(work, most=10)
    with threads() as pool:
        first = led_by_one(pool, combiner, work)[0]
        second = pool.submit(combiner.submit, [1], wait_s=LONG_S)
        wait_until(lambda: len(combiner._waiting) == 1, what="the second waits, and will lead")
        late = pool.submit(combiner.submit, [2], wait_s=1.0)
        wait_until(lambda: len(combiner._waiting) == 2, what="the third waits")
        work.gate.release()
        assert first.result(LONG_S) == [0]
        with pytest.raises(Overdue) as overdue:
            late.result(LONG_S)
        assert overdue.value.is_under_way
        work.gate.release()
        assert second.result(LONG_S) == [2]
    assert work.lists == [[0], [1, 2]]


def test_more_are_waited_for_only_where_others_wait_already() -> None:
    work = Work()
    pauses: list[float] = []
    combiner = Combiner(work, most=1, gather_s=0.25, pause=pauses.append)
    with threads() as pool:
        asked = led_by_one(pool, combiner, work, [1], [2])
        work.gate.release(3)
        for each in asked:
            each.result(LONG_S)
    assert pauses == [0.25], "the first found nobody, the second found the third, the third nobody"


def test_many_threads_lose_and_double_nothing() -> None:
    done: list[int] = []

    def run(items: Sequence[int]) -> list[int]:
        done.extend(items)
        return [2 * item for item in items]

    combiner = Combiner(run, most=7)
    with threads() as pool:
        results = list(pool.map(lambda number: combiner.submit([number], wait_s=LONG_S)[0], range(5_000)))
    assert results == [2 * number for number in range(5_000)]
    assert sorted(done) == list(range(5_000))
