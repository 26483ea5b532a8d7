"""Which heartbeats wait for a thread, and which go to one."""

from __future__ import annotations

from coord.http.engines.gathering import AT_ONCE_MAX, SLOW_S, TOGETHER_MAX, Gathering


class Now:
    s = 0.0

    def __call__(self) -> float:
        return self.s


def gathering_of(count: int, now: Now) -> Gathering[int]:
    gathering: Gathering[int] = Gathering(now)
    for item in range(count):
        gathering.add(item)
    return gathering


def test_who_comes_alone_does_not_wait() -> None:
    assert [items for _, items in gathering_of(1, Now()).ready()] == [[0]]


def test_those_who_waited_longest_go_first_and_no_more_than_a_thread_can_do() -> None:
    gathering = gathering_of(AT_ONCE_MAX * TOGETHER_MAX + 3, Now())
    begun = list(gathering.ready())
    assert [item for _, items in begun for item in items] == list(range(AT_ONCE_MAX * TOGETHER_MAX))
    assert {len(items) for _, items in begun} == {TOGETHER_MAX}
    assert len(gathering) == 3
    assert list(gathering.ready()) == [], "as many are at it as may be"
    gathering.end(begun[0][0])
    assert [len(items) for _, items in gathering.ready()] == [3]
    assert list(gathering.ready()) == []


def test_threads_that_wait_for_a_slow_store_keep_nobody_waiting() -> None:
    now = Now()
    gathering = gathering_of(AT_ONCE_MAX * TOGETHER_MAX + 1, now)
    slow = list(gathering.ready())
    now.s = SLOW_S * 0.9
    assert list(gathering.ready()) == []
    now.s = SLOW_S
    assert [len(items) for _, items in gathering.ready()] == [1]
    for number, _ in slow:
        gathering.end(number)
