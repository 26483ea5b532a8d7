"""Windows and answers in memory and in Redis: the contract, the edges that only one of them has, and that nothing stays."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from coord.names import StreamKey
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.keys import Keys
from coord.rediscommands.settings import RedisSettings
from coord.runtime.embedded import EmbeddedRedis
from coord.store.answers import ANSWERS_MAX, ANSWERS_TTL_MS
from coord.store.base import StoreUnavailable
from coord.store.memory_answers import AGGREGATES_MAX, MemoryAnswers
from coord.store.memory_windows import COUNTS_MAX, SHARED_COUNTS, MemoryWindows
from coord.store.redis.answers import RedisAnswers
from coord.store.redis.windows import RedisWindows
from tests.servers import wait_until
from tests.store.beside import GROUP, HOUR_MS, BesideContract, Place


class Clock:
    """A clock of ms that stands still until it is moved."""

    now = 7 * HOUR_MS

    def __call__(self) -> int:
        return self.now


class TestMemory(BesideContract):
    @pytest.fixture
    def place(self) -> Place:
        return Place(MemoryWindows(Clock()), MemoryAnswers(Clock()))


class TestRedis(BesideContract):
    @pytest.fixture
    def place(self, redis_url: str, redis_server: EmbeddedRedis) -> Iterator[Place]:
        commands = RedisCommands(RedisSettings(host="127.0.0.1", port=redis_server.port))
        yield Place(RedisWindows(commands), RedisAnswers(commands))
        commands.close()


def test_memory_drops_what_was_put_longest_ago() -> None:
    answers = MemoryAnswers(Clock())
    for index in range(ANSWERS_MAX):
        answers.swap(GROUP, f"k{index}", seen=None, put=b"x")
    answers.swap(GROUP, "k0", seen=b"x", put=b"again")
    answers.swap(GROUP, "one more", seen=None, put=b"x")
    assert answers.swap(GROUP, "k0", seen=b"?", put=None).there == b"again"
    assert answers.swap(GROUP, "k1", seen=b"?", put=None).there is None


def test_a_new_window_begins_at_the_edge_in_memory() -> None:
    clock = Clock()
    windows = MemoryWindows(clock)
    clock.now = 7 * HOUR_MS + 1
    assert [windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) for _ in range(2)] == [0, HOUR_MS - 1]
    clock.now = 8 * HOUR_MS - 1
    assert windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 1
    clock.now = 8 * HOUR_MS
    assert [windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) for _ in range(2)] == [0, HOUR_MS]


def test_l3_redis_keeps_nothing_of_a_window_that_is_over(redis_url: str, redis_server: EmbeddedRedis) -> None:
    """On Redis's own clock: who is told to wait is in a new window after that, and the old one is gone by itself."""
    commands = RedisCommands(RedisSettings(host="127.0.0.1", port=redis_server.port))
    windows, key = RedisWindows(commands), commands.keys.windows(GROUP)
    window_ms = 500
    left_ms = wait_until(
        lambda: max(windows.take(GROUP, "ada", limit=1, window_ms=window_ms) for _ in range(2)), what="two fall into one window"
    )
    wait_until(lambda: commands._template.call(key, "EXISTS", key) == 0, what="the window is gone")
    assert 0 < left_ms <= window_ms
    assert windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 0
    commands.close()


def test_l1_memory_is_bounded_and_a_spent_count_stays_spent() -> None:
    windows = MemoryWindows(Clock())
    assert windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 0
    taken = sum(
        windows.take(StreamKey(f"made-up-{index}"), "ada", limit=1, window_ms=HOUR_MS) == 0 for index in range(2 * COUNTS_MAX)
    )
    assert len(windows._taken) == COUNTS_MAX + SHARED_COUNTS
    assert taken == COUNTS_MAX - 1 + SHARED_COUNTS
    assert windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) > 0


def test_answers_go_some_time_after_the_last() -> None:
    clock = Clock()
    answers = MemoryAnswers(clock)
    answers.swap(GROUP, "k", seen=None, put=b"x")
    clock.now += ANSWERS_TTL_MS - 1
    assert answers.swap(GROUP, "k", seen=b"?", put=None).there == b"x"
    clock.now += 1
    assert answers.swap(GROUP, "k", seen=None, put=None).there is None


def test_memory_keeps_the_answers_of_so_many_streams_and_groups() -> None:
    answers = MemoryAnswers(Clock())
    for index in range(AGGREGATES_MAX + 10):
        answers.swap(StreamKey(f"s{index}"), "k", seen=None, put=b"x")
    assert len(answers._kept) == AGGREGATES_MAX
    assert answers.swap(StreamKey("s0"), "k", seen=None, put=None).there is None
    answers.swap(StreamKey("s99"), "k", seen=b"x", put=None)
    assert len(answers._kept) == AGGREGATES_MAX - 1


def test_redis_lets_nothing_stay_for_ever(redis_url: str, redis_server: EmbeddedRedis) -> None:
    commands = RedisCommands(RedisSettings(host="127.0.0.1", port=redis_server.port))
    RedisWindows(commands).take(GROUP, "ada", limit=3, window_ms=60_000)
    RedisAnswers(commands).swap(GROUP, "k", seen=None, put=b"x")
    for key, most_ms in ((commands.keys.windows(GROUP), 60_000), *((k, ANSWERS_TTL_MS) for k in commands.keys.answers(GROUP))):
        assert 0 < commands._template.call(key, "PTTL", key) <= most_ms
        assert "{orders:g}" in key
    commands.close()


def test_a_redis_that_is_away_or_holds_something_else_is_said_so(redis_url: str, redis_server: EmbeddedRedis) -> None:
    commands = RedisCommands(RedisSettings(host="127.0.0.1", port=redis_server.port))
    keys = Keys()
    for key in (keys.windows(GROUP), keys.answers(GROUP)[1]):
        commands._template.call(key, "SET", key, "x")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        RedisWindows(commands).take(GROUP, "ada", limit=3, window_ms=60_000)
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
        RedisAnswers(commands).swap(GROUP, "k", seen=None, put=b"x")
    assert commands._template.call(keys.answers(GROUP)[0], "EXISTS", keys.answers(GROUP)[0]) == 0
    commands.close()
    nobody = RedisCommands(RedisSettings(host="127.0.0.1", port=1, timeout_ms=100))
    with pytest.raises(StoreUnavailable):
        RedisWindows(nobody).take(GROUP, "ada", limit=3, window_ms=60_000)
    with pytest.raises(StoreUnavailable):
        RedisAnswers(nobody).swap(GROUP, "k", seen=None, put=b"x")
