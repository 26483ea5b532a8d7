"""The shell around decisions: clock, cache, executor, ticker, audit trail."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

import pytest
import structlog

from coord.core.commands import Command, RegisterGroup, Tick
from coord.events.catalog import AdminRequest, AdminRequestsSuppressed, MemberExpired
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.refusals import Code, Refused
from coord.runtime import audit, cache
from coord.runtime.cache import Aggregates, Cached
from coord.runtime.clock import JumpDetector, StoreClock
from coord.runtime.executor import Executed
from coord.runtime.groups import TICKER
from coord.runtime.requests import Errand
from coord.store.base import (
    EMPTY_HEAD,
    Commit,
    Committed,
    Conflict,
    CorruptAggregate,
    Due,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
)
from tests.servers import wait_until
from tests.world import World

KEY = GroupKey("orders", "g")
STREAM = StreamKey("orders")
BY_TICK = Errand(actor=TICKER)


def registering(name: str) -> RegisterGroup:
    return RegisterGroup(consumer_group=name, start_from="0", how="create", limit=100)


# -- clock


def test_the_stores_time_goes_on_with_monotonic_time() -> None:
    ns = [0]
    clock = StoreClock(lambda: ns[0])
    key, elsewhere = StreamKey("orders"), GroupKey("orders", "workers")
    with pytest.raises(AssertionError, match="not told"):
        clock.now(key)
    clock.observe(key, 5_000)
    ns[0] += 1_500_000_000
    assert clock.now(key) == 6_500
    clock.observe(key, 6_000)  # the store has the last word
    assert clock.now(key) == 6_000
    clock.observe(elsewhere, 90_000)  # another node of a cluster has a clock of its own
    assert (clock.now(key), clock.now(elsewhere)) == (6_000, 90_000)


@pytest.mark.parametrize(("drift_ms", "jumped"), [(0, False), (1_000, False), (-1_000, False), (1_001, True), (-1_001, True)])
def test_a_jump_of_the_stores_clock_is_noticed(drift_ms: int, jumped: bool) -> None:
    ns = [0]
    detector = JumpDetector(lambda: ns[0])
    assert not detector.jumped(1_000)
    ns[0] += 3_000_000_000
    assert detector.jumped(4_000 + drift_ms) is jumped
    ns[0] += 1_000_000_000
    assert not detector.jumped(5_000 + drift_ms)  # only the difference between two looks counts


# -- cache


def test_the_cache_is_bounded_and_forgets_the_least_recently_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache, "AGGREGATES_MAX", 2)
    world = World()
    clock = StoreClock()
    kept = Aggregates(world.store, clock)
    for name in "abc":
        clock.observe(StreamKey(name), 1)
    seen = Cached(state=None, head=EMPTY_HEAD, identity="s")
    for name in "ab":
        kept.keep(StreamKey(name), seen)
    assert kept.cached(StreamKey("a")) is seen
    kept.keep(StreamKey("c"), seen)
    assert [kept.cached(StreamKey(name)) for name in "abc"] == [seen, None, seen]
    kept.clear()
    assert kept.cached(StreamKey("a")) is None


def test_strangers_names_may_push_out_a_time_and_nothing_breaks(monkeypatch: pytest.MonkeyPatch) -> None:
    """A group whose time is not known any more is read again, instead of being decided on without one."""
    monkeypatch.setattr("coord.runtime.clock.TIMES_MAX", 8)
    world = World()
    world.create()
    world.heartbeat("a")
    for number in range(20):
        world.services.executor.clock.observe(GroupKey("nobody", f"g{number}"), 1)
    assert world.services.executor.aggregates.cached(GroupKey("orders", "g")) is None
    assert world.heartbeat("a").reply.status == "OK"


def test_an_aggregate_of_another_revision_than_its_hash_is_corrupt() -> None:
    world = World()
    world.create(shards=2)
    metadata = world.store.state.records[KEY].metadata
    assert metadata is not None
    bent = metadata.aggregate.replace(b'"storeRevision":1', b'"storeRevision":7')
    world.store.state.records[KEY].metadata = replace(metadata, aggregate=bent)
    with pytest.raises(CorruptAggregate, match="revision 1, the aggregate in it at 7"):
        world.start().executor.aggregates.load(KEY)


def test_a_tombstone_that_is_none_is_corrupt() -> None:
    world = World()
    world.create(shards=2)
    world.store.state.records[KEY].metadata = None
    with pytest.raises(CorruptAggregate, match="without a deletion"):
        world.start().executor.aggregates.load(KEY)


# -- executor


def test_a_lost_compare_and_set_is_decided_again_on_what_the_aggregate_has_become() -> None:
    world = World()
    world.create(shards=2)
    other = world.start("other")

    def overtake(commit: Commit) -> None:
        world.store.before_commit = lambda commit: None
        assert isinstance(other.executor.execute(STREAM, registering("theirs"), BY_TICK), Executed)

    world.store.before_commit = overtake
    assert isinstance(world.services.executor.execute(STREAM, registering("ours"), BY_TICK), Executed)
    assert sorted(world.stream().groups) == ["g", "ours", "theirs"]
    world.verify()


def test_a_refusal_is_judged_on_the_current_state() -> None:
    """What this process remembers would have refused; the store has moved."""
    world = World()
    world.create(shards=2)
    command = replace(registering("h"), limit=1)
    executor = world.services.executor
    assert isinstance(executor.execute(STREAM, command, BY_TICK), Refused)
    assert executor.aggregates.cached(STREAM) is not None
    other = world.start("other")
    deleted = other.admin.delete_group(KEY, force=True, destroy_consumer_groups=False, info=world.request("delete"))
    assert not isinstance(deleted, Refused)
    assert isinstance(executor.execute(STREAM, command, BY_TICK), Executed)


def test_what_keeps_changing_is_given_up_after_a_bound() -> None:
    world = World()
    world.create(shards=2)
    world.store.conflicts_always = True
    refused = world.services.executor.execute(STREAM, registering("h"), BY_TICK)
    assert isinstance(refused, Refused)
    assert refused.code == Code.STATE_VERSION_CONFLICT
    assert sorted(world.stream().groups) == ["g"]


def test_an_unknown_outcome_is_forgotten_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    """Whether it took place is read from the store afterwards, not from what was remembered."""
    world = World()
    world.create(shards=2)
    commit = world.store.commit

    def took_place_unheard(command: Commit) -> Committed | Conflict:
        commit(command)
        raise OutcomeUnknown("no answer")

    monkeypatch.setattr(world.store, "commit", took_place_unheard)
    with pytest.raises(OutcomeUnknown):
        world.services.executor.execute(STREAM, registering("h"), BY_TICK)
    monkeypatch.undo()
    assert world.services.executor.aggregates.cached(STREAM) is None
    again = world.services.executor.execute(STREAM, registering("h"), BY_TICK)
    assert isinstance(again, Executed)
    assert not again.changed


def test_an_expiry_that_finds_a_renewal_is_not_decided_again_by_itself() -> None:
    world = World()
    world.create(shards=1)
    world.settle("a")
    world.sleep(20_000)
    lapsed = dict(world.store.soft(KEY).leases)
    known = world.services.executor.aggregates.load(KEY)
    assert known.state is not None

    def renew(commit: Commit) -> None:
        world.store.before_commit = lambda commit: None
        world.heartbeat("a", epoch=2, owned=[0], services=world.start("other"))

    world.store.before_commit = renew
    outcome = world.services.executor.execute(KEY, Tick(lapsed=lapsed, grace=False), BY_TICK)
    assert isinstance(outcome, Refused)
    assert world.group().members["a"].state == "ACTIVE"


def test_one_aggregate_is_worked_on_by_one_thread_at_a_time() -> None:
    world = World()
    world.create(shards=2)
    inside, most = [0], [0]

    def count(commit: Commit) -> None:
        inside[0] += 1
        most[0] = max(most[0], inside[0])
        threading.Event().wait(0.005)
        inside[0] -= 1

    world.store.before_commit = count
    threads = [
        threading.Thread(target=world.services.executor.execute, args=(STREAM, registering(f"h{place}"), BY_TICK))
        for place in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    assert most == [1]
    assert len(world.stream().groups) == 7


# -- ticker


def test_one_instance_ticks_at_a_time_and_another_takes_over_within_a_quarter_lease() -> None:
    world = World()
    world.create(shards=1)
    other = world.start("other")
    assert world.tick()
    assert not other.ticker.tick()
    world.sleep(world.services.ticker.takeover_ms)
    assert other.ticker.tick()
    assert not world.tick()
    assert world.services.ticker.takeover_ms == 3_750


def test_a_live_member_without_a_lease_gets_a_whole_one() -> None:
    world = World()
    world.create(shards=1)
    world.settle("a")
    world.run(2_000, "a")
    world.store.state.records[KEY].leases.clear()  # lost with a fail-over
    world.run(1_000)
    assert world.store.soft(KEY).leases["a"] == world.clock.now_ms + 15_000
    world.run(14_000)
    assert world.group().members["a"].state == "ACTIVE"
    world.run(3_000)
    assert world.group().members["a"].state == "EXPIRED"


def test_o1_the_loop_survives_everything_and_ends_when_told() -> None:
    world = World()
    world.create(shards=1)
    ticks: list[str] = []

    def tick() -> bool:
        ticks.append(threading.current_thread().name)
        if len(ticks) == 1:
            raise StoreUnavailable("away")
        if len(ticks) == 2:
            raise ZeroDivisionError
        return True

    ticker = world.services.ticker
    ticker._interval_ms = 1
    ticker.tick = tick  # type: ignore[method-assign]  # a stand-in
    with structlog.testing.capture_logs() as logs:
        ticker.start()
        wait_until(lambda: len(ticks) >= 4, what="the loop goes on")
        ticker.stop()
    count = len(ticks)
    assert set(ticks) == {"ticker"}
    assert {log["event"] for log in logs} >= {"tick skipped: the store is away", "tick failed"}
    assert len(ticks) == count
    ticker.stop()


@pytest.mark.parametrize("broken", [StoreUnavailable("away"), CorruptAggregate(KEY, "a gap"), ZeroDivisionError()])
def test_trouble_with_one_group_or_stream_stops_that_one_only(broken: Exception, monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    for group, stream in (("g", "orders"), ("h", "orders"), ("g", "payments")):
        world.create(shards=1, group=group, stream=stream)
        world.heartbeat("dead", group=group, stream=stream)
    world.run(15_000)
    due_many, execute = world.store.due_many, world.services.executor.execute

    def look(keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        found = due_many(keys, lease_ttl_ms=lease_ttl_ms, grace=grace)
        return [broken if key == KEY and isinstance(broken, StoreError) else due for key, due in zip(keys, found, strict=True)]

    def decide(key: AggregateKey, command: Command, errand: Errand) -> Executed | Refused:
        if key == KEY and isinstance(broken, ZeroDivisionError):
            raise broken
        return execute(key, command, errand)

    def step(stream: object) -> object:
        raise broken

    monkeypatch.setattr(world.store, "due_many", look)
    monkeypatch.setattr(world.services.executor, "execute", decide)
    monkeypatch.setattr(world.services.ticker._resharder, "advance", step)
    with structlog.testing.capture_logs() as logs:
        world.run(2_000)
    expired = {str(key) for key, entry in world.recorded() if isinstance(entry.event, MemberExpired)}
    assert expired == {"orders/h", "payments/g"}
    assert {log["event"] for log in logs} & {"groups cannot be ticked", "group cannot be ticked", "group tick failed"}
    monkeypatch.undo()
    world.run(1_000)
    assert [key for key, entry in world.recorded() if isinstance(entry.event, MemberExpired)] == [KEY]


def test_a_stream_that_is_created_while_the_index_is_tidied_stays_in_it(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.store.index_add(STREAM)
    remove = world.store.index_remove

    def create_in_between(key: StreamKey) -> None:
        remove(key)
        monkeypatch.undo()
        world.create(shards=1)
        remove(key)

    monkeypatch.setattr(world.store, "index_remove", create_in_between)
    world.tick()
    assert world.store.streams() == ["orders"]


# -- audit


def audited(world: World, kind: type[AdminRequest | AdminRequestsSuppressed]) -> int:
    return len(world.events(kind))


def test_refusals_beyond_sixty_a_minute_are_counted_and_not_written(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.create(shards=2)
    now = [100.0]
    monkeypatch.setattr("coord.runtime.audit.time.monotonic", lambda: now[0])
    before = audited(world, AdminRequest)
    for _ in range(75):
        world.services.admin.record_refused(KEY, world.request("delete"), outcome="FAILED", status=409, error_code="X")
    assert audited(world, AdminRequest) == before + 60
    assert audited(world, AdminRequestsSuppressed) == 0
    now[0] += 61
    world.services.admin.record_refused(KEY, world.request("delete"), outcome="FAILED", status=409, error_code="X")
    assert audited(world, AdminRequest) == before + 61
    assert [event.count for event in world.events(AdminRequestsSuppressed)] == [15]
    world.verify()


def test_what_names_no_aggregate_is_kept_apart_and_what_cannot_be_stored_is_logged() -> None:
    world = World()
    world.services.admin.record_refused(KEY, world.request("create"), outcome="FAILED", status=404, error_code="X")
    world.services.admin.record_refused(None, world.request("create"), outcome="UNAUTHORIZED", status=401, error_code="X")
    assert len(world.store.state.requests) == 2
    world.store.is_away = True
    with structlog.testing.capture_logs() as logs:
        world.services.admin.record_refused(KEY, world.request("create"), outcome="FAILED", status=404, error_code="X")
    assert [log["log_level"] for log in logs] == ["error"]
    assert logs[0]["entry"]["action"] == "create"


def test_an_entry_finds_its_place_though_the_log_moves(monkeypatch: pytest.MonkeyPatch) -> None:
    world = World()
    world.create(shards=2)
    append, tries = world.store.append, [0]

    def overtaken(*arguments: object, **named: object) -> object:
        tries[0] += 1
        if tries[0] < 3:
            return None
        return append(*arguments, **named)  # type: ignore[arg-type]  # handed on as they came

    monkeypatch.setattr(world.store, "append", overtaken)
    before = audited(world, AdminRequest)
    world.services.admin.record_refused(KEY, world.request("delete"), outcome="FAILED", status=409, error_code="X")
    assert audited(world, AdminRequest) == before + 1
    monkeypatch.setattr(world.store, "append", lambda *_, **__: None)
    world.services.admin.record_refused(KEY, world.request("delete"), outcome="FAILED", status=409, error_code="X")
    assert len(world.store.state.requests) == 1


def test_only_so_many_minutes_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(audit, "WINDOWS_MAX", 2)
    world = World()
    for name in "abc":
        world.create(shards=1, stream=name)
        world.services.admin.record_refused(StreamKey(name), world.request("scale"), outcome="FAILED", status=409, error_code="X")
    assert len(world.services.admin._audit._windows) == 2
