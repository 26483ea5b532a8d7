"""The folds, from hand-written logs: what no decision writes changes nothing, or says so; what a Kotlin coordinator left."""

from __future__ import annotations

import pytest

from coord.events import catalog as fact
from coord.events.catalog import Event, GroupEvent, StreamEvent
from coord.events.envelope import Actor, Cause, Envelope
from coord.names import GroupKey, StreamKey
from coord.projections import group_facts
from coord.projections.aggregate import Aggregate, decode, draft_of, encode, evolve, fold
from coord.projections.group import Group, Hold
from coord.projections.stream import ENDED_MAX, Stream

GROUP = GroupKey("orders", "g")
STREAM = StreamKey("orders")
CREATED = fact.GroupCreated(
    registration=2, stream_revision=1, shard_count=2, read_set=(0, 1), epoch=1, metadata_version=1, grants_from=0, identity="s",
    how="create", requested_by="ops",
)  # fmt: skip
JOINED = fact.MemberJoined(member_id="a", member_name="a", member_epoch=2, request_id="q", runtime_max_concurrency=1)
BORN = fact.StreamCreated(shard_count=2, metadata_version=1, identity="s", start_from="0", requested_by="ops")
ADMIN = fact.AdminRequestsSuppressed(count=3, since=1)

ABOUT_NOBODY: tuple[GroupEvent, ...] = (
    fact.MemberRejoined(
        member_id="x", member_name="x", member_epoch=5, request_id="q", runtime_max_concurrency=1, elder_until=0, elder=(),
        foreign=(), abandoned=(), revoke_deadline_at=1, damped=False,
    ),
    fact.MemberLeaving(member_id="x", foreign=()),
    fact.MemberExpired(member_id="x", member_epoch=5, lease_deadline_at=1, last_heartbeat_at=1),
    fact.MemberFenced(member_id="x", member_epoch=5, reason="UNKNOWN_OWNERSHIP", foreign=()),
    fact.MemberPruned(member_id="x"),
    fact.MemberUpdated(member_id="x", member_name="y", runtime_max_concurrency=1),
    fact.ShardsFreed(member_id="x", shards=(0,), reason="LEFT"),
    fact.OwnershipReported(member_id="x", epoch=5, owned=(), foreign=()),
    fact.CorrectionAcknowledged(member_id="x", member_epoch=5, owned=(), foreign=(), elder=(), elder_until=1),
    fact.RevocationRequested(member_id="x", member_epoch=5, shards=(), deadline_at=1),
    fact.ShardsGranted(member_id="x", member_epoch=5, shards=()),
)  # fmt: skip


def folded(*events: Event, key: GroupKey | StreamKey = GROUP) -> Aggregate | None:
    cause = Cause(command_id="c", actor=Actor("test"), request_id=None, coordinator_id="one")
    log = [
        Envelope(revision=place, index=0, at=100 + place, cause=cause, event=event, prev="", chain="")
        for place, event in enumerate(events, 1)
    ]
    return fold(None, log, key=key)


def group(*events: GroupEvent) -> Group:
    state = folded(CREATED, JOINED, *events)
    assert isinstance(state, Group)
    return state


@pytest.mark.parametrize("event", ABOUT_NOBODY, ids=lambda event: type(event).__name__)
def test_an_event_about_somebody_who_is_gone_is_survived(event: GroupEvent) -> None:
    """Replay must get past the removal of what is already removed."""
    state = group(event)
    assert state.members.keys() == {"a"}
    assert state.ownership == {}
    assert state.store_revision == 3


def test_a_log_begins_with_a_creation_and_ends_with_a_deletion() -> None:
    deleted = fact.GroupDeleted(registration=2, epoch=2, metadata_version=2, latest_lease=0, requested_by="ops")
    assert folded(JOINED) is None
    assert folded(CREATED, JOINED, deleted) is None
    assert folded(CREATED, deleted, JOINED) is None
    gone = fact.StreamDeleted(metadata_version=1, requested_by="ops")
    assert folded(BORN, gone, key=STREAM) is None
    assert folded(fact.DrainStarted(resharding_id="r"), key=STREAM) is None


def test_entries_that_tell_of_requests_change_nothing() -> None:
    assert encode_of(folded(CREATED, JOINED, ADMIN)) == encode_of(folded(CREATED, JOINED))
    assert folded(ADMIN) is None


def encode_of(state: Aggregate | None) -> bytes:
    assert state is not None
    return encode(state)


@pytest.mark.parametrize(("key", "state", "event"), [(GROUP, None, BORN), (STREAM, None, JOINED)])
def test_an_event_of_the_other_kind_says_so(key: GroupKey | StreamKey, state: None, event: GroupEvent | StreamEvent) -> None:
    with pytest.raises(ValueError, match="is no event of"):
        evolve(state, event, key=key, revision=1, at=1)


def test_a_state_of_the_other_kind_says_so() -> None:
    stream = folded(BORN, key=STREAM)
    with pytest.raises(ValueError, match="is no event of"):
        evolve(stream, JOINED, key=GROUP, revision=1, at=1)
    with pytest.raises(ValueError, match="is no event of"):
        evolve(group(), fact.DrainStarted(resharding_id="r"), key=STREAM, revision=1, at=1)


def test_folding_leaves_the_state_that_it_began_with() -> None:
    state = group()
    before = encode(state)
    draft = draft_of(state)
    evolve(draft, fact.ShardsGranted(member_id="a", member_epoch=3, shards=(0, 1)), key=GROUP, revision=3, at=1)
    assert encode(state) == before
    assert encode_of(draft) != before
    stream = folded(BORN, key=STREAM)
    assert draft_of(stream) is stream
    assert draft_of(None) is None


def test_what_is_not_where_it_should_be_is_told_by_member() -> None:
    """By an index of the target, kept with it; a member that is not ACTIVE should hold nothing."""
    second = fact.MemberJoined(member_id="b", member_name="b", member_epoch=3, request_id="q", runtime_max_concurrency=1)
    granted = fact.ShardsGranted(member_id="a", member_epoch=4, shards=(0, 1))
    both = fact.TargetComputed(epoch=4, reason="", moves={"a": (0, 1)}, unassigned=())
    moved = fact.TargetComputed(epoch=5, reason="", moves={"b": (1,)}, unassigned=(0,))
    waiting = group(second, both)
    assert waiting.strays() == {}
    assert waiting.lacks() == {"a": frozenset({0, 1})}
    settled = group(second, both, granted)
    assert settled.strays() == settled.lacks() == {}
    assert settled.view("a") == ((0, 1), ())
    moving = group(second, both, granted, moved)
    assert moving.strays() == {"a": frozenset({0, 1})}
    assert moving.lacks() == moving.targeted == {"b": frozenset({1})}
    assert moving.target == {1: "b"}
    assert moving.view("b") == ((), (1,))
    leaving = group(second, both, granted, fact.MemberLeaving(member_id="a", foreign=()))
    assert leaving.strays() == {"a": frozenset({0, 1})}
    assert leaving.lacks() == {}


def test_creation_is_no_change() -> None:
    with pytest.raises(AssertionError, match="evolve_group"):
        group_facts._apply(group(), CREATED, 1)


def test_a_step_of_a_resharding_needs_a_resharding() -> None:
    with pytest.raises(ValueError, match="without a resharding"):
        folded(BORN, fact.DrainStarted(resharding_id="r"), key=STREAM)


def test_ended_reshardings_are_remembered_up_to_a_bound() -> None:
    events: list[Event] = [BORN]
    for place in range(ENDED_MAX + 3):
        events.append(
            fact.ReshardingRequested(resharding_id=f"r{place}", from_shard_count=2, to_shard_count=3, requested_by="ops")
        )
        events.append(
            fact.RollbackRequested(
                resharding_id=f"r{place}", state="ROLLED_BACK", shard_count=2, read_set=(0, 1), requested_by="ops"
            )
        )
    state = folded(*events, key=STREAM)
    assert isinstance(state, Stream)
    assert len(state.ended) == ENDED_MAX
    assert state.migration("r2") is None
    assert state.migration(f"r{ENDED_MAX + 2}") is not None


def test_a_kotlin_coordinators_group_is_taken_over_with_what_is_on_record() -> None:
    def adopted(name: str, state: str, assigned: tuple[int, ...], revoking: tuple[int, ...]) -> fact.AdoptedMember:
        return fact.AdoptedMember(
            member_id=name, member_name=name.upper(), state=state, member_epoch=40, runtime_max_concurrency=4,
            current_assignment=assigned, target=assigned, assigned=assigned, revoking=revoking,
        )  # fmt: skip

    event = fact.GroupAdopted(
        source_key="redis-stream:coord:{orders:g}:metadata", registration=2, stream_revision=1, shard_count=3, read_set=(0, 1, 2),
        epoch=41, group_epoch=40, assignment_epoch=39, metadata_version=60, revoke_deadline_at=900, identity="s",
        members=(adopted("a", "STABLE", (0,), (2,)), adopted("b", "EXPIRED", (), ()), adopted("c", "FENCED", (), ())),
    )  # fmt: skip
    state = folded(event)
    assert isinstance(state, Group)
    assert {m.member_id: m.state for m in state.members.values()} == {"a": "ACTIVE", "b": "EXPIRED", "c": "FENCED"}
    assert state.ownership == {0: Hold("a", "ASSIGNED", 40, 0), 2: Hold("a", "REVOKING", 40, 900)}
    assert (state.epoch, state.group_epoch, state.assignment_epoch, state.metadata_version) == (41, 40, 39, 60)
    assert encode_of(decode(GROUP, encode(state))) == encode(state)
