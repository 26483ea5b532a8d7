"""Heartbeats of a group that come together, and what a process does when its cache is behind."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
from msgspec import structs

from coord.core.commands import Heartbeat
from coord.core.decision import HeartbeatReply
from coord.events.catalog import MemberJoined, MemberRejoined, ShardsFreed, ShardsGranted, TargetComputed
from coord.events.chain import link
from coord.names import AggregateKey, GroupKey
from coord.projections.aggregate import encode
from coord.runtime.cache import Cached, fold_tail
from coord.runtime.coordinator import errand_of
from coord.runtime.heartbeats import Ask, Renewal, Told
from coord.store.base import Commit, Head, Loaded, OutcomeUnknown, StoreUnavailable, Tail
from tests.servers import wait_until
from tests.world import World

KEY = GroupKey("orders", "g")


def beat(member: str, epoch: int = 0, *, owned: tuple[int, ...] = (), request: str = "") -> Heartbeat:
    return Heartbeat(
        path_member_id=member,
        member_id=member,
        member_name=None,
        request_id=request or f"{member}-{epoch}",
        protocol_version=1,
        member_epoch=epoch,
        metadata_version=0,
        runtime_max_concurrency=1,
        owned=frozenset(owned),
        draining=frozenset(),
        revoked=frozenset(),
    )


def together(world: World, *commands: Heartbeat) -> list[HeartbeatReply]:
    answers = world.services.coordinator.heartbeats(KEY, [(command, None) for command in commands])
    return [answered.reply for answered in answers]


def a_world(shards: int = 4) -> World:
    world = World()
    world.create(shards=shards)
    return world


def test_members_that_join_together_are_one_commit_and_one_target() -> None:
    world = a_world(6)
    before = world.store.commits
    replies = together(world, *(beat(f"m{number}") for number in range(3)))
    assert world.store.commits == before + 1
    assert [reply.row for reply in replies] == [8, 8, 8]
    assert [reply.assigned for reply in replies] == [(0, 1), (2, 3), (4, 5)]
    assert len({reply.member_epoch for reply in replies}) == 3
    targets = world.events(TargetComputed)
    assert [target.reason for target in targets] == ["m0 joined, m1 joined, m2 joined"]
    assert len(world.events(ShardsGranted)) == 3
    world.verify()


def test_many_reasons_for_one_target_are_told_in_a_bounded_line() -> None:
    world = a_world()
    together(world, *(beat(f"m{number}") for number in range(9)))
    assert world.events(TargetComputed)[-1].reason.endswith("m4 joined and 4 more")


def test_each_event_of_a_commit_has_the_cause_that_it_has() -> None:
    """Who reads the log is told which member's heartbeat freed a shard."""
    world = a_world()
    epochs = [reply.member_epoch for reply in together(world, beat("a"), beat("b"))]
    joins = [
        (each.event.member_id, each.cause.actor.principal, each.cause.request_id, each.cause.command_id)
        for each in world.log(KEY)
        if isinstance(each.event, MemberJoined)
    ]
    assert [join[:3] for join in joins] == [("a", "a", "a-0"), ("b", "b", "b-0")]
    assert len({join[3] for join in joins}) == 2
    together(world, structs.replace(beat("a", -1), metadata_version=99), beat("b", epochs[1], owned=(2, 3)))
    freed = [(each.event.member_id, each.cause.actor.principal) for each in world.log(KEY) if isinstance(each.event, ShardsFreed)]
    assert freed == [("a", "a")]
    world.verify()


def test_what_one_frees_another_of_the_same_commit_is_given() -> None:
    world = a_world(2)
    first = together(world, beat("a"))[0]
    assert first.assigned == (0, 1)
    together(world, beat("a", first.member_epoch, owned=(0, 1)), beat("b"))
    told = together(world, beat("a", first.member_epoch, owned=(0, 1)))[0]
    assert told.assigned == (0,)
    joined = world.group().members["b"].member_epoch
    a, b = together(world, beat("a", told.member_epoch, owned=(0,)), beat("b", joined))
    assert (a.assigned, b.assigned) == ((0,), (1,))
    world.verify()


def test_a_member_that_comes_twice_is_heard_in_two_commits() -> None:
    world = a_world()
    before = world.store.commits
    asks = [Ask(command, errand_of(command, None)) for command in (beat("a", request="x"), beat("b"), beat("a", request="x"))]
    outcomes = world.services.coordinator._heartbeats.answer(KEY, asks)
    assert [outcome.reply.row for outcome in outcomes if isinstance(outcome, Told)] == [8, 8, 6]
    assert world.store.commits == before + 1, "the same request again changes nothing"
    assert len(world.events(MemberJoined)) == 2


def test_a_store_that_is_away_is_everybodys_retry() -> None:
    world = a_world()
    epoch = together(world, beat("a"))[0].member_epoch
    world.store.is_away = True
    assert [reply.row for reply in together(world, beat("a", epoch, owned=(0, 1, 2, 3)), beat("b"))] == [0, 0]


@pytest.mark.parametrize("error", [StoreUnavailable("gone"), OutcomeUnknown("gone")])
def test_a_commit_that_fails_is_told_to_all_and_leaves_no_working_copy(error: StoreUnavailable) -> None:
    world = a_world()

    def fails(commit: Commit) -> None:
        raise error

    world.store.before_commit = fails
    assert [reply.row for reply in together(world, beat("a"), beat("b"))] == [0, 0]
    assert world.services.executor.aggregates.cached(KEY) is None
    world.store.before_commit = lambda commit: None
    assert [reply.row for reply in together(world, beat("a"), beat("b"))] == [8, 8]
    world.verify()


def test_a_lease_that_moves_under_a_rejoin_is_read_again_for_all() -> None:
    world = a_world()
    together(world, beat("a"), beat("b"), beat("c"))
    world.sleep(16_000)
    raced: list[str] = []

    def race(commit: Commit) -> None:
        if not raced:
            raced.append(commit.commit_id)
            world.store.state.records[KEY].leases["b"] = world.store.ping() + 15_000

    world.store.before_commit = race
    replies = together(world, *(beat(member, request="again") for member in "abc"))
    assert [reply.row for reply in replies] == [8, 8, 8]
    rejoined = {event.member_id: event for event in world.events(MemberRejoined)}
    assert {member for member, event in rejoined.items() if event.elder_until} == {"b"}, "its elder may run"
    world.verify()


# -- steady answers


def test_a_steady_answer_is_kept_until_the_aggregate_moves() -> None:
    world = a_world()
    epoch = together(world, beat("a"))[0].member_epoch
    steady = beat("a", epoch, owned=(0, 1, 2, 3))
    together(world, steady)
    kept = [world.services.coordinator.heartbeats(KEY, [(structs.replace(steady, request_id=str(n)), None)])[0] for n in range(3)]
    assert kept[0].steady is not None
    assert all(each.steady is kept[0].steady for each in kept)
    together(world, beat("b"))
    moved = world.services.coordinator.heartbeats(KEY, [(steady, None)])[0]
    assert moved.steady is not kept[0].steady
    assert (moved.reply.assigned, moved.reply.member_epoch > epoch) == ((0, 1), True)


@pytest.mark.parametrize(
    "change",
    [
        {"owned": frozenset({0})},
        {"draining": frozenset({9})},
        {"member_name": "another"},
        {"runtime_max_concurrency": 7},
        {"metadata_version": 10**9},
        {"member_epoch": 10**9},
        {"protocol_version": 2},
        {"path_member_id": "b"},
    ],
    ids=lambda change: next(iter(change)),
)
def test_a_heartbeat_that_says_anything_else_is_decided_anew(change: dict[str, object]) -> None:
    world, other = a_world(), a_world()
    epoch = together(world, beat("a"))[0].member_epoch
    steady = beat("a", epoch, owned=(0, 1, 2, 3))
    together(world, steady)
    together(world, steady)
    together(other, beat("a"))
    together(other, steady)
    different = structs.replace(steady, **change)
    assert together(world, different) == together(other, different), "as by a process that kept no answer"


def test_what_was_decided_on_another_state_has_a_touch_of_its_own() -> None:
    """Two threads wait together; one has seen what the other has not: only its answer stands, only its lease is renewed."""
    world = a_world()
    together(world, beat("a"), beat("b"))
    old = world.services.executor.aggregates.load(KEY)
    together(world, beat("c"))
    new = world.services.executor.aggregates.load(KEY)
    world.sleep(1_000)
    leases = dict(world.store.soft(KEY).leases)
    heartbeats = world.services.coordinator._heartbeats
    renewals = [Renewal(seen, [Ask(beat(member), errand_of(beat(member), b"r"))]) for seen, member in ((old, "a"), (new, "b"))]
    assert heartbeats._confirmed(KEY, renewals) == [False, True]
    after = world.store.soft(KEY).leases
    assert after == {**leases, "b": world.store.ping() + 15_000}


# -- a cache that is behind


def behind(world: World) -> Cached:
    """Give what this process knows, after another process has changed the group twice."""
    seen = world.services.executor.aggregates.load(KEY)
    elsewhere = world.start("elsewhere")
    for member in ("x", "y"):
        elsewhere.coordinator.heartbeat(KEY, beat(member))
    return seen


def test_a_cache_that_is_behind_reads_the_tail_and_not_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    epoch = together(world, beat("a"))[0].member_epoch
    steady = beat("a", epoch, owned=(0, 1, 2, 3))
    together(world, steady)
    behind(world)
    reads: list[str] = []
    load, catch_up = world.store.load, world.store.catch_up

    def whole(key: AggregateKey) -> Loaded:
        reads.append("whole")
        return load(key)

    def tail(key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        reads.append("tail")
        return catch_up(key, seen=seen, limit=limit)

    monkeypatch.setattr(world.store, "load", whole)
    monkeypatch.setattr(world.store, "catch_up", tail)
    assert together(world, steady)[0].assigned == (0, 1)
    assert reads == ["tail"]
    cached = world.services.executor.aggregates.cached(KEY)
    assert cached is not None
    assert cached.state is not None
    assert encode(cached.state) == load(KEY).aggregate


def broken_tail(break_: Callable[[Tail], Tail]) -> tuple[Cached, Tail]:
    world = a_world()
    together(world, beat("a"))
    seen = behind(world)
    tail = world.store.catch_up(KEY, seen=seen.head, limit=100)
    assert isinstance(tail, Tail)
    assert fold_tail(KEY, seen, tail) is not None
    return seen, break_(tail)


def _altered(tail: Tail) -> Tail:
    entry = tail.entries[0]
    return replace(tail, entries=(replace(entry, body=entry.body.replace(b'"x"', b'"z"')), *tail.entries[1:]))


def _of_a_newer_release(tail: Tail) -> Tail:
    """The last event is of a type that this release does not know; the chain is right."""
    *before, entry = tail.entries
    body = entry.body.replace(b'"type":"', b'"type":"New')
    chain = link(before[-1].chain, body)
    return replace(tail, entries=(*before, replace(entry, body=body, chain=chain)), head=replace(tail.head, chain=chain))


@pytest.mark.parametrize(
    "break_",
    [
        lambda tail: replace(tail, entries=tail.entries[1:]),
        lambda tail: replace(tail, entries=(tail.entries[0], *tail.entries[2:])),
        lambda tail: replace(tail, entries=tail.entries[:-1]),
        lambda tail: replace(tail, head=replace(tail.head, chain="ab" * 32)),
        lambda tail: replace(tail, head=replace(tail.head, revision=tail.head.revision + 1)),
        _altered,
        _of_a_newer_release,
    ],
    ids=["first missing", "a gap", "last missing", "another chain", "another revision", "altered", "newer"],
)
def test_a_tail_that_does_not_chain_to_the_head_is_not_folded(break_: Callable[[Tail], Tail]) -> None:
    seen, tail = broken_tail(break_)
    assert fold_tail(KEY, seen, tail) is None


def test_a_tail_that_cannot_be_folded_is_no_error_but_a_whole_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = a_world()
    together(world, beat("a"))
    behind(world)
    catch_up = world.store.catch_up

    def altered(key: AggregateKey, *, seen: Head, limit: int) -> Tail:
        tail = catch_up(key, seen=seen, limit=limit)
        assert isinstance(tail, Tail)
        return _altered(tail)

    monkeypatch.setattr(world.store, "catch_up", altered)
    world.services.executor.aggregates.doubt(KEY, world.services.executor.aggregates.cached(KEY))  # type: ignore[arg-type]  # it is cached
    read = world.services.executor.aggregates.load(KEY)
    assert read.state is not None
    assert encode(read.state) == world.store.load(KEY).aggregate


def test_threads_that_ask_for_one_group_while_it_is_read_share_the_next_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """None of them is given what was read before it asked."""
    world = a_world()
    aggregates = world.services.executor.aggregates
    aggregates.load(KEY)
    catch_up = world.store.catch_up
    reads: list[int] = []
    gate = threading.Semaphore(0)

    def slow(key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        reads.append(len(reads))
        assert gate.acquire(timeout=30)
        return catch_up(key, seen=seen, limit=limit)

    monkeypatch.setattr(world.store, "catch_up", slow)
    with ThreadPoolExecutor(5) as pool:
        first = pool.submit(aggregates.load, KEY)
        wait_until(lambda: reads, what="the first reads")
        others = [pool.submit(aggregates.load, KEY) for _ in range(4)]
        wait_until(lambda: len(aggregates._readings._in_use[KEY]._waiting) == 4, what="the others wait")
        elsewhere = world.start("elsewhere")
        monkeypatch.setattr(elsewhere.executor.store, "catch_up", catch_up)
        elsewhere.coordinator.heartbeat(KEY, beat("x"))
        monkeypatch.setattr(world.store, "catch_up", slow)
        gate.release(2)
        assert {each.result(30).head.revision for each in others} == {2}
        first.result(30)
    assert reads == [0, 1]
