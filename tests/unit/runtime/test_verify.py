"""What `verify` finds: each kind of damage is planted and named, and a sound log of any kind is sound."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from msgspec.structs import replace as changed

from coord.config.schema import Events
from coord.events import chain, codec
from coord.events.catalog import ShardsGranted, Snapshot
from coord.events.envelope import Entry
from coord.names import GroupKey
from coord.runtime.verify import FINDINGS_MAX, Report, verify_aggregate, verify_all
from coord.store.memory_state import Logged, Record
from tests.world import CONFIG, World

KEY = GroupKey("orders", "g")


def a_world(snapshot_every: int = 1_000) -> World:
    world = World(changed(CONFIG, events=Events(snapshot_every=snapshot_every)))
    world.create(shards=4)
    world.settle("a", "b")
    world.heartbeat("b", epoch=-1, owned=[])
    world.settle("a")
    return world


def record_of(world: World) -> Record:
    return world.store.state.records[KEY]


def rewrite_log(world: World, bodies: list[bytes]) -> None:
    """Chain these bodies anew, in the places that they had, and let the head go along."""
    record, last = record_of(world), chain.GENESIS
    for place, body in enumerate(bodies):
        last = chain.link(last, body)
        logged = record.log[place]
        record.log[place] = Logged(replace(logged.entry, body=body, chain=last), logged.commit_id)
    assert record.metadata is not None
    record.metadata = replace(record.metadata, head=replace(record.metadata.head, chain=last))


def bodies_of(world: World) -> list[bytes]:
    return [logged.entry.body for logged in record_of(world).log]


def change_event(world: World, find: bytes, to: bytes) -> None:
    """Forge an entry, and the chain after it: the fold tells."""
    bodies: list[bytes] = []
    last = chain.GENESIS
    for body in bodies_of(world):
        forged = body.replace(find, to)
        envelope = codec.decode(Entry(revision=1, index=0, body=forged, chain=""))
        bodies.append(codec.encode(envelope.event, at=envelope.at, cause=envelope.cause, prev=last))
        last = chain.link(last, bodies[-1])
    rewrite_log(world, bodies)


def cut_chain(world: World) -> None:
    record = record_of(world)
    record.log[3] = Logged(replace(record.log[3].entry, chain="00" * 32), record.log[3].commit_id)


def drop_entry(world: World) -> None:
    del record_of(world).log[3]


def drop_first(world: World) -> None:
    del record_of(world).log[0]


def unreadable(world: World) -> None:
    record = record_of(world)
    record.log[3] = Logged(replace(record.log[3].entry, body=b"{"), record.log[3].commit_id)


def unknown_event(world: World) -> None:
    record = record_of(world)
    body = record.log[3].entry.body.replace(b'"v":1', b'"v":9')
    record.log[3] = Logged(replace(record.log[3].entry, body=body), record.log[3].commit_id)


def forged_aggregate(world: World) -> None:
    record = record_of(world)
    assert record.metadata is not None
    record.metadata = replace(record.metadata, aggregate=record.metadata.aggregate.replace(b'"epoch":', b'"epoch":1'))


def no_aggregate(world: World) -> None:
    record_of(world).metadata = None


DAMAGE: dict[str, Callable[[World], None]] = {
    "the chain is broken": cut_chain,
    "entries are missing": drop_entry,
    "is no snapshot: revision": drop_first,
    "is unreadable": unreadable,
    "newer coord is needed": unknown_event,
    "the fold differs from the stored aggregate: at byte": forged_aggregate,
    "its log ends without a deletion": no_aggregate,
    "against the target": lambda world: change_event(world, b'"moves":{"b":[2,3]}', b'"moves":{"a":[2,3]}'),
}


def test_a_sound_log_is_sound() -> None:
    world = a_world()
    reports = {str(report.key): report for report in verify_all(world.store)}
    assert reports.keys() == {"orders", "orders/g"}
    assert all(report.holds for report in reports.values())
    assert reports["orders/g"].revision == world.group().store_revision
    assert reports["orders/g"].entries == len(world.log(KEY))


@pytest.mark.parametrize("finding", DAMAGE)
def test_damage_is_found_and_named(finding: str) -> None:
    world = a_world()
    DAMAGE[finding](world)
    report = verify_aggregate(world.store, KEY)
    assert not report.holds
    assert any(finding in found for found in report.findings), report.findings


def test_a_trimmed_log_begins_with_its_snapshot() -> None:
    world = a_world(snapshot_every=3)
    record = record_of(world)
    first = next(place for place, body in enumerate(bodies_of(world)) if b'"type":"Snapshot"' in body)
    del record.log[:first]
    report = verify_aggregate(world.store, KEY)
    assert report.holds, report.findings
    assert report.first_revision == 3
    del record.log[0]
    assert "revision 3 is missing" in str(verify_aggregate(world.store, KEY).findings)


@pytest.mark.parametrize("trimmed", [True, False])
def test_a_snapshot_that_is_not_the_fold_is_found(trimmed: bool) -> None:
    world = a_world(snapshot_every=3)
    change_event(world, b'"aggregate":{"streamPrefix":"orders"', b'"aggregate":{"streamPrefix":"orderz"')
    if trimmed:
        record = record_of(world)
        del record.log[: next(i for i, body in enumerate(bodies_of(world)) if b'"type":"Snapshot"' in body)]
        first = codec.decode(record.log[0].entry).event
        assert isinstance(first, Snapshot)
        assert verify_aggregate(world.store, KEY).findings  # it starts from a forged state
    else:
        assert "snapshot differs from the fold" in verify_aggregate(world.store, KEY).findings[0]


def test_a_snapshot_that_cannot_be_read_is_found() -> None:
    world = a_world(snapshot_every=3)
    change_event(world, b'"aggregate":{"streamPrefix":"orders",', b'"aggregate":{')
    record = record_of(world)
    del record.log[: next(i for i, body in enumerate(bodies_of(world)) if b'"type":"Snapshot"' in body)]
    findings = verify_aggregate(world.store, KEY).findings
    assert any("unreadable" in finding or "chain" in finding for finding in findings)


def test_a_commit_that_lands_meanwhile_is_read_too() -> None:
    world = a_world()
    calls: list[GroupKey] = []
    load = world.store.load

    def commit_before(key: GroupKey) -> object:
        if not calls:
            calls.append(key)
            world.heartbeat("late")
        return load(key)

    world.store.load = commit_before  # type: ignore[method-assign,assignment]  # a stand-in
    report = verify_aggregate(world.store, KEY)
    assert report.holds, report.findings
    assert report.revision == world.group().store_revision


def test_a_stream_that_cannot_be_read_hides_nothing() -> None:
    world = a_world()
    record = world.store.state.records[KEY.stream]
    assert record.metadata is not None
    record.metadata = replace(record.metadata, aggregate=b"{")
    reports = list(verify_all(world.store))
    assert [report.holds for report in reports] == [False]


def test_findings_have_a_bound() -> None:
    report = Report(key=KEY)
    for place in range(50):
        report.add(str(place))
    assert len(report.findings) == FINDINGS_MAX


def test_a_grant_to_nobody_is_found() -> None:
    """An entry that no decision writes: it folds, and breaks an invariant."""
    world = a_world()
    last = codec.decode(record_of(world).log[-1].entry)
    event = ShardsGranted(member_id="x", member_epoch=99, shards=(7,))
    entries = codec.seal((event,), revision=last.revision, first=last.index + 1, at=last.at, cause=last.cause, prev=last.chain)
    head = world.store.load(KEY).head
    assert world.store.append(KEY, expected=head, entries=entries) is not None
    findings = verify_aggregate(world.store, KEY).findings
    assert any("which is no member" in finding for finding in findings)
