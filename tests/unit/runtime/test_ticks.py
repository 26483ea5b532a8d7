"""What a tick looks at, and when: many groups take turns, and nothing that time brings is late for it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise

import pytest

from coord.bootstrap import Services
from coord.core.commands import RegisterGroup
from coord.events.catalog import (
    CorrectionEnded,
    CorrectionStarted,
    GroupCreated,
    MemberExpired,
    MemberFenced,
    RevocationRequested,
)
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.groups import TICKER
from coord.runtime.requests import Errand
from coord.runtime.watches import look_within_ms
from coord.store.base import Due, Loaded, StoreError
from tests.world import World

KEY = GroupKey("orders", "g")
LEASE_MS, TICK_MS = 15_000, 1_000
GROUPS = tuple(f"g{place}" for place in range(7))


def taking_turns(services: Services) -> Services:
    """Let a process treat its few groups as it would treat thousands."""
    services.ticker.watches.each_tick_max = 0
    return services


@pytest.fixture
def world() -> World:
    world = World()
    for group in GROUPS:
        world.create(shards=3, group=group)
        world.settle("a", "b", group=group)
    taking_turns(world.services)
    return world


class Watched:
    """The looks and loads of a store, by time."""

    def __init__(self, world: World, monkeypatch: pytest.MonkeyPatch) -> None:
        self.looks: list[tuple[int, str]] = []
        self.loads: list[AggregateKey] = []
        self._world = world
        self._due_many, self._load = world.store.due_many, world.store.load
        monkeypatch.setattr(world.store, "due_many", self.due_many)
        monkeypatch.setattr(world.store, "load", self.load)

    def due_many(self, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        self.looks += [(self._world.clock.now_ms, key.consumer_group) for key in keys]
        return self._due_many(keys, lease_ttl_ms=lease_ttl_ms, grace=grace)

    def load(self, key: AggregateKey) -> Loaded:
        self.loads.append(key)
        return self._load(key)

    def gaps(self, group: str) -> Iterator[int]:
        times = [at for at, name in self.looks if name == group]
        return (later - sooner for sooner, later in pairwise(times))


def beat(world: World, groups: Iterable[str], *members: str, services: Services | None = None) -> None:
    for group in groups:
        for member in members:
            world.heartbeat(member, group=group, services=services)


def test_many_groups_take_turns_and_none_waits_longer_than_the_bound(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    for _ in range(8):
        world.sleep(2 * TICK_MS)
        beat(world, GROUPS, "a", "b")
        world.tick()  # until the first grace is over, which ends for all at once
    watched = Watched(world, monkeypatch)
    for second in range(30):
        world.sleep(TICK_MS)
        if second % 3 == 0:
            beat(world, GROUPS, "a", "b")
        before = len(watched.looks)
        world.tick()
        assert 3 <= len(watched.looks) - before <= 4
    bound_ms = look_within_ms(world.services.policy) + TICK_MS // 2
    assert bound_ms < LEASE_MS / 4
    for group in GROUPS:
        assert max(watched.gaps(group)) <= bound_ms
    assert watched.loads == []


def test_few_groups_are_all_looked_at_in_every_tick_and_none_is_read(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.create(shards=2)
    world.settle("a")
    world.run(3_000, "a")
    watched = Watched(world, monkeypatch)
    world.run(12_000, "a")
    assert set(watched.gaps("g")) == {TICK_MS}
    assert watched.loads == []


def test_a_lease_that_lapses_is_acted_on_in_the_next_tick(world: World) -> None:
    """Whosever turn it is; each group's ends in another second."""
    for group in GROUPS:
        world.heartbeat("b", group=group)
        beat(world, GROUPS, "a")
        for _ in range(2):
            world.sleep(TICK_MS)
            world.tick()
    for _ in range(LEASE_MS // TICK_MS + 2):
        world.sleep(TICK_MS)
        beat(world, GROUPS, "a")
        world.tick()
    for group in GROUPS:
        (expired,) = [e for e in world.log(GroupKey("orders", group)) if isinstance(e.event, MemberExpired)]
        assert isinstance(expired.event, MemberExpired)
        assert 0 < expired.at - expired.event.lease_deadline_at <= TICK_MS


def test_a_deadline_that_another_process_sets_is_acted_on_in_time(world: World) -> None:
    """Its commit is seen within the bound, long before what it makes due; then the time is known."""
    other = world.start("other")
    world.drains = {"a": (0, 1, 2), "b": (0, 1, 2)}  # whoever is asked for a shard never lets go
    for group in GROUPS:
        world.heartbeat("c", group=group, services=other)
        world.sleep(TICK_MS)
        world.tick()
    for second in range(75):
        world.sleep(TICK_MS)
        if second % 3 == 0:
            beat(world, GROUPS, "a", "b", "c", services=other)
        world.tick()
    for group in GROUPS:
        log = world.log(GroupKey("orders", group))
        fenced = next(e for e in log if isinstance(e.event, MemberFenced))
        asked = [e.event for e in log if isinstance(e.event, RevocationRequested) and e.at < fenced.at]
        assert isinstance(fenced.event, MemberFenced)
        assert fenced.event.reason == "REBALANCE_TIMEOUT"
        assert 0 <= fenced.at - asked[-1].deadline_at <= TICK_MS


def test_a_store_that_is_another_one_is_noticed_within_the_bound_and_its_round_ends_in_time(world: World) -> None:
    world.sleep(TICK_MS)
    world.store.store_identity = "store-2"
    changed_at = world.clock.now_ms
    for _ in range(30):
        world.tick()
        world.sleep(TICK_MS)
    for group in GROUPS:
        log = world.log(GroupKey("orders", group))
        (begun,) = [e for e in log if isinstance(e.event, CorrectionStarted)]
        (ended,) = [e for e in log if isinstance(e.event, CorrectionEnded)]
        assert isinstance(begun.event, CorrectionStarted)
        assert begun.at - changed_at <= 2 * TICK_MS
        assert 0 < ended.at - begun.event.until <= TICK_MS


def test_who_takes_over_looks_at_all_at_once_and_begins_no_grace(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    """The pause until it may take over, and the rest that the other one had given a group, stay below half a lease."""
    other = taking_turns(world.start("other"))
    beat(world, GROUPS, "a", "b")
    for second in range(4):
        world.sleep(TICK_MS)
        if second == 1:
            beat(world, GROUPS, "a")
        world.tick()
        assert not other.ticker.tick()
    watched = Watched(world, monkeypatch)
    while not other.ticker.tick():
        world.sleep(TICK_MS)
    assert sorted(name for _, name in watched.looks) == sorted(GROUPS)
    for second in range(LEASE_MS // TICK_MS):
        world.sleep(TICK_MS)
        if second % 3 == 0:
            beat(world, GROUPS, "a", services=other)
        other.ticker.tick()
    for group in GROUPS:
        (expired,) = [e for e in world.log(GroupKey("orders", group)) if isinstance(e.event, MemberExpired)]
        assert isinstance(expired.event, MemberExpired)
        late_ms = expired.at - expired.event.lease_deadline_at
        assert 0 < late_ms < LEASE_MS / 2, "what nobody watched is added to a lease of before"


def test_who_takes_over_after_a_jump_expires_nobody_early() -> None:
    """The clock jumps by less than starts a grace, just before another instance takes over, which has not seen it."""
    world = World()
    world.create(shards=2)
    world.settle("a", "b")
    world.run(20_000, "a", "b")
    other = world.start("other")
    assert not other.ticker.tick()
    world.heartbeat("a")
    world.heartbeat("b")
    renewed_ms = world.clock.monotonic_ms
    world.clock.now_ms += 5_000
    while not other.ticker.tick():
        world.sleep(TICK_MS)
    lasts = world.clock.monotonic_ms - renewed_ms
    while not world.events(MemberExpired):
        world.sleep(TICK_MS)
        world.heartbeat("b", services=other)
        other.ticker.tick()
        lasts = world.clock.monotonic_ms - renewed_ms
        assert lasts < 3 * LEASE_MS
    assert {event.member_id for event in world.events(MemberExpired)} == {"a"}
    assert lasts >= LEASE_MS, "a's own lease runs from its last heartbeat, by its own clock"
    world.verify()


def test_groups_that_nothing_is_known_of_are_read_over_some_ticks_and_what_is_due_is_not_kept_waiting(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    other = taking_turns(world.start("other"))
    aggregates = other.executor.aggregates
    read = aggregates.read
    reads: list[AggregateKey] = []

    def slow(key: AggregateKey) -> object:
        reads.append(key)
        world.clock.sleep(100)
        return read(key)

    monkeypatch.setattr(aggregates, "read", slow)
    beat(world, GROUPS, "a", "b")
    for _ in range(12):
        world.sleep(TICK_MS)
        world.tick()
    lapsing = GROUPS[-1]
    beat(world, GROUPS[:-1], "a", "b")
    world.sleep(4 * TICK_MS)
    known: list[int] = []
    while len(known) < 8:
        before = len(reads)
        assert other.ticker.tick()
        known.append(len(reads) - before)
        if len(known) == 1:
            assert reads[1] == GroupKey("orders", lapsing), "the stream, and then what is due"
        world.sleep(TICK_MS)
    assert {m.state for m in world.group(lapsing).members.values()} == {"EXPIRED"}
    assert 0 < max(known[1:]) <= 4
    assert set(reads) == {StreamKey("orders"), *(GroupKey("orders", group) for group in GROUPS)}


def test_a_group_that_others_register_is_completed_though_it_is_nobodys_turn(world: World) -> None:
    other = world.start("other")
    command = RegisterGroup(consumer_group="new", start_from="0", how="create", limit=100)
    other.executor.execute(StreamKey("orders"), command, Errand(actor=TICKER))
    registered_at = world.clock.now_ms
    for _ in range(LEASE_MS // TICK_MS + 1):
        world.sleep(TICK_MS)
        world.tick()
    (created,) = world.log(GroupKey("orders", "new"))
    assert isinstance(created.event, GroupCreated)
    assert created.at - registered_at <= LEASE_MS + TICK_MS


def test_a_deleted_group_is_looked_at_no_more(world: World, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = GroupKey("orders", GROUPS[0])
    world.services.admin.delete_group(gone, force=True, destroy_consumer_groups=False, info=world.request("delete"))
    world.sleep(TICK_MS)
    world.tick()
    watched = Watched(world, monkeypatch)
    for _ in range(5):
        world.sleep(TICK_MS)
        world.tick()
    assert GROUPS[0] not in {name for _, name in watched.looks}
