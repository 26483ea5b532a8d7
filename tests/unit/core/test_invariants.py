"""Each invariant is shown to fail: a checker that never fails is unproved. Logs that no decision writes, and bent states."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from coord.core.commands import Activate, CreateGroup, CreateStream, Heartbeat, Scale, Topology
from coord.core.invariants import backwards, broken
from coord.events import catalog as fact
from coord.events.catalog import GroupEvent
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import evolve
from coord.projections.group import Group, Hold
from coord.projections.stream import Stream
from tests.property.record import Record

KEY = GroupKey("orders", "g")


def beat(member: str, epoch: int, *owned: int) -> Heartbeat:
    return Heartbeat(
        path_member_id=member, member_id=member, member_name=None, request_id=f"{member}{epoch}", protocol_version=1,
        member_epoch=epoch, metadata_version=0, runtime_max_concurrency=1, owned=frozenset(owned), draining=frozenset(),
        revoked=frozenset(),
    )  # fmt: skip


def healthy() -> Group:
    """A holds 0, 1 and is asked for 2, 3, which b waits for."""
    record = Record(KEY)
    topology = Topology(stream_revision=1, shard_count=4, read_set=(0, 1, 2, 3), migration=None)
    record.carry_out(CreateGroup(registration=2, topology=topology, how="create", requested_by="ops"))
    record.carry_out(beat("a", 0), "a")
    record.carry_out(beat("b", 0), "b")
    assert isinstance(record.state, Group)
    return record.state


def after(*events: GroupEvent) -> Group:
    state: object = healthy().draft()
    for event in events:
        assert isinstance(state, Group)
        state = evolve(state, event, key=KEY, revision=9, at=1)
    assert isinstance(state, Group)
    return state


def bent(bend: Callable[[Group], object]) -> Group:
    group = healthy().draft()
    bend(group)
    return group


def put(group: Group, **changes: object) -> None:
    group.put(changed(group.members["a"], **changes))


EXPIRED = fact.MemberExpired(member_id="a", member_epoch=20, lease_deadline_at=1, last_heartbeat_at=1)
LEAVING = [fact.MemberLeaving(member_id=name, foreign=()) for name in "ab"]
GROUPS = {
    "not an ascending set": lambda: replace(healthy(), read_set=(1, 0, 2, 3)),
    "does not contain the write set": lambda: replace(healthy(), shard_count=6),
    "ahead of the counter": lambda: replace(healthy(), group_epoch=99),
    "the index of holders differs": lambda: bent(lambda group: group.held.pop("a")),
    "index of holders differs": lambda: bent(lambda group: group.held.update(b=frozenset({0}))),
    "index of targets differs": lambda: bent(lambda group: group.targeted.update(b=frozenset({2, 3, 0}))),
    "the index of targets differs": lambda: bent(lambda group: group.targeted.pop("b")),
    "which is no member": lambda: after(fact.MemberPruned(member_id="a")),
    "which is EXPIRED": lambda: after(EXPIRED),
    "was never told": lambda: bent(lambda group: group.hold((0,), Hold("a", "ASSIGNED", 77, 0))),
    "against the target": lambda: bent(lambda group: group.hold((2,), Hold("a", "ASSIGNED", 2, 0))),
    "without a deadline": lambda: after(fact.RevocationRequested(member_id="a", member_epoch=20, shards=(0,), deadline_at=0)),
    "not ACTIVE": lambda: after(fact.MemberLeaving(member_id="b", foreign=())),
    "does not cover the read set": lambda: after(fact.TargetComputed(epoch=20, reason="", moves={}, unassigned=(3,))),
    "but no ACTIVE member": lambda: after(*LEAVING),
    "out of balance": lambda: after(fact.TargetComputed(epoch=20, reason="", moves={"b": (1,)}, unassigned=())),
    "ahead of the group's counter": lambda: bent(lambda group: put(group, member_epoch=99)),
    "never issued": lambda: bent(lambda group: put(group, acked_epoch=99)),
    "recorded as owning": lambda: after(fact.OwnershipReported(member_id="b", epoch=4, owned=(0,), foreign=())),
    "their time and their index disagree": lambda: bent(lambda group: put(group, foreign=(9,))),
    "an earlier life abandoned": lambda: bent(lambda group: put(group, abandoned=(9,))),
}  # fmt: skip


def test_a_healthy_group_has_nothing_broken() -> None:
    assert list(broken(healthy())) == []
    assert list(broken(None)) == []


@pytest.mark.parametrize("what", GROUPS)
def test_a_broken_group_is_seen(what: str) -> None:
    assert any(what in found for found in broken(GROUPS[what]()))


def stream(active: bool = True) -> Stream:
    record = Record(StreamKey("orders"))
    record.carry_out(CreateStream(shard_count=4, start_from="0", requested_by="ops"))
    if active:
        record.carry_out(Scale(resharding_id="r1", target_shard_count=2, requested_by="ops", reason="test"))
        record.carry_out(Activate(resharding_id="r1", provisioned=frozenset()))
    assert isinstance(record.state, Stream)
    return record.state


def resharding(**changes: object) -> Stream:
    found = stream()
    assert found.resharding is not None
    return changed(found, resharding=changed(found.resharding, **changes))


STREAMS = {
    "not an ascending set": lambda: changed(stream(), read_set=(0, 0, 1, 2, 3)),
    "does not contain the write set": lambda: changed(stream(), read_set=(0,)),
    "is DEPRECATED and still active": lambda: resharding(state="DEPRECATED"),
    "the write set is 2, not 4": lambda: resharding(state="PREPARING"),
    "for no reason": lambda: resharding(drained=True),
    "ahead of the store revision": lambda: changed(stream(), topology_revision=99),
    "retired and in the write set": lambda: changed(stream(), retired={"1": 5}),
}


def test_a_healthy_stream_has_nothing_broken() -> None:
    assert list(broken(stream())) == list(broken(stream(active=False))) == []


@pytest.mark.parametrize("what", STREAMS)
def test_a_broken_stream_is_seen(what: str) -> None:
    assert any(what in found for found in broken(STREAMS[what]()))


@pytest.mark.parametrize("name", ["store_revision", "epoch", "group_epoch", "assignment_epoch", "metadata_version"])
def test_a_number_of_a_group_that_falls_is_seen(name: str) -> None:
    before = healthy()
    lower = replace(before, **{name: getattr(before, name) - 1})
    assert list(backwards(before, lower)) == [f"{name} fell from {getattr(before, name)} to {getattr(lower, name)}"]
    assert list(backwards(lower, before)) == []


def test_a_member_epoch_that_falls_is_seen() -> None:
    group, lower = healthy(), bent(lambda group: put(group, member_epoch=1))
    assert [what for what in backwards(group, lower) if "member epoch of a" in what]
    assert list(backwards(group, after(fact.MemberPruned(member_id="b")))) == []


@pytest.mark.parametrize("name", ["store_revision", "topology_revision", "metadata_version"])
def test_a_number_of_a_stream_that_falls_is_seen(name: str) -> None:
    before = stream()
    assert list(backwards(before, changed(before, **{name: 0}))) == [f"{name} fell from {getattr(before, name)} to 0"]


def test_what_is_not_there_falls_nowhere() -> None:
    assert list(backwards(None, healthy())) == list(backwards(healthy(), None)) == list(backwards(stream(), None)) == []
