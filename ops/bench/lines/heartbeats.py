"""Steady heartbeats at full load: nothing changes, every answer is OK.

Each line is measured between two runs of the floor, in turn with what it is compared with, so that what the machine does
meanwhile touches all of them alike.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import cycle, islice
from pathlib import Path
from types import MappingProxyType
from typing import Final

import msgspec
import urllib3

from coord.wire import HeartbeatRequest
from ops.bench import baseline, load_wrk, standins
from ops.bench.bench import Bench
from ops.bench.costs import Programs, Usage
from ops.bench.etcd import EXPECTED, etcd, keep_alives
from ops.bench.lines.line import Line
from ops.bench.load_wrk import Request
from ops.bench.members import ADMIN, Group
from ops.bench.results import AbsentError, Bound, Measured, Scalar
from ops.bench.servers import Engine, Serving

OK: Final = '"status":"OK"'
FLOORS_APART_MAX: Final = 0.2
CHECK_S: Final = 1
BATCH: Final = 16
NOT_FOUND: Final = 404
NO_HEADERS: Final[Mapping[str, str]] = MappingProxyType({})


def _no_rest() -> None:
    """Most leave nothing behind that would matter."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Contender:
    """Something that wrk loads. Each answer counts for `heartbeats` of them.

    `rest`: waits until what a run left behind is over. `programs`: who takes part, where their costs are asked for.
    """

    origin: str
    requests: Path
    expect: str = OK
    heartbeats: int = 1
    rest: Callable[[], None] = _no_rest
    programs: Programs | None = None

    def check(self) -> None:
        """Load it for a moment and look at every answer: those of the measured runs are only counted."""
        run = load_wrk.run(self.origin, self.requests, seconds=CHECK_S, expect=self.expect)
        self.rest()
        if run.wrong or not run.answered:
            raise RuntimeError(f"{run.wrong} of {run.answered} answers were errors or not {self.expect}")

    def run(self, seconds: int) -> float:
        """Give heartbeats per second."""
        run = load_wrk.run(self.origin, self.requests, seconds=seconds)
        self.rest()
        if run.wrong:
            raise RuntimeError(f"{run.wrong} of {run.answered} answers were errors")
        return run.per_second * self.heartbeats

    def costs(self, seconds: int, *, prefix: str = "") -> Mapping[str, float]:
        """Load it once more, and tell what an answer costs (see `ops.bench.costs`)."""
        assert self.programs is not None, "only of known programs"
        before = Usage.of(self.programs)
        run = load_wrk.run(self.origin, self.requests, seconds=seconds)
        self.rest()
        return {f"{prefix}{name}": cost for name, cost in Usage.of(self.programs).since(before, answers=run.answered).items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """Median rates by contender, the mean of the two floors, and whether the floors agree."""

    rates: Mapping[str, float]
    floor: float
    valid: bool


def compare(bench: Bench, contenders: Mapping[str, Contender], floor: Contender) -> Compared:
    """Measure all in turn between two floors; once more when these differ too much, and then marked invalid."""
    for name, contender in contenders.items():  # the floor's is looked at by its header
        bench.progress.step(f"looking at the answers of {name}")
        contender.check()
    compared = _between_floors(bench, contenders, floor)
    return compared if compared.valid else _between_floors(bench, contenders, floor)


def rates_of(bench: Bench, contenders: Mapping[str, Contender]) -> dict[str, float]:
    """Run all in turn, as often as the effort says; gives their medians."""
    runs: dict[str, list[float]] = {name: [] for name in contenders}
    for turn in range(1, bench.effort.repeats + 1):
        for name, contender in contenders.items():
            bench.progress.step(f"{name}, run {turn} of {bench.effort.repeats}")
            runs[name].append(contender.run(bench.effort.seconds))
    return {name: statistics.median(of_one) for name, of_one in runs.items()}


def _between_floors(bench: Bench, contenders: Mapping[str, Contender], floor: Contender) -> Compared:
    before = _floor(bench, floor, "before")
    rates = rates_of(bench, contenders)
    after = _floor(bench, floor, "after")
    return Compared(rates=rates, floor=(before + after) / 2, valid=abs(before - after) <= FLOORS_APART_MAX * max(before, after))


def _floor(bench: Bench, floor: Contender, when: str) -> float:
    bench.progress.step(f"floor {when}")
    return statistics.median(floor.run(bench.effort.seconds) for _ in range(bench.effort.floors))


def singles(bench: Bench, group: Group) -> Path:
    """Give the file of one heartbeat for each member."""
    return load_wrk.write_requests(bench.fresh_folder() / "heartbeats", group.requests())


def revision_of(server: Serving, request: Request) -> str | None:
    """Send a heartbeat; gives the revision at which it was answered."""
    answer = _asked(server, request)
    return answer.headers.get("X-Store-Revision") if OK.encode() in answer.data else None


def steady(bench: Bench, *, engine: Engine, members: int) -> Measured:
    """Measure one size on one engine."""
    server, floor = bench.server(engine), bench.server(engine, "floor")
    group = bench.group(members)
    requests = singles(bench, group)
    stores = (bench.redis().pid,)
    ours = Contender(origin=server.origin, requests=requests, programs=Programs(servers=server.workers, stores=stores))
    nothing = Contender(origin=floor.origin, requests=requests, programs=Programs(servers=floor.workers))
    contenders = {"heartbeats": ours}
    if engine == "gunicorn":
        contenders["baseline"] = _baseline(bench, group, requests)
    if members == 1000:  # noqa: PLR2004  the largest size, which is compared with the smallest
        contenders["smallest"] = Contender(origin=server.origin, requests=singles(bench, bench.group(10)))
    fields: dict[str, Scalar] = {}
    if engine == "granian" and members == 100:  # noqa: PLR2004  the size that etcd is compared at
        try:
            contenders["etcd"] = bench.once("etcd", lambda: _etcd(bench, members))
        except AbsentError as absent:
            fields["etcd_reason"] = str(absent)
    _expect_standin(floor, group.requests()[0], "floor")
    before = revision_of(server, group.requests()[0])
    compared = compare(bench, contenders, nothing)
    bench.progress.step("what an answer costs")
    fields |= {**ours.costs(bench.effort.seconds), **nothing.costs(bench.effort.seconds, prefix="floor_")}
    if "etcd" in contenders:
        fields |= contenders["etcd"].costs(bench.effort.seconds, prefix="etcd_")
    if before is None or revision_of(server, group.requests()[0]) != before:
        raise RuntimeError("the group changed while steady heartbeats were measured")
    rate = compared.rates["heartbeats"]
    fields |= {"floor": compared.floor, "ratio_to_floor": rate / compared.floor}
    fields |= dict(_ratios(rate, compared.rates))
    return Measured(value=rate, fields=fields, valid=compared.valid)


def batched(bench: Bench, *, members: int) -> Measured:
    """Measure A14 in turn with A13, both counted by member."""
    server, group = bench.server(), bench.group(members)
    bodies = list(islice(cycle(group.heartbeats()), members * BATCH))
    batches = [Request(f"{group.path}/heartbeats", _batch(bodies[at : at + BATCH])) for at in range(0, len(bodies), BATCH)]
    answer = _asked(server, batches[0], ADMIN)  # an unknown path is told apart only to who may ask
    if answer.status == NOT_FOUND:
        raise AbsentError("A14 answers 404")
    if answer.data.count(OK.encode()) != BATCH:
        raise RuntimeError(f"a batch was answered {answer.status} {answer.data[:300]!r}")
    requests = load_wrk.write_requests(bench.fresh_folder() / "batches", batches)
    contenders = {
        "heartbeats": Contender(origin=server.origin, requests=requests, heartbeats=BATCH),
        "single": Contender(origin=server.origin, requests=singles(bench, group)),
    }
    floor = Contender(origin=bench.server("gunicorn", "floor").origin, requests=contenders["single"].requests)
    compared = compare(bench, contenders, floor)
    rate, single = compared.rates["heartbeats"], compared.rates["single"]
    fields: dict[str, Scalar] = {"members_a_request": BATCH, "single": single, "ratio_to_single": rate / single}
    return Measured(value=rate, fields=fields, valid=compared.valid)


def _batch(bodies: Sequence[HeartbeatRequest]) -> bytes:
    return msgspec.json.encode({"heartbeats": bodies})


def _ratios(rate: float, rates: Mapping[str, float]) -> Iterator[tuple[str, float]]:
    for name, ratio in (("baseline", "ratio_to_baseline"), ("smallest", "ratio_to_10"), ("etcd", "ratio_to_etcd")):
        if name in rates:
            yield name, rates[name]
            yield ratio, rate / rates[name]


def _baseline(bench: Bench, group: Group, requests: Path) -> Contender:
    baseline.store_group(bench.redis().url, group.stream_prefix, group.consumer_group, group.heartbeats())
    server = bench.server("gunicorn", "baseline")
    _expect_standin(server, group.requests()[0], "baseline")
    redis_url = bench.redis().url
    return Contender(origin=server.origin, requests=requests, rest=lambda: baseline.await_rest(redis_url))


def _etcd(bench: Bench, leases: int) -> Contender:
    bench.progress.step("starting etcd")
    server = bench.open(etcd(bench.fresh_folder()))
    requests = load_wrk.write_requests(bench.fresh_folder() / "keep-alives", keep_alives(server.origin, leases))
    return Contender(origin=server.origin, requests=requests, expect=EXPECTED, programs=Programs(servers=server.workers))


def _asked(server: Serving, request: Request, more: Mapping[str, str] = NO_HEADERS) -> urllib3.BaseHTTPResponse:
    headers = {"Content-Type": "application/json", **more}
    return urllib3.request("POST", server.origin + request.path, body=request.body, headers=headers, timeout=10, retries=False)


def _expect_standin(server: Serving, request: Request, name: str) -> None:
    """Make sure that the stand-in answers, and not the real thing in its place."""
    answer = _asked(server, request)
    if answer.headers.get(standins.HEADER) != name:
        raise RuntimeError(f"the stand-in {name} does not answer: {answer.status} {answer.data[:300]!r}")


_GOALS: Final[Mapping[str, tuple[Bound, ...]]] = {
    "heartbeat_steady_100": (Bound("ratio_to_floor", "≥", 0.8),),
    "heartbeat_steady_1000": (Bound("ratio_to_10", "≥", 0.9), Bound("ratio_to_baseline", "≥", 50)),
    "heartbeat_steady_100_granian": (Bound("ratio_to_etcd", "≥", 1.5),),
}
_ENGINES: Final[Sequence[tuple[Engine, str]]] = (("gunicorn", ""), ("granian", "_granian"))
LINES: Final[Sequence[Line]] = (
    *(
        Line(
            name=(name := f"heartbeat_steady_{members}{ending}"),
            unit="1/s",
            measure=partial(steady, engine=engine, members=members),
            goal=_GOALS.get(name, ()),
        )
        for engine, ending in _ENGINES
        for members in (10, 100, 1000)
    ),
    Line(
        name="heartbeat_batched_100",
        unit="1/s",
        measure=partial(batched, members=100),
        goal=(Bound("ratio_to_single", "≥", 4),),
    ),
)
