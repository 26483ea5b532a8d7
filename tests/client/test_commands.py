"""`coord consume` and `coord produce` as processes, and the verdict on what they really did."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from coord.cli.verdict import judge
from tests.client.conftest import OwnRedis, wait_until
from tests.client.scripted import Call, Reply, ScriptedCoordinator, SmallGroup

SHARDS = 4
Spawn = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def group(coordinator: ScriptedCoordinator, data_redis: OwnRedis) -> SmallGroup:
    small = SmallGroup(lease_ms=3_000, interval_ms=150)
    small.shard_count = SHARDS
    for shard in range(SHARDS):
        data_redis.client.xgroup_create(f"orders:{shard}", "g", id="0", mkstream=True)
    coordinator.script = small
    return small


@pytest.fixture
def spawn(coordinator: ScriptedCoordinator, data_redis: OwnRedis, tmp_path: Path) -> Iterator[Spawn]:
    """Start a command with the common options; what still runs at the end is killed."""
    processes: list[subprocess.Popen[str]] = []

    def begin(command: str, *options: str) -> subprocess.Popen[str]:
        code = f"from coord.cli.{command} import {command}; {command}()"
        common = ["--url", coordinator.url, "--redis-url", data_redis.url, "--stream", "orders", "--trace", str(tmp_path)]
        processes.append(subprocess.Popen([sys.executable, "-c", code, *common, *options], stderr=subprocess.PIPE, text=True))
        return processes[-1]

    yield begin
    for process in processes:
        process.kill()
        process.communicate()


def consumer(spawn: Spawn, member: str, *options: str) -> subprocess.Popen[str]:
    return spawn("consume", "--group", "g", "--member-id", member, "--block-ms", "100", *options)


def all_consumed(directory: Path) -> bool:
    verdict = judge(directory)
    return verdict.produced > 0 and verdict.lost == 0


def test_i9_one_killed_one_ended_nothing_lost_nothing_read_by_two(
    data_redis: OwnRedis, group: SmallGroup, spawn: Spawn, tmp_path: Path
) -> None:
    """SIGKILL costs one lease, SIGTERM a hand-over; the verdict is computed from the files alone."""
    group.give(a=[0, 1], b=[2, 3])
    killed, ended = consumer(spawn, "a", "--work-ms", "2"), consumer(spawn, "b", "--work-ms", "2")
    producer = spawn("produce", "--rate", "300", "--seconds", "4", "--refresh-ms", "300")
    wait_until(lambda: set(group.holder.values()) == {"a", "b"}, "both read")
    wait_until(lambda: set(judge(tmp_path).consumedByMember) == {"a", "b"}, "both have handled records")
    time.sleep(0.5)
    killed.send_signal(signal.SIGKILL)
    consumer(spawn, "c")
    group.give(c=[0, 1], b=[2, 3])
    wait_until(lambda: group.holder.get(0) == "c", "c took over")
    group.give(c=[0, 1, 2, 3])
    ended.send_signal(signal.SIGTERM)
    assert ended.wait(30) == 0
    wait_until(lambda: group.holder.get(2) == "c", "c took over")
    assert group.granted_at[2] < group.leases["b"], "no lease had to lapse"
    assert producer.wait(30) == 0
    wait_until(lambda: all_consumed(tmp_path), "all consumed")
    verdict = judge(tmp_path)
    assert verdict.violationList == []
    assert verdict.verdict
    assert set(verdict.consumedByMember) == {"a", "b", "c"}
    assert verdict.produced == sum(data_redis.client.xlen(f"orders:{s}") for s in range(SHARDS)) > 600


def test_i3_a_stopped_process_wakes_up_without_touching_what_it_had(
    coordinator: ScriptedCoordinator, group: SmallGroup, spawn: Spawn, tmp_path: Path
) -> None:
    """SIGSTOP for longer than a lease: on waking the first act is a heartbeat, the first read belongs to the new lease."""
    group.give(a=[0, 1, 2, 3])
    stopped = consumer(spawn, "a", "--work-ms", "1")
    spawn("produce", "--rate", "200", "--seconds", "5", "--refresh-ms", "300")
    wait_until(lambda: len(group.holder) == SHARDS, "a reads")
    time.sleep(0.5)
    stopped.send_signal(signal.SIGSTOP)
    consumer(spawn, "b")
    group.give(b=[0, 1, 2, 3])
    wait_until(lambda: set(group.holder.values()) == {"b"}, "b took over")
    time.sleep(1.2)
    group.give(a=[0, 1], b=[2, 3])
    seen = len(coordinator.heartbeats())
    stopped.send_signal(signal.SIGCONT)
    wait_until(lambda: group.holder.get(0) == "a", "a reads again")
    first = next(c for c in coordinator.heartbeats()[seen:] if c.body["memberId"] == "a")
    assert (first.body["memberEpoch"], first.body["ownedShards"]) == (0, [])
    wait_until(lambda: all_consumed(tmp_path), "all consumed")
    assert judge(tmp_path).violationList == []


def test_a_coordinator_that_gives_a_shard_to_two_is_found_out(
    coordinator: ScriptedCoordinator, group: SmallGroup, spawn: Spawn, tmp_path: Path
) -> None:
    """The verdict sees a real double reader: two processes, one shard, both told that it is theirs."""

    def everybody_gets_everything(call: Call) -> Reply:
        reply = group(call)
        if call.path.endswith("/heartbeat") and call.body["memberEpoch"] >= 0:
            reply.body["assignment"]["assignedShards"] = [{"shardIndex": s} for s in range(SHARDS)]
        return reply

    coordinator.script = everybody_gets_everything
    consumer(spawn, "a"), consumer(spawn, "b")
    spawn("produce", "--rate", "200", "--seconds", "1.5")
    wait_until(lambda: {p.stem[:10] for p in tmp_path.glob("consumer-*")} >= {"consumer-a", "consumer-b"}, "both run")
    wait_until(lambda: judge(tmp_path).violations > 0, "the verdict finds it")
    assert any(v.startswith("overlap") for v in judge(tmp_path).violationList)
    assert subprocess.run([sys.executable, "-m", "coord.cli.verdict", tmp_path], capture_output=True, check=False).returncode == 1


def test_a_record_that_nobody_acknowledges_is_found_lost(
    data_redis: OwnRedis, group: SmallGroup, spawn: Spawn, tmp_path: Path
) -> None:
    group.give(a=[0, 1])
    consumer(spawn, "a")
    assert spawn("produce", "--count", "50", "--rate", "1000").wait(60) == 0
    time.sleep(0.5)
    out = subprocess.run(
        [sys.executable, "-m", "coord.cli.verdict", tmp_path, "--json"], capture_output=True, text=True, check=False
    )
    document = json.loads(out.stdout)
    assert (out.returncode, document["verdict"], document["produced"]) == (1, False, 50)
    assert document["lost"] == data_redis.client.xlen("orders:2") + data_redis.client.xlen("orders:3") > 0


def test_several_members_of_one_process_share_requests_and_read_apart(
    coordinator: ScriptedCoordinator, group: SmallGroup, spawn: Spawn, tmp_path: Path
) -> None:
    """`--members 3`: named by their numbers, each with a trace of its own; SIGTERM lets all of them leave."""
    names = {"p-0", "p-1", "p-2"}
    group.give(**{"p-0": [0], "p-1": [1], "p-2": [2, 3]})
    process = consumer(spawn, "p", "--members", "3")
    producer = spawn("produce", "--rate", "200", "--count", "300", "--refresh-ms", "300")
    wait_until(lambda: set(group.holder.values()) == names, "all read")
    assert producer.wait(60) == 0
    wait_until(lambda: all_consumed(tmp_path), "all consumed")
    wait_until(lambda: any(len(call.body["heartbeats"]) == 3 for call in coordinator.lists()), "all three share a request")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 0, said
    assert group.left == names
    assert [line.partition("  ")[0] for line in said.splitlines()[-3:]] == sorted(names)
    verdict = judge(tmp_path)
    assert verdict.violationList == []
    assert set(verdict.consumedByMember) == names


def test_several_members_need_no_server_that_knows_lists(
    coordinator: ScriptedCoordinator, group: SmallGroup, spawn: Spawn
) -> None:
    gone: dict[str, object] = {"status": "NOT_FOUND", "errorCode": "NOT_FOUND", "message": "no", "requestId": None, "details": []}
    group.fail = lambda call: Reply(gone, status=404) if call.path.endswith("/heartbeats") else None
    group.give(**{"p-0": [0, 1], "p-1": [2, 3]})
    process = consumer(spawn, "p", "--members", "2", "--quiet")
    wait_until(lambda: set(group.holder.values()) == {"p-0", "p-1"}, "both read")
    process.send_signal(signal.SIGTERM)
    _, said = process.communicate(timeout=60)
    assert (process.returncode, group.left, len(coordinator.lists())) == (0, {"p-0", "p-1"}, 1), said


def test_a_refused_member_ends_the_others_of_its_process_in_an_orderly_way(
    coordinator: ScriptedCoordinator, group: SmallGroup, spawn: Spawn
) -> None:
    group.give(**{"p-0": [0, 1], "p-1": [2, 3]})
    process = consumer(spawn, "p", "--members", "2")
    wait_until(lambda: set(group.holder.values()) == {"p-0", "p-1"}, "both read")
    group.refused.add("p-1")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "coord consume: p-1: INVALID_REQUEST" in said
    assert group.left == {"p-0"}


def test_i7_a_refused_member_ends_the_process_with_a_reason(
    coordinator: ScriptedCoordinator, group: SmallGroup, spawn: Spawn
) -> None:
    coordinator.script = lambda _call: Reply({"status": "FORBIDDEN", "errorCode": "FORBIDDEN", "message": "not you"}, status=403)
    process = consumer(spawn, "a")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "FORBIDDEN: not you" in said


@pytest.mark.parametrize(
    ("options", "named"),
    [(["--member-id", "a/b"], "member_id"), (["--member-id", "a", "--username", "u"], "password"), ([], "--member-id")],
)
def test_bad_usage_exits_2_and_names_the_option(spawn: Spawn, options: list[str], named: str) -> None:
    process = spawn("consume", "--group", "g", *options)
    _, said = process.communicate(timeout=60)
    assert process.returncode == 2
    assert named in said


def test_a_producer_without_a_coordinator_fails_each_record_clearly(coordinator: ScriptedCoordinator, spawn: Spawn) -> None:
    process = spawn("produce", "--count", "3", "--rate", "1000", "--retry", "1")
    _, said = process.communicate(timeout=60)
    assert process.returncode == 1
    assert "published 0  failed 3  retried 3  last error: no routing of 'orders'" in said
