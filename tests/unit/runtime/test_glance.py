"""A glance waits a moment only, asks once however many look, and gives what came late to whoever looks later."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from coord.runtime.glance import Glance
from tests.servers import wait_until


def test_j11_a_slow_answer_is_not_waited_for_and_is_there_later() -> None:
    asked: list[int] = []
    answers = threading.Event()

    def ask() -> int:
        asked.append(1)
        assert answers.wait(30)
        return 7

    glance = Glance(ask, fresh_s=60, patience_s=0.05)
    with ThreadPoolExecutor(16) as pool:
        assert set(pool.map(lambda _: glance.look(), range(64))) == {None}
    answers.set()
    wait_until(lambda: glance.look() == 7, what="the answer is there")
    assert len(asked) == 1


def test_an_answer_is_good_for_a_while_and_then_asked_for_anew() -> None:
    numbers = iter(range(10))
    kept, anew = (Glance(lambda: next(numbers), fresh_s=fresh_s, patience_s=30) for fresh_s in (60, 0))
    assert [kept.look(), kept.look(), anew.look(), anew.look()] == [0, 0, 1, 2]


def test_what_went_wrong_is_raised_for_whoever_looks_and_asked_anew() -> None:
    answers: Iterator[int | Exception] = iter([ValueError("a bug"), 7])

    def ask() -> int:
        answer = next(answers)
        if isinstance(answer, Exception):
            raise answer
        return answer

    glance = Glance(ask, fresh_s=0, patience_s=30)
    with pytest.raises(ValueError, match="a bug"):
        glance.look()
    assert glance.look() == 7
