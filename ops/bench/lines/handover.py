"""One member joins a group of 900 shards: for how long does a shard have no reader?

A real server, and members that are the client's own loop; they read nothing, so a drain takes no time and what is left is the
protocol's own delay. A shard that stays where it is must not lose its reader for a moment, and no shard may ever have two.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final

from coord.client.http import CoordinatorHttp
from coord.client.member import MemberLoop
from coord.wire import Capacity, ShardProgress
from ops.bench.bench import Bench
from ops.bench.lines.line import Line
from ops.bench.members import CAPACITY, Group
from ops.bench.results import Bound, Measured, Scalar
from ops.bench.servers import Serving, serving

SHARDS: Final = 900
SIZES: Final = (10, 50)
SIZES_QUICK: Final = (10,)
INTERVAL_S: Final = 3
INTERVAL_QUICK_S: Final = 1
SETTLE_TIMEOUT_S: Final = 120.0
POLL_S: Final = 0.05
QUIET_INTERVALS: Final = 1.5
"""So long must nothing have moved, counted in heartbeat intervals, with every shard read."""


@dataclass(slots=True)
class Readers:
    """Who reads which shard, and for how long each had no reader since `began`."""

    reading: dict[int, str] = field(default_factory=dict)
    stopped_at: dict[int, float] = field(default_factory=dict)
    gaps: dict[int, float] = field(default_factory=dict)
    doubles: int = 0
    moved_at: float = field(default_factory=time.monotonic)
    lock: threading.Lock = field(default_factory=threading.Lock)

    def start(self, member: str, shards: frozenset[int]) -> None:
        """A member begins to read."""
        with self.lock:
            self.moved_at = now = time.monotonic()
            for shard in shards:
                self.doubles += shard in self.reading
                self.reading[shard] = member
                if (stopped_at := self.stopped_at.pop(shard, None)) is not None:
                    self.gaps[shard] = self.gaps.get(shard, 0.0) + now - stopped_at

    def stop(self, member: str, shards: frozenset[int]) -> None:
        """A member no longer reads."""
        with self.lock:
            self.moved_at = now = time.monotonic()
            for shard in shards:
                if self.reading.get(shard) == member:
                    del self.reading[shard]
                    self.stopped_at[shard] = now

    def await_quiet(self, *, for_s: float) -> None:
        """Wait until every shard has a reader and nothing has moved for a while."""
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            with self.lock:
                if len(self.reading) == SHARDS and time.monotonic() - self.moved_at >= for_s:
                    return
            time.sleep(POLL_S)
        raise RuntimeError(f"{len(self.reading)} of {SHARDS} shards have a reader after {SETTLE_TIMEOUT_S:g} s")


class Member:
    """A member that reads nothing: it only notes what it would be reading. A drain ends at once."""

    def __init__(self, server: Serving, group: Group, name: str, readers: Readers) -> None:
        self._name = name
        self._readers = readers
        self._http = CoordinatorHttp(server.api)
        self.loop = MemberLoop(
            self._http, self, stream_prefix=group.stream_prefix, consumer_group=group.consumer_group, member_id=name
        )

    def on_assign(self, shards: frozenset[int]) -> None:
        """Note that these are read."""
        self._readers.start(self._name, shards)

    def on_revoke(self, shards: frozenset[int]) -> None:
        """Note that these are no longer read, and say so at once."""
        self._readers.stop(self._name, shards)
        for shard in shards:
            self.loop.drained(shard)

    def on_lost(self, shards: frozenset[int]) -> None:
        """Note that these are no longer read."""
        self._readers.stop(self._name, shards)

    def capacity(self) -> Capacity:
        """Give any."""
        return CAPACITY

    def in_flight(self) -> Mapping[int, int]:
        """Nothing is."""
        return {}

    def progress(self) -> Sequence[ShardProgress]:
        """There is none."""
        return ()

    def end(self) -> None:
        """Leave, without waiting for long."""
        self.loop.leave()
        self.loop.wait(INTERVAL_S)
        self._http.close()


def handover(bench: Bench) -> Measured:
    """Measure each size; the value is the longest time that any moved shard had no reader."""
    interval_s, sizes = (INTERVAL_QUICK_S, SIZES_QUICK) if bench.effort.quick else (INTERVAL_S, SIZES)
    settings = {"heartbeat-interval": f"{interval_s}s"}
    fields: dict[str, Scalar] = {"heartbeat_interval_seconds": interval_s}
    redis_url = bench.redis().url
    with serving(bench.fresh_folder(), redis_url, settings=settings, key_prefix="bench-handover") as server:
        for members in sizes:
            readers = Readers()
            with _group(bench, server, members, readers, interval_s) as newcomer:
                before = readers.reading.copy()
                bench.progress.step(f"one more joins {members} members")
                newcomer.loop.start()
                _await_part(newcomer, SHARDS // (members + 1))
                readers.await_quiet(for_s=QUIET_INTERVALS * interval_s)
                fields |= _fields_of(readers, before, members)
    longest = max(float(fields[f"moved_gap_seconds_{members}"]) for members in sizes)
    fields["unmoved_gap_seconds"] = max(float(fields[f"unmoved_gap_seconds_{members}"]) for members in sizes)
    fields["read_by_two"] = sum(int(fields[f"read_by_two_{members}"]) for members in sizes)
    fields["intervals"] = longest / interval_s
    return Measured(value=longest, fields=fields)


@contextmanager
def _group(bench: Bench, server: Serving, members: int, readers: Readers, interval_s: float) -> Iterator[Member]:
    """Run a settled group; gives a member that has not joined yet."""
    group = Group(f"handover-{members}", "group", ())
    group.create(server, shards=SHARDS)
    all_members = [Member(server, group, f"member-{place:03}", readers) for place in range(members + 1)]
    newcomer = all_members[-1]
    try:
        bench.progress.step(f"{members} members settle on {SHARDS} shards")
        for member in all_members[:-1]:
            member.loop.start()
        readers.await_quiet(for_s=QUIET_INTERVALS * interval_s)
        readers.gaps.clear()
        readers.doubles = 0
        yield newcomer
    finally:
        for member in all_members:
            member.loop.leave()
        for member in all_members:
            member.end()


def _await_part(member: Member, shards: int) -> None:
    """Wait until a member reads its share."""
    deadline = time.monotonic() + SETTLE_TIMEOUT_S
    while len(member.loop.health().assigned) < shards:
        if time.monotonic() > deadline:
            raise RuntimeError(f"the newcomer reads {len(member.loop.health().assigned)} of {shards} shards")
        time.sleep(POLL_S)


def _fields_of(readers: Readers, before: Mapping[int, str], members: int) -> Mapping[str, Scalar]:
    moved = [shard for shard, reader in readers.reading.items() if before[shard] != reader]
    unmoved = readers.reading.keys() - set(moved)
    return {
        f"moved_{members}": len(moved),
        f"moved_gap_seconds_{members}": max((readers.gaps.get(shard, 0.0) for shard in moved), default=0.0),
        f"unmoved_gap_seconds_{members}": max((readers.gaps.get(shard, 0.0) for shard in unmoved), default=0.0),
        f"read_by_two_{members}": readers.doubles,
    }


LINES: Final[Sequence[Line]] = (
    Line(
        name="handover_seconds",
        unit="s (longest)",
        measure=handover,
        goal=(Bound("intervals", "≤", 1), Bound("unmoved_gap_seconds", "≤", 0), Bound("read_by_two", "≤", 0)),
    ),
)
