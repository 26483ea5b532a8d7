"""The mutants fit the tree, and the runner tells the killed from the living."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants.patches import ROOT, MalformedMutant, Mutant, mutants, places, read
from tests.mutants.running import copy_tree, hunt
from tests.simulation.checkers import CHECKERS
from tests.simulation.faults import VARIANTS

ALL = mutants()
QUICK = (
    "free-on-fence",
    "free-while-draining",
    "activate-before-provisioning",
    "compare-no-revision",
    "answer-before-the-commit",
)
"""Killed within a few seeds."""
FEW_SEEDS = 12
LIMIT_S = 120


def test_there_are_enough() -> None:
    assert len([mutant for mutant in ALL if mutant.killers]) >= 20
    assert {mutant.name for mutant in ALL} >= set(QUICK)


@pytest.mark.parametrize("mutant", ALL, ids=lambda mutant: mutant.name)
def test_a_mutant_fits_one_place_and_names_who_kills_it(mutant: Mutant) -> None:
    """The text that it changes is there once, so that git cannot apply it elsewhere."""
    for file, before in places(mutant):
        assert (ROOT / file).read_text().count(before) == 1, file
    assert set(mutant.killers) <= set(CHECKERS)
    assert mutant.variant is None or mutant.variant in VARIANTS
    if mutant.test:
        file, name = mutant.test.split("::")[0], mutant.test.split("::")[-1]
        assert (ROOT / file).is_file()
        tests = (path.read_text() for path in (ROOT / file).parent.glob("*.py"))
        assert any(f"def {name.split('[')[0]}(" in text for text in tests)


def test_every_mutant_applies(tmp_path: Path) -> None:
    copy_tree(tmp_path)
    for mutant in ALL:
        before = {file: (tmp_path / file).read_text() for file, _ in places(mutant)}
        mutant.apply(tmp_path)
        for file, text in before.items():
            assert (tmp_path / file).read_text() != text
            (tmp_path / file).write_text(text)


def test_a_header_that_lacks_something_is_named(tmp_path: Path) -> None:
    (tmp_path / "blank.patch").write_text("# rule: none\n--- a/x\n+++ b/x\n")
    with pytest.raises(MalformedMutant, match=r"blank\.patch: the header has no `# killed by:`"):
        read(tmp_path / "blank.patch")


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S * 2)
@pytest.mark.parametrize("name", QUICK)
def test_a_mutant_is_killed_by_the_checker_that_should(name: str, tmp_path: Path) -> None:
    copy_tree(tmp_path)
    mutant = next(mutant for mutant in ALL if mutant.name == name)
    verdict = hunt(mutant, tmp_path, seeds=FEW_SEEDS, limit_s=LIMIT_S)
    assert verdict.holds, verdict


@pytest.mark.slow
@pytest.mark.timeout(LIMIT_S * 2)
def test_what_changes_nothing_survives(tmp_path: Path) -> None:
    """A mutant that is none: the runner kills nobody by itself."""
    copy_tree(tmp_path)
    patch = tmp_path / "none.patch"
    text = (ROOT / "coord/core/ownership.py").read_text().splitlines(keepends=True)
    first = text[0]
    patch.write_text(
        "# rule: none\n# killed by: one reader\n# ticks: 100\n--- a/coord/core/ownership.py\n+++ b/coord/core/ownership.py\n"
        f"@@ -1,2 +1,2 @@\n-{first}+{first.rstrip()} \n {text[1]}"
    )
    verdict = hunt(read(patch), tmp_path, seeds=3, limit_s=LIMIT_S)
    assert (verdict.by, verdict.what, verdict.holds) == (None, "survived 3 seeds", False)
