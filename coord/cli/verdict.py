"""Judge a trace: was every record consumed, and was no shard read by two?

    python -m coord.cli.verdict DIR [--json]

Computed from the `*.jsonl` files of DIR alone (format: `coord/client/trace.py`), with nothing but the standard library,
so that it cannot share a mistake with the code that it judges. Exit code 0: the verdict is true; 1: it is false; 2: bad
usage, or a trace that cannot be read.

A record is *consumed* when an acknowledgement of it was answered, or when its handler had finished and the XACK was on
its way as the process died or lost Redis (`acksInDoubt`: nobody can know whether Redis took it, but it was handled).

A *process* is a member id and the nonce of one run. Its *tenancy* of a shard is what it did between a `start` and the
`stop` that follows; it lasts from the first call to Redis until the `stop`, or, where there is none (SIGKILL), until the
end of the lease that the process held. Violations:

* `overlap`: two members' tenancies of one shard overlap, each counted no longer than its lease;
* `outside-lease`: a call to Redis began without a running lease, and what it read was not thrown away;
* `outside-tenancy`: a call to Redis outside of a `start` and `stop`.

Two processes under one member id may overlap until the elder hears of it (the coordinator promises no more): counted as
`twinOverlaps`, no violation.
"""

from __future__ import annotations

import argparse
import json
import sys
from bisect import bisect_right
from collections import Counter
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

LISTED_MAX = 20
_MS = 1_000_000
_TOUCHES = frozenset({"claim", "read", "ack-begin", "ack"})
_WHOLE = frozenset({"process", "lease", "start", "stop", "xadd", *_TOUCHES})


class UnreadableTraceError(Exception):
    """The directory holds no trace, or a line that no process of ours writes."""


@dataclass
class Tenancy:
    """One process on one shard, nanoseconds."""

    member: str
    nonce: str
    shard: int
    begin: int
    end: int


@dataclass
class Verdict:
    """The counts, the faults (at most LISTED_MAX of each kind are listed, all are counted) and the verdict."""

    produced: int = 0
    consumed: int = 0
    duplicates: int = 0
    reads: int = 0
    lost: int = 0
    violations: int = 0
    acksInDoubt: int = 0
    unlistedConsumed: int = 0
    readsThrownAway: int = 0
    twinOverlaps: int = 0
    tornLines: int = 0
    consumedByMember: dict[str, int] = field(default_factory=dict)
    lostRecords: list[str] = field(default_factory=list)
    violationList: list[str] = field(default_factory=list)
    verdict: bool = False

    def violate(self, kind: str, text: str) -> None:
        """Count a violation and list it while there is room."""
        self.violations += 1
        if len(self.violationList) < LISTED_MAX:
            self.violationList.append(f"{kind}: {text}")


@dataclass
class _Process:
    """What one file says."""

    member: str
    nonce: str
    lines: list[dict[str, Any]]
    lease_begins: list[int] = field(default_factory=list)
    lease_ends: list[int] = field(default_factory=list)

    def lease_end(self, at: int) -> int:
        """End of the lease that the process went by at a time; 0 when it had none yet."""
        position = bisect_right(self.lease_begins, at)
        return self.lease_ends[position - 1] if position else 0

    @property
    def name(self) -> str:
        return f"{self.member} ({self.nonce})"


def judge(directory: Path) -> Verdict:
    """Read all traces of a directory and judge them. Raises UnreadableTraceError."""
    files = sorted(directory.glob("*.jsonl")) if directory.is_dir() else []
    if not files:
        message = f"{directory}: no *.jsonl files"
        raise UnreadableTraceError(message)
    verdict = Verdict()
    processes = [p for p in (_read(path, verdict) for path in files) if p is not None]
    _judge_records(processes, verdict)
    tenancies = [t for p in processes for t in _tenancies(p, verdict)]
    _judge_overlaps(tenancies, verdict)
    verdict.verdict = verdict.produced > 0 and verdict.lost == 0 and verdict.violations == 0
    return verdict


def _read(path: Path, verdict: Verdict) -> _Process | None:
    """Read one file; a last line without its newline is what SIGKILL leaves and does not count. None: no whole line."""
    rows = path.read_bytes().split(b"\n")
    verdict.tornLines += 1 if rows.pop() else 0
    lines = []
    for number, row in enumerate(rows, start=1):
        try:
            line = json.loads(row)
            if line["kind"] not in _WHOLE:
                raise ValueError(line["kind"])
        except (ValueError, KeyError, TypeError) as error:
            message = f"{path.name}: line {number} is no trace line ({error})"
            raise UnreadableTraceError(message) from error
        lines.append(line)
    if not lines:
        return None
    if lines[0]["kind"] != "process":
        message = f"{path.name}: does not begin with its process line"
        raise UnreadableTraceError(message)
    process = _Process(lines[0]["member"], lines[0]["nonce"], lines[1:])
    for line in process.lines:
        if line["kind"] == "lease":
            process.lease_begins.append(line["at"])
            process.lease_ends.append(line["until"])
    return process


def _judge_records(processes: list[_Process], verdict: Verdict) -> None:
    produced: set[tuple[int, str]] = set()
    acked: Counter[tuple[int, str]] = Counter()
    doubted: set[tuple[int, str]] = set()
    for process in processes:
        mine: Counter[tuple[int, str]] = Counter()
        begun: set[tuple[int, str]] = set()
        for line in process.lines:
            match line["kind"]:
                case "xadd":
                    produced.add((line["shard"], line["id"]))
                case "read":
                    verdict.reads += len(line["ids"])
                    verdict.readsThrownAway += 0 if line["kept"] else len(line["ids"])
                case "ack-begin":
                    begun.update((line["shard"], i) for i in line["ids"])
                case "ack":
                    mine.update((line["shard"], i) for i in line["ids"])
        acked.update(mine)
        doubted |= begun - mine.keys()
        if mine or begun:
            verdict.consumedByMember[process.member] = verdict.consumedByMember.get(process.member, 0) + len(mine.keys() | begun)
    in_doubt = doubted - acked.keys()
    consumed = acked.keys() | in_doubt
    lost = sorted(produced - consumed)
    verdict.produced = len(produced)
    verdict.consumed = len(consumed & produced)
    verdict.unlistedConsumed = len(consumed - produced)
    verdict.duplicates = sum(n - 1 for n in acked.values())
    verdict.acksInDoubt = len(in_doubt)
    verdict.lost = len(lost)
    verdict.lostRecords = [f"shard {shard}: {record}" for shard, record in lost[:LISTED_MAX]]


def _tenancies(process: _Process, verdict: Verdict) -> list[Tenancy]:
    """Follow one process through what it did, by time; note its own faults on the way."""
    done: list[Tenancy] = []
    numbers: dict[int, int] = {}
    open_now: dict[int, Tenancy] = {}
    for line in sorted((x for x in process.lines if "tenancy" in x), key=_when):
        kind, shard = line["kind"], line["shard"]
        if kind == "start":
            numbers[shard] = line["tenancy"]
        elif kind == "stop":
            numbers.pop(shard, None)
            tenancy = open_now.pop(shard, None)
            if tenancy is not None:
                tenancy.end = max(tenancy.end, min(line["at"], process.lease_end(line["at"])))
                done.append(tenancy)
        elif kind in _TOUCHES:
            begin, lease_end = line["begin"], process.lease_end(line["begin"])
            if begin >= lease_end and line.get("kept", True):
                late = _ago(begin - lease_end)
                verdict.violate("outside-lease", f"{process.name} did {kind} on shard {shard}, {late} after its lease")
            if numbers.get(shard) != line["tenancy"]:
                verdict.violate("outside-tenancy", f"{process.name} did {kind} on shard {shard} without holding it")
            tenancy = open_now.setdefault(shard, Tenancy(process.member, process.nonce, shard, begin, begin))
            # A call that was answered late (a stopped process, a slow network) happened while its lease ran, or not at all.
            tenancy.end = max(tenancy.end, min(line.get("end", begin), lease_end))
    for tenancy in open_now.values():
        tenancy.end = max(tenancy.end, process.lease_ends[-1] if process.lease_ends else 0)
        done.append(tenancy)
    return done


def _when(line: dict[str, Any]) -> tuple[int, int]:
    """Order by time; in the same instant a tenancy starts first and stops last."""
    at: int = line["begin"] if "begin" in line else line["at"]
    return at, {"start": 0, "stop": 2}.get(line["kind"], 1)


def _judge_overlaps(tenancies: list[Tenancy], verdict: Verdict) -> None:
    """Sweep each shard's tenancies by their begin; whoever is still inside when the next begins overlaps with it."""
    by_shard: dict[int, list[Tenancy]] = {}
    for tenancy in tenancies:
        by_shard.setdefault(tenancy.shard, []).append(tenancy)
    for shard, held in sorted(by_shard.items()):
        inside: list[Tenancy] = []
        for tenancy in sorted(held, key=lambda t: (t.begin, t.end)):
            inside = [other for other in inside if other.end > tenancy.begin]
            for other in inside:
                if (other.member, other.nonce) == (tenancy.member, tenancy.nonce):
                    continue
                if other.member == tenancy.member:
                    verdict.twinOverlaps += 1
                    continue
                verdict.violate(
                    "overlap",
                    f"shard {shard}: {tenancy.member} ({tenancy.nonce}) came {_ago(min(other.end, tenancy.end) - tenancy.begin)} "
                    f"before {other.member} ({other.nonce}) had let go",
                )
            inside.append(tenancy)


def _ago(nanoseconds: int) -> str:
    return f"{nanoseconds / _MS:.3f} ms"


def as_text(verdict: Verdict) -> str:
    """Render for people."""
    rows = [
        f"produced           {verdict.produced}",
        f"consumed           {verdict.consumed}  ({verdict.duplicates} times again, {verdict.acksInDoubt} with XACK in doubt)",
        f"read               {verdict.reads}  ({verdict.readsThrownAway} thrown away)",
        *(f"  {member:<20} {count}" for member, count in sorted(verdict.consumedByMember.items())),
        f"lost               {verdict.lost}",
        *(f"  {record}" for record in verdict.lostRecords),
        f"violations         {verdict.violations}",
        *(f"  {violation}" for violation in verdict.violationList),
        f"verdict            {'true' if verdict.verdict else 'false'}",
    ]
    return "\n".join(rows)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; returns the exit code."""
    about = "Judge a trace: was all consumed, and no shard read by two?"
    parser = argparse.ArgumentParser(prog="python -m coord.cli.verdict", description=about)
    parser.add_argument("directory", type=Path, help="directory of *.jsonl trace files")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    given = parser.parse_args(arguments)
    try:
        verdict = judge(given.directory)
    except (UnreadableTraceError, OSError, KeyError, TypeError, AttributeError) as error:
        print(f"verdict: {type(error).__name__}: {error}", file=sys.stderr)
        return 2
    print(json.dumps(asdict(verdict)) if given.json else as_text(verdict))
    return 0 if verdict.verdict else 1


if __name__ == "__main__":
    sys.exit(main())
