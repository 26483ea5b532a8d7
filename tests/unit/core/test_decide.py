"""Rules that no story shows: one row, one rule."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec import structs

from coord.core import streams
from coord.core.commands import (
    Activate,
    Complete,
    CreateGroup,
    CreateStream,
    DeleteStream,
    EndResharding,
    Follow,
    Heartbeat,
    ProveDrain,
    RegisterGroup,
    Scale,
    StartDrain,
    Tick,
    Topology,
)
from coord.core.course import StreamCourse
from coord.core.decide import decide
from coord.core.decision import Accepted, Decision, HeartbeatReply, Past
from coord.core.heartbeat import may_register
from coord.events import catalog as fact
from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.refusals import Code, Refused
from tests.property.record import POLICY, Record

KEY = GroupKey("orders", "g")
STREAM = StreamKey("orders")
TOPOLOGY = Topology(stream_revision=5, shard_count=2, read_set=(0, 1), migration=None)
CREATE = CreateGroup(registration=2, topology=TOPOLOGY, how="create", requested_by="ops")
SHARDS_OF_STREAM = 4


def beat(member: str, epoch: int, *owned: int, draining: frozenset[int] = frozenset(), mv: int = 0) -> Heartbeat:
    return Heartbeat(
        path_member_id=member, member_id=member, member_name=None, request_id=f"{member}{epoch}", protocol_version=1,
        member_epoch=epoch, metadata_version=mv, runtime_max_concurrency=1, owned=frozenset(owned), draining=draining,
        revoked=frozenset(),
    )  # fmt: skip


def events_of(decision: Decision) -> list[str]:
    assert isinstance(decision, Accepted)
    return [type(event).__name__ for event in decision.events]


def a_group() -> Record:
    record = Record(KEY)
    record.carry_out(CREATE)
    record.carry_out(beat("a", 0), "a")
    return record


def a_stream(count: int = SHARDS_OF_STREAM) -> Record:
    record = Record(STREAM)
    record.carry_out(CreateStream(shard_count=count, start_from="0", requested_by="ops"))
    return record


def test_a_group_that_exists_is_not_created_again() -> None:
    decision = a_group().decide(CREATE)
    assert isinstance(decision, Refused)
    assert decision.code == Code.GROUP_ALREADY_EXISTS


def test_a_group_goes_on_from_its_tombstone() -> None:
    record = Record(KEY, past=Past(epoch=40, metadata_version=60, latest_lease=1_000_500, registration=1))
    record.carry_out(CREATE)
    assert isinstance(record.state, Group)
    assert (record.state.epoch, record.state.metadata_version, record.state.grants_from) == (41, 61, 1_000_500)


def test_a_group_on_a_store_that_lost_things_grants_nothing_for_a_lease_and_a_grace() -> None:
    record = Record(KEY)
    record.carry_out(replace(CREATE, store_changed_at=record.now - 1))
    assert isinstance(record.state, Group)
    assert record.state.epoch == record.state.metadata_version == record.now * 1000
    assert record.state.grants_from == record.now - 1 + POLICY.member_lease_ttl_ms + POLICY.failover_grace_ms


@pytest.mark.parametrize("lapsed", [{"nobody": 1}, {"a": 1_000_000}, {"a": 2_000_000}])
def test_nobody_is_expired_who_is_unknown_or_in_time(lapsed: dict[str, int]) -> None:
    assert events_of(a_group().decide(Tick(lapsed=lapsed, grace=False))) == []


def test_who_is_expired_is_not_expired_again() -> None:
    record = a_group()
    record.now += 20_000
    command = Tick(lapsed=dict(record.leases), grace=False)
    assert "MemberExpired" in events_of(record.carry_out(command))
    record.leases["a"] = record.now - 1
    assert events_of(record.decide(Tick(lapsed=dict(record.leases), grace=False))) == []


def test_a_leaver_that_does_not_end_its_drain_is_fenced_and_nothing_is_retargeted() -> None:
    """It was no member of the target any more."""
    record = a_group()
    record.carry_out(beat("a", 2, 0, 1, mv=4), "a")
    record.carry_out(beat("a", -1, draining=frozenset({1}), mv=4), "a")
    record.now += POLICY.rebalance_timeout_ms
    record.leases["a"] = record.now + 1
    assert events_of(record.decide(Tick(lapsed={}, grace=True))) == []
    assert events_of(record.carry_out(Tick(lapsed={}, grace=False))) == ["MemberFenced"]


def test_a_group_does_not_follow_backwards() -> None:
    record = a_group()
    older = replace(TOPOLOGY, stream_revision=4, shard_count=3, read_set=(0, 1, 2))
    assert events_of(record.decide(Follow(topology=older))) == []
    assert events_of(record.decide(Follow(topology=TOPOLOGY, lost=True))) == []


def test_a_group_that_follows_a_stream_which_lost_its_revision_keeps_both_read_sets() -> None:
    record = a_group()
    lost = Follow(topology=replace(TOPOLOGY, stream_revision=4, read_set=(0, 1, 3)), lost=True)
    record.carry_out(Follow(topology=replace(TOPOLOGY, stream_revision=6, read_set=(0, 1, 2))))
    record.carry_out(lost)
    assert isinstance(record.state, Group)
    assert record.state.read_set == (0, 1, 2, 3)
    assert events_of(record.decide(lost)) == []


def test_a_report_frees_nothing_of_which_its_sender_did_not_know() -> None:
    """The revocation came with an epoch that this late report has not seen."""
    record = a_group()
    record.carry_out(beat("b", 0), "b")
    record.carry_out(beat("a", 2, 0), "a")
    assert isinstance(record.state, Group)
    assert record.state.ownership[1].phase == "REVOKING"
    record.carry_out(beat("a", record.state.members["a"].member_epoch, 0), "a")
    assert isinstance(record.state, Group)
    assert record.state.ownership[1].member_id == "b"


@pytest.mark.parametrize(
    ("epoch", "stream", "deleted", "auto", "limit", "may"),
    [
        (0, True, False, True, 1, True),
        (1, True, False, True, 1, False),
        (-1, True, False, True, 1, False),
        (0, False, False, True, 1, False),
        (0, True, True, True, 1, False),
        (0, True, False, False, 1, False),
        (0, True, False, True, 0, False),
    ],
)
def test_a_heartbeat_registers_a_group_only_if(
    epoch: int, stream: bool, deleted: bool, auto: bool, limit: int, may: bool
) -> None:
    state = a_stream().state
    assert isinstance(state, Stream)
    policy = replace(POLICY, auto_register=auto, groups_per_stream=limit)
    assert may_register(beat("a", epoch), state if stream else None, was_deleted=deleted, policy=policy) is may


def test_without_a_group_only_the_request_itself_is_judged() -> None:
    record = Record(KEY)
    for command, row in [
        (structs.replace(beat("a", 0), protocol_version=2), 1),
        (structs.replace(beat("a", 0), path_member_id="b"), 2),
        (beat("a", -2), 2),
        (beat("a", 0), 4),
    ]:
        decision = record.decide(command)
        assert isinstance(decision, Accepted)
        assert isinstance(decision.reply, HeartbeatReply)
        assert (decision.reply.row, decision.reply.member_epoch, decision.reply.group_epoch) == (row, command.member_epoch, 0)
        assert decision.after is None
        assert decision.events == ()


@pytest.mark.parametrize("command", [Tick(lapsed={}, grace=False), Follow(topology=TOPOLOGY)])
def test_a_group_that_is_not_there_is_not_ticked(command: Tick | Follow) -> None:
    decision = Record(KEY).decide(command)
    assert isinstance(decision, Refused)
    assert decision.code == Code.GROUP_NOT_FOUND


def test_a_command_goes_to_an_aggregate_of_its_kind() -> None:
    for key, command in ((STREAM, Tick(lapsed={}, grace=False)), (KEY, StartDrain(resharding_id="r1"))):
        with pytest.raises(AssertionError):
            decide(None, command, Record(key).moment(), key=key)


@pytest.mark.parametrize(
    "command", [CreateStream(shard_count=1, start_from="0", requested_by="ops"), DeleteStream(requested_by="ops", reason="test")]
)
def test_a_stream_is_neither_made_nor_deleted_as_a_change(command: CreateStream | DeleteStream) -> None:
    record = a_stream()
    assert isinstance(record.state, Stream)
    with pytest.raises(AssertionError, match="apart"):
        streams._change(StreamCourse(record.state, record.moment()), command)


def test_a_group_registered_while_shards_are_made_is_provisioned_first() -> None:
    """Else routing names a shard on which its Redis consumer group does not exist yet, and records are missed."""
    record = a_stream()
    record.carry_out(Scale(resharding_id="r1", target_shard_count=6, requested_by="ops", reason="test"))
    record.carry_out(RegisterGroup(consumer_group="late", start_from="0", how="create", limit=5))
    decision = record.decide(Activate(resharding_id="r1", provisioned=frozenset()))
    assert isinstance(decision, Refused)
    assert decision.code == Code.STATE_VERSION_CONFLICT
    assert "late" in decision.message
    assert events_of(record.carry_out(Activate(resharding_id="r1", provisioned=frozenset({"late"})))) == ["TopologyActivated"]


def test_a_drain_is_proved_of_all_its_shards_twice_and_a_grace_apart() -> None:
    record = a_stream()
    record.carry_out(Scale(resharding_id="r1", target_shard_count=1, requested_by="ops", reason="test"))
    record.carry_out(Activate(resharding_id="r1", provisioned=frozenset()))
    proof = ProveDrain(resharding_id="r1", shards=(1, 2, 3), first_seen_at=record.now)
    assert events_of(record.decide(StartDrain(resharding_id="r1"))) == []
    record.now += POLICY.routing_grace_ms
    assert events_of(record.decide(proof)) == []  # still ACTIVE
    record.carry_out(StartDrain(resharding_id="r1"))
    assert events_of(record.decide(replace(proof, first_seen_at=record.now))) == []
    assert events_of(record.decide(replace(proof, shards=(1, 3)))) == []
    assert events_of(record.decide(EndResharding(resharding_id="r1"))) == []
    assert events_of(record.carry_out(proof)) == ["DrainProved"]
    assert events_of(record.decide(Complete(resharding_id="r1", blockers=(), force=True, requested_by="o", reason="r"))) == []
    decision = record.carry_out(EndResharding(resharding_id="r1"))
    assert isinstance(decision, Accepted)
    assert decision.events == (
        fact.ReshardingEnded(
            resharding_id="r1", state="DEPRECATED", retired=(1, 2, 3), watch_until=record.now + POLICY.watch_retired_ms
        ),
    )
