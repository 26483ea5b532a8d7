"""Joins: beside steady heartbeats, and a thousand at once."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final, cast

import redis

from coord.client.http import CoordinatorHttp
from coord.client.protocol import MemberProtocol
from coord.names import GroupKey
from coord.rediscommands.keys import Keys
from ops.bench import load_paced
from ops.bench.bench import KEY_PREFIX, Bench
from ops.bench.lines.heartbeats import Contender, singles
from ops.bench.lines.line import Line
from ops.bench.members import CAPACITY, Group
from ops.bench.results import Bound, Measured
from ops.bench.servers import Serving

MEMBERS: Final = 1000
JOINS_PER_SECOND: Final = 10
STORMS: Final = 3
PAGE: Final = 1000


def churn(bench: Bench) -> Measured:
    """Measure steady heartbeats alone and beside ten joins a second, in turn, and what Redis sends meanwhile."""
    server, group = bench.server(), bench.group(MEMBERS)
    steady = Contender(origin=server.origin, requests=singles(bench, group))
    steady.check()
    alone: list[float] = []
    beside: list[float] = []
    output: list[float] = []
    output_alone: list[float] = []
    joined = 0
    with redis.Redis.from_url(bench.redis().url) as client:
        for turn in range(1, bench.effort.repeats + 1):
            bench.progress.step(f"without joins, run {turn} of {bench.effort.repeats}")
            rate, bytes_per_second = _watched(client, steady, bench.effort.seconds)
            alone.append(rate)
            output_alone.append(bytes_per_second)
            bench.progress.step(f"with joins, run {turn} of {bench.effort.repeats}")
            with _joining(server, group, first=joined) as count:
                rate, bytes_per_second = _watched(client, steady, bench.effort.seconds)
            joined += count[0]
            beside.append(rate)
            output.append(bytes_per_second)
    steady.check()  # still nothing but OK
    bench.forget_group(MEMBERS)
    if not joined:
        raise RuntimeError("nobody joined")
    ratio = statistics.median(beside) / statistics.median(alone)
    fields = {
        "alone": statistics.median(alone),
        "beside_joins": statistics.median(beside),
        "joins": joined,
        "joins_per_second": joined / (bench.effort.repeats * bench.effort.seconds),
        "redis_output_bytes_per_second": statistics.median(output),
        "redis_output_bytes_per_second_alone": statistics.median(output_alone),
    }
    return Measured(value=ratio, fields=fields)


def storm(bench: Bench) -> Measured:
    """Let a thousand members join one group at once; the median of several storms by their time."""
    server = bench.server()
    storms: list[tuple[float, int, int, int]] = []
    with redis.Redis.from_url(bench.redis().url) as client:
        for turn in range(1, (1 if bench.effort.quick else STORMS) + 1):
            bench.progress.step(f"storm {turn}: {MEMBERS} members join at once")
            group = bench.new_group(MEMBERS)
            before = _stat(client, "total_net_input_bytes")
            file = bench.fresh_folder() / "order"
            report = load_paced.send(file, group.requests(), kind="burst", port=server.port)
            bytes_in = _stat(client, "total_net_input_bytes") - before
            storms.append((report.seconds, _commits(client, group), bytes_in, report.errors))
    seconds, commits, bytes_in, repeated = sorted(storms)[len(storms) // 2]
    return Measured(
        value=seconds, fields={"seconds": seconds, "commits": commits, "redis_bytes_in": bytes_in, "repeated": repeated}
    )


def _watched(client: redis.Redis, contender: Contender, seconds: int) -> tuple[float, float]:
    """Run a load; gives its rate and the bytes per second that Redis sent meanwhile."""
    before, started = _stat(client, "total_net_output_bytes"), time.monotonic()
    rate = contender.run(seconds)
    return rate, (_stat(client, "total_net_output_bytes") - before) / (time.monotonic() - started)


@contextmanager
def _joining(server: Serving, group: Group, *, first: int) -> Iterator[list[int]]:
    """Let new members join at a steady pace while the block runs; the list's only item counts them."""
    count, over = [0], threading.Event()

    def join() -> None:
        http = CoordinatorHttp(server.api)
        due = time.monotonic()
        while not over.wait(max(0.0, due - time.monotonic())):
            member = MemberProtocol(f"newcomer-{first + count[0]:05}")
            sent = member.next_request(0, f"join-{member.member_id}", capacity=CAPACITY)
            if http.heartbeat(group.stream_prefix, group.consumer_group, sent.body).status == "OK":
                count[0] += 1
            due += 1 / JOINS_PER_SECOND
        http.close()

    thread = threading.Thread(target=join, name="joins", daemon=True)
    thread.start()
    try:
        yield count
    finally:
        over.set()
        thread.join()


def _commits(client: redis.Redis, group: Group) -> int:
    """Count the commits of a group's log after that which created it: each entry names its own."""
    key = Keys(KEY_PREFIX).aggregate(GroupKey(group.stream_prefix, group.consumer_group)).events
    commits: set[bytes] = set()
    after = "-"
    while page := cast("list[tuple[bytes, dict[bytes, bytes]]]", client.xrange(key, min=after, count=PAGE)):
        commits |= {fields[b"commit"] for _, fields in page}
        after = f"({page[-1][0].decode()}"
    return len(commits) - 1


def _stat(client: redis.Redis, name: str) -> int:
    return int(cast("dict[str, int]", client.info("stats"))[name])


LINES: Final[Sequence[Line]] = (
    Line(
        name="join_storm_1000",
        unit="s",
        measure=storm,
        goal=(Bound("seconds", "<", 1), Bound("commits", "≤", 40)),
    ),
    Line(
        name="heartbeat_churn_1000",
        unit="of steady",
        measure=churn,
        goal=(Bound("value", "≥", 0.9), Bound("redis_output_bytes_per_second", "≤", 2_000_000)),
    ),
)
