"""The past, from the nearest snapshot: as the whole log tells it, wherever snapshots are, and reading no more than it must."""

from __future__ import annotations

from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from coord.config.schema import Events
from coord.events import codec
from coord.names import GroupKey
from coord.projections.aggregate import fold
from coord.runtime import history
from coord.runtime.history import NoSuchRevision, state_at
from coord.store.base import CorruptAggregate
from coord.store.memory_state import Logged
from tests.world import CONFIG, World

KEY = GroupKey("orders", "g")


def a_world(snapshot_every: int) -> World:
    """A group that lives, is deleted, and lives again."""
    world = World(changed(CONFIG, events=Events(snapshot_every=snapshot_every)))
    world.create(shards=4)
    world.settle("a", "b")
    world.heartbeat("b", epoch=-1, owned=[])
    world.settle("a")
    world.services.admin.delete_group(KEY, force=True, destroy_consumer_groups=False, info=world.request("delete"))
    world.run(60_000)
    world.create(shards=4)
    world.settle("c")
    return world


@pytest.mark.parametrize("snapshot_every", [1, 3, 1_000])
@pytest.mark.parametrize("span", [1, 2, 1_000])
def test_every_revision_is_as_the_whole_log_tells_it(monkeypatch: pytest.MonkeyPatch, snapshot_every: int, span: int) -> None:
    monkeypatch.setattr(history, "SPAN_FIRST", span)
    world = a_world(snapshot_every)
    entries = [logged.entry for logged in world.store.state.records[KEY].log]
    last = entries[-1].revision
    states = []
    for revision in range(1, last + 1):
        told = fold(None, [codec.decode(entry) for entry in entries if entry.revision <= revision], key=KEY)
        assert state_at(world.store, KEY, revision) == told
        states.append(told)
    assert None in states
    assert states[-1] is not None
    for revision in (-1, 0, last + 1, last + 5_000):
        with pytest.raises(NoSuchRevision):
            state_at(world.store, KEY, revision)


def test_what_was_trimmed_is_not_made_up() -> None:
    """What lies before the first snapshot that is left is gone; what follows it is there."""
    world = a_world(snapshot_every=3)
    log = world.store.state.records[KEY].log
    first = next(place for place, logged in enumerate(log) if logged.entry.body.startswith(b'{"type":"Snapshot"'))
    kept, revision = state_at(world.store, KEY, 5), log[first].entry.revision
    assert 1 < revision < 5
    del log[:first]
    assert state_at(world.store, KEY, 5) == kept
    with pytest.raises(NoSuchRevision):
        state_at(world.store, KEY, revision - 1)
    del log[0]
    with pytest.raises(NoSuchRevision):
        state_at(world.store, KEY, 5)


def test_no_more_is_read_than_lies_between_the_snapshot_and_the_revision(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(history, "SPAN_FIRST", 4)
    world = World(changed(CONFIG, events=Events(snapshot_every=8)))
    world.create(shards=4)
    for capacity in range(1, 200):
        world.heartbeat("a", capacity=capacity)
    revision = world.group().store_revision
    assert revision > 150
    read: list[int] = []
    tail = world.store.tail

    def counted(key: GroupKey, *, after: tuple[int, int], limit: int) -> object:
        page = tail(key, after=after, limit=16)
        read.extend(entry.revision for entry in page)
        return page

    monkeypatch.setattr(world.store, "tail", counted)
    assert state_at(world.store, KEY, revision - 60) is not None
    assert len(read) < 100
    assert min(read) > revision - 60 - 24


@pytest.mark.parametrize("damage", [b"{", b'{"type":"Snapshot",'])
def test_an_unreadable_entry_says_so(damage: bytes) -> None:
    world = a_world(snapshot_every=1_000)
    log = world.store.state.records[KEY].log
    log[2] = Logged(replace(log[2].entry, body=damage), "c")
    with pytest.raises(CorruptAggregate, match="is unreadable"):
        state_at(world.store, KEY, 5)
