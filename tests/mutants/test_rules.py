"""Rules whose loss takes more coincidences to show than some hundred seeds hold; each of them has a mutant."""

from __future__ import annotations

from coord.core.commands import CreateGroup, CreateStream, Heartbeat, RegisterGroup, RemoveGroup, Topology
from coord.core.decision import Accepted, HeartbeatReply
from coord.names import JOIN, GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Stream
from tests.property.record import Record
from tests.world import World

TOPOLOGY = Topology(stream_revision=5, shard_count=2, read_set=(0, 1), migration=None)


def beat(member: str, epoch: int, request_id: str, *owned: int) -> Heartbeat:
    """A heartbeat that drains nothing and knows no metadata version."""
    return Heartbeat(
        path_member_id=member, member_id=member, member_name=None, request_id=request_id, protocol_version=1, member_epoch=epoch,
        metadata_version=0, runtime_max_concurrency=1, owned=frozenset(owned), draining=frozenset(), revoked=frozenset(),
    )  # fmt: skip


def a_group() -> Record:
    """A group of two shards, with a as its only member."""
    record = Record(GroupKey("orders", "g"))
    record.carry_out(CreateGroup(registration=2, topology=TOPOLOGY, how="create", requested_by="ops"))
    record.carry_out(beat("a", JOIN, "the join"), "a")
    return record


def epoch_of(record: Record, member: str) -> int:
    """The latest epoch that a member was issued."""
    assert isinstance(record.state, Group)
    return record.state.members[member].member_epoch


def row(record: Record, command: Heartbeat) -> int:
    """Carry out a heartbeat and tell the row that fired."""
    decision = record.decide(command, command.member_id)
    record.carry_out(command, command.member_id)
    assert isinstance(decision, Accepted)
    assert isinstance(decision.reply, HeartbeatReply)
    return decision.reply.row


def test_a_join_is_not_repeated_after_a_sync() -> None:
    """Its first answer was given to a process from before the round: whoever sends it now has joined anew."""
    record = a_group()
    assert row(record, beat("a", JOIN, "the join")) == 6
    record.identity = "store-2"
    assert row(record, beat("a", epoch_of(record, "a"), "a report", 0, 1)) == 14
    assert row(record, beat("a", JOIN, "the join")) == 8


def test_a_report_from_before_a_round_frees_nothing() -> None:
    """What it gives up was asked of it before the store changed; it is told of the round first."""
    record = a_group()
    record.carry_out(beat("a", epoch_of(record, "a"), "a report", 0, 1), "a")
    record.carry_out(beat("b", JOIN, "another join"), "b")
    assert isinstance(record.state, Group)
    asked = record.state.in_phase("a", "REVOKING")
    assert len(asked) == 1
    record.identity = "store-2"
    assert row(record, beat("a", epoch_of(record, "a"), "its end", *({0, 1} - asked))) == 14
    assert isinstance(record.state, Group)
    assert record.state.shards_of("a") == {0, 1}


def test_a_removal_is_of_one_registration() -> None:
    """A deletion that stopped half-way, taken up later, leaves the group that was made since."""
    record = Record(StreamKey("orders"))
    register = RegisterGroup(consumer_group="g", start_from="0", how="create", limit=10)
    record.carry_out(CreateStream(shard_count=1, start_from="$", requested_by="ops"))
    record.carry_out(register)
    assert isinstance(record.state, Stream)
    first = record.state.groups["g"].registered_revision
    record.carry_out(RemoveGroup(consumer_group="g", registration=first))
    record.carry_out(register)
    record.carry_out(RemoveGroup(consumer_group="g", registration=first))
    assert isinstance(record.state, Stream)
    assert list(record.state.groups) == ["g"]


def test_a_jump_too_small_for_the_store_to_notice_expires_nobody() -> None:
    """Less than half a lease is no gap between two looks: only the ticker's own measure of time tells."""
    world = World()
    world.create(shards=1)
    world.settle("a")
    world.run(9_000)
    world.clock.now_ms += 7_000
    world.tick()
    assert world.owners() == {0: "a"}
    assert world.group().members["a"].state == "ACTIVE"
