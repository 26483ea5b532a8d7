"""How the demo ends: two programs judge it, from the traces and from the log; what they say is told."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

JUDGE_TIMEOUT_S: Final = 120.0
LAST_WORDS_MAX: Final = 500
JUDGED: Final = (0, 1)
"""Exit codes of a judge that has come to a verdict."""


@dataclass(slots=True, kw_only=True)
class Happened:
    """One step of the story as it took place."""

    atMs: int
    what: str


@dataclass(slots=True, kw_only=True)
class Report:
    """What is printed; its fields are those of the JSON line.

    `ok`: verdict, verify and the whole story are fine. `verdict`: every record was consumed, no shard was read by two; from the
    traces. `verify`: what `coord verify` says of the log. `problems`: what did not go as told.
    """

    seconds: int
    url: str
    stream: str
    timings: Mapping[str, int]
    ok: bool = False
    produced: int = 0
    consumed: int = 0
    duplicates: int = 0
    lost: int = 0
    violations: int = 0
    verdict: bool = False
    verify: bool = False
    ownershipMoves: int = 0
    catchUpMs: int = 0
    shardCounts: tuple[int, ...] = ()
    consumedByMember: dict[str, int] = field(default_factory=dict)
    steps: list[Happened] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    trace: str | None = None
    verdictDetails: dict[str, Any] = field(default_factory=dict)
    verifyDetails: dict[str, Any] = field(default_factory=dict)


def judge(report: Report, *, traces: Path, config: Path, environ: Mapping[str, str]) -> None:
    """Run both judges and put what they say into the report."""
    found = _run("verdict", ["-m", "coord.cli.verdict", str(traces), "--json"], environ, report)
    report.verdictDetails = found
    report.verdict = found.get("verdict") is True
    for name in ("produced", "consumed", "duplicates", "lost", "violations"):
        setattr(report, name, found.get(name, 0))
    report.consumedByMember = found.get("consumedByMember", {})
    found = _run("verify", ["-m", "coord", "verify", "--config", str(config), "--output", "json"], environ, report)
    report.verifyDetails = found
    report.verify = found.get("holds") is True and bool(found.get("aggregates"))
    report.ok = report.verdict and report.verify and not report.problems


def _run(name: str, arguments: Sequence[str], environ: Mapping[str, str], report: Report) -> dict[str, Any]:
    """Run one judge; gives its JSON, or nothing and a problem when it came to no verdict."""
    try:
        done = subprocess.run(
            [sys.executable, *arguments], env=dict(environ), capture_output=True, check=False, timeout=JUDGE_TIMEOUT_S
        )
    except subprocess.TimeoutExpired:
        report.problems.append(f"{name} came to no verdict within {JUDGE_TIMEOUT_S:g} s")
        return {}
    try:
        said = json.loads(done.stdout) if done.returncode in JUDGED else None
    except ValueError:
        said = None
    if not isinstance(said, dict):
        last_words = done.stderr.decode(errors="replace")[-LAST_WORDS_MAX:]
        report.problems.append(f"{name} came to no verdict (exit {done.returncode}): {last_words}")
        return {}
    return said


def as_json(report: Report) -> str:
    """Write the report as one line."""
    return json.dumps(asdict(report), ensure_ascii=False)


def as_text(report: Report) -> str:
    """Write the report for people."""
    violations = report.verdictDetails.get("violationList", [])
    lost = report.verdictDetails.get("lostRecords", [])
    aggregates = report.verifyDetails.get("aggregates", [])
    findings = [f"{each['streamPrefix']}: {finding}" for each in aggregates for finding in each["findings"]]
    entries = sum(each["entries"] for each in aggregates)
    rows = [
        f"produced     {report.produced}",
        f"consumed     {report.consumed}  ({report.duplicates} times again)",
        *(f"  {member:<12} {count}" for member, count in sorted(report.consumedByMember.items())),
        f"lost         {report.lost}",
        *(f"  {each}" for each in lost),
        f"two readers  {report.violations}",
        *(f"  {each}" for each in violations),
        f"moves        {report.ownershipMoves} times a shard went to another member",
        f"caught up    {report.catchUpMs} ms after the last record",
        f"verdict      {'true' if report.verdict else 'FALSE'}  (every record consumed, no shard read by two; from the traces)",
        f"verify       {'true' if report.verify else 'FALSE'}  ({len(aggregates)} aggregates, {entries} log entries)",
        *(f"  {each}" for each in findings),
        *(f"problem      {each}" for each in report.problems),
    ]
    if report.trace:
        rows.append(f"traces       {report.trace}")
    return "\n".join(rows)
