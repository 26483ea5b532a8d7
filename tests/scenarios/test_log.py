"""Scenarios of the section on the event log, snapshots and replay."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from msgspec import json

from coord.events import chain, codec
from coord.events.catalog import MemberPruned
from coord.events.envelope import Entry
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import decode, encode, fold
from coord.runtime.requests import Result
from coord.runtime.verify import verify_aggregate
from coord.store.base import CorruptAggregate
from coord.store.memory_state import Logged, Metadata
from tests.world import World

KEY = GroupKey("orders", "g")
OTHER = GroupKey("payments", "g")
ROOT = Path(__file__).parents[2]


def two_groups() -> World:
    world = World()
    world.create(shards=2)
    world.create(shards=2, stream="payments")
    world.settle("a", "b")
    world.heartbeat("x", stream="payments")
    world.corrupted.add(KEY)
    return world


def metadata_of(world: World) -> Metadata:
    found = world.store.state.records[KEY].metadata
    assert found is not None
    return found


def append_by_hand(world: World, body: bytes) -> None:
    """An entry that no release of ours wrote, chained as it must be, the hash going along."""
    record, metadata = world.store.state.records[KEY], metadata_of(world)
    head = metadata.head
    entry = Entry(revision=head.revision, index=head.last[1] + 1, body=body, chain=chain.link(head.chain, body))
    record.log.append(Logged(entry, ""))
    last = (entry.revision, entry.index)
    record.metadata = replace(metadata, head=replace(head, last=last, chain=entry.chain))


@pytest.mark.parametrize("kind", ["MemberPruned", "MemberPromoted", "corrupt aggregate"])
def test_e4_one_bad_group_does_not_take_down_the_rest(kind: str) -> None:
    world = two_groups()
    last = codec.decode(world.store.tail(KEY, after=(0, 0), limit=10_000)[-1])
    if kind == "corrupt aggregate":
        world.store.state.records[KEY].metadata = replace(metadata_of(world), aggregate=b'{"streamPrefix":"orders"')
    else:
        event = MemberPruned(member_id="nobody")
        body = codec.encode(event, at=last.at, cause=last.cause, prev=last.chain).replace(b"MemberPruned", kind.encode())
        append_by_hand(world, body)
    world.restart()
    world.run(10_000)
    assert world.heartbeat("x", stream="payments").reply.status == "OK"
    assert world.tick()
    listed = world.services.views.groups(None, None)
    assert isinstance(listed, Result)
    states = {group.stream_prefix: group.state for group in listed.value.groups}
    assert states["payments"] == "STABLE"
    report = verify_aggregate(world.store, KEY)
    match kind:
        case "MemberPruned":  # the removal of what is not there changes nothing
            assert report.holds
            assert states["orders"] == "STABLE"
        case "MemberPromoted":
            assert "newer coord" in report.findings[0]
        case _:
            assert states["orders"] == "CORRUPT"
            assert world.services.health().unhealthy_groups == ("orders/g",)
            assert world.heartbeat("a").reply.status == "RETRY"
    assert verify_aggregate(world.store, OTHER).holds


def test_e5_a_newer_schema_is_refused_untouched() -> None:
    world = two_groups()
    bent = replace(metadata_of(world), schema_version=999)
    world.store.state.records[KEY].metadata = bent
    world.restart()
    world.run(10_000)
    assert world.heartbeat("a").reply.status == "RETRY"
    with pytest.raises(CorruptAggregate, match="schema 999"):
        world.services.admin.delete_group(KEY, force=True, destroy_consumer_groups=False, info=world.request("delete"))
    assert metadata_of(world) == bent
    assert world.heartbeat("x", stream="payments").reply.status == "OK"


def test_e5_additive_fields_of_a_later_release_are_tolerated() -> None:
    """In the aggregate as in events; the next commit writes what this release knows."""
    world = two_groups()
    metadata = metadata_of(world)
    stored = json.decode(metadata.aggregate) | {"laterField": {"x": 1}}
    stored["members"]["a"]["laterField"] = [1]
    world.store.state.records[KEY].metadata = replace(metadata, aggregate=json.encode(stored))
    world.restart()
    assert world.heartbeat("a", capacity=9).reply.status == "OK"
    assert b"laterField" not in metadata_of(world).aggregate
    assert verify_aggregate(world.store, KEY).holds


def test_e5_golden_entries_load_commit_and_load_again() -> None:
    """What the first release wrote is what this one goes on from (one fixture a type in tests/unit/events/golden)."""
    golden = ROOT / "tests/unit/events/golden"
    born = (golden / "GroupCreated.v1.json").read_bytes().rstrip(b"\n")
    joined = (golden / "MemberJoined.v1.json").read_bytes().rstrip(b"\n")
    log = [
        codec.decode(Entry(revision=place, index=0, body=body, chain=chain.GENESIS))
        for place, body in enumerate((born, joined), 1)
    ]
    state = fold(None, log, key=KEY)
    assert state is not None
    assert encode(decode(KEY, encode(state))) == encode(state)


TRACE = """
from tests.property.walk import VARIANTS, Walk
walk = Walk(11, VARIANTS["five members, seven shards"], steps=300)
walk.coordinator.record.quick = False
assert walk.run() is None
print(walk.coordinator.record.log[-1].chain, len(walk.coordinator.record.log))
"""


def test_e7_replay_is_deterministic() -> None:
    """One trace of commands gives one log, byte for byte, whatever hash seed, time zone and locale."""
    told: set[str] = set()
    for seed, zone, locale in (("0", "UTC", "C"), ("1", "Pacific/Kiritimati", "C.UTF-8"), ("12345", "America/St_Johns", "POSIX")):
        environ = os.environ | {"PYTHONHASHSEED": seed, "TZ": zone, "LC_ALL": locale}
        run = subprocess.run(
            [sys.executable, "-c", TRACE], cwd=ROOT, env=environ, capture_output=True, text=True, timeout=60, check=True
        )
        told.add(run.stdout)
    assert len(told) == 1
    assert int(told.pop().split()[1]) > 100


def test_e8_order_is_by_revision_and_not_by_time() -> None:
    """Two coordinators whose clocks are an hour apart commit in turn; then the store's own clock goes back."""
    world = World()
    world.create(shards=4)
    ahead = world.start("ahead", ahead_ms=3_600_000)
    for step in range(6):
        world.heartbeat(f"m{step}", services=ahead if step % 2 else None)
    world.clock.now_ms -= 3_600_000
    for step in range(6, 12):
        world.heartbeat(f"m{step}", services=ahead if step % 2 else None)
    log = world.log(KEY)
    assert [entry.revision for entry in log] == sorted(entry.revision for entry in log)
    times = [entry.at for entry in log]
    assert times != sorted(times)
    assert len(world.group().members) == 12
    world.verify()


def test_e9_idle_heartbeats_write_nothing_to_the_log() -> None:
    """Fifty members, ten minutes: not one commit, not one entry; the lease set and the reports keep their size."""
    world = World()
    world.create(shards=50)
    members = [f"m{place:02}" for place in range(50)]
    world.settle(*members)
    world.run(6_000, *members)
    entries, commits, soft = len(world.log(KEY)), world.store.commits, world.store.soft(KEY)
    world.run(600_000, *members)
    assert len(world.log(KEY)) == entries
    assert world.store.commits == commits
    assert len(world.store.soft(KEY).leases) == len(soft.leases) == 50
    assert len(world.store.state.requests) == 0
    assert world.exists(StreamKey("orders"))
