"""Hunt mutants; exit 1 unless each is killed by what its header names."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

from rich import box
from rich.console import Console
from rich.table import Table

from tests.mutants.patches import mutants
from tests.mutants.running import Verdict, copy_tree, hunt


def main() -> int:
    """Hunt those that are asked for, telling each end as it comes, then all in a table."""
    parser = argparse.ArgumentParser(prog="python -m tests.mutants", description=__doc__)
    parser.add_argument("--only", action="append", metavar="NAME", help="only mutants whose name contains this (may be repeated)")
    parser.add_argument("--seeds", type=int, default=200, help="how many seeds each may survive")
    parser.add_argument("--jobs", type=int, default=2, help="how many at once")
    parser.add_argument("--limit", type=float, default=900.0, help="seconds that one mutant may take")
    asked = parser.parse_args()
    hunted = [m for m in mutants() if not asked.only or any(part in m.name for part in asked.only)]
    if not hunted:
        parser.error(f"no mutant is named so: {asked.only}")
    began = time.monotonic()
    verdicts: list[Verdict] = []
    with tempfile.TemporaryDirectory(prefix="mutants-") as name, ThreadPoolExecutor(asked.jobs) as pool:
        tree = Path(name)
        copy_tree(tree)
        waiting = [pool.submit(hunt, m, tree, seeds=asked.seeds, limit_s=asked.limit, told=tell) for m in hunted]
        for ended in as_completed(waiting):
            verdict = ended.result()
            verdicts.append(verdict)
            mark = "killed" if verdict.holds else "WRONG KILLER" if verdict.by else "ALIVE"
            tell(f"{len(verdicts)}/{len(hunted)} {mark} {verdict.mutant.name} by {verdict.by}, {verdict.seconds:.0f} s")
    show(verdicts)
    wrong = [v.mutant.name for v in verdicts if not v.holds]
    print(f"{len(verdicts)} mutants, {len(verdicts) - len(wrong)} killed as they should be, {time.monotonic() - began:.0f} s")
    if wrong:
        print(f"not so: {', '.join(sorted(wrong))}")
    return 1 if wrong else 0


def tell(text: str) -> None:
    """Show progress."""
    print(text, file=sys.stderr, flush=True)


def show(verdicts: list[Verdict]) -> None:
    """Print the table."""
    table = Table(box=box.SIMPLE, pad_edge=False)
    for column in ("mutant", "seed", "s", "killed by", "as expected", "what was seen"):
        table.add_column(column, justify="right" if column in ("seed", "s") else "left", overflow="fold")
    for v in sorted(verdicts, key=lambda v: v.mutant.name):
        expected = "yes" if v.holds else f"no: {v.mutant.test or ' or '.join(v.mutant.killers)}"
        seed = "" if v.seed is None else str(v.seed)
        table.add_row(v.mutant.name, seed, f"{v.seconds:.1f}", v.by or "nothing", expected, v.what)
    Console(width=None if sys.stdout.isatty() else 200).print(table)


if __name__ == "__main__":
    sys.exit(main())
