"""Stored aggregates: canonical bytes, and reading that fails closed."""

from __future__ import annotations

import json

import pytest
from msgspec.structs import replace as changed

from coord.core.commands import CreateGroup, CreateStream, Heartbeat, Topology
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import decode, encode
from coord.projections.group import Group, Hold, Member
from coord.projections.stored import MalformedAggregate
from tests.property.record import Record

GROUP = GroupKey("orders", "g")
STREAM = StreamKey("orders")


def a_group() -> Group:
    record = Record(GROUP)
    topology = Topology(stream_revision=1, shard_count=3, read_set=(0, 1, 2), migration=None)
    record.carry_out(CreateGroup(registration=2, topology=topology, how="create", requested_by="ops"))
    for member in "ab":
        record.carry_out(
            Heartbeat(
                path_member_id=member, member_id=member, member_name=None, request_id=member, protocol_version=1, member_epoch=0,
                metadata_version=0, runtime_max_concurrency=1, owned=frozenset(), draining=frozenset(), revoked=frozenset(),
            ),
            member,
        )  # fmt: skip
    assert isinstance(record.state, Group)
    return record.state


def rewritten(**changes: object) -> bytes:
    return json.dumps(json.loads(encode(a_group())) | changes).encode()


def member_changed(member_id: str, **changes: object) -> bytes:
    stored = json.loads(encode(a_group()))
    stored["members"][member_id] |= changes
    return json.dumps(stored).encode()


def test_the_bytes_of_a_group_are_these() -> None:
    """Written down once: a change of these bytes is a change of schemaVersion."""
    assert encode(a_group()).decode() == (
        '{"streamPrefix":"orders","consumerGroup":"g","storeRevision":3,"epoch":6,"groupEpoch":5,"assignmentEpoch":5,'
        '"metadataVersion":7,"registration":2,"streamRevision":1,"shardCount":3,"readSet":[0,1,2],"migration":null,"grantsFrom":0,'
        '"correction":null,"reportRoundAt":0,"identity":"store-1","members":{'
        '"a":{"epoch":6,"join":[2,2,1000000,"a"],"acked":0,"assigned":[[2,[0,1]]],"revoking":[[6,1040000,[2]]],"owned":[]},'
        '"b":{"epoch":4,"join":[4,5,1000000,"b"],"acked":0,"target":[2]}},'
        '"createdAt":1000000,"updatedAt":1000000}'
    )


def test_the_bytes_of_a_member_with_everything_are_these() -> None:
    """No field is left out, and each is read back into its own."""
    group = a_group().draft()
    group.put(
        Member(
            member_id="a", member_name="alpha", state="LEAVING", member_epoch=101, acked_epoch=102, join_epoch=103,
            join_request_id="q", joined_metadata_version=104, joined_at=105, rejoined_at=106, elder_until=107,
            runtime_max_concurrency=108, state_since=109, foreign_since=110, elder=(0,), abandoned=(2,), current_assignment=(1,),
            foreign=(7,),
        )
    )  # fmt: skip
    group.hold((1,), Hold("a", "ASSIGNED", 5, 0))
    data = encode(group)
    assert (
        '"a":{"epoch":101,"join":[103,104,105,"q"],"name":"alpha","state":"LEAVING","since":109,"acked":102,"rejoinedAt":106,'
        '"capacity":108,"assigned":[[2,[0]],[5,[1]]],"revoking":[[6,1040000,[2]]],"owned":[1],"foreign":[7],"foreignSince":110,'
        '"elderUntil":107,"elder":[0],"abandoned":[2]}'
    ) in data.decode()
    assert decode(GROUP, data) == group


def test_a_group_at_rest_takes_little() -> None:
    """What is the usual case is not written: the target, what is owned, the epoch that was acknowledged."""
    group = a_group().draft()
    group.put(changed(group.members["a"], acked_epoch=6, current_assignment=(0, 1)))
    group.free("a", (2,))
    assert b'"a":{"epoch":6,"join":[2,2,1000000,"a"],"assigned":[[2,[0,1]]]}' in encode(group)
    assert decode(GROUP, encode(group)) == group


def test_a_target_is_read_back_whatever_is_on_record() -> None:
    """Shard 2 is REVOKING and turns back; then nothing is targeted; then what is held is not what is targeted."""
    group = a_group().draft()
    group.aim("a", (2,))
    assert decode(GROUP, encode(group)) == group
    group.aim_nowhere((0, 1, 2))
    assert decode(GROUP, encode(group)) == group
    group.aim("b", (0, 1))
    group.aim("a", (2,))
    assert decode(GROUP, encode(group)) == group


def test_shards_of_who_is_no_member_are_not_stored() -> None:
    group = a_group().draft()
    group.hold((0,), Hold("x", "ASSIGNED", 2, 0))
    with pytest.raises(ValueError, match=r"\['x'\] have shards, and are no members"):
        encode(group)


def test_what_is_read_is_written_again_as_it_was() -> None:
    assert encode(decode(GROUP, encode(a_group()))) == encode(a_group())
    record = Record(STREAM)
    record.carry_out(CreateStream(shard_count=3, start_from="$", requested_by="ops"))
    assert record.state is not None
    assert encode(decode(STREAM, encode(record.state))) == encode(record.state)


@pytest.mark.parametrize(
    ("data", "why"),
    [
        (b"", "unreadable"),
        (b"{}", "streamPrefix"),
        (encode(a_group())[:-9], "unreadable"),
        (b"[" * 100_000, "unreadable"),
        (rewritten(epoch="6"), "epoch"),
        (rewritten(epoch=6.5), "epoch"),
        (member_changed("b", target=[0]), "second target"),
        (member_changed("b", target=[2, 2]), "second target"),
        (member_changed("b", assigned=[[4, [0]]], target=[2]), "second holder"),
        (member_changed("b", revoking=[[4, 9, [2]]]), "second holder"),
        (member_changed("a", revoking=[[6, 9, [0]]]), "second holder"),
        (member_changed("a", assigned=[["two", [0]]]), "unreadable"),
        (member_changed("a", assigned={"2": [0]}), "unreadable"),
        (member_changed("a", join=[1, 2, 3]), "unreadable"),
        (member_changed("a", epoch=None), "unreadable"),
        (member_changed("a", state="ASLEEP"), "unreadable"),
    ],
)
def test_a_group_that_contradicts_itself_is_not_read(data: bytes, why: str) -> None:
    with pytest.raises(MalformedAggregate, match=why):
        decode(GROUP, data)


@pytest.mark.parametrize("data", [b"", b"{}", b"[" * 100_000, b'{"streamPrefix":3}'])
def test_a_stream_that_is_unreadable_says_so(data: bytes) -> None:
    with pytest.raises(MalformedAggregate, match="stream aggregate is unreadable"):
        decode(STREAM, data)
