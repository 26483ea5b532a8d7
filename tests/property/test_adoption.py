"""Whatever another coordinator had on record: what is taken over is sound, and no shard of a live member is free or shared."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from coord.core.adoption import AdoptGroup, AdoptStream, ForeignMember, ForeignResharding, ForeignState, adopt_group, adopt_stream
from coord.core.commands import Topology
from coord.core.decision import Moment, Policy
from coord.core.invariants import broken
from coord.events.codec import decode as decode_entry
from coord.events.codec import seal
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import decode, encode, fold
from coord.projections.group import Group
from coord.projections.stream import Stream
from tests.store.author import CAUSE

GROUP = GroupKey("orders", "billing")
MOMENT = Moment(now=1_700_000_000_000, identity="store", revision=1, policy=Policy())
GENESIS = "0" * 64

counts = st.integers(0, 6)
sets = st.frozensets(st.integers(0, 7), max_size=5)
states: st.SearchStrategy[ForeignState] = st.sampled_from(("ACTIVE", "ACTIVE", "STARTING", "LEAVING", "EXPIRED", "FENCED"))


@st.composite
def members(draw: st.DrawFn) -> tuple[ForeignMember, ...]:
    names = draw(st.lists(st.sampled_from("abcde"), unique=True, max_size=5))
    return tuple(
        ForeignMember(
            member_id=name, member_name=name, state=draw(states), member_epoch=draw(st.integers(0, 9)),
            metadata_version=draw(st.integers(0, 9)), runtime_max_concurrency=1, current=draw(sets), granted=draw(sets),
            revoking=draw(sets), target=draw(sets),
        )
        for name in names
    )  # fmt: skip


@given(members(), st.integers(0, 8), st.integers(0, 8), st.integers(0, 9), st.integers(0, 9))
def test_what_is_taken_over_is_sound(
    found: tuple[ForeignMember, ...], shard_count: int, more: int, group_epoch: int, assignment_epoch: int
) -> None:
    topology = Topology(stream_revision=1, shard_count=shard_count, read_set=tuple(range(max(shard_count, more))), migration=None)
    command = AdoptGroup(
        source_key="k", registration=1, topology=topology, group_epoch=group_epoch, assignment_epoch=assignment_epoch,
        metadata_version=3, members=found,
    )  # fmt: skip
    decided = adopt_group(command, MOMENT, GROUP)
    group = decided.after
    assert isinstance(group, Group)
    assert list(broken(group)) == []
    assert group.epoch >= max((group_epoch, assignment_epoch, *(each.member_epoch for each in found)))
    assert group.metadata_version > max((3, *(each.metadata_version for each in found)))

    live = [each for each in found if each.state != "EXPIRED"]
    for shard in {shard for each in live for shard in each.current | each.granted | each.revoking}:
        holder = group.ownership[shard].member_id
        claims = {each.member_id: each for each in live if shard in each.current | each.granted | each.revoking}
        assert holder in claims, "a shard that a live member may read is on record for one that may"
        owners = {name for name, each in claims.items() if shard in each.current - each.revoking}
        assert not owners or holder in owners, "who reports a shard as owned comes first"
    named = {shard for each in live for shard in each.current | each.granted | each.revoking}
    assert set(group.ownership) == named, "nothing free is granted in the same step"
    assert set(decided.leases.renew) == {each.member_id for each in live}

    for each in live:
        only_mine = all(
            group.ownership[shard].member_id == each.member_id for shard in each.current | each.granted | each.revoking
        )
        if only_mine and each.state == "ACTIVE":
            assert set(each.current) <= group.shards_of(each.member_id), "its next report names nothing foreign"

    log = [decode_entry(entry) for entry in seal(decided.events, revision=1, first=0, at=MOMENT.now, cause=CAUSE, prev=GENESIS)]
    replayed = fold(None, log, key=GROUP)
    assert replayed is not None
    assert encode(replayed) == encode(group)
    assert encode(decode(GROUP, encode(group))) == encode(group)


@given(st.integers(0, 8), st.integers(0, 8), st.sampled_from(("PREPARING", "ACTIVE", "DRAINING", "ROLLING_BACK")))
def test_a_stream_begins_in_the_phase_of_its_resharding(before: int, after: int, phase: str) -> None:
    back = phase in ("PREPARING", "ROLLING_BACK")
    resharding = ForeignResharding(
        resharding_id="r", from_shard_count=before, to_shard_count=after, phase=phase,  # type: ignore[arg-type]  # one of the phases
    )  # fmt: skip
    command = AdoptStream(
        shard_count=before if back else after,
        resharding=resharding,
        groups=("a", "b"),
        metadata_version_floor=12,
        requested_by="x",
    )
    stream = adopt_stream(command, MOMENT, StreamKey("orders")).after
    assert isinstance(stream, Stream)
    assert list(broken(stream)) == []
    assert stream.resharding is not None
    assert (stream.resharding.state, stream.shard_count) == (phase, before if back else after)
    assert stream.metadata_version > 12
    assert set(stream.groups) == {"a", "b"}
