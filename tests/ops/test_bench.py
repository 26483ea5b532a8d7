"""The bench does not rot: its report on made-up results, and those of its parts that need no load generator, for real."""

from __future__ import annotations

import asyncio
import io
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import redis
from falcon.testing import TestClient
from rich.console import Console

from coord.bootstrap import build
from coord.config import load
from coord.events import codec
from coord.http.app import create_app
from coord.names import GroupKey, StreamKey
from coord.projections.aggregate import Aggregate, fold
from coord.runtime.verify import entries_of, verify_aggregate, verify_all
from coord.store.base import Store
from coord.store.memory import MemoryStore
from ops.bench import __main__ as program
from ops.bench import baseline, history, longlog, pictures, report
from ops.bench.bench import QUICK, Bench
from ops.bench.floor import FloorResource, echoed
from ops.bench.lines import LINES, assignor
from ops.bench.lines.handover import Readers
from ops.bench.lines.heartbeats import Compared, Contender, compare
from ops.bench.lines.line import Line
from ops.bench.load_paced import Connection, Order, burst, paced, percentile
from ops.bench.progress import Progress
from ops.bench.results import AbsentError, Bound, Measured, Result, Scalar

ROOT = Path(__file__).parents[2]
GOAL = (Bound("value", "≥", 100), Bound("ratio", "≥", 0.8))
RESULTS = [
    Result(name="fast", unit="1/s", goal=GOAL, measured=Measured(value=1234.5, fields={"ratio": 0.9})),
    Result(name="slow", unit="1/s", goal=GOAL, measured=Measured(value=1234.5, fields={"ratio": 0.7})),
    Result(name="half", unit="1/s", goal=GOAL, measured=Measured(value=1234.5, fields={"ratio_reason": "no etcd"})),
    Result(name="shaky", unit="1/s", goal=GOAL, measured=Measured(value=1234.5, fields={"ratio": 0.9}, valid=False)),
    Result(name="absent", unit="s", goal=(Bound("value", "<", 1.5),), reason="granian is not installed"),
    Result(name="plain", unit="s", measured=Measured(value=0.01234)),
]
MACHINE: dict[str, Scalar | None] = {"cpu": "some", "cores": 2, "python": "3.11", "quick": True, "memory_mb": None}


CHARTED = [
    "floor",
    "baseline",
    "etcd",
    "p50_ms",
    "max_ms",
    "alone",
    "beside_joins",
    "us_server",
    "us_store",
    "floor_us_server",
    "etcd_us_server",
    "seconds",
    "decode_and_fold_per_second",
    "verify_per_second",
    "before_mb",
    "moved_gap_seconds_10",
    "unmoved_gap_seconds_10",
    "moved_gap_seconds_50",
    "unmoved_gap_seconds_50",
    "gunicorn_max_ms",
    "granian_max_ms",
    "groups",
    "heartbeats",
]
NAMES = [
    "heartbeat_steady_10",
    "heartbeat_steady_100",
    "heartbeat_steady_1000",
    "heartbeat_steady_10_granian",
    "heartbeat_steady_100_granian",
    "heartbeat_steady_1000_granian",
    "heartbeat_batched_100",
    "paced_1000",
    "paced_3000",
    "heartbeat_churn_1000",
    "join_storm_1000",
    "idle_connections",
    "assignor_10000x100000_first",
    "assignor_10000x100000_join",
    "assignor_10000x100000_leave",
    "replay_events_per_second_100",
    "replay_events_per_second_1000",
    "state_at_revision",
    "handover_seconds",
    "worker_rss_mb",
    "rss_after_2m_heartbeats_mb",
    "start_ready_seconds",
    "tick_10000_groups",
]


@pytest.fixture
def bench(tmp_path: Path) -> Bench:
    return Bench(QUICK, Progress(Console(file=io.StringIO()), lines=1), tmp_path)


def silent(_text: str) -> None:
    """Tell nobody."""


def test_a_goal_is_reached_when_every_condition_holds_and_unknown_where_one_was_not_measured() -> None:
    assert [result.reached for result in RESULTS] == [True, False, None, True, None, None]
    assert Bound("value", "<", 1).holds({"value": 1}) is False
    assert Bound("value", "≤", 1).holds({"value": 1}) is True


def test_the_json_holds_machine_and_results(tmp_path: Path) -> None:
    report.write_json(tmp_path / "build" / "bench.json", MACHINE, RESULTS)
    document = json.loads((tmp_path / "build" / "bench.json").read_text())
    assert document["machine"] == MACHINE
    by_name = {row["name"]: row for row in document["results"]}
    assert by_name["fast"] == {
        "name": "fast",
        "value": 1234.5,
        "unit": "1/s",
        "goal": "≥ 100 and ratio ≥ 0.8",
        "reached": True,
        "valid": True,
        "reason": None,
        "ratio": 0.9,
    }
    assert (by_name["absent"]["value"], by_name["absent"]["reason"]) == (None, "granian is not installed")


def test_the_table_shows_each_line_with_its_value_or_its_reason() -> None:
    told = io.StringIO()
    report.print_table(Console(file=told, width=200), MACHINE, RESULTS)
    rows = {line.split("│")[1].strip(): line for line in told.getvalue().splitlines() if line.startswith("│")}
    assert "1,23" in rows["fast"]
    assert "yes" in rows["fast"]
    assert "no" in rows["slow"].split("│")[5]
    assert "no etcd" in rows["half"]
    assert "invalid" in rows["shaky"]
    assert "granian is not installed" in rows["absent"]
    assert "0.0123" in rows["plain"]


@pytest.mark.parametrize(("value", "expected"), [(0.0, "0"), (0.01234, "0.0123"), (12.34, "12.3"), (1234567.8, "1,234,568")])
def test_numbers_are_written_for_people(value: float, expected: str) -> None:
    assert report.shown(value) == expected


def test_every_chart_is_drawn_from_results_that_hold_all_of_it(tmp_path: Path) -> None:
    """All lines, with every field that a chart may look for."""
    pytest.importorskip("matplotlib")
    numbers = dict.fromkeys(CHARTED, 5)
    rows: list[dict[str, Scalar | None]] = [{"name": line.name, "value": 7.0, **numbers} for line in LINES]
    files = pictures.draw(rows, tmp_path)
    assert {file.stem for file in files} == set(pictures.CHARTS)
    assert all(file.read_bytes().startswith(b"\x89PNG") for file in files)
    for row in ({"value": None}, {"value": 7.0, "valid": False}):
        assert pictures.draw([{"name": "start_ready_seconds", **row}], tmp_path) == []


def test_every_line_is_there_once() -> None:
    assert sorted(line.name for line in LINES) == sorted(NAMES)


def test_what_goes_wrong_with_a_line_becomes_its_reason(bench: Bench) -> None:
    def absent(_: Bench) -> Measured:
        raise AbsentError("A14 answers 404")

    def broken(_: Bench) -> Measured:
        raise ValueError("what")

    result = Line(name="a", unit="s", measure=absent).result(bench)
    assert (result.reason, result.failed, result.measured) == ("A14 answers 404", False, None)
    result = Line(name="a", unit="s", measure=broken).result(bench)
    assert (result.reason, result.failed) == ("failed: ValueError: what", True)


def test_an_unknown_line_is_a_usage_error(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("ONLY", "heartbeat_steady_10,nonsense")
    assert program.main() == program.EXIT_USAGE
    assert "nonsense" in capsys.readouterr().out


def test_a_real_line_is_measured_written_and_shown(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The assignor, small."""
    monkeypatch.setattr(assignor, "MEMBERS", 10)
    monkeypatch.setattr(assignor, "SHARDS", 100)
    monkeypatch.setattr(program, "BUILD", tmp_path)
    monkeypatch.setenv("ONLY", "assignor_10000x100000_join")
    monkeypatch.setenv("QUICK", "1")
    assert program.main() == 0
    document = json.loads((tmp_path / "bench.json").read_text())
    assert [row["name"] for row in document["results"]] == ["assignor_10000x100000_join"]
    assert document["results"][0]["value"] > 0
    assert document["machine"]["cores"] >= 1
    assert "assignor_10000x100000_join" in capsys.readouterr().out


class Rates(Contender):
    """A contender whose runs are given, instead of measured."""

    told: list[float]

    def check(self) -> None:
        """All is well."""

    def run(self, seconds: int) -> float:
        return self.told.pop(0)


def contender(*rates: float) -> Rates:
    made = Rates(origin="", requests=Path())
    object.__setattr__(made, "told", list(rates))
    return made


def test_floors_that_agree_make_a_valid_line(bench: Bench) -> None:
    compared = compare(bench, {"heartbeats": contender(800)}, contender(1000, 900))
    assert compared == Compared(rates={"heartbeats": 800}, floor=950, valid=True)


def test_floors_that_differ_by_more_than_a_fifth_are_measured_once_more_and_then_invalid(bench: Bench) -> None:
    compared = compare(bench, {"heartbeats": contender(800, 700)}, contender(1000, 700, 1000, 950))
    assert compared == Compared(rates={"heartbeats": 700}, floor=975, valid=True)
    compared = compare(bench, {"heartbeats": contender(800, 700)}, contender(1000, 700, 1000, 750))
    assert compared == Compared(rates={"heartbeats": 700}, floor=875, valid=False)


def test_a_history_settles_and_its_log_folds_to_where_it_stands() -> None:
    made = history.settled_group(7, shards=20, identity="here")
    made.until(150, silent)
    group = made.group
    assert len(group.active()) == 7
    assert sorted(shard for member in group.active() for shard in group.view(member)[0]) == list(range(20))
    assert all(group.view(member)[1] == () for member in group.active())
    assert fold(None, map(codec.decode, made.entries()), key=made.key) == group


def test_planted_groups_verify_and_are_registered() -> None:
    """What is written without a server is what a server would have written."""
    store = MemoryStore(lambda: 1, identity="here")
    shape = history.settled_group(3, shards=6, identity="here")
    names = [GroupKey(f"stream-{number % 2}", f"group-{number}") for number in range(5)]
    history.plant(store, shape, names, silent)
    reports = list(verify_all(store))
    assert [report.findings for report in reports] == [[]] * 7
    assert {report.key for report in reports} == {*names, StreamKey("stream-0"), StreamKey("stream-1")}


def test_the_way_to_a_past_state_is_measured_and_held_to_its_revision() -> None:
    store = MemoryStore(lambda: 1, identity="here")
    written = longlog.write(store, events=1_500, tell=silent)
    assert verify_aggregate(store, written.key).findings == []

    def state_at(store: Store, key: GroupKey, revision: int) -> Aggregate | None:
        return fold(None, (codec.decode(entry) for entry in entries_of(store, key) if entry.revision <= revision), key=key)

    median, longest = longlog.median_seconds(store, written, state_at, samples=3)
    assert 0 < median <= longest
    with pytest.raises(RuntimeError, match="asked for revision"):
        longlog.median_seconds(store, written, lambda *_: written.group, samples=3)


def test_readers_count_time_without_one_and_shards_read_by_two(monkeypatch: pytest.MonkeyPatch) -> None:
    now = [0.0]
    monkeypatch.setattr("ops.bench.lines.handover.time.monotonic", lambda: now[0])
    readers = Readers()
    readers.start("a", frozenset({1, 2}))
    now[0] = 5.0
    readers.stop("a", frozenset({1}))
    now[0] = 7.5
    readers.start("b", frozenset({1}))
    assert readers.gaps == {1: 2.5}
    assert readers.doubles == 0
    readers.start("b", frozenset({2}))
    assert readers.doubles == 1


def test_the_floor_answers_what_it_was_told() -> None:
    shape = history.settled_group(2, shards=4, identity="here")
    beat = history.heartbeats(shape)[0]
    answered = echoed(beat)
    assert answered.member_epoch == beat.member_epoch
    assert answered.assignment.assigned_shards == beat.owned_shards


def test_the_standins_take_the_place_of_the_heartbeat_resource() -> None:
    """In a Python that has their folder on its path, and only there."""
    script = "from coord.http import app; print(app.HeartbeatResource.__module__)"
    for standin, expected in (("floor", "ops.bench.floor"), ("baseline", "ops.bench.baseline"), (None, "coord.http.resources")):
        path = [str(ROOT)] if standin is None else [str(ROOT / "ops" / "bench" / "site"), str(ROOT)]
        environ = {"PYTHONPATH": ":".join(path), **({} if standin is None else {"COORD_BENCH_STANDIN": standin})}
        ran = subprocess.run([sys.executable, "-c", script], env=environ, capture_output=True, text=True, timeout=30, check=True)
        assert ran.stdout.startswith(expected)


@pytest.fixture
def behind(monkeypatch: pytest.MonkeyPatch, redis_url: str) -> Callable[[type], TestClient]:
    """The real app, with a stand-in of the heartbeat resource."""

    def app(standin: type) -> TestClient:
        monkeypatch.setenv("REDIS_URL", redis_url)
        monkeypatch.setattr("coord.http.app.HeartbeatResource", standin)
        return TestClient(create_app(build(load(None, environ={}, overrides={"store.type": "memory"}))))

    return app


def test_a_standin_answers_behind_the_real_app_and_says_its_name(behind: Callable[[type], TestClient], redis_url: str) -> None:
    """The plain design writes the whole group back each time."""
    shape = history.settled_group(3, shards=6, identity="here")
    baseline.store_group(redis_url, "stream", "group", history.heartbeats(shape))
    for standin, name in ((FloorResource, "floor"), (baseline.PlainResource, "baseline")):
        client = behind(standin)
        for request in history.requests_of(shape, [GroupKey("stream", "group")]):
            answer = client.simulate_post(request.path, body=request.body, headers={"Content-Type": "application/json"})
            sent = json.loads(request.body)
            assert (answer.status_code, answer.headers["x-bench-standin"], answer.json["status"]) == (200, name, "OK")
            assert answer.json["assignment"]["assignedShards"] == sent["ownedShards"]
    with redis.Redis.from_url(redis_url) as store:
        stored = json.loads(store.hget(baseline.key_of("stream", "group"), "aggregate"))
        assert stored["storeRevision"] == 4
        assert all(member["lastHeartbeatAt"] for member in stored["members"].values())
        assert not store.exists(baseline.MUTEX)
    baseline.await_rest(redis_url)


@pytest.mark.parametrize(("values", "share", "expected"), [([], 0.99, 0.0), ([3.0, 1.0, 2.0], 0.5, 2.0), ([1.0, 2.0], 0.99, 2.0)])
def test_percentiles(values: list[float], share: float, expected: float) -> None:
    assert math.isclose(percentile(values, share), expected)


class Answering(asyncio.Protocol):
    """A server that answers each request; its first answer is RETRY."""

    answered = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        status = "OK" if Answering.answered else "RETRY"
        Answering.answered += 1
        body = b'{"status":"%b"}' % status.encode()
        self.transport.write(b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n" % len(body))
        self.transport.write(body)


async def answers(kind: str) -> tuple[int, int]:
    Answering.answered = 0
    server = await asyncio.get_running_loop().create_server(Answering, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    requests = [("/a", "{}"), ("/b", "{}")]
    if kind == "burst":
        told = await burst(Order(kind="burst", port=port, requests=requests))
    else:
        told = await paced(Order(kind="paced", port=port, requests=requests, period_s=0.1, seconds=0.3))
    server.close()
    return told.answered, told.errors


def test_a_burst_is_repeated_until_all_are_answered() -> None:
    assert asyncio.run(answers("burst")) == (2, 1)


def test_paced_heartbeats_are_sent_once_a_period_and_the_first_is_not_counted() -> None:
    assert asyncio.run(answers("paced")) == (6, 0)


def test_a_heartbeat_that_waits_for_the_one_before_counts_from_when_it_was_due() -> None:
    done: list[tuple[float, bool]] = []
    connection = Connection(b"x", lambda _, due, good: done.append((due, good)))
    connection.send(1.0)
    assert done == [(1.0, False)]
