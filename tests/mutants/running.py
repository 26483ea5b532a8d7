"""Hunt one mutant down: in a copy of the tree of its own, seed by seed or by its test, within a bound."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from tests.mutants.patches import ROOT, MalformedMutant, Mutant

COPIED = ("coord", "tests", "pyproject.toml")
TEST_FAILED = 1
"""What pytest exits with when a test failed; anything else but 0 is a mistake in the header."""
TEST_PASSES = "the test passes"
SHOWN_MAX = 160


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of a mutant. `by`: the checker or test that killed it, None when none did; `seed`: in which run, if in one."""

    mutant: Mutant
    by: str | None
    seed: int | None
    seconds: float
    what: str

    @property
    def holds(self) -> bool:
        """Killed, by what its header names."""
        return self.by is not None and (self.by in self.mutant.killers or self.by == self.mutant.test)


def copy_tree(to: Path) -> None:
    """Copy what a hunt needs: taken once, so that edits during a long run do not mix."""
    for name in COPIED:
        source = ROOT / name
        if source.is_dir():
            shutil.copytree(source, to / name, ignore=shutil.ignore_patterns("__pycache__", ".*"))
        else:
            shutil.copy(source, to / name)


def hunt(mutant: Mutant, tree: Path, *, seeds: int, limit_s: float, told: Callable[[str], None] = lambda _: None) -> Verdict:
    """Apply a mutant to a copy of `tree` and run it until it is killed, survives, or its time is over."""
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="mutant-") as name:
        place = Path(name)
        shutil.copytree(tree, place, dirs_exist_ok=True)
        by, seed, what = _killed(mutant, place, seeds, limit_s, told)
    return Verdict(mutant=mutant, by=by, seed=seed, seconds=time.monotonic() - began, what=what[:SHOWN_MAX])


def _killed(
    mutant: Mutant, place: Path, seeds: int, limit_s: float, told: Callable[[str], None]
) -> tuple[str | None, int | None, str]:
    if mutant.test is not None:
        *_, before = _by_test(mutant.test, place, limit_s)
        if before != TEST_PASSES:
            return None, None, f"without the mutant: {before}"
    try:
        mutant.apply(place)
    except MalformedMutant as error:
        return None, None, str(error)
    if mutant.test is not None:
        return _by_test(mutant.test, place, limit_s)
    return _by_seeds(mutant, place, seeds, limit_s, told)


def _by_seeds(
    mutant: Mutant, place: Path, seeds: int, limit_s: float, told: Callable[[str], None]
) -> tuple[str | None, int | None, str]:
    command = [sys.executable, "-m", "tests.mutants.hunt", "--seeds", str(seeds), "--ticks", str(mutant.ticks)]
    command += ["--variant", mutant.variant] if mutant.variant else []
    with subprocess.Popen(command, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
        watch = threading.Timer(limit_s, running.kill)
        watch.start()
        ended = -1
        assert running.stdout is not None
        assert running.stderr is not None
        for line in running.stdout:
            said = json.loads(line)
            ended = said["seed"]
            if said["checker"] is not None:
                watch.cancel()
                return said["checker"], ended, said["violation"]
            if (ended + 1) % 20 == 0:
                told(f"{mutant.name}: {ended + 1} seeds survived")
        in_time = watch.is_alive()
        watch.cancel()
        errors = running.stderr.read().strip().splitlines()
    if ended + 1 == seeds:
        return None, None, f"survived {seeds} seeds"
    why = f"broke off: {errors[-1]}" if in_time and errors else f"survived {ended + 1} seeds in {limit_s:.0f} s"
    return None, None, why


def _by_test(test: str, place: Path, limit_s: float) -> tuple[str | None, int | None, str]:
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:randomly", "-p", "no:cacheprovider", test]
    # Without byte code: a mutant that is applied within a second, and as long as what it changes, would not be noticed.
    environment = os.environ | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=place, env=environment, capture_output=True, text=True, timeout=limit_s, check=False)
    except subprocess.TimeoutExpired:
        return None, None, f"{test} did not end within {limit_s:.0f} s"
    last = (done.stdout.strip().splitlines() or [""])[-1]
    if done.returncode == TEST_FAILED:
        return test, None, last
    return None, None, TEST_PASSES if done.returncode == 0 else f"pytest exits with {done.returncode}: {last}"
