"""The list of scenarios and the tests agree, and `tests/README.md` says so."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.catalogue import IDS, README, Scenario, listed, places, readme, state

SECTIONS = frozenset("ABCEGHJKL")


def test_the_readme_is_what_the_tests_say() -> None:
    assert README.read_text(encoding="utf-8") == readme(), "stale: python -m tests.catalogue"


def test_no_test_is_named_for_a_scenario_that_is_not_listed() -> None:
    """Of these sections; the others have their lists where their work is."""
    known = {scenario.id for scenario in listed(IDS.read_text(encoding="utf-8"))}
    assert {found for found in places(IDS.parent) if found[0] in SECTIONS} <= known


def test_a_scenario_that_is_neither_is_found() -> None:
    lone = Scenario(section="", id="A1", title="x", waits_for=None)
    with pytest.raises(AssertionError, match="A1 is neither"):
        state(lone, {})
    assert state(lone, {"A1": {"b.py", "a.py"}}) == "done: `a.py`, `b.py`"
    waiting = Scenario(section="", id="A1", title="x", waits_for="y")
    assert state(waiting, {}) == "waiting for y"
    assert state(waiting, {"A1": {"a.py"}}) == "done: `a.py`; the rest waits for y"


def test_ids_are_found_in_names_of_functions_and_methods(tmp_path: Path) -> None:
    (tmp_path / "x.py").write_text("def test_b12_x(): ...\nclass C:\n    async def test_a1_y(self): ...\ndef test_other(): ...\n")
    assert places(tmp_path) == {"B12": {"x.py"}, "A1": {"x.py"}}


def test_a_line_that_is_none_is_named() -> None:
    with pytest.raises(AssertionError, match="nonsense"):
        list(listed("nonsense\n"))
