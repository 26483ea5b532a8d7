"""What every store must hold to when all of it is read, and written as it stands."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.rediscommands.keys import Keys
from coord.rediscommands.moving import MovingCommands
from coord.store.answers import Answers, digest_of
from coord.store.base import Committed
from coord.store.redis.store import RedisStore
from coord.store.redis.transfer import RedisTransfer
from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from coord.store.sql.transfer import SqlTransfer
from coord.store.transfer import Answered, Guard, Record, Request, Transfer, before
from tests.store.author import KEY, appended, commit_on, committed, deleted, fact, request_entry
from tests.store.redis_server import RedisServer

OTHER = GroupKey("orders", "a:b%c")


def moving(server: RedisServer) -> MovingCommands:
    return MovingCommands(server.settings(), keys=Keys("test:coord"))


@dataclass
class World:
    store: RedisStore | SqlStore
    transfer: Transfer


@pytest.fixture(params=["redis", "postgresql", "mariadb", "sqlite"])
def world(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[World]:
    """An empty store."""
    kind = request.param
    if kind == "redis":
        server: RedisServer = request.getfixturevalue("server")
        yield World(RedisStore(server.commands()), RedisTransfer(moving(server)))
        return
    if kind == "sqlite":
        settings = SqlSettings(kind="sqlite", database=str(tmp_path / "coord.db"), migrates=True, timeout_ms=10_000)
    else:
        database = request.getfixturevalue(kind)
        settings = request.getfixturevalue(f"shared_{kind}").settings(database, timeout_ms=10_000)
    found = World(SqlStore(dialect_of(settings)), SqlTransfer(dialect_of(settings)))
    found.store.identity()
    yield found
    found.store.close()
    found.transfer.close()


@pytest.fixture
def origin(server70: RedisServer) -> Iterator[World]:
    """A store with three aggregates: two groups, one of them deleted, and a stream's log with an appended entry."""
    found = World(RedisStore(server70.commands()), RedisTransfer(moving(server70)))
    committed(found.store, (fact("첫째"),), (fact(), fact()), key=KEY, aggregate='{"storeRevision":2,"name":"é"}'.encode())
    committed(found.store, key=OTHER)
    deleted(found.store, key=OTHER)
    head = committed(found.store, key=StreamKey("orders")).head
    entries = appended(head, request_entry())
    assert found.store.append(StreamKey("orders"), expected=head, entries=entries) is not None
    yield found
    found.store.close()
    found.transfer.close()


def carry(origin: World, world: World, key: AggregateKey, *, at_once: int = 2) -> None:
    loaded, guard, end = origin.store.load(key), origin.transfer.guard(key), None
    while end is None or end.place != loaded.head.last:
        page = origin.transfer.records(key, after=end.place if end else (0, 0), limit=at_once)
        assert world.transfer.put_records(key, page, after=end)
        end = page[-1]
    seal = guard or deleted_guard(origin, key)
    assert world.transfer.put_aggregate(key, loaded.head, loaded.aggregate, seal)


def deleted_guard(origin: World, key: AggregateKey) -> Guard:
    head = origin.store.load(key).head
    return Guard(revision=head.revision, commit_id=head.commit_id, last=head.last, identity="x", updated_at=5)


def test_what_is_carried_stands_as_it_stood(origin: World, world: World) -> None:
    """Aggregates, heads, tombstones, entries with the ids of their commits, and what stands beside."""
    keys = origin.transfer.aggregates()
    assert keys == [StreamKey("orders"), OTHER, KEY]
    for key in keys:
        carry(origin, world, key)
    assert world.transfer.aggregates() == keys
    for key in keys:
        there, here = origin.store.load(key), world.store.load(key)
        assert (here.head, here.aggregate, here.tombstone and here.tombstone.entry_id) == (
            there.head, there.aggregate, there.tombstone and there.tombstone.entry_id,
        )  # fmt: skip
        assert list(world.transfer.records(key, after=(0, 0), limit=99)) == list(
            origin.transfer.records(key, after=(0, 0), limit=99)
        )
        assert world.transfer.end(key) == origin.transfer.end(key)
        assert world.transfer.guard(key) == origin.transfer.guard(key)


def test_a_life_goes_on_after_it_was_carried(origin: World, world: World) -> None:
    """The store takes the next commit on the head that was carried, and a new life after a tombstone."""
    for key in (KEY, OTHER):
        carry(origin, world, key)
        assert committed(world.store, key=key).head.revision == 3
        assert world.transfer.guard(key) != origin.transfer.guard(key)


def test_entries_are_written_where_the_log_ends_and_nowhere_else(origin: World, world: World) -> None:
    """All of them or none; the same again is no second time."""
    first, second, third = origin.transfer.records(KEY, after=(0, 0), limit=9)
    assert not world.transfer.put_records(KEY, [second], after=first)
    assert world.transfer.end(KEY) is None
    assert world.transfer.put_records(KEY, [first], after=None)
    assert world.transfer.put_records(KEY, [first], after=None)
    assert not world.transfer.put_records(KEY, [second, third], after=None)
    assert world.transfer.put_records(KEY, [second, third], after=first)
    assert world.transfer.put_records(KEY, [second, third], after=first)
    other = Record(type(first.entry)(revision=9, index=0, body=b"{}", chain="0" * 64), "")
    assert not world.transfer.put_records(KEY, [other], after=first)
    assert list(world.transfer.records(KEY, after=(0, 0), limit=9)) == [first, second, third]
    assert list(world.transfer.records(KEY, after=before(second.place), limit=1)) == [second]
    assert list(world.transfer.records(KEY, after=before(third.place), limit=1)) == [third]


def test_an_aggregate_is_put_beside_its_own_log_only(origin: World, world: World) -> None:
    """A log that is carried half is no aggregate yet, and nobody begins one on it."""
    loaded, guard = origin.store.load(KEY), origin.transfer.guard(KEY)
    assert guard is not None
    records = origin.transfer.records(KEY, after=(0, 0), limit=9)
    assert not world.transfer.put_aggregate(KEY, loaded.head, loaded.aggregate, guard)
    assert world.transfer.put_records(KEY, records[:1], after=None)
    assert not world.transfer.put_aggregate(KEY, loaded.head, loaded.aggregate, guard)
    assert world.transfer.guard(KEY) is None
    begun = commit_on(origin.store.load(GroupKey("orders", "none")), identity=world.store.identity())
    assert not isinstance(world.store.commit(begun), Committed)


def test_requests_of_nobody_keep_their_time_and_order(world: World) -> None:
    wanted = [
        Request(1_700_000_000_000, 0, b'{"a":1}'),
        Request(1_700_000_000_000, 1, b'{"b":2}'),
        Request(1_700_000_000_007, 0, b"{}"),
    ]
    world.transfer.put_requests(wanted[:2])
    world.transfer.put_requests(wanted[2:])
    assert list(world.transfer.requests()) == wanted


def test_answers_live_for_what_is_left_of_their_time(world: World) -> None:
    """And are found by who asks for them by their name."""

    def answer(name: str, body: bytes, at: int) -> Answered:
        return Answered(digest=digest_of(name), body=body, at=at, left_ms=60_000)

    now = world.store.ping()
    wanted = [answer("k-1", b"\x00one", now - 9), answer("k-2", b"two", now - 7)]
    world.transfer.put_answers(KEY, [answer("old", b"x", now - 10)])
    world.transfer.put_answers(KEY, wanted)
    found = world.transfer.answers(KEY)
    assert [(each.digest, each.body) for each in found] == [(each.digest, each.body) for each in wanted]
    assert found[0].at < found[1].at
    assert all(0 < each.left_ms <= 60_000 for each in found)
    kept: Answers = world.store.answers
    assert kept.swap(KEY, "k-1", seen=None, put=None).there == b"\x00one"
    assert kept.swap(KEY, "k-3", seen=None, put=b"three").done
    assert [each.body for each in world.transfer.answers(KEY)] == [b"\x00one", b"two", b"three"]
    world.transfer.put_answers(KEY, [])
    assert list(world.transfer.answers(KEY)) == []
    assert kept.swap(KEY, "k-1", seen=None, put=None).there is None
