"""The fast path on a real Redis: how many commands it costs, and what happens to work that shares a connection or a commit."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from typing import Any

import pytest

from coord.bootstrap import Services, wire
from coord.config import Configuration
from coord.core.commands import Heartbeat
from coord.events.catalog import MemberJoined
from coord.events.codec import decode
from coord.names import GroupKey, StreamKey
from coord.refusals import Refused
from coord.runtime.coordinator import Answered
from coord.runtime.requests import RequestInfo
from coord.runtime.verify import verify_all
from coord.store.base import StoreUnavailable, Touch
from coord.store.redis.store import RedisStore
from tests.servers import wait_until
from tests.store.redis_server import RedisServer
from tests.store.test_faults import store_at
from tests.tap import Tap

STREAM = StreamKey("orders")
KEY = GroupKey("orders", "g")
INFO = RequestInfo(
    action="TEST", success_status=200, principal="test", roles=("WRITE",), requested_by="test", reason="test", request_id="r",
    client_address=None, user_agent=None, method="POST", route="/", path="/", query_string="", request_summary="",
    request_body_sha256="", started_ns=0,
)  # fmt: skip


class Group:
    """A group on a real Redis, and its members."""

    def __init__(self, store: RedisStore, *, shards: int) -> None:
        self.store = store
        self.services: Services = wire(Configuration(id="one"), store, None)
        for made in (
            self.services.admin.create_stream(STREAM, shard_count=shards, start_from=None, info=INFO),
            self.services.admin.create_group(KEY, shard_count=None, start_from=None, info=INFO),
        ):
            assert not isinstance(made, Refused), made
        self.told: dict[str, tuple[int, tuple[int, ...]]] = {}

    def command(self, member: str) -> Heartbeat:
        epoch, owned = self.told.get(member, (0, ()))
        return Heartbeat(
            path_member_id=member, member_id=member, member_name=None, request_id=f"{member}-{epoch}", protocol_version=1,
            member_epoch=epoch, metadata_version=0, runtime_max_concurrency=1, owned=frozenset(owned), draining=frozenset(),
            revoked=frozenset(),
        )  # fmt: skip

    def beat(self, *members: str, report: bytes = b"{}") -> list[Answered]:
        answers = self.services.coordinator.heartbeats(KEY, [(self.command(member), report) for member in members])
        for member, answered in zip(members, answers, strict=True):
            self.told[member] = answered.reply.member_epoch, answered.reply.assigned
        return answers

    def settle(self, *members: str) -> None:
        """Beat until nothing changes any more."""
        wait_until(lambda: not any(each.reply.pending for each in self.beat(*members)), what="all is assigned")
        self.beat(*members)
        self.beat(*members)


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(server.commands())
    yield store
    store.close()


def calls(server: RedisServer) -> dict[str, int]:
    """How often each command was called since the statistics were reset, those inside of scripts included."""
    told: Any = server.call("INFO", "commandstats")
    lines = told.decode().splitlines() if isinstance(told, bytes) else str(told).splitlines()
    pairs = (line.removeprefix("cmdstat_").split(":", 1) for line in lines if line.startswith("cmdstat_"))
    return {name: int(rest.split("calls=", 1)[1].split(",", 1)[0]) for name, rest in pairs}


@pytest.mark.parametrize("size", [10, 300])
def test_a_steady_heartbeat_is_one_command_whatever_the_size_of_the_group(
    server: RedisServer, store: RedisStore, size: int
) -> None:
    """No load, no lock, no log entry; what the one script does in Redis is the same for ten members and for hundreds."""
    group = Group(store, shards=3 * size)
    members = [f"m{number}" for number in range(size)]
    group.settle(*members)
    head = store.load(KEY).head
    group.beat("m0")
    server.call("CONFIG", "RESETSTAT")
    for number in range(20):
        assert group.beat(members[number % 10])[0].reply.row == 17
    spent = calls(server)
    sent_by_clients = {name for name in spent if name in {"evalsha", "eval", "xrange", "set", "get", "hgetall"}}
    assert sent_by_clients == {"evalsha"}
    assert spent["evalsha"] == 20
    inside = {name: count for name, count in spent.items() if name not in {"evalsha", "config|resetstat", "info"}}
    assert inside == {"type": 60, "time": 20, "hmget": 20, "zadd": 20, "hset": 20}, "and INFO, for the store's identity"
    assert store.load(KEY).head == head


def test_many_heartbeats_of_one_request_are_one_command_too(server: RedisServer, store: RedisStore) -> None:
    group = Group(store, shards=32)
    members = [f"m{number}" for number in range(16)]
    group.settle(*members)
    before = store.soft(KEY).leases
    server.call("CONFIG", "RESETSTAT")
    group.beat(*members, report=b'{"fresh":1}')
    assert calls(server)["evalsha"] == 1
    after = store.soft(KEY)
    assert all(after.leases[member] >= before[member] for member in members)
    assert set(after.reports.values()) == {b'{"fresh":1}'}


def test_who_joins_at_once_shares_commits(store: RedisStore) -> None:
    """Forty threads, each with a heartbeat of its own; whoever finds a leader at work waits, and goes with the next."""
    group = Group(store, shards=40)
    members = [f"m{number}" for number in range(40)]
    together = threading.Barrier(len(members))

    def join(member: str) -> Answered:
        together.wait(timeout=30)
        return group.services.coordinator.heartbeat(KEY, group.command(member))

    before = store.load(KEY).head.revision
    with ThreadPoolExecutor(len(members)) as pool:
        answers = list(pool.map(join, members))
    assert {answered.reply.row for answered in answers} == {8}
    commits = store.load(KEY).head.revision - before
    assert commits < len(members) / 2
    joined = [decode(entry).event for entry in store.tail(KEY, after=(before, 0), limit=1_000)]
    assert {event.member_id for event in joined if isinstance(event, MemberJoined)} == set(members)
    assert all(report.holds for report in verify_all(store))


def test_a_batch_whose_answer_is_lost_is_sent_again_and_is_there_once(server: RedisServer) -> None:
    """The store did it; nobody heard; the same bytes are answered `already`, and every member gets its answer."""
    with Tap(server.port) as tap:
        store = store_at(tap.port)
        group = Group(store, shards=4)
        before = store.load(KEY).head.revision
        tap.drop_replies(containing=b"MemberJoined", times=1, then_cut=True)
        answers = group.beat("a", "b")
        tap.pass_through()
        assert [answered.reply.row for answered in answers] == [8, 8]
        assert store.load(KEY).head.revision == before + 1
        assert all(report.holds for report in verify_all(store))
        store.close()


def test_a_batch_that_nobody_answers_is_everybodys_retry_and_is_found_again(server: RedisServer) -> None:
    with Tap(server.port) as tap:
        store = store_at(tap.port)
        group = Group(store, shards=4)
        before = store.load(KEY).head.revision
        tap.drop_replies(containing=b"MemberJoined", times=2, then_cut=True)
        answers = group.beat("a", "b")
        assert [answered.reply.row for answered in answers] == [0, 0]
        tap.pass_through()
        assert store.load(KEY).head.revision == before + 1, "it took place"
        group.told.clear()
        again = group.beat("a", "b")
        assert [answered.reply.row for answered in again] == [6, 6], "the same requests are answered again"
        assert store.load(KEY).head.revision == before + 1
        store.close()


def test_touches_of_threads_that_wait_share_a_connection(server: RedisServer) -> None:
    """Sixteen threads on one connection: each gets the answer to its own."""
    store = store_at(server.port, max_connections=1, timeout_ms=5_000)
    group = Group(store, shards=2)
    group.settle("a")
    read = store.load(KEY)
    sound = Touch(key=KEY, revision=read.head.revision, commit_id=read.head.commit_id, identity=read.identity)

    def touch(number: int) -> bool:
        current = number % 3 != 0
        return store.touch(sound if current else replace(sound, commit_id="of another branch")).current is current

    with ThreadPoolExecutor(16) as pool:
        assert all(pool.map(touch, range(600)))
    store.close()


def test_touches_that_share_a_lost_pipeline_all_fail_and_the_next_are_sound(server: RedisServer) -> None:
    with Tap(server.port) as tap:
        store = store_at(tap.port)
        group = Group(store, shards=2)
        group.settle("a")
        read = store.load(KEY)
        sound = Touch(key=KEY, revision=read.head.revision, commit_id=read.head.commit_id, identity=read.identity)

        def touch(_: int) -> str:
            try:
                return str(store.touch(sound).current)
            except StoreUnavailable:
                return "away"

        tap.blackhole()
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(touch, range(8))) == {"away"}
        tap.pass_through()
        wait_until(lambda: touch(0) == "True", what="the store is back")
        with ThreadPoolExecutor(8) as pool:
            assert set(pool.map(touch, range(64))) == {"True"}
        store.close()
