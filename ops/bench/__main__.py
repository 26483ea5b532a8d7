"""`python -m ops.bench`, which `make bench` runs.

Environment: `QUICK` (neither empty nor 0): everything in about two minutes, rough figures; `ONLY=name,name`: only these lines.

Writes `build/bench.json`. Pictures go to `ops/bench/pictures` after a full run, which README shows, and to `build/bench-pictures`
after any other. Exit codes: 0 all lines were measured or told why not, 1 a line failed, 2 wrong usage.
"""

from __future__ import annotations

import os
import signal
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from types import FrameType
from typing import NoReturn

from rich.console import Console

from ops.bench import machine, report
from ops.bench.bench import FULL, QUICK, Bench
from ops.bench.lines import LINES, Line
from ops.bench.machine import ROOT
from ops.bench.pictures import draw
from ops.bench.progress import Progress
from ops.bench.results import Result

EXIT_FAILED = 1
EXIT_USAGE = 2
WIDTH = 200
"""Columns of a table that goes to no terminal."""
BUILD = ROOT / "build"
PICTURES = ROOT / "ops" / "bench" / "pictures"


def main() -> int:
    """Measure, print, write, draw."""
    if len(sys.argv) > 1:
        print(__doc__, file=sys.stderr)
        return EXIT_USAGE
    console, quick = Console(width=None if sys.stdout.isatty() else WIDTH), os.environ.get("QUICK", "0") not in {"", "0"}
    wanted = [name.strip() for name in os.environ.get("ONLY", "").split(",") if name.strip()]
    if unknown := set(wanted) - {line.name for line in LINES}:
        console.print(f"no such line: {', '.join(sorted(unknown))}; there are:", *(line.name for line in LINES), sep="\n  ")
        return EXIT_USAGE
    chosen = [line for line in LINES if not wanted or line.name in wanted]
    signal.signal(signal.SIGTERM, _ended)
    facts = {**machine.facts(), "quick": quick}
    results = measured(chosen, quick=quick)
    report.write_json(BUILD / "bench.json", facts, results)
    report.print_table(console, facts, results)
    console.print(f"written: {BUILD / 'bench.json'}", highlight=False)
    try:
        files = draw([result.as_json() for result in results], BUILD / "bench-pictures" if quick or wanted else PICTURES)
    except ImportError:
        console.print("no pictures: matplotlib is not installed (the `bench` extra)")
    else:
        console.print(*(f"written: {file}" for file in files), sep="\n", highlight=False)
    return EXIT_FAILED if any(result.failed for result in results) else 0


def measured(lines: Sequence[Line], *, quick: bool) -> list[Result]:
    """Measure these lines, one after another."""
    with (
        tempfile.TemporaryDirectory(prefix="coord-bench-") as folder,
        Progress(Console(stderr=True), lines=len(lines)) as progress,
        Bench(QUICK if quick else FULL, progress, Path(folder)) as bench,
    ):
        results: list[Result] = []
        for line in lines:
            progress.line(line.name)
            results.append(line.result(bench))
        progress.step("ending what was started")
        return results


def _ended(_signal: int, _frame: FrameType | None) -> NoReturn:
    """SIGTERM ends as Ctrl-C does: what was started is stopped."""
    raise KeyboardInterrupt


if __name__ == "__main__":
    sys.exit(main())
