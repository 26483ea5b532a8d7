"""Members of one process share requests: each gets its own answer, its own failure and its own lease."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest

from coord.client import (
    Consumer,
    CoordinatorError,
    CoordinatorHttp,
    Credentials,
    FatalError,
    HeartbeatBatcher,
    LoopSettings,
    MemberLoop,
    RetriableError,
)
from coord.client.trace import now_ns
from coord.wire import Capacity, HeartbeatRequest, HeartbeatResponse
from tests.client.conftest import OwnRedis, wait_until
from tests.client.scripted import Call, Reply, ScriptedCoordinator, SmallGroup, alone, answer, answer_each
from tests.client.test_member_loop import Host, has_ended

NAMES = ["a", "b", "c", "d"]
LONG_MS = 10_000
"""A window that ends because everybody has come, or not within the test."""


def body_of(member: str, request_id: str | None = None) -> HeartbeatRequest:
    return HeartbeatRequest(
        protocol_version=1,
        request_id=request_id or f"request of {member}",
        member_id=member,
        member_epoch=0,
        metadata_version=0,
        runtime_consumer_capacity=Capacity(runtime_max_concurrency=1, available_concurrency=1),
    )


def served(call: Call) -> Reply:
    """Answer as a coordinator that knows lists; each member's epoch is its own."""
    if call.path.endswith("/heartbeats"):
        return answer_each(call, served)
    return answer(call, epoch=ord(call.body["memberId"][0]))


def error(status: int, code: str) -> Reply:
    return Reply({"status": "X", "errorCode": code, "message": "no", "requestId": None, "details": []}, status=status)


class Together:
    """A batcher whose members ask at the same time, each from a thread of its own."""

    def __init__(self, url: str, *, window_ms: int = LONG_MS, credentials: Credentials | None = None) -> None:
        self.http = CoordinatorHttp(url, credentials=credentials)
        self.batcher = HeartbeatBatcher(self.http, window_ms=window_ms)
        self.threads = ThreadPoolExecutor(max_workers=300)
        self.called: list[str] = []

    def add(self, *members: str, group: str = "g") -> None:
        for member in members:
            self.batcher.add("orders", group, member, partial(self.called.append, member))

    def send(
        self, member: str, *, group: str = "g", timeout_ms: int = 30_000, request_id: str | None = None
    ) -> Future[HeartbeatResponse]:
        body = body_of(member, request_id)
        return self.threads.submit(self.batcher.heartbeat, "orders", group, body, timeout_ms=timeout_ms)

    def sent(self, *members: str) -> dict[str, HeartbeatResponse | CoordinatorError]:
        """What each got, when all have sent."""
        pending = {member: self.send(member) for member in members}
        outcomes: dict[str, HeartbeatResponse | CoordinatorError] = {}
        for member, each in pending.items():
            try:
                outcomes[member] = each.result(60)
            except CoordinatorError as failure:
                outcomes[member] = failure
        return outcomes

    def close(self) -> None:
        self.threads.shutdown()
        self.http.close()


Make = Callable[..., Together]


@pytest.fixture
def together(coordinator: ScriptedCoordinator) -> Iterator[Make]:
    coordinator.script = served
    made: list[Together] = []

    def make(*members: str, **options: Any) -> Together:
        made.append(Together(coordinator.url, **options))
        made[-1].add(*members)
        return made[-1]

    yield make
    coordinator.released.set()
    for each in made:
        each.close()


def epochs(outcomes: dict[str, HeartbeatResponse | CoordinatorError]) -> dict[str, int]:
    return {name: each.member_epoch for name, each in outcomes.items() if isinstance(each, HeartbeatResponse)}


# -- one request


def test_all_members_leave_in_one_request_and_each_gets_its_own_answer(coordinator: ScriptedCoordinator, together: Make) -> None:
    outcomes = together(*NAMES).sent(*NAMES)
    assert epochs(outcomes) == {"a": 97, "b": 98, "c": 99, "d": 100}
    (call,) = coordinator.calls
    assert (call.method, call.path) == ("POST", "/coord/v1/streams/orders/groups/g/heartbeats")
    assert sorted(item["memberId"] for item in call.body["heartbeats"]) == NAMES


def test_who_is_missing_is_waited_for_within_the_window_only(coordinator: ScriptedCoordinator, together: Make) -> None:
    outcomes = together(*NAMES, window_ms=30).sent("a")
    assert epochs(outcomes) == {"a": 97}
    assert [call.path.rpartition("/")[2] for call in coordinator.calls] == ["heartbeat"]


def test_who_opens_a_gathering_calls_the_others(together: Make) -> None:
    both = together(*NAMES)
    first = both.send("b")
    wait_until(lambda: len(both.called) == 3, "the others are called")
    assert sorted(both.called) == ["a", "c", "d"]
    both.sent("a", "c", "d")
    assert first.result(30).member_epoch == 98
    assert len(both.called) == 3, "who joins a gathering calls nobody"


def test_a_member_alone_in_its_process_does_not_wait(coordinator: ScriptedCoordinator, together: Make) -> None:
    """Nor does one that was not added, or one whose company has left."""
    one = together("a")
    assert epochs(one.sent("a")) == {"a": 97}
    assert epochs(one.sent("z")) == {"z": 122}
    remove = one.batcher.add("orders", "g", "b", lambda: None)
    remove()
    assert epochs(one.sent("a")) == {"a": 97}
    assert coordinator.lists() == []


def test_groups_do_not_mix(coordinator: ScriptedCoordinator, together: Make) -> None:
    two = together("a", "b")
    two.add("a", "c", group="other")
    pending = [two.send("a"), two.send("b"), two.send("a", group="other"), two.send("c", group="other")]
    assert [each.result(30).member_epoch for each in pending] == [97, 98, 97, 99]
    told = {
        call.path.split("/")[-2]: sorted(item["memberId"] for item in call.body["heartbeats"]) for call in coordinator.lists()
    }
    assert told == {"g": ["a", "b"], "other": ["a", "c"]}


def test_more_members_than_fit_are_sent_in_several_requests(coordinator: ScriptedCoordinator, together: Make) -> None:
    names = [f"m{index}" for index in range(260)]
    outcomes = together(*names, window_ms=2_500).sent(*names)
    assert set(epochs(outcomes)) == set(names)
    assert sorted(len(call.body["heartbeats"]) for call in coordinator.lists()) == [4, 256]


def test_a_member_id_takes_part_once(together: Make) -> None:
    one = together("a")
    with pytest.raises(ValueError, match="member_id"):
        one.batcher.add("orders", "g", "a", lambda: None)
    one.batcher.add("orders", "other", "a", lambda: None)


def test_leaving_twice_does_not_remove_a_later_member_of_that_name(coordinator: ScriptedCoordinator, together: Make) -> None:
    two = together("a")
    remove = two.batcher.add("orders", "g", "b", lambda: None)
    remove()
    two.add("b")
    remove()
    assert set(epochs(two.sent("a", "b"))) == {"a", "b"}
    assert len(coordinator.lists()) == 1


def test_a_newer_heartbeat_of_a_member_takes_the_place_of_one_not_sent_yet(
    coordinator: ScriptedCoordinator, together: Make
) -> None:
    """A list holds each member once; the older one was given up by its member."""
    two = together("a", "b")
    older = two.send("a", request_id="older")
    wait_until(lambda: two.called == ["b"], "the gathering is open")
    newer = two.send("a", request_id="newer")
    gathering = two.batcher._gatherings["orders", "g"]
    wait_until(lambda: [each.body.request_id for each in gathering.waiting.values()] == ["newer"], "the newer one came")
    two.send("b").result(30)
    with pytest.raises(RetriableError, match="superseded"):
        older.result(30)
    assert newer.result(30).response_to == "newer"
    (call,) = coordinator.lists()
    assert sorted(item["requestId"] for item in call.body["heartbeats"]) == ["newer", "request of b"]


# -- failures


@pytest.mark.parametrize(
    ("reply", "kind", "retry_after_ms"),
    [
        (Reply({}, status=500), "http-500", None),
        (Reply({}, status=503, headers={"Retry-After": "2"}), "http-503", 2_000),
        (Reply(reset=True), "connection", None),
        (Reply(raw=b"<html>gone fishing</html>"), "body", None),
        (Reply({"responses": []}), "wrong-answer", None),
        (Reply({"responses": 7}), "body", None),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_failed_request_is_a_failed_heartbeat_of_each(
    coordinator: ScriptedCoordinator, together: Make, reply: Reply, kind: str, retry_after_ms: int | None
) -> None:
    coordinator.script = lambda _call: reply
    outcomes = together(*NAMES).sent(*NAMES)
    for name in NAMES:
        failed = outcomes[name]
        assert isinstance(failed, RetriableError)
        assert (failed.kind, failed.retry_after_ms) == (kind, retry_after_ms)
    assert len(coordinator.calls) == 1, "never repeated behind the callers' backs"


@pytest.mark.parametrize(
    ("change", "kind"),
    [
        ({"responseTo": "another"}, "wrong-answer"),
        ({"memberId": "z"}, "wrong-answer"),
        ({"status": "SOMETHING_NEW"}, "body"),
        ({"assignment": None}, "body"),
    ],
)
def test_a_useless_answer_is_one_members_misfortune(
    coordinator: ScriptedCoordinator, together: Make, change: dict[str, Any], kind: str
) -> None:
    def script(call: Call) -> Reply:
        reply = answer_each(call, served)
        reply.body["responses"] = [{**each, **change} if each["memberId"] == "b" else each for each in reply.body["responses"]]
        return reply

    coordinator.script = script
    outcomes = together(*NAMES).sent(*NAMES)
    failed = outcomes["b"]
    assert isinstance(failed, RetriableError)
    assert failed.kind == kind
    assert epochs(outcomes) == {"a": 97, "c": 99, "d": 100}


def test_answers_in_another_order_are_given_to_nobody(coordinator: ScriptedCoordinator, together: Make) -> None:
    """Order is the contract; a member never takes another's answer."""

    def script(call: Call) -> Reply:
        reply = answer_each(call, served)
        reply.body["responses"].reverse()
        return reply

    coordinator.script = script
    outcomes = together("a", "b").sent("a", "b")
    assert [each.kind for each in outcomes.values() if isinstance(each, RetriableError)] == ["wrong-answer"] * 2


def test_no_answer_in_time_is_told_to_each_and_the_next_request_does_not_wait_for_it(
    coordinator: ScriptedCoordinator, together: Make
) -> None:
    coordinator.script = lambda call: Reply(delay_s=30) if len(coordinator.calls) == 1 else served(call)
    two = together("a", "b")
    hanging = [two.send(name, timeout_ms=400) for name in ("a", "b")]
    wait_until(lambda: coordinator.calls, "the request hangs")
    assert set(epochs(two.sent("a", "b"))) == {"a", "b"}
    for each in hanging:
        with pytest.raises(RetriableError, match="timeout"):
            each.result(30)


# -- servers without lists


@pytest.mark.parametrize(
    "refused",
    [
        error(404, "NOT_FOUND"),
        Reply(raw=b"<html>no such page</html>", status=404),
        error(405, "METHOD_NOT_ALLOWED"),
        error(401, "UNAUTHORIZED"),
        error(403, "FORBIDDEN"),
    ],
    ids=["404", "404 of a proxy", "405", "401", "403"],
)
def test_a_server_without_lists_is_asked_by_each_alone_and_not_for_a_list_again(
    coordinator: ScriptedCoordinator, together: Make, refused: Reply
) -> None:
    coordinator.script = lambda call: refused if call.path.endswith("/heartbeats") else served(call)
    four = together(*NAMES)
    for _ in range(2):
        assert set(epochs(four.sent(*NAMES))) == set(NAMES)
    assert [call.path.rpartition("/")[2] for call in coordinator.calls] == ["heartbeats", *["heartbeat"] * 8]
    four.batcher._alone_until = 0.0  # a minute later
    assert set(epochs(four.sent(*NAMES))) == set(NAMES)
    assert len(coordinator.lists()) == 2, "it may have been replaced by a newer one"


def test_one_members_refusal_does_not_reach_the_others_through_a_refused_list(
    coordinator: ScriptedCoordinator, together: Make
) -> None:
    """Whatever refuses the list for good, each member hears only what is said to itself."""

    def script(call: Call) -> Reply:
        if call.path.endswith("/heartbeats"):
            return error(400, "INVALID_REQUEST")
        return error(403, "FORBIDDEN") if call.body["memberId"] == "b" else served(call)

    coordinator.script = script
    outcomes = together(*NAMES).sent(*NAMES)
    refused = outcomes["b"]
    assert isinstance(refused, FatalError)
    assert refused.code == "FORBIDDEN"
    assert epochs(outcomes) == {"a": 97, "c": 99, "d": 100}


def test_a_list_too_large_for_the_server_makes_smaller_ones(coordinator: ScriptedCoordinator, together: Make) -> None:
    def script(call: Call) -> Reply:
        return error(413, "PAYLOAD_TOO_LARGE") if len(alone(call)) > 2 else served(call)

    coordinator.script = script
    four = together(*NAMES)
    assert set(epochs(four.sent(*NAMES))) == set(NAMES), "nobody is hurt by it"
    assert set(epochs(four.sent(*NAMES))) == set(NAMES)
    assert [len(call.body["heartbeats"]) for call in coordinator.lists()] == [4, 2, 2]


def test_credentials_are_the_requests(coordinator: ScriptedCoordinator, together: Make) -> None:
    two = together("a", "b", credentials=Credentials(token="t1"))
    two.sent("a", "b")
    assert [call.headers.get("authorization") for call in coordinator.calls] == ["Bearer t1"]


# -- member loops


@pytest.fixture
def loops(coordinator: ScriptedCoordinator) -> Iterator[Callable[..., list[tuple[MemberLoop, Host]]]]:
    """Start member loops on one batcher; whatever a test leaves running is ended."""
    begun: list[MemberLoop] = []
    http = CoordinatorHttp(coordinator.url)

    def begin(*names: str, window_ms: int = 100, **settings: Any) -> list[tuple[MemberLoop, Host]]:
        """The window is wide: on a busy machine it may take longer to come than in earnest."""
        batcher = HeartbeatBatcher(http, window_ms=window_ms)
        made: list[tuple[MemberLoop, Host]] = []
        for name in names:
            host = Host()
            host.loop = loop = MemberLoop(
                batcher,
                host,
                stream_prefix="orders",
                consumer_group="g",
                member_id=name,
                settings=LoopSettings(**{"start_spread_ms": 200, "first_timeout_ms": 500, **settings}),
            )
            batcher.add("orders", "g", name, loop.beat_along)
            made.append((loop, host))
        begun.extend(loop for loop, _ in made)
        for loop, _ in made:
            loop.start()
        return made

    yield begin
    coordinator.released.set()
    for loop in begun:
        loop.fail(FatalError("TEST_OVER", "the test is over"))
        wait_until(partial(has_ended, loop), "the loop ends")
    http.close()


def test_loops_of_one_process_fall_into_step(coordinator: ScriptedCoordinator, loops: Any) -> None:
    """Their start is spread and their intervals differ, and yet nearly all heartbeats leave together."""
    group = SmallGroup(interval_ms=400, lease_ms=4_000)
    group.give(a=[0], b=[1], c=[2], d=[3])
    coordinator.script = group
    members = loops(*NAMES)
    wait_until(lambda: all(loop.health().accepted >= 6 for loop, _ in members), "all go on")
    calls, beats = len(coordinator.calls), len(coordinator.heartbeats())
    assert calls <= beats / 2, (calls, beats)
    assert all(host.reading == {index} for index, (_, host) in enumerate(members))
    assert all(loop.health().failures == {} for loop, _ in members)


def test_i3_a_lease_counts_from_before_its_request_is_sent(coordinator: ScriptedCoordinator, loops: Any) -> None:
    """The answer comes half a second late: no member's lease ends later than a lease after its request was sent."""
    lease_ns = 3_000_000_000

    def script(call: Call) -> Reply:
        reply = answer_each(call, lambda each: answer(each, memberLeaseTtlMs=3_000))
        reply.delay_s = 0.5 if len(coordinator.calls) == 1 else 30.0
        return reply

    coordinator.script = script
    members = loops("a", "b", window_ms=2_000, first_timeout_ms=20_000, start_spread_ms=0, request_timeout_ms=2_500)
    wait_until(lambda: all(loop.lease.until_ns for loop, _ in members), "both are members")
    first = coordinator.lists()[0]
    received_ns = int(first.at * 1e9)
    assert len(first.body["heartbeats"]) == 2
    assert now_ns() > received_ns + 500_000_000
    for loop, _ in members:
        assert loop.lease.until_ns <= received_ns + lease_ns
    wait_until(lambda: all(loop.health().lapses for loop, _ in members), "both stop by themselves")


def test_i3_a_failed_list_drops_no_shard_before_the_lease_ends_and_renews_none(
    coordinator: ScriptedCoordinator, loops: Any
) -> None:
    group = SmallGroup(interval_ms=100, lease_ms=1_500)
    group.give(a=[0], b=[1])
    coordinator.script = group
    members = loops("a", "b")
    wait_until(lambda: all(host.reading for _, host in members), "both read")
    away = threading.Event()
    last_answer: list[float] = []

    def fail(call: Call) -> Reply | None:
        if away.is_set():
            return Reply({}, status=503)
        last_answer.append(call.at)
        return None

    group.fail = fail
    wait_until(lambda: len(last_answer) >= 3, "they go on")
    away.set()
    wait_until(lambda: not any(host.reading for _, host in members), "the leases lapse")
    for loop, host in members:
        assert [what for what, _, _ in host.told] == ["start", "lost"]
        assert host.when("lost") - last_answer[-1] <= 1.5 + 1.0, "a failed request renews nothing"
        assert loop.health().failures.keys() == {"http-503"}
    away.clear()
    wait_until(lambda: all(host.reading for _, host in members), "both read again")


def test_a_refused_item_ends_its_member_and_no_other(coordinator: ScriptedCoordinator, loops: Any) -> None:
    def of(call: Call) -> Reply:
        if call.body["memberId"] == "b":
            return answer(call, status="INVALID_REQUEST", epoch=0)
        return answer(call, epoch=3, assigned=[0])

    coordinator.script = lambda call: answer_each(call, of) if call.path.endswith("/heartbeats") else of(call)
    (first, _), (second, _) = loops("a", "b")
    wait_until(lambda: second.health().state == "failed", "b ends")
    with pytest.raises(FatalError, match="INVALID_REQUEST"):
        second.wait(30)
    accepted = first.health().accepted
    wait_until(lambda: first.health().accepted > accepted + 1, "a goes on")


# -- consumers


def test_consumers_given_one_batcher_share_its_requests_and_leave_it(
    coordinator: ScriptedCoordinator, data_redis: OwnRedis
) -> None:
    group = SmallGroup(interval_ms=150, lease_ms=3_000)
    group.give(a=[0], b=[1])
    coordinator.script = group
    for shard in range(2):
        data_redis.client.xgroup_create(f"orders:{shard}", "g", id="0", mkstream=True)
    handled: dict[str, list[str]] = {"a": [], "b": []}
    http = CoordinatorHttp(coordinator.url)
    batcher = HeartbeatBatcher(http)
    common: dict[str, Any] = {"stream_prefix": "orders", "consumer_group": "g"}
    consumers = [
        Consumer(batcher, data_redis.url, member_id=name, handler=lambda entry, n=name: handled[n].append(entry.id), **common)
        for name in ("a", "b")
    ]
    for each in consumers:
        each.start()
    with pytest.raises(ValueError, match="member_id"):
        Consumer(batcher, data_redis.url, member_id="a", handler=lambda _: None, **common).start()
    ids = [str(data_redis.client.xadd(f"orders:{shard}", {"n": "1"})) for shard in range(2)]
    wait_until(lambda: handled == {"a": [ids[0]], "b": [ids[1]]}, "both read")
    wait_until(lambda: len(coordinator.lists()) >= 3, "they share requests")
    for each in consumers:
        each.stop()
    for each in consumers:
        assert each.wait(30)
    assert group.left == {"a", "b"}
    assert batcher._members == {("orders", "g"): {}}
    http.close()


def test_a_consumer_takes_its_credentials_or_a_batcher(coordinator: ScriptedCoordinator, data_redis: OwnRedis) -> None:
    batcher = HeartbeatBatcher(CoordinatorHttp(coordinator.url))
    with pytest.raises(ValueError, match="credentials"):
        Consumer(
            batcher,
            data_redis.url,
            stream_prefix="orders",
            consumer_group="g",
            member_id="a",
            handler=lambda _: None,
            credentials=Credentials(token="t"),
        )


def test_with_nobody_listening_each_member_fails_by_itself_and_in_time() -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        nowhere = Together(f"http://127.0.0.1:{closed.getsockname()[1]}/coord/v1")
    nowhere.add("a", "b")
    began = time.monotonic()
    outcomes = nowhere.sent("a", "b")
    assert [type(each) for each in outcomes.values()] == [RetriableError] * 2
    assert time.monotonic() - began < 5
    nowhere.close()
