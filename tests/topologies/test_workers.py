"""Several workers on one real Redis: nothing is done twice, lost, half done, or seen to go backwards."""

from __future__ import annotations

import os
import random
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from threading import Event as Signal

import pytest

from coord.bootstrap import Services
from coord.rediscommands.scripts import script
from coord.refusals import Refused
from coord.runtime.verify import verify_all
from coord.store.redis.store import RedisStore
from tests.store.redis_server import RedisServer
from tests.tap import Tap
from tests.topologies.servers import Cluster
from tests.topologies.workers import GROUP, LEASE_MS, Member, create, request, worker


@pytest.fixture
def store(single: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(single.commands())
    yield store
    store.close()


def holds(store: RedisStore) -> None:
    """The logs explain what is stored, and none is missing from the index."""
    reports = list(verify_all(store))
    assert [(str(report.key), report.findings) for report in reports if not report.holds] == []
    assert store.streams() == ["orders"]
    assert len(reports) == 2


def admin_requests(store: RedisStore) -> int:
    keys = (GROUP, GROUP.stream)
    return sum(b'"AdminRequest"' in entry.body for key in keys for entry in store.tail(key, after=(0, 0), limit=9999))


@contextmanager
def first_commit_answer_lost(tap: Tap) -> Iterator[None]:
    """Let the server do the next commit, and lose its answer."""
    before = tap.dropped
    tap.drop_replies(containing=script("commit").sha.encode(), times=1)
    yield
    assert tap.dropped == before + 1
    tap.pass_through()


def test_d1_every_kind_of_commit_may_lose_its_answer_and_is_done_once(single: RedisServer, store: RedisStore) -> None:
    """A join, a scale, a tick, an update: one success each, one audit entry a request, and a log that holds."""
    with Tap(single.port) as tap:
        tapped = RedisStore(single.commands(timeout_ms=600, port=tap.port))
        services = worker(tapped)
        create(worker(store), key=GROUP)  # the scripts are loaded
        member, other = Member("m1"), Member("m2")
        with first_commit_answer_lost(tap):
            assert member.beat(services).status == "OK"
        revision = store.load(GROUP).head.revision
        audits = admin_requests(store)
        with first_commit_answer_lost(tap):
            scaled = services.admin.scale_group(GROUP, target_shard_count=12, info=request("SCALE_GROUP"))
        assert not isinstance(scaled, Refused)
        assert admin_requests(store) == audits + 1
        with first_commit_answer_lost(tap):
            assert services.ticker.tick()
        with first_commit_answer_lost(tap):
            other.beat(services)
        with first_commit_answer_lost(tap):
            other.beat(services, capacity=9)
        for _ in range(6):
            member.beat(services)
            other.beat(services)
        assert store.load(GROUP).head.revision > revision
        assert "RETRY" not in member.statuses | other.statuses
        tapped.close()
    holds(store)


@pytest.mark.slow
def test_d2_members_of_many_workers_are_in_nobodys_way(store: RedisStore) -> None:
    """Thirty members at once and one that beats every 5 ms, through four workers; contention is solved inside."""
    workers = [worker(store, f"worker-{number}") for number in range(4)]
    create(workers[0], shards=60)
    took: list[float] = []
    done = Signal()

    def run(number: int) -> dict[str, int]:
        member = Member(f"member-{number}")
        while not done.is_set():
            begun = time.monotonic()
            member.beat(workers[random.randrange(len(workers))])
            took.append(time.monotonic() - begun)
            time.sleep(0.005 if number == 0 else 0.05)
        return member.statuses

    with ThreadPoolExecutor(31) as pool:
        futures = [pool.submit(run, number) for number in range(31)]
        time.sleep(4)
        done.set()
        statuses = [future.result() for future in futures]
    assert sum(sum(one.values()) for one in statuses) > 500
    assert [one for one in statuses if "RETRY" in one or "FENCED_MEMBER_EPOCH" in one] == []
    assert sorted(took)[int(len(took) * 0.99)] < 3
    holds(store)


@pytest.mark.slow
def test_d13_workers_killed_at_any_moment_leave_event_and_state_together(single: RedisServer, store: RedisStore) -> None:
    """After each of three hundred kills: the log ends at the hash's revision, and its fold is the stored aggregate."""
    create(worker(store))
    kills, revisions = 300, set()
    for number in range(kills):
        begun, tells = os.pipe()
        child = os.fork()
        if child == 0:
            try:
                _churn(worker(store, f"worker-{number}"), number, tells)
            finally:
                os._exit(1)
        if number % 2:  # else it may not have come to its first change on a busy machine
            assert os.read(begun, 1)
        time.sleep(random.uniform(0.004, 0.03))
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        os.close(begun)
        os.close(tells)
        head = store.load(GROUP).head
        revisions.add(head.revision)
        if number % 20 == 0:
            holds(store)
    holds(store)
    assert len(revisions) > kills / 5, "most of them were at work when they were killed"


def _churn(services: Services, number: int, tells: int) -> None:
    """Join, tell so, and change without end."""
    member = Member(f"m-{number}")
    for turn in range(10_000):
        member.beat(services, capacity=turn % 9 + 1)
        if turn == 0:
            os.write(tells, b"!")


def test_d15_reads_of_no_worker_go_backwards(cluster: Cluster) -> None:
    """Once one worker has shown a new topology, every other shows it too."""
    stores = [cluster.store() for _ in range(8)]
    workers = [worker(store, f"worker-{number}") for number, store in enumerate(stores)]
    create(workers[0], shards=2)
    for services in workers:  # each has the old one in its cache
        assert Member(f"of {services.config.id}").beat(services).status != "RETRY"
    scaled = workers[3].admin.scale_group(GROUP, target_shard_count=8, info=request("SCALE_GROUP"))
    assert not isinstance(scaled, Refused)
    seen = 0
    for place in range(500):
        services = workers[place % len(workers)]
        if place % 50 == 0:
            Member(f"late {place}").beat(workers[(place * 3) % len(workers)])
        shown = services.views.group(GROUP)
        routed = services.views.routing(GROUP.stream, None)
        listed = services.views.migrations(GROUP)
        assert not isinstance(shown, Refused)
        assert not isinstance(routed, Refused)
        assert not isinstance(listed, Refused)
        assert shown.value.metadata_version >= seen
        seen = shown.value.metadata_version
        assert len(routed.value.shards) == 8
        assert len(listed.value.migrations) == 1
    for store in stores:
        store.close()


@pytest.mark.slow
def test_f2_members_of_two_workers_live_through_a_take_over(own_cluster: Cluster) -> None:
    """The group's node fails over: RETRY at worst, no member lapses, the round closes nobody out, and the log is whole."""
    store = own_cluster.store(timeout_ms=1000)
    workers = [worker(store, "one"), worker(own_cluster.store(timeout_ms=1000), "two")]
    create(workers[0])
    members = [Member(f"m{number}") for number in range(6)]
    for _ in range(3):
        for member in members:
            member.beat(workers[0])
    master = own_cluster.master_of(store._commands.keys.aggregate(GROUP).metadata)
    own_cluster.replica_of(master).call("CLUSTER", "FAILOVER")
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for place, member in enumerate(members):
            member.beat(workers[place % 2])
        time.sleep(0.1)
    assert all(member.statuses.get("SYNC_METADATA", 0) >= 1 for member in members), "each was told once that the store changed"
    assert all(set(member.statuses) <= {"OK", "SYNC_METADATA", "REVOKE_PENDING", "RETRY"} for member in members)
    soft = store.soft(GROUP)
    assert len(soft.leases) == len(members)
    assert min(soft.leases.values()) > soft.now + LEASE_MS / 2
    holds(store)
    for services in workers:
        services.store.close()
