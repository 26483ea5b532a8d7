"""The member loop against a scripted coordinator, in real time."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import pairwise
from typing import Any

import pytest

from coord.client import CoordinatorHttp, FatalError, LoopSettings, MemberLoop
from coord.wire import Capacity, ShardProgress
from tests.client.conftest import wait_until
from tests.client.scripted import Call, Reply, ScriptedCoordinator, SmallGroup, answer

FAST = LoopSettings(start_spread_ms=0, first_timeout_ms=500)


class Host:
    """Notes what it is told; drains at once unless `drains` is False."""

    def __init__(self) -> None:
        self.loop: MemberLoop | None = None
        self.drains = True
        self.reading: set[int] = set()
        self.draining: set[int] = set()
        self.told: list[tuple[str, tuple[int, ...], float]] = []

    def _note(self, what: str, shards: frozenset[int]) -> None:
        self.told.append((what, tuple(sorted(shards)), time.monotonic()))

    def on_assign(self, shards: frozenset[int]) -> None:
        self._note("start", shards)
        self.reading |= shards

    def on_revoke(self, shards: frozenset[int]) -> None:
        self._note("drain", shards)
        self.reading -= shards
        self.draining |= shards
        if self.drains and self.loop is not None:
            for shard in shards:
                self.loop.drained(shard)

    def on_lost(self, shards: frozenset[int]) -> None:
        self._note("lost", shards)
        self.reading -= shards
        self.draining -= shards

    def capacity(self) -> Capacity:
        return Capacity(runtime_max_concurrency=4, available_concurrency=3)

    def in_flight(self) -> Mapping[int, int]:
        return dict.fromkeys(self.draining, 2)

    def progress(self) -> Sequence[ShardProgress]:
        return ()

    def when(self, what: str) -> float:
        """When it was last told this."""
        return [at for kind, _, at in self.told if kind == what][-1]


def has_ended(loop: MemberLoop) -> bool:
    return loop.health().state in {"left", "failed"}


Start = Callable[..., tuple[MemberLoop, Host]]


@pytest.fixture
def start(coordinator: ScriptedCoordinator) -> Iterator[Start]:
    """Start a member loop; whatever a test leaves running is ended."""
    begun: list[tuple[MemberLoop, CoordinatorHttp]] = []

    def begin(member_id: str = "m1", settings: LoopSettings = FAST) -> tuple[MemberLoop, Host]:
        host, http = Host(), CoordinatorHttp(coordinator.url)
        host.loop = loop = MemberLoop(
            http, host, stream_prefix="orders", consumer_group="g", member_id=member_id, settings=settings
        )
        begun.append((loop, http))
        loop.start()
        return loop, host

    yield begin
    for loop, http in begun:
        loop.fail(FatalError("TEST_OVER", "the test is over"))
        wait_until(partial(has_ended, loop), "the loop ends")
        http.close()


def shards_0_and_1(call: Call, **other: Any) -> Reply:
    return answer(call, epoch=3, assigned=[0, 1], **other)


FAULTS: dict[str, Callable[[Call], Reply]] = {
    "http-500": lambda _: Reply({}, status=500),
    "http-503": lambda _: Reply({}, status=503, headers={"Retry-After": "30"}),
    "http-429": lambda _: Reply({}, status=429, headers={"Retry-After": "30"}),
    "connection": lambda _: Reply(reset=True),
    "timeout": lambda _: Reply(delay_s=2),
    "body": lambda _: Reply(raw=b"<html>502</html>"),
    "wrong-answer": lambda call: answer(call, responseTo="x"),
    "retry": lambda call: answer(call, status="RETRY", epoch=call.body["memberEpoch"]),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_i1_one_failed_heartbeat_does_not_kill_the_loop(coordinator: ScriptedCoordinator, start: Start, fault: str) -> None:
    """After the fault the next heartbeat follows well within the lease; nothing is dropped; it is counted."""
    lease_s = 10
    coordinator.script = lambda call: (
        FAULTS[fault](call) if len(coordinator.calls) == 3 else shards_0_and_1(call, memberLeaseTtlMs=lease_s * 1000)
    )
    loop, host = start(settings=LoopSettings(start_spread_ms=0, first_timeout_ms=5_000, request_timeout_ms=1_000))
    wait_until(lambda: len(coordinator.calls) >= 5, "heartbeats go on")
    third, fourth = coordinator.calls[2:4]
    assert fourth.at - third.at < lease_s / 2
    assert host.told[0][:2] == ("start", (0, 1))
    assert len(host.told) == 1
    wait_until(lambda: loop.health().failures and loop.health().failures_in_a_row == 0, "it recovers")
    health = loop.health()
    assert health.healthy
    assert health.failures.keys() == {fault}


def test_i3_failed_heartbeats_drop_no_shard_before_the_lease_ends(coordinator: ScriptedCoordinator, start: Start) -> None:
    coordinator.script = lambda call: shards_0_and_1(call) if len(coordinator.calls) == 1 else Reply({}, status=503)
    begun = time.monotonic()
    loop, host = start()
    wait_until(lambda: host.told, "the shards are assigned")
    wait_until(lambda: [t for t in host.told if t[0] == "lost"], "the lease lapses")
    assert host.when("lost") > begun + 0.99, "a lease of a second"
    assert loop.lease.left_ns() < 0
    assert loop.health().state == "joining"
    assert loop.health().lapses == 1


def test_i3_reads_stop_at_send_plus_lease_not_at_reply_plus_lease(coordinator: ScriptedCoordinator, start: Start) -> None:
    """The second heartbeat is accepted, its reply comes a third of the lease later, then nothing is answered any more."""

    def script(call: Call) -> Reply:
        reply = shards_0_and_1(call, memberLeaseTtlMs=2_000)
        reply.delay_s = {1: 0.0, 2: 0.7}.get(len(coordinator.calls), 30.0)
        return reply

    coordinator.script = script
    loop, host = start(settings=LoopSettings(start_spread_ms=0, request_timeout_ms=1_900))
    wait_until(lambda: loop.health().accepted == 2, "the second heartbeat is accepted")
    until_s = loop.lease.until_ns / 1e9
    wait_until(lambda: [t for t in host.told if t[0] == "lost"], "the lease lapses")
    first, second = coordinator.calls[:2]
    assert first.at - 0.002 < until_s - 2 <= second.at, "sent after the first had come, and before the second had"
    assert until_s <= host.when("lost")


def test_i3_after_a_lapse_it_joins_again_and_reads_again(coordinator: ScriptedCoordinator, start: Start) -> None:
    away = threading.Event()
    coordinator.script = lambda call: Reply({}, status=503) if away.is_set() else shards_0_and_1(call)
    _, host = start()
    wait_until(lambda: host.reading, "assigned")
    away.set()
    wait_until(lambda: not host.reading, "lapsed")
    away.clear()
    wait_until(lambda: host.reading == {0, 1}, "assigned again")
    wait_until(lambda: coordinator.calls[-1].body["memberEpoch"] == 3, "it goes on")
    back = next(c for c in reversed(coordinator.calls) if c.body["memberEpoch"] == 0)
    assert back.body["ownedShards"] == []


def test_i6_replies_as_full_sets_start_and_stop_exactly_what_differs(coordinator: ScriptedCoordinator, start: Start) -> None:
    script = [("OK", [0, 1, 2]), ("OK", [0, 1, 2]), ("SYNC_METADATA", [0, 2]), ("REVOKE_PENDING", [0, 2, 3]), ("OK", [0, 2, 3])]

    def reply(call: Call) -> Reply:
        status, assigned = script[min(len(coordinator.calls), len(script)) - 1]
        return answer(call, status=status, epoch=4, assigned=assigned)

    coordinator.script = reply
    _, host = start()
    wait_until(lambda: len(coordinator.calls) > 7, "all is said")
    assert [t[:2] for t in host.told] == [("start", (0, 1, 2)), ("drain", (1,)), ("start", (3,))]
    states = [r["state"] for c in coordinator.calls for r in c.body["revokingShards"]]
    assert states == ["REVOKED"], "said until an answer came, then no more"


def test_a_drain_is_reported_with_what_is_in_flight_until_it_ends(coordinator: ScriptedCoordinator, start: Start) -> None:
    coordinator.script = lambda call: answer(call, epoch=4, assigned=[0, 1] if len(coordinator.calls) == 1 else [0])
    loop, host = start()
    host.drains = False
    wait_until(lambda: len(coordinator.calls) >= 4, "heartbeats go on")
    assert coordinator.calls[3].body["revokingShards"] == [
        {"shard": {"shardIndex": 1}, "state": "DRAINING", "inFlight": 2, "ackedAt": None}
    ]
    before = time.monotonic()
    loop.drained(1)
    wait_until(
        lambda: [c for c in coordinator.calls if any(r["state"] == "REVOKED" for r in c.body["revokingShards"])], "it is reported"
    )
    assert time.monotonic() - before < 10


@pytest.mark.parametrize(
    ("code", "reply"),
    [
        ("UNSUPPORTED_PROTOCOL", lambda call: answer(call, status="UNSUPPORTED_PROTOCOL")),
        ("INVALID_REQUEST", lambda call: answer(call, status="INVALID_REQUEST")),
        ("HTTP_401", lambda _: Reply({}, status=401)),
        ("HTTP_403", lambda _: Reply({}, status=403)),
    ],
)
def test_i7_fatal_answers_are_fatal_and_visible(
    coordinator: ScriptedCoordinator, start: Start, code: str, reply: Callable[[Call], Reply]
) -> None:
    coordinator.script = lambda call: shards_0_and_1(call) if len(coordinator.calls) == 1 else reply(call)
    loop, host = start()
    with pytest.raises(FatalError) as caught:
        loop.wait(30)
    assert caught.value.code == code
    assert host.told[-1][:2] == ("lost", (0, 1))
    assert not loop.health().healthy
    assert loop.health().state == "failed"
    calls = len(coordinator.calls)
    time.sleep(0.3)
    assert len(coordinator.calls) == calls == 2, "no endless retry"


def test_i7_a_host_that_breaks_ends_the_member_and_reaches_its_owner(coordinator: ScriptedCoordinator, start: Start) -> None:
    coordinator.script = shards_0_and_1
    loop, host = start()

    def broken(shards: frozenset[int]) -> None:
        raise RuntimeError(f"cannot read {sorted(shards)}")

    host.on_assign = broken  # type: ignore[method-assign]  # a stand-in
    with pytest.raises(RuntimeError, match="cannot read"):
        loop.wait(30)


def test_a5_an_unknown_group_is_asked_for_once_an_interval_and_joined_when_it_is_there(
    coordinator: ScriptedCoordinator, start: Start
) -> None:
    made = threading.Event()
    coordinator.script = lambda call: (
        shards_0_and_1(call)
        if made.is_set()
        else answer(call, status="UNKNOWN_MEMBER_ID", epoch=0, groupEpoch=0, heartbeatIntervalMs=0, memberLeaseTtlMs=0)
    )
    begun = time.monotonic()
    _, host = start(settings=LoopSettings(start_spread_ms=0, first_interval_ms=100))
    wait_until(lambda: len(coordinator.calls) >= 5, "it asks again and again")
    time.sleep(0.5)
    assert len(coordinator.calls) <= 2 + (time.monotonic() - begun) / 0.1
    made.set()
    wait_until(lambda: host.reading, "it joins")


@pytest.mark.parametrize("status", ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"])
def test_a14_fenced_means_stop_at_once_and_join_with_nothing(coordinator: ScriptedCoordinator, start: Start, status: str) -> None:
    coordinator.script = lambda call: (
        answer(call, status=status, epoch=9) if len(coordinator.calls) == 2 else shards_0_and_1(call)
    )
    _, host = start()
    wait_until(lambda: len(coordinator.calls) >= 3, "it joins again")
    second, third = coordinator.calls[1:3]
    assert third.at - second.at < 5
    assert (third.body["memberEpoch"], third.body["ownedShards"], third.body["revokingShards"]) == (0, [], [])
    wait_until(lambda: [t[0] for t in host.told] == ["start", "lost", "start"], "stopped and started")


def test_a2_a_join_without_an_answer_is_repeated_with_its_request_id(coordinator: ScriptedCoordinator, start: Start) -> None:
    coordinator.script = lambda call: Reply({}, status=500) if len(coordinator.calls) < 4 else shards_0_and_1(call)
    start()
    wait_until(lambda: len(coordinator.calls) >= 5, "it joins")
    joins = [c.body["requestId"] for c in coordinator.calls[:4]]
    assert len(set(joins)) == 1
    assert coordinator.calls[4].body["requestId"] != joins[0]


def test_a7_leaving_while_a_heartbeat_is_in_flight(coordinator: ScriptedCoordinator, start: Start) -> None:
    """The goodbye does not wait for the answer that hangs, and that answer changes nothing."""
    hang = threading.Event()

    def script(call: Call) -> Reply:
        if call.body["memberEpoch"] == -1:
            return answer(call, epoch=-1)
        return Reply(shards_0_and_1(call, memberLeaseTtlMs=60_000).body, delay_s=60 if hang.is_set() else 0)

    coordinator.script = script
    loop, host = start(settings=LoopSettings(start_spread_ms=0, request_timeout_ms=50_000))
    wait_until(lambda: host.reading, "assigned")
    hang.set()
    seen = len(coordinator.calls)
    wait_until(lambda: len(coordinator.calls) > seen, "a heartbeat hangs")
    loop.leave()
    assert loop.wait(20), "well before the answer that hangs"
    goodbyes = [c for c in coordinator.calls if c.body["memberEpoch"] == -1]
    assert goodbyes[-1].body["ownedShards"] == []
    coordinator.released.set()
    time.sleep(0.3)
    assert loop.health().state == "left"
    assert host.reading == set()


def test_a_goodbye_that_nobody_answers_ends_by_itself(coordinator: ScriptedCoordinator, start: Start) -> None:
    gone = threading.Event()
    coordinator.script = lambda call: Reply({}, status=503) if gone.is_set() else answer(call, rebalanceTimeoutMs=100)
    loop, _ = start(settings=LoopSettings(start_spread_ms=0, leave_timeout_ms=300))
    wait_until(lambda: loop.health().healthy, "it is a member")
    gone.set()
    loop.leave()
    assert loop.wait(20)


def test_a11_two_processes_under_one_id_calm_down_by_the_coordinators_answers(
    coordinator: ScriptedCoordinator, start: Start
) -> None:
    """A refused second life (RETRY) waits with back-off and renews nothing."""

    def script(call: Call) -> Reply:
        if len(coordinator.calls) == 1:
            return shards_0_and_1(call)
        if call.body["memberEpoch"] == 0:
            return answer(call, status="RETRY", epoch=0)
        return answer(call, status="FENCED_MEMBER_EPOCH", epoch=9)

    coordinator.script = script
    loop, host = start()
    wait_until(lambda: loop.health().failures.get("retry", 0) > 3, "it is refused again and again")
    time.sleep(1)
    assert len(coordinator.calls) <= 50
    assert host.reading == set()


def test_c6_heartbeats_are_spread_over_the_interval(coordinator: ScriptedCoordinator, start: Start) -> None:
    coordinator.script = shards_0_and_1
    start()
    wait_until(lambda: len(coordinator.calls) >= 20, "twenty heartbeats")
    at = [c.at for c in coordinator.calls]
    gaps = [b - a for a, b in pairwise(at[2:])]
    assert sum(gap < 0.2 for gap in gaps) > len(gaps) / 2
    assert max(gaps) - min(gaps) > 0.005, "not in step"


def test_revoke_before_assign_between_two_loops(coordinator: ScriptedCoordinator, start: Start) -> None:
    group = SmallGroup()
    coordinator.script = group
    group.give(m1=[0, 1])
    _, first = start("m1")
    wait_until(lambda: first.reading == {0, 1}, "m1 reads both")
    _, second = start("m2")
    group.give(m1=[0], m2=[1])
    wait_until(lambda: (first.reading, second.reading) == ({0}, {1}), "one moved")
    assert first.when("drain") < second.when("start")


def test_health_is_a_plain_value(coordinator: ScriptedCoordinator, start: Start) -> None:
    coordinator.script = shards_0_and_1
    loop, _ = start()
    wait_until(lambda: loop.health().accepted >= 1, "accepted")
    health: Any = loop.health()
    assert (health.state, health.assigned, health.draining, health.member_epoch) == ("member", (0, 1), (), 3)
    assert 0 < health.lease_left_ms <= 1_000
    assert health.statuses["OK"] >= 1
