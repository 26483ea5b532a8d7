"""The watch along a log against its naive twin, which looks at everything after every revision."""

from __future__ import annotations

from typing import get_args, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace as changed

from coord.core.commands import CreateGroup, Follow, Heartbeat, Tick, Topology
from coord.core.invariants import backwards, broken
from coord.core.watch import Watch
from coord.events import catalog as fact
from coord.events.catalog import GroupEvent
from coord.names import GroupKey
from coord.projections.aggregate import evolve
from coord.projections.group import Group
from tests.property.record import Record
from tests.strategies import SHARDS_MAX, heartbeats, member_ids, of_type, sorted_shards

KEY = GroupKey("orders", "g")
ENDINGS = (fact.GroupCreated, fact.GroupAdopted, fact.GroupDeleted)
EVENTS = sorted(set(get_args(GroupEvent)) - set(ENDINGS), key=lambda kind: kind.__name__)
small = st.integers(0, 40)
FIELDS = {
    "member_id": member_ids,
    "member_epoch": small,
    "epoch": small,
    "base": st.integers(30, 60),
    "shard_count": st.integers(0, 4),
    "read_set": sorted_shards,
    "moves": st.dictionaries(member_ids, sorted_shards, max_size=2),
}


def anything(kind: type[GroupEvent]) -> st.SearchStrategy[GroupEvent]:
    """Any event of the kind about members and shards that there are: few of them were ever decided."""
    hints = get_type_hints(kind)
    fields = {name: FIELDS[name] if name in FIELDS else of_type(hints[name]) for name in kind.__struct_fields__}
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


commands = st.one_of(
    heartbeats(epochs=st.just(0), versions=small),
    heartbeats(epochs=st.integers(-1, 20), versions=small),
    st.builds(Tick, lapsed=st.dictionaries(member_ids, st.just(1), max_size=1), grace=st.booleans()),
    st.integers(0, SHARDS_MAX).map(
        lambda count: Follow(
            topology=Topology(stream_revision=9, shard_count=count, read_set=tuple(range(count)), migration=None)
        )
    ),
)


def one(watch: Watch, group: Group, event: GroupEvent, revision: int) -> tuple[list[str], list[str]]:
    """Apply one event as a revision: what the watch finds, and what there is to find."""
    before = group.draft()
    watch.touch(group, event)
    assert evolve(group, event, key=KEY, revision=revision, at=1) is group
    return list(watch.broken(group)), [*broken(group), *backwards(before, group)]


@pytest.mark.parametrize("kind", EVENTS, ids=lambda kind: kind.__name__)
@settings(max_examples=40)
@given(st.lists(commands, max_size=10), st.data())
def test_the_watch_finds_what_there_is_to_find(
    kind: type[GroupEvent], asked: list[Heartbeat | Tick], data: st.DataObject
) -> None:
    """Nothing along a log that was decided, and something as soon as an event breaks anything."""
    record = Record(KEY, quick=True)
    topology = Topology(stream_revision=1, shard_count=4, read_set=(0, 1, 2, 3), migration=None)
    record.carry_out(CreateGroup(registration=2, topology=topology, how="create", requested_by="ops"))
    watch = Watch()
    for command in asked:
        group = record.state
        assert isinstance(group, Group)
        if isinstance(command, Tick):
            record.leases.update(command.lapsed)
        decided = record.carry_out(command, command.member_id if isinstance(command, Heartbeat) else None)
        replayed = group.draft()
        for event in getattr(decided, "events", ()):
            watch.touch(replayed, event)
            evolve(replayed, event, key=KEY, revision=record.revision, at=record.now)
        assert list(watch.broken(replayed)) == []
    assert isinstance(record.state, Group)
    group = record.state.draft()
    assert list(watch.broken(group)) == []
    event = data.draw(anything(kind))
    if isinstance(event, fact.MemberRejoined):
        event = changed(event, abandoned=tuple(shard for shard in event.abandoned if shard in group.ownership))
    found, there_is = one(watch, group, event, record.revision + 1)
    assert bool(found) == bool(there_is), (found, there_is)


def test_a_look_at_the_whole_finds_what_no_event_pointed_at() -> None:
    record = Record(KEY, quick=True)
    topology = Topology(stream_revision=1, shard_count=4, read_set=(0, 1, 2, 3), migration=None)
    record.carry_out(CreateGroup(registration=2, topology=topology, how="create", requested_by="ops"))
    assert isinstance(record.state, Group)
    group, watch = record.state.draft(), Watch()
    assert list(watch.broken(group)) == []
    group.shard_count = 9
    assert list(watch.broken(group)) == []
    assert len(list(watch.whole(group))) == 1
