"""A master behind Sentinels fails over: connections follow, every call is bounded, nothing is written twice or on two masters."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal

import pytest

from coord.rediscommands.settings import Address, RedisSettings, SentinelSettings
from coord.rediscommands.template import Template
from coord.store.base import (
    Committed,
    Conflict,
    LeaseChanges,
    OutcomeUnknown,
    StoreUnavailable,
    Touch,
)
from coord.store.redis.store import RedisStore
from tests.servers import wait_until
from tests.store.author import KEY, commit_on, committed, due
from tests.tap import Tap
from tests.topologies.servers import HOST, SENTINEL_NAME, Sentinels, is_master, store_of, worries
from tests.topologies.writer import HEALED_S_MAX, SLACK_S, Writer

TIMEOUT_MS = 1000
LONG_MS = 60_000
MEMBERS = tuple(f"member-{number}" for number in range(30))


@pytest.fixture
def store(own_sentinels: Sentinels) -> Iterator[RedisStore]:
    store = own_sentinels.store(timeout_ms=TIMEOUT_MS)
    yield store
    store.close()


@pytest.mark.slow
def test_f2_thirty_members_live_through_a_switch(own_sentinels: Sentinels, store: RedisStore) -> None:
    """Each is told 503 at worst, none waits longer than its bound, and each is renewed again at once after the promotion."""
    committed(store, leases=LeaseChanges(ttl_ms=15_000, renew=MEMBERS))
    done = Signal()
    went_on_at: list[float] = []

    def beat(member: str) -> float:
        longest_s = 0.0
        while not done.is_set():
            begun = time.monotonic()
            try:
                read = store.load(KEY)
                answer = store.touch(
                    Touch(
                        key=KEY,
                        revision=read.head.revision,
                        commit_id=read.head.commit_id,
                        identity=read.identity,
                        renew=(member,),
                        ttl_ms=15_000,
                    )
                )
            except StoreUnavailable:
                pass
            else:
                if answer.current and answer.identity != before:
                    went_on_at.append(time.monotonic())
            longest_s = max(longest_s, time.monotonic() - begun)
            time.sleep(0.05)
        return longest_s

    before = store.identity()
    old = own_sentinels.master
    with ThreadPoolExecutor(len(MEMBERS)) as pool:
        beats = [pool.submit(beat, member) for member in MEMBERS]
        try:
            own_sentinels.begin_failover()
            new = next(server for server in own_sentinels.servers if server is not old)
            wait_until(lambda: is_master(new), timeout_s=HEALED_S_MAX, what="a promotion")
            wait_until(lambda: own_sentinels.master is new, timeout_s=HEALED_S_MAX, what="all Sentinels know")
            named_at = time.monotonic()
            wait_until(lambda: went_on_at, timeout_s=HEALED_S_MAX, what="members go on")
            time.sleep(0.5)
        finally:
            done.set()
        longest_s = max(future.result() for future in beats)
    assert min(went_on_at) - named_at < 2 * TIMEOUT_MS / 1000 + SLACK_S
    assert longest_s < 2 * TIMEOUT_MS / 1000 + SLACK_S
    soft = store.soft(KEY)
    assert set(soft.leases) == set(MEMBERS)
    assert min(soft.leases.values()) > soft.now, "nobody has lapsed"


@pytest.mark.slow
def test_f2_a_killed_master_is_succeeded_and_commits_go_on(own_sentinels: Sentinels, store: RedisStore) -> None:
    committed(store)
    before = store.identity()
    old = own_sentinels.master
    with Writer(store) as writer:
        writer.wait_for_more()
        old.stop()
        assert writer.wait_for_more() < HEALED_S_MAX
    writer.judge(store, lost_at_most=5)
    assert store.identity() != before
    old.start()
    committed(store)


@pytest.mark.slow
def test_f2_a_frozen_master_that_wakes_up_is_left_alone(own_sentinels: Sentinels, store: RedisStore) -> None:
    """It still believes to be the master when it wakes, and its connections are still there."""
    committed(store)
    old = own_sentinels.master
    with Writer(store) as writer:
        writer.wait_for_more()
        old.freeze()
        assert writer.wait_for_more() < HEALED_S_MAX
        old.thaw()
        writer.wait_for_more()
    writer.judge(store, lost_at_most=5)
    assert own_sentinels.master is not old


@pytest.mark.slow
def test_f1_every_step_sees_that_the_store_is_another_one(own_sentinels: Sentinels, store: RedisStore) -> None:
    head = committed(store, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",))).head
    read = store.load(KEY)
    stale = commit_on(read)
    wait_until(lambda: store.load(KEY).head == head, what="it is written")
    own_sentinels.failover()

    def touched() -> bool:
        touch = Touch(key=KEY, revision=1, commit_id=head.commit_id, identity=read.identity, renew=("m",), ttl_ms=1)
        try:
            return not store.touch(touch).current
        except StoreUnavailable:
            return False

    wait_until(touched, timeout_s=HEALED_S_MAX, what="a touch is answered by the new master")
    now = store.load(KEY)
    assert (now.head, now.identity != read.identity) == (head, True)
    answer = store.commit(stale)
    assert isinstance(answer, Conflict)
    assert (answer.what, answer.identity) == ("identity", now.identity)
    assert due(store, KEY, lease_ttl_ms=LONG_MS, grace=False).identity == now.identity
    assert isinstance(store.commit(commit_on(now)), Committed)


@pytest.mark.slow
def test_d10_the_new_master_never_saw_the_scripts(own_sentinels: Sentinels, store: RedisStore) -> None:
    committed(store)
    before = store.identity()
    own_sentinels.failover()
    assert b"number_of_cached_scripts:0" in own_sentinels.master.call("INFO", "memory")
    wait_until(lambda: store.identity() != before, timeout_s=HEALED_S_MAX, what="the store follows")
    with Writer(store) as writer:
        writer.wait_for_more()
    writer.judge(store, lost_at_most=0)


def test_d15_no_read_comes_from_a_server_that_was_demoted(own_sentinels: Sentinels, store: RedisStore) -> None:
    """Reading is what a replica would do too: only its own word keeps readers off it."""
    committed(store)
    old = own_sentinels.master
    new = next(server for server in own_sentinels.servers if server is not old)
    new.call("REPLICAOF", "NO", "ONE")
    old.call("REPLICAOF", HOST, new.port)
    old.call("CLIENT", "KILL", "TYPE", "NORMAL")
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable, match="it is a slave, not the master"):
        store.load(KEY)
    assert time.monotonic() - begun < TIMEOUT_MS / 1000 + SLACK_S


def test_a_master_is_looked_for_again_without_any_failure(own_sentinels: Sentinels) -> None:
    """The old master goes on answering for seconds after a switch; nobody stays with it for that long."""
    store = own_sentinels.store(timeout_ms=TIMEOUT_MS)
    committed(store)
    before = store.identity()
    own_sentinels.failover()
    wait_until(lambda: store.identity() != before, what="the new master", poll_s=0.05)
    store.close()


# -- Sentinels themselves


def test_one_sentinel_of_three_is_enough_whatever_the_others_do(sentinels: Sentinels) -> None:
    with Tap(sentinels.sentinels[1].port) as tap:
        tap.blackhole()
        nodes = (Address(HOST, 1), Address(HOST, tap.port), Address(HOST, sentinels.sentinels[2].port))
        settings = RedisSettings(sentinel=SentinelSettings(master=SENTINEL_NAME, nodes=nodes), timeout_ms=TIMEOUT_MS)
        store = store_of(settings)
        begun = time.monotonic()
        committed(store)
        assert time.monotonic() - begun < TIMEOUT_MS / 1000 + SLACK_S
        for _ in range(3):  # who answered is asked first from now on
            store._commands._template._topology.doubt()
            time.sleep(0.15)
            begun = time.monotonic()
            store.load(KEY)
            assert time.monotonic() - begun < TIMEOUT_MS / 1000
        store.close()


def test_the_master_is_used_on_while_no_sentinel_answers(own_sentinels: Sentinels, store: RedisStore) -> None:
    committed(store)
    for sentinel in own_sentinels.sentinels:
        sentinel.stop()
    time.sleep(1.1)
    begun = time.monotonic()
    for _ in range(20):
        committed(store)
        store._commands._template._topology.doubt()
    assert time.monotonic() - begun < 20
    fresh = own_sentinels.store(timeout_ms=TIMEOUT_MS)
    with pytest.raises(StoreUnavailable, match=f"no Sentinel names a master for {SENTINEL_NAME}") as caught:
        fresh.load(KEY)
    assert not isinstance(caught.value, OutcomeUnknown)
    fresh.close()


def test_a_name_that_no_sentinel_knows_is_told(sentinels: Sentinels) -> None:
    nodes = tuple(Address(HOST, sentinel.port) for sentinel in sentinels.sentinels)
    settings = RedisSettings(sentinel=SentinelSettings(master="another", nodes=nodes), timeout_ms=TIMEOUT_MS)
    store = store_of(settings)
    with pytest.raises(StoreUnavailable, match="knows no master named another"):
        store.load(KEY)
    store.close()


def test_passwords_of_servers_and_sentinels_are_two(own_sentinels: Sentinels) -> None:
    for sentinel in own_sentinels.sentinels:
        sentinel.call("ACL", "SETUSER", "watcher", "on", ">of the sentinels", "+@all")
        sentinel.call("ACL", "SETUSER", "default", "-@all", "+auth")
    for server in own_sentinels.servers:
        server.call("ACL", "SETUSER", "coord", "on", ">of the servers", "~*", "&*", "+@all", "-role", "-config")
    nodes = tuple(Address(HOST, sentinel.port) for sentinel in own_sentinels.sentinels)
    told = SentinelSettings(master=SENTINEL_NAME, nodes=nodes, username="watcher", password="of the sentinels")
    settings = RedisSettings(sentinel=told, username="coord", password="of the servers", timeout_ms=TIMEOUT_MS, db=3)
    assert "of the" not in repr(settings)
    store = store_of(settings)
    committed(store)
    concerns = [(concern.name, concern.level) for concern in worries(store, 15_000)]
    assert concerns == [("config", "unknown"), ("min-replicas", "unsafe")], "what INFO tells needs neither ROLE nor CONFIG"
    store.close()
    wrong = store_of(RedisSettings(sentinel=told, username="coord", password="another", timeout_ms=TIMEOUT_MS))
    with pytest.raises(StoreUnavailable) as caught:
        wrong.load(KEY)
    assert "of the sentinels" not in str(caught.value)
    assert "WRONGPASS" in str(caught.value) or "invalid username-password" in str(caught.value)
    wrong.close()


def test_a_child_process_starts_with_nothing_of_its_parents(sentinels: Sentinels) -> None:
    """Not even with a look that a thread of the parent is in the middle of."""
    import os

    template = Template(sentinels.settings(timeout_ms=TIMEOUT_MS))
    mine = template.call("", "CLIENT", "ID")
    topology = template._topology
    topology.doubt()
    topology._flight._asking.acquire()  # type: ignore[attr-defined]  # looks inside
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = b"failed"
        try:
            time.sleep(0.15)
            outcome = b"fine" if template.call("", "CLIENT", "ID") != mine else b"crossed"
        finally:
            os.write(writer, outcome)
            os._exit(0)
    topology._flight._asking.release()  # type: ignore[attr-defined]  # looks inside
    os.waitpid(child, 0)
    assert os.read(reader, 100) == b"fine"
    assert template.call("", "CLIENT", "ID") == mine
    template.close()
