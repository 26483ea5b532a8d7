"""The consumer on a real Redis, with a scripted coordinator."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, cast

import pytest
from redis.client import Monitor

from coord.client import Consumer, Entry, FatalError, LoopSettings, ReaderSettings
from tests.client.conftest import OwnRedis, wait_until
from tests.client.scripted import Call, Reply, ScriptedCoordinator, SmallGroup

FAST_LOOP = LoopSettings(start_spread_ms=0, first_timeout_ms=500)
FAST_READER = ReaderSettings(block_ms=100, retry_backoff_ms=10, sweep_interval_ms=200, redis_backoff_ms_max=200)
GROUP = "billing"


class Shards:
    """The stream `orders` on a real Redis, as a coordinator would have provisioned it."""

    def __init__(self, own: OwnRedis, count: int) -> None:
        self.redis = own.client
        self.count = count
        for shard in range(count):
            self.provision(shard)

    def provision(self, shard: int) -> None:
        self.redis.xgroup_create(f"orders:{shard}", GROUP, id="0", mkstream=True)

    def add(self, shard: int, count: int, **fields: str) -> list[str]:
        added: list[str] = []
        for i in range(count):
            record: dict[Any, Any] = {"n": str(i), **fields}
            added.append(str(self.redis.xadd(f"orders:{shard}", record)))
        return added

    def leave_pending(self, shard: int, count: int, consumer: str) -> None:
        """Deliver entries to a consumer that never acknowledges them."""
        self.redis.xreadgroup(GROUP, consumer, {f"orders:{shard}": ">"}, count=count)

    def pending(self, shard: int) -> int:
        return int(self.redis.xpending(f"orders:{shard}", GROUP)["pending"])


class Work:
    """A handler that notes what it did."""

    def __init__(self, also: Callable[[Entry], None] | None = None) -> None:
        self.ids: list[str] = []
        self.also = also

    def __call__(self, entry: Entry) -> None:
        if self.also is not None:
            self.also(entry)
        self.ids.append(entry.id)

    def did(self, ids: list[str]) -> bool:
        return set(ids) <= set(self.ids)


Run = Callable[..., Consumer]


@pytest.fixture
def group(coordinator: ScriptedCoordinator) -> SmallGroup:
    small = SmallGroup(lease_ms=2_000)
    coordinator.script = small
    return small


@pytest.fixture
def run(coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup) -> Iterator[Run]:
    """Start consumers; what a test leaves running is ended."""
    begun: list[Consumer] = []

    def begin(
        member_id: str, handler: Callable[[Entry], None], *, reader: ReaderSettings = FAST_READER, **other: Any
    ) -> Consumer:
        consumer = Consumer(
            coordinator.url,
            data_redis.url,
            stream_prefix="orders",
            consumer_group=GROUP,
            member_id=member_id,
            handler=handler,
            reader=reader,
            loop=FAST_LOOP,
            **other,
        )
        begun.append(consumer)
        consumer.start()
        return consumer

    yield begin
    for consumer in begun:
        consumer.loop.fail(FatalError("TEST_OVER", "the test is over"))
        with contextlib.suppress(FatalError):
            consumer.wait(30)


def test_records_are_handled_once_and_acknowledged(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    shards, work = Shards(data_redis, 2), Work()
    ids = shards.add(0, 50) + shards.add(1, 50)
    group.give(m1=[0, 1])
    consumer = run("m1", work)
    wait_until(lambda: len(work.ids) == 100, "all handled")
    wait_until(lambda: shards.pending(0) + shards.pending(1) == 0, "all acknowledged")
    assert Counter(work.ids) == Counter(ids)
    row = wait_until(lambda: next((p for p in group.progress["m1"] if p["lastAckedId"] == ids[49]), None), "progress is reported")
    assert row["streamKey"] == "orders:0"
    assert row["lastDeliveredId"] == row["lastAckedId"] == ids[49]
    assert row["pendingCount"] == 0
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", row["updatedAt"])
    assert consumer.health().healthy


def test_g4_pending_entries_whose_records_are_gone_are_cleared(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    """Of an earlier holder and of one's own, trimmed and deleted."""
    shards, work = Shards(data_redis, 1), Work()
    ids = shards.add(0, 20)
    shards.leave_pending(0, 5, "gone")
    shards.leave_pending(0, 5, "m1")
    shards.redis.xdel("orders:0", *ids[:3], *ids[5:8])
    group.give(m1=[0])
    consumer = run("m1", work)
    left = ids[3:5] + ids[8:]
    wait_until(lambda: work.did(left) and shards.pending(0) == 0, "the rest handled, nothing pending")
    assert Counter(work.ids) == Counter(left)
    assert consumer.health().shards[0].bodiless == 6
    more = shards.add(0, 1)
    wait_until(lambda: work.did(more), "it goes on")


def test_g5_what_arrived_before_the_first_read_is_read(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    """The position of the Redis consumer group is the coordinator's; the client neither makes nor moves one."""
    data_redis.client.xadd("orders:0", {"n": "early"})
    work = Work()
    group.give(m1=[0])
    run("m1", work)
    time.sleep(0.3)
    assert data_redis.client.xinfo_groups("orders:0") == []
    data_redis.client.xgroup_create("orders:0", GROUP, id="0")
    wait_until(lambda: len(work.ids) == 1, "the early record is handled")


@pytest.mark.parametrize("loss", ["destroy the group", "delete the stream", "delete while blocked", "flush"])
def test_g6_the_client_heals_from_nogroup_in_place(data_redis: OwnRedis, group: SmallGroup, run: Run, loss: str) -> None:
    shards, work = Shards(data_redis, 1), Work()
    group.give(m1=[0])
    consumer = run("m1", work, reader=ReaderSettings(block_ms=240 if "blocked" in loss else 50))
    wait_until(lambda: work.did(shards.add(0, 1)), "it reads")
    if loss == "destroy the group":
        shards.redis.xgroup_destroy("orders:0", GROUP)
    elif loss == "flush":
        shards.redis.flushall()
    else:
        shards.redis.delete("orders:0")
    wait_until(lambda: consumer.health().shards[0].state == "unprovisioned", "it notices")
    seen, begin = consumer.health().shards[0].redis_errors, time.monotonic()
    time.sleep(1.2)
    errors_per_s = (consumer.health().shards[0].redis_errors - seen) / (time.monotonic() - begin)
    assert errors_per_s <= 2
    health = consumer.health()
    assert not health.healthy
    assert re.search("NOGROUP|UNBLOCKED", health.shards[0].last_error or "")
    assert shards.redis.exists("orders:0") == (1 if loss == "destroy the group" else 0), "no key is made"
    shards.provision(0)
    ids = shards.add(0, 3)
    wait_until(lambda: work.did(ids), "it goes on")
    wait_until(lambda: consumer.health().healthy, "health shows it")


def test_g8_a_member_is_one_redis_consumer_whatever_process_it_is(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    shards, work = Shards(data_redis, 1), Work()
    group.give(m1=[0])
    for _ in range(3):
        consumer = run("m1", work)
        wait_until(lambda: work.did(shards.add(0, 1)), "it reads")
        consumer.stop()
        assert consumer.wait(30)
    assert [c["name"] for c in shards.redis.xinfo_consumers("orders:0", GROUP)] == ["m1"]


def test_g10_a_slow_owner_is_not_robbed_and_robs_nobody(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    """A handler that is slower than any idle time: each entry once; then a hand-over takes only what was released."""
    shards = Shards(data_redis, 1)
    first, second = Work(lambda _: time.sleep(0.05)), Work()
    ids = shards.add(0, 30)
    group.give(m1=[0])
    run("m1", first)
    run("m2", second)
    wait_until(lambda: len(first.ids) >= 12, "m1 is under way")
    group.give(m2=[0])
    wait_until(lambda: len(first.ids) + len(second.ids) >= 30, "all handled")
    wait_until(lambda: shards.pending(0) == 0, "all acknowledged")
    assert Counter(first.ids + second.ids) == Counter(ids), "none twice: released by a drain, not claimed by idle time"
    assert second.ids


@pytest.mark.parametrize("heir", ["m1", "m2"])
def test_g12_pending_from_before_a_restart_is_worked_off_all_pages(
    data_redis: OwnRedis, group: SmallGroup, run: Run, heir: str
) -> None:
    shards, work = Shards(data_redis, 1), Work()
    ids = shards.add(0, 260)
    shards.leave_pending(0, 250, "m1")
    group.give(**{heir: [0]})
    run(heir, work, reader=ReaderSettings(block_ms=100, claim_page=20))
    wait_until(lambda: shards.pending(0) == 0 and len(work.ids) == 260, "all pending and new ones handled")
    assert work.ids == ids, "in order: pending ones first"


def test_g12_entries_that_a_late_read_of_an_earlier_holder_left_are_found(
    data_redis: OwnRedis, group: SmallGroup, run: Run
) -> None:
    shards, work = Shards(data_redis, 1), Work()
    group.give(m2=[0])
    run("m2", work)
    wait_until(lambda: work.did(shards.add(0, 1)), "m2 reads")
    shards.redis.client_pause(150, all=False)  # so that m2's blocked read does not get these first
    with data_redis.client.pipeline(transaction=True) as atomically:
        atomically.xadd("orders:0", {"n": "late"}, id="9999999999999-1")
        atomically.xreadgroup(GROUP, "m1", {"orders:0": ">"})
        atomically.execute()
    wait_until(lambda: "9999999999999-1" in work.ids and shards.pending(0) == 0, "the sweep found it")


def test_g12_a_cut_connection_after_delivery_loses_nothing(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    shards, work = Shards(data_redis, 1), Work(lambda _: time.sleep(0.002))
    group.give(m1=[0])
    run("m1", work)
    ids: list[str] = []
    for _ in range(15):
        ids += shards.add(0, 10)
        shards.redis.client_kill_filter(_type="normal", skipme=True)
        time.sleep(0.03)
    wait_until(lambda: work.did(ids) and shards.pending(0) == 0, "all handled and acknowledged")


def test_g14_a_bad_record_does_not_end_the_reading(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    """One fails once, one always, one is no UTF-8, one lacks its field: the others go on, the failing ones stay pending."""
    shards, tries = Shards(data_redis, 2), Counter[str]()

    def handle(entry: Entry) -> None:
        kind = entry.fields[b"kind"]
        tries[kind.decode("latin-1")] += 1
        if kind == b"always" or (kind == b"once" and tries["once"] == 1):
            raise ValueError(kind)

    work = Work(handle)
    group.give(m1=[0, 1])
    consumer = run("m1", work)
    once = shards.add(0, 1, kind="once")
    always = shards.add(0, 1, kind="always")
    binary = [str(shards.redis.xadd("orders:0", {"kind": b"\xff\xfe\x00"}))]
    missing = shards.add(0, 1)
    good = shards.add(0, 5, kind="good") + shards.add(1, 5, kind="good")
    wait_until(lambda: work.did(once + binary + good), "the good ones are handled")
    wait_until(lambda: shards.pending(0) == 2, "the poisonous ones stay pending")
    assert tries["always"] == FAST_READER.attempts_max
    health = consumer.health()
    assert sorted(health.shards[0].poison_ids) == sorted(always + missing)
    assert health.shards[0].handler_errors == 1 + 2 * FAST_READER.attempts_max
    assert "ValueError" in str(health.shards[0].last_error) or "KeyError" in str(health.shards[0].last_error)
    wait_until(lambda: [p for p in group.progress["m1"] if p["pendingCount"] == 2], "progress shows them")


def test_g14_a_poison_policy_may_put_an_entry_aside(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    shards, aside = Shards(data_redis, 1), list[str]()

    def fail(entry: Entry) -> None:
        raise ValueError(entry.id)

    def keep(entry: Entry, error: Exception) -> bool:
        aside.append(f"{entry.id} {error}")
        return True

    ids = shards.add(0, 2)
    group.give(m1=[0])
    run("m1", fail, reader=ReaderSettings(block_ms=50, attempts_max=1, on_poison=keep))
    wait_until(lambda: len(aside) == 2 and shards.pending(0) == 0, "put aside and acknowledged")
    assert aside == [f"{i} {i}" for i in ids]


def test_g14_redis_restarts_and_the_reading_goes_on(
    tmp_path_factory: pytest.TempPathFactory, coordinator: ScriptedCoordinator, group: SmallGroup
) -> None:
    own = OwnRedis(tmp_path_factory.mktemp("restarting"))
    shards, work = Shards(own, 2), Work()
    group.give(m1=[0, 1])
    consumer = Consumer(
        coordinator.url,
        own.url,
        stream_prefix="orders",
        consumer_group=GROUP,
        member_id="m1",
        handler=work,
        reader=FAST_READER,
        loop=FAST_LOOP,
    )
    consumer.start()
    try:
        wait_until(lambda: work.did(shards.add(0, 1)), "it reads")
        own.stop()
        wait_until(lambda: all(s.state == "redis-away" for s in consumer.health().shards), "health shows it")
        time.sleep(0.5)
        assert consumer.health().member.healthy, "the member lives on"
        own.start()
        ids = shards.add(0, 5) + shards.add(1, 5)
        wait_until(lambda: work.did(ids), "it goes on")
        consumer.stop()
        assert consumer.wait(30)
    finally:
        own.close()


def test_a14_a_consumer_cut_off_from_the_coordinator_stops_touching_redis(
    data_redis: OwnRedis, group: SmallGroup, run: Run
) -> None:
    """Its last read and its last XACK come before another member is granted the shard; on healing it joins again."""
    shards, first, second = Shards(data_redis, 1), Work(lambda _: time.sleep(0.3)), Work()
    shards.add(0, 40)
    group.give(m1=[0])
    cut = threading.Event()
    group.fail = lambda call: Reply({}, delay_s=0.2, reset=True) if cut.is_set() and call.body.get("memberId") == "m1" else None
    one = run("m1", first)
    wait_until(lambda: len(first.ids) >= 2, "m1 works")
    log: list[tuple[float, str]] = []
    watching, wall_ahead_s = threading.Event(), time.time() - time.monotonic()

    def watch() -> None:
        with cast("Callable[[], Monitor]", data_redis.client.monitor)() as monitor:
            watching.set()
            for line in monitor.listen():
                log.append((float(line["time"]) - wall_ahead_s, str(line["command"])))
                if "the end" in str(line["command"]):
                    return

    watcher = threading.Thread(target=watch)
    watcher.start()
    assert watching.wait(30)
    cut.set()
    run("m2", second)
    group.give(m2=[0])
    wait_until(lambda: second.ids, "m2 took over")
    time.sleep(0.5)
    data_redis.client.echo("the end")
    watcher.join(30)
    calls_of_m1 = [at for at, command in log if f"XREADGROUP GROUP {GROUP} m1 " in command]
    claim_of_m2 = next(at for at, command in log if command.startswith("XAUTOCLAIM") and f" {GROUP} m2 " in command)
    acks_before = [at for at, command in log if command.startswith("XACK") and at < claim_of_m2]
    assert acks_before
    assert all(at < group.granted_at[0] + 0.2 for at in [*calls_of_m1, *acks_before])
    assert one.health().member.assigned == ()
    assert one.health().member.lapses == 1
    cut.clear()
    wait_until(lambda: one.health().member.healthy, "m1 joins again")


def test_what_was_read_as_the_lease_ended_is_not_handled_and_stays_pending(
    data_redis: OwnRedis, group: SmallGroup, run: Run
) -> None:
    """Redis answers a read late, after the lease: thrown away. The member joins again, and then the entry is handled."""
    shards, work = Shards(data_redis, 1), Work()
    group.give(m1=[0])
    consumer = run("m1", work, reader=ReaderSettings(block_ms=250))
    wait_until(lambda: work.did(shards.add(0, 1)), "it reads")
    away = threading.Event()
    away.set()
    group.fail = lambda _call: Reply({}, status=503) if away.is_set() else None
    wait_until(lambda: consumer.loop.lease.left_ns() < 250_000_000, "the lease nears its end")
    data_redis.client.client_pause(600, all=False)  # writes wait: the read that hangs now is answered after the lease
    wait_until(lambda: consumer.health().member.lapses == 1, "the lease lapses")
    late = shards.add(0, 1)
    time.sleep(0.3)
    assert not work.did(late)
    away.clear()
    wait_until(lambda: work.did(late) and shards.pending(0) == 0, "handled under the new lease")


def test_a_lease_that_is_renewed_at_the_last_moment_leaves_nothing_behind(
    data_redis: OwnRedis, group: SmallGroup, run: Run
) -> None:
    """A batch thrown away in the lease's last milliseconds is worked off when the lease goes on after all."""
    shards, work = Shards(data_redis, 1), Work()
    group.give(m1=[0])
    consumer = run("m1", work, reader=ReaderSettings(block_ms=200))
    wait_until(lambda: work.did(shards.add(0, 1)), "it reads")
    for _ in range(5):
        lease = consumer.loop.lease
        seen, lease.until_ns = lease.until_ns, 0  # over, for the readers ...
        before = consumer.health().shards[0].discarded
        ids = shards.add(0, 2)
        wait_until(lambda b=before, held=lease: consumer.health().shards[0].discarded > b or held.until_ns, "read")  # type: ignore[misc]  # bound at once
        if lease.until_ns == 0:
            lease.until_ns = seen  # ... and renewed
        wait_until(partial(work.did, ids), "handled")
    wait_until(lambda: shards.pending(0) == 0, "acknowledged")
    assert consumer.health().shards[0].discarded > 0
    assert consumer.health().member.lapses == 0


@pytest.mark.alone
def test_i2_handlers_do_not_starve_heartbeats(coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup) -> None:
    """Four at once for two leases: asleep, spinning, in slow expressions, in a blocked read. No gap of half a lease.

    In a process of its own, so that the scripted coordinator does not compete for the same interpreter.
    """
    group.set_lease(2_500)
    shards = Shards(data_redis, 4)
    for shard in range(3):
        shards.add(shard, 1)
    group.give(m1=[0, 1, 2, 3])
    command = [sys.executable, "-m", "tests.client.hog", coordinator.url, data_redis.url, "5"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdin is not None
            assert [process.stdout.readline() for _ in range(3)] == ["done\n"] * 3
            at = [c.at for c in coordinator.heartbeats()]
            assert at[-1] - at[0] > 4.5
            assert max(b - a for a, b in pairwise(at)) < 1.25
            process.stdin.close()
            assert process.stdout.readline() == "0\n", "no lease lapsed"
        finally:
            process.kill()


def test_concurrency_bounds_the_handlers_of_all_shards(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    shards, running, most = Shards(data_redis, 4), [0], [0]
    lock = threading.Lock()

    def count(_entry: Entry) -> None:
        with lock:
            running[0] += 1
            most[0] = max(most[0], running[0])
        time.sleep(0.02)
        with lock:
            running[0] -= 1

    work = Work(count)
    for shard in range(4):
        shards.add(shard, 5)
    group.give(m1=[0, 1, 2, 3])
    run("m1", work, concurrency=2)
    wait_until(lambda: len(work.ids) == 20, "all handled")
    assert most[0] == 2


def test_i9_stopping_drains_acknowledges_and_leaves(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis, group: SmallGroup, run: Run
) -> None:
    shards, work = Shards(data_redis, 2), Work(lambda _: time.sleep(0.02))
    shards.add(0, 100)
    group.give(m1=[0, 1])
    consumer = run("m1", work)
    wait_until(lambda: len(work.ids) > 3, "it works")
    consumer.stop()
    assert consumer.wait(30)
    assert shards.pending(0) == 0, "what was read was handled and acknowledged"
    assert len(work.ids) < 100
    last = coordinator.heartbeats()[-1].body
    assert (last["memberEpoch"], last["ownedShards"]) == (-1, [])
    assert all(r["state"] == "REVOKED" for r in last["revokingShards"])
    assert group.holder == {}


def test_i5_every_assigned_shard_is_read_after_each_of_many_rebalances(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    shards, works = Shards(data_redis, 4), {m: Work() for m in ("m1", "m2")}
    for member, work in works.items():
        run(member, work, reader=ReaderSettings(block_ms=20))

    def handled() -> int:  # counted: records of two shards may have one id
        return sum(len(work.ids) for work in works.values())

    added = 0
    for turn in range(8):
        group.give(m1=[s for s in range(4) if s % 2 == turn % 2], m2=[s for s in range(4) if s % 2 != turn % 2])
        added += sum(len(shards.add(shard, 3)) for shard in range(4))
        wait_until(lambda count=added: handled() >= count, f"turn {turn}")  # type: ignore[misc]  # bound at once
    wait_until(lambda: sum(shards.pending(s) for s in range(4)) == 0, "all acknowledged")
    assert handled() == added, "none twice"


def test_a_shard_that_comes_back_waits_for_its_earlier_handler(data_redis: OwnRedis, group: SmallGroup, run: Run) -> None:
    """A handler outlives its tenancy: its entry is not acknowledged by it, and handled again only after it returned."""
    shards, hold, running, overlap = Shards(data_redis, 1), threading.Event(), [0], [0]

    def slow(_entry: Entry) -> None:
        running[0] += 1
        overlap[0] = max(overlap[0], running[0])
        hold.wait(60)
        running[0] -= 1

    work = Work(slow)
    group.give(m1=[0])
    ids = shards.add(0, 1)
    fence = threading.Event()

    def fail(call: Call) -> Reply | None:
        if fence.is_set() and call.body["memberEpoch"] > 0:
            fence.clear()
            group.leases.clear()
        return None

    group.fail = fail
    consumer = run("m1", work)
    wait_until(lambda: running[0] == 1, "the handler runs")
    fence.set()
    wait_until(lambda: consumer.health().member.statuses.get("FENCED_MEMBER_EPOCH"), "fenced")
    wait_until(lambda: consumer.health().member.assigned == (0,), "assigned again")
    time.sleep(0.2)
    assert consumer.health().shards[0].state == "waiting"
    assert not consumer.health().healthy
    hold.set()
    wait_until(lambda: work.ids == ids * 2 and shards.pending(0) == 0, "handled again by the new tenancy")
    assert overlap[0] == 1


@pytest.mark.parametrize(("field", "value"), [("stream_prefix", "a/b"), ("consumer_group", ""), ("member_id", "{x}")])
def test_illegal_names_are_refused_by_name(field: str, value: str) -> None:
    names: dict[str, Any] = {"stream_prefix": "orders", "consumer_group": "g", "member_id": "m", field: value}
    with pytest.raises(ValueError, match=field):
        Consumer("http://127.0.0.1:1/coord/v1", "redis://127.0.0.1:1", handler=Work(), **names)
