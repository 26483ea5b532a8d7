"""The state mutex on a real Redis: it saves work, costs nothing where nobody contends, and is never what safety rests on."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import structlog

from coord.names import GroupKey
from coord.rediscommands.keys import Keys
from coord.runtime.mutex import MutexPolicy, MutexUnavailable, StateMutex
from coord.store.base import Committed, Conflict, CorruptAggregate, StoreUnavailable
from coord.store.redis.store import RedisStore
from tests.servers import wait_until
from tests.store.author import KEY, commit_on, committed
from tests.store.redis_server import RedisServer
from tests.tap import Tap
from tests.topologies.servers import PREFIX, Cluster

MUTEX = Keys(PREFIX).aggregate(KEY).mutex
FAST = MutexPolicy(ttl_ms=1000, acquire_timeout_ms=5000, retry_interval_ms=10)
ALWAYS = MutexPolicy(strategy="always", ttl_ms=1000, acquire_timeout_ms=20_000, retry_interval_ms=10)


@pytest.fixture
def store(single: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(single.commands(timeout_ms=2000))
    yield store
    store.close()


def holder(server: RedisServer) -> bytes | None:
    found: bytes | None = server.call("GET", MUTEX)
    return found


def calls(server: RedisServer) -> int:
    """How many scripts a server has run."""
    told: bytes = server.call("INFO", "commandstats")
    return sum(
        int(line.split(b"calls=")[1].split(b",")[0])
        for line in told.splitlines()
        if line.startswith((b"cmdstat_eval:", b"cmdstat_evalsha:"))
    )


def test_contended_costs_nothing_until_a_compare_and_set_is_lost(single: RedisServer, store: RedisStore) -> None:
    mutex = StateMutex(store.mutexes, FAST)
    before = calls(single)
    for _ in range(10):
        with mutex.around(KEY):
            pass
    assert calls(single) == before
    with mutex.around(KEY) as turn:
        turn.contended()
        assert turn.is_held
        assert holder(single) == turn.token.encode()
        assert 0 < single.call("PTTL", MUTEX) <= FAST.ttl_ms
        asked = calls(single)
        turn.contended()
        assert calls(single) == asked, "what is held is not asked for again"
    assert holder(single) is None


def test_contended_goes_on_without_it_after_its_time(single: RedisServer, store: RedisStore) -> None:
    single.call("SET", MUTEX, "another's")
    policy = MutexPolicy(ttl_ms=300, acquire_timeout_ms=1000, retry_interval_ms=20)
    mutex = StateMutex(store.mutexes, policy)
    with structlog.testing.capture_logs() as lines, mutex.around(KEY) as turn:
        begun = time.monotonic()
        turn.contended()
        assert time.monotonic() - begun >= 1
        assert not turn.is_held
        begun = time.monotonic()
        for _ in range(3):
            turn.contended()
        assert 0.02 < time.monotonic() - begun < 1, "its time is used up: only a jittered pause is left"
        assert isinstance(store.commit(commit_on(store.load(KEY))), Committed)
    assert holder(single) == b"another's"
    assert [line["event"] for line in lines] == ["state mutex not free in time"]


def test_always_refuses_who_does_not_get_it_and_runs_nothing(single: RedisServer, store: RedisStore) -> None:
    policy = MutexPolicy(strategy="always", ttl_ms=5000, acquire_timeout_ms=200, retry_interval_ms=20)
    single.call("SET", MUTEX, "another's")
    begun = time.monotonic()
    with pytest.raises(MutexUnavailable, match="not free within 200 ms"), StateMutex(store.mutexes, policy).around(KEY):
        pytest.fail("it ran")
    assert time.monotonic() - begun >= 0.2
    single.call("DEL", MUTEX)
    with StateMutex(store.mutexes, policy).around(KEY) as turn:
        assert holder(single) == turn.token.encode()
    assert holder(single) is None


def test_it_is_given_back_whatever_happens_inside(single: RedisServer, store: RedisStore) -> None:
    mutex = StateMutex(store.mutexes, ALWAYS)
    for error in (ValueError("x"), CorruptAggregate(KEY, "why"), MutexUnavailable("x")):
        with pytest.raises(type(error)), mutex.around(KEY):
            raise error
        assert holder(single) is None


def test_it_is_renewed_while_it_is_held_and_not_afterwards(single: RedisServer, store: RedisStore) -> None:
    mutex = StateMutex(store.mutexes, ALWAYS)
    with mutex.around(KEY) as turn:
        end = time.monotonic() + 2.5 * ALWAYS.ttl_ms / 1000
        while time.monotonic() < end:
            assert holder(single) == turn.token.encode()
            time.sleep(0.02)
    assert holder(single) is None
    time.sleep(ALWAYS.ttl_ms / 1000 / 2)
    assert holder(single) is None


def test_j10_a_killed_holders_mutex_is_free_after_its_time(single: RedisServer, store: RedisStore) -> None:
    child = os.fork()
    if child == 0:
        try:
            with StateMutex(store.mutexes, ALWAYS).around(KEY):
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    os.waitpid(child, 0)
    assert holder(single) is not None
    begun = time.monotonic()
    with StateMutex(store.mutexes, ALWAYS).around(KEY):
        assert time.monotonic() - begun < 10 * ALWAYS.ttl_ms / 1000


def test_a_lost_answer_leaves_nobody_locked_out(single: RedisServer, store: RedisStore) -> None:
    """The token may have been set: whoever asks again under it holds it, and whoever gives up releases it."""
    with Tap(single.port) as tap:
        through = RedisStore(single.commands(timeout_ms=500, port=tap.port))
        mutex = StateMutex(through.mutexes, FAST)
        through.mutexes.take(KEY, "somebody", ttl_ms=5000)  # the scripts are loaded
        through.mutexes.release(KEY, "somebody")
        with mutex.around(KEY) as turn:
            tap.drop_replies(containing=turn.token.encode(), times=1)
            turn.contended()
            assert not turn.is_held
            assert holder(single) == turn.token.encode()
            tap.pass_through()
        assert holder(single) is None
        with mutex.around(KEY) as turn:
            assert through.mutexes.take(KEY, turn.token, ttl_ms=5000)
            turn.contended()
            assert turn.is_held
        assert holder(single) is None
        through.close()


def test_a_store_that_is_away_stops_always_and_not_contended(single: RedisServer, store: RedisStore) -> None:
    store.mutexes.release(KEY, "nobody")
    single.stop()
    with StateMutex(store.mutexes, FAST).around(KEY) as turn:
        turn.contended()
    with pytest.raises(StoreUnavailable), StateMutex(store.mutexes, ALWAYS).around(KEY):
        pytest.fail("it ran")


def test_without_a_redis_there_is_none() -> None:
    with StateMutex(None).around(KEY) as turn:
        turn.contended()
        assert not turn.is_held


def test_two_aggregates_do_not_wait_for_each_other(store: RedisStore) -> None:
    mutex = StateMutex(store.mutexes, ALWAYS)
    with mutex.around(KEY), mutex.around(KEY.stream), mutex.around(GroupKey("orders", "another")) as turn:
        assert turn.is_held


def test_d7_threads_of_one_process_exclude_each_other(single: RedisServer, store: RedisStore) -> None:
    """A count that only exclusion keeps right: each thread reads it, lets others run, and writes it."""
    mutex = StateMutex(store.mutexes, MutexPolicy(strategy="always", ttl_ms=3000, acquire_timeout_ms=20_000, retry_interval_ms=2))
    threads, each, count = 16, 12, [0]
    together = Barrier(threads)

    def work(_: int) -> None:
        together.wait()
        for _ in range(each):
            with mutex.around(KEY):
                seen = count[0]
                time.sleep(0.0005)
                count[0] = seen + 1

    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(work, range(threads)))
    assert count[0] == threads * each
    assert holder(single) is None


def test_d7_no_commit_of_contending_threads_is_lost(store: RedisStore) -> None:
    """In the executor's order: try, and after a lost compare-and-set, take the mutex and try again."""
    mutex = StateMutex(store.mutexes, MutexPolicy(ttl_ms=3000, retry_interval_ms=2))
    threads, each = 8, 20
    together = Barrier(threads)

    def work(_: int) -> int:
        together.wait()
        lost = 0
        for _ in range(each):
            with mutex.around(KEY) as turn:
                while not isinstance(store.commit(commit_on(store.load(KEY))), Committed):
                    lost += 1
                    turn.contended()
        return lost

    with ThreadPoolExecutor(threads) as pool:
        lost = sum(pool.map(work, range(threads)))
    assert store.load(KEY).head.revision == threads * each == len(store.tail(KEY, after=(0, 0), limit=999))
    assert lost < threads * each * 2


def test_d5_work_that_outlives_the_mutex_is_refused_and_releases_nobody_elses(single: RedisServer, store: RedisStore) -> None:
    """A process is frozen between its read and its commit; meanwhile another takes the mutex that lapsed, and commits twice."""
    committed(store)
    from_child, to_parent = os.pipe()
    from_parent, to_child = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = b"failed"
        try:
            with structlog.testing.capture_logs() as lines, StateMutex(store.mutexes, ALWAYS).around(KEY):
                commit = commit_on(store.load(KEY), commit_id="of the frozen process")
                os.write(to_parent, b"read")
                os.read(from_parent, 1)
                answer = store.commit(commit)
                outcome = answer.what.encode() if isinstance(answer, Conflict) else b"committed"
            outcome += b", " + ", ".join(str(line["event"]) for line in lines).encode()
        finally:
            os.write(to_parent, outcome)
            os._exit(0)
    assert os.read(from_child, 100) == b"read"
    os.kill(child, signal.SIGSTOP)
    frozen_at = time.monotonic()
    with StateMutex(store.mutexes, ALWAYS).around(KEY) as turn:
        assert time.monotonic() - frozen_at < 10 * ALWAYS.ttl_ms / 1000
        committed(store)
        committed(store)
        os.write(to_child, b"!")
        os.kill(child, signal.SIGCONT)
        assert os.read(from_child, 100) == b"head, state mutex had lapsed before it was given back"
        os.waitpid(child, 0)
        assert holder(single) == turn.token.encode()
    assert store.load(KEY).head.revision == 3
    assert holder(single) is None


def test_the_renewing_thread_ends_when_nothing_is_held(store: RedisStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coord.runtime.mutex.LINGER_S", 0.1)
    mutex = StateMutex(store.mutexes, ALWAYS)
    for _ in range(2):
        with mutex.around(KEY):
            assert mutex._renewer is not None
        wait_until(lambda: mutex._renewer is None, what="the thread has ended")


def test_a_holder_that_hangs_is_not_renewed_for_ever(
    single: RedisServer, store: RedisStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("coord.runtime.mutex.RENEWALS_MAX", 3)
    with structlog.testing.capture_logs() as lines, StateMutex(store.mutexes, ALWAYS).around(KEY):
        wait_until(lambda: holder(single) is None, what="the mutex lapses")
    assert [line["event"] for line in lines] == ["state mutex had lapsed before it was given back"]


def test_a_mutex_of_another_type_is_told(single: RedisServer, store: RedisStore) -> None:
    single.call("LPUSH", MUTEX, "a list")
    with pytest.raises(StoreUnavailable, match="WRONGTYPE"), StateMutex(store.mutexes, ALWAYS).around(KEY):
        pytest.fail("it ran")


def test_a_cluster_keeps_each_mutex_beside_its_aggregate(cluster: Cluster) -> None:
    store = cluster.store()
    mutex = StateMutex(store.mutexes, ALWAYS)
    for number in range(6):
        key = GroupKey("orders", f"group-{number}")
        keys = Keys(PREFIX).aggregate(key)
        with mutex.around(key) as turn:
            assert cluster.master_of(keys.metadata).call("GET", keys.mutex) == turn.token.encode()
    store.close()


def test_waiting_is_jittered(store: RedisStore) -> None:
    """Those that wait together do not come back together."""
    pauses: list[float] = []

    def pause(seconds: float) -> None:
        pauses.append(seconds)
        time.sleep(seconds)

    policy = MutexPolicy(ttl_ms=3000, acquire_timeout_ms=1000, retry_interval_ms=20)
    store.mutexes.take(KEY, "another's", ttl_ms=60_000)
    with StateMutex(store.mutexes, policy, pause=pause).around(KEY) as turn:
        turn.contended()
    assert len(set(pauses)) == len(pauses) > 5
    assert all(0.01 <= seconds <= 0.03 for seconds in pauses[:5])
