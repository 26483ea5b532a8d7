"""Scenarios of the section on membership, epochs and fencing, at the face of a process around the memory store."""

from __future__ import annotations

import threading
import time

import pytest
import structlog

from coord.events.catalog import MemberExpired, MemberFenced, MemberJoined, MemberLeaving, MemberRejoined, OwnershipReported
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import encode
from coord.refusals import Code, Refused
from coord.runtime.coordinator import Answered
from coord.runtime.requests import Result
from tests.property.walk import VARIANTS, Walk
from tests.world import World

KEY = GroupKey("orders", "g")
STATUSES = {"OK", "RETRY", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH", "SYNC_METADATA", "REVOKE_PENDING"}


def the_same(one: Answered, other: Answered) -> bool:
    mine, theirs = one.reply, other.reply
    return (mine.status, mine.member_epoch, mine.assigned, mine.pending) == (
        theirs.status, theirs.member_epoch, theirs.assigned, theirs.pending,
    )  # fmt: skip


@pytest.mark.parametrize("state", ["stable", "draining", "pending"])
def test_a1_a_lost_answer_is_given_again(state: str) -> None:
    """The same heartbeat twice gives the same answer, whatever the member was doing."""
    world = World()
    world.create(shards=4)
    world.settle("a", "b")
    if state == "pending":
        world.heartbeat("b", epoch=-1, owned=[], draining=[2])
    else:
        world.heartbeat("c")
    told = world.told[KEY, "a"]
    draining = [told.owned[0]] if state == "draining" else []
    again = {"epoch": told.epoch, "mv": told.metadata_version, "owned": told.owned, "draining": draining}
    lost = world.heartbeat("a", **again)  # type: ignore[arg-type]  # options by name
    fenced = world.events(MemberFenced)
    assert the_same(world.heartbeat("a", **again), lost)  # type: ignore[arg-type]  # options by name
    assert lost.reply.status == "OK"
    assert world.group().members["a"].state == "ACTIVE"
    assert world.events(MemberFenced) == fenced == []
    if state == "pending":
        world.heartbeat("b", epoch=-1, owned=[], mv=told.metadata_version)
        world.settle("a")
    else:
        world.settle("a", "b", "c")


def test_a1_a_claim_that_was_never_granted_is_fenced() -> None:
    """The control: one behind is fine, below the highest echoed is stale, a shard never granted is a fence."""
    world = World()
    world.create(shards=4)
    world.settle("a", "b")
    first = world.told[KEY, "b"]
    world.heartbeat("a", epoch=-1, owned=[])  # b is granted two more, and not told yet
    assert world.heartbeat("b", epoch=first.epoch, owned=first.owned).reply.status == "OK"
    world.settle("b")
    assert world.told[KEY, "b"].epoch > first.epoch
    before = encode(world.group())
    assert world.heartbeat("b", epoch=first.epoch, owned=first.owned).reply.row == 15
    assert encode(world.group()) == before
    assert world.heartbeat("b", epoch=world.group().members["b"].member_epoch, owned=[0, 1, 2, 3, 4]).reply.row == 16


def test_a2_a_member_joins_again_under_its_own_id() -> None:
    world = World()
    world.create(shards=2)
    answers = [world.heartbeat("a", epoch=0, request="join") for _ in range(4)]
    assert all(the_same(answer, answers[0]) for answer in answers)
    assert len(world.events(MemberJoined)) == 1
    world.settle("a")
    world.sleep(2_000)
    killed = world.heartbeat("a", epoch=0)  # kill -9 and started again at once
    assert (killed.reply.status, killed.reply.assigned) == ("OK", (0, 1))
    world.settle("a")
    assert world.owners() == {0: "a", 1: "a"}


def test_a2_a_member_that_was_draining_joins_again() -> None:
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.heartbeat("b")
    world.heartbeat("a", draining=[1])
    answer = world.heartbeat("a", epoch=0)
    assert (answer.reply.status, answer.reply.assigned) == ("OK", (0,))
    world.run(18_000, "a", "b")
    assert world.owners() == {0: "a", 1: "b"}
    assert len(world.events(MemberRejoined)) == 1
    assert not world.events(MemberExpired)
    assert not world.events(MemberFenced)


@pytest.mark.parametrize(("owned", "revoked"), [([0, 1], []), ([], [0])])
def test_a4_epoch_0_grants_nothing_that_it_claims(owned: list[int], revoked: list[int]) -> None:
    world = World()
    world.create(shards=2)
    world.settle("b")
    answer = world.heartbeat("a", epoch=0, owned=owned, revoked=revoked)
    assert answer.reply.assigned == ()
    group = world.group()
    assert group.members["a"].current_assignment == group.members["a"].foreign == ()
    assert group.shards_of("a") == frozenset()
    assert world.owners() == {0: "b", 1: "b"}
    assert not [event for event in world.events(OwnershipReported) if event.member_id == "a"]


def test_a5_an_unknown_group_is_not_an_unknown_member() -> None:
    """Heartbeats make nothing where there is no stream; the answer tells the two apart by its group epoch."""
    world = World()
    for _ in range(20):
        reply = world.heartbeat("a").reply
        assert (reply.row, reply.status, reply.group_epoch) == (4, "UNKNOWN_MEMBER_ID", 0)
        world.sleep(3_000)
        world.tick()
    assert world.store.state.records == {}
    assert world.store.streams() == []
    world.create(shards=2)
    assert world.heartbeat("stranger", epoch=7).reply.group_epoch > 0
    assert world.heartbeat("a").reply.assigned == (0, 1)


@pytest.mark.parametrize("order", ["leave first", "heartbeat first", "twice"])
def test_a7_leaving_wins_over_a_heartbeat_in_flight(order: str) -> None:
    world = World()
    world.create(shards=2)
    world.settle("a", "b")
    told = world.told[KEY, "a"]
    if order == "heartbeat first":
        world.heartbeat("a")
    world.heartbeat("a", epoch=-1, owned=[], mv=told.metadata_version)
    late = world.heartbeat("a", epoch=told.epoch, owned=told.owned, mv=told.metadata_version)
    assert late.reply.row == 13
    if order == "twice":
        assert world.heartbeat("a", epoch=-1, owned=[], mv=told.metadata_version).reply.status == "OK"
    assert world.group().members["a"].state == "LEAVING"
    assert world.owners() == {0: "b", 1: "b"}


def test_a8_leaving_is_repeatable_and_a_lost_leave_costs_one_lease() -> None:
    world = World()
    world.create(shards=2)
    world.settle("a", "b")
    assert [world.heartbeat("a", epoch=-1, owned=[], mv=99).reply.status for _ in range(2)] == ["OK", "OK"]
    assert len(world.events(MemberLeaving)) == 1
    world.run(17_000, "b")
    assert world.heartbeat("a", epoch=-1, mv=99).reply.status == "FENCED_MEMBER_EPOCH"
    world.heartbeat("a", epoch=0)
    world.settle("a", "b")
    world.heartbeat("a", owned=[0, 1, 7])
    assert world.heartbeat("a", epoch=-1, mv=99).reply.status == "FENCED_MEMBER_EPOCH"
    assert world.heartbeat("nobody", epoch=-1).reply.status == "UNKNOWN_MEMBER_ID"
    world.run(17_000, "b")  # its leave was lost: its lease was not
    assert set(world.owners().values()) == {"b"}


def test_a9_heartbeats_race_removal() -> None:
    """Everybody gets a status that is documented; the log explains what is stored, whoever won."""
    world = World()
    world.create(shards=6)
    world.settle("a", "b", "c")
    world.watches_readers = False
    statuses: set[str] = set()
    stops = time.monotonic() + 1.5

    def beat(member: str, epoch: int | None) -> None:
        while time.monotonic() < stops:
            answered = world.heartbeat(member, epoch=epoch)
            statuses.add(answered.reply.status)

    def remove() -> None:
        while time.monotonic() < stops:
            world.services.admin.delete_group(KEY, force=True, destroy_consumer_groups=False, info=world.request("delete"))
            world.services.admin.create_group(KEY, shard_count=None, start_from=None, info=world.request("create"))
            world.clock.now_ms += 16_000
            world.tick()

    threads = [threading.Thread(target=beat, args=(member, epoch)) for member in "abc" for epoch in (None, -1, 0, 4)]
    threads.append(threading.Thread(target=remove))
    with structlog.testing.capture_logs() as logs:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(30)
    assert statuses <= STATUSES
    assert not [log for log in logs if "exception" in log or "exc_info" in log]
    world.verify()


def test_a10_abandoned_joins_do_not_pile_up() -> None:
    world = World()
    world.create(shards=4)
    empty = len(encode(world.group()))
    for place in range(500):
        assert world.heartbeat(f"ghost-{place}", epoch=0).reply.status == "OK"
    world.run(18_000)
    assert not [member for member in world.group().members.values() if member.state == "ACTIVE"]
    world.run(601_000)
    assert world.group().members == {}
    assert len(encode(world.group())) < 2 * empty
    assert world.store.soft(KEY).leases == {}
    began = time.process_time()
    assert world.heartbeat("real").reply.assigned == (0, 1, 2, 3)
    assert time.process_time() - began < 0.2


@pytest.mark.parametrize("seed", range(8))
def test_a11_two_processes_under_one_id_take_turns(seed: int) -> None:
    """No third process reads what either may read, and once one of them stops everything settles."""
    assert Walk(seed, VARIANTS["one id in two processes"]).run() is None


def test_a11_a_twin_waits_and_is_named_in_the_log() -> None:
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.heartbeat("a", epoch=0)
    with structlog.testing.capture_logs() as logs:
        assert {world.heartbeat("a", epoch=0).reply.row for _ in range(5)} == {7}
    named = [log for log in logs if log["event"] == "two processes seem to run under one member id"]
    assert len(named) == 5
    assert {log["memberId"] for log in named} == {"a"}
    assert len(world.events(MemberRejoined)) == 1


def test_a14_a_consumer_cut_off_has_stopped_before_its_shard_is_given_away() -> None:
    """Its own lease runs from the sending of its last heartbeat that was answered; the grant comes after that."""
    world = World()
    world.create(shards=2)
    world.settle("a", "b")
    until = world.told[KEY, "a"].until
    for _ in range(40):
        world.run(1_000)
        world.heartbeat("b")
        if set(world.owners().values()) == {"b"}:
            break
    assert set(world.owners().values()) == {"b"}
    assert world.clock.monotonic_ms > until
    assert world.heartbeat("a").reply.status == "OK"  # healed: it joins again


def test_a15_a_deletion_survives_a_restart() -> None:
    world = World()
    world.create(shards=2)
    world.settle("a", "b")
    for _ in range(10):
        world.run(3_000, "a", "b")
    deleted = world.services.admin.delete_group(KEY, force=True, destroy_consumer_groups=False, info=world.request("delete"))
    assert isinstance(deleted, Result)
    world.restart()
    world.run(20_000)
    shown = world.services.views.group(KEY)
    assert isinstance(shown, Refused)
    assert shown.code == Code.GROUP_NOT_FOUND
    assert world.heartbeat("a", epoch=0).reply.row == 4
    assert not world.exists(KEY)
    assert world.stream().groups == {}
    world.verify()  # the whole log folds into nothing


def test_a16_a_group_made_again_goes_on_counting() -> None:
    """An old member and an old producer adopt the new life; nothing of the old one is honoured."""
    world = World()
    world.create(shards=2)
    for _ in range(6):
        world.settle("a", "b")
        world.heartbeat("b", epoch=-1, owned=[])
    old, old_group, admin = world.told[KEY, "a"], world.group(), world.services.admin
    old_version = world.stream().metadata_version
    world.told.clear()
    assert isinstance(admin.delete_group(KEY, force=True, destroy_consumer_groups=True, info=world.request("delete")), Result)
    assert isinstance(admin.delete_stream(StreamKey("orders"), info=world.request("delete")), Result)
    world.create(shards=1)
    new = world.group()
    assert new.epoch > old_group.epoch
    assert new.metadata_version > old_group.metadata_version
    assert world.stream().metadata_version > old_version
    reply = world.heartbeat("a", epoch=old.epoch, mv=old.metadata_version, owned=old.owned, revoked=[0]).reply
    assert (reply.row, reply.status) == (9, "UNKNOWN_MEMBER_ID")
    world.heartbeat("a", epoch=0)
    assert world.group().members["a"].current_assignment == ()
    assert world.owners() == {}  # the old life's lease may still run
    world.run(18_000, "a")
    assert world.heartbeat("a").reply.status == "OK"
    assert world.owners() == {0: "a"}


@pytest.mark.parametrize("way", ["leave", "expiry", "fence", "pruning"])
@pytest.mark.parametrize("point", ["before the drain", "in the drain", "after the drain"])
def test_a18_a_member_that_is_gone_leaves_nothing_behind(way: str, point: str) -> None:
    world = World()
    world.create(shards=4)
    world.settle("a", "b")
    if point != "before the drain":
        world.heartbeat("c")
        world.heartbeat("a", draining=[1])
    if point == "after the drain":
        world.heartbeat("a")
        world.heartbeat("a")
    match way:
        case "leave":
            world.heartbeat("a", epoch=-1, owned=[], mv=10**6)
        case "fence":
            world.heartbeat("a", owned=[0, 1, 2, 3])
        case _:
            pass
    world.run(640_000 if way == "pruning" else 20_000, "b")
    group = world.group()
    known = {member.member_id for member in group.members.values()}
    assert set(group.target.values()) == set(group.active()) == {"b"}
    assert set(group.held) == {"b"}
    assert ("a" in known) == (way != "pruning")
    assert "a" not in world.store.soft(KEY).leases
    assert "a" not in world.store.soft(KEY).reports
