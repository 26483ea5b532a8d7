"""Which scenario is tested where: `tests/README.md`, made from the tests themselves and from `tests/scenario_ids.txt`.

python -m tests.catalogue        writes tests/README.md
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Final

TESTS: Final = Path(__file__).parent
README: Final = TESTS / "README.md"
IDS: Final = TESTS / "scenario_ids.txt"
_NAME: Final = re.compile(r"test_([a-z]\d+)_")
_LINE: Final = re.compile(r"([A-Z]\d+) +([^|]+?)(?: *\| *(.+))?")

HEAD: Final = """# Tests

Made by `python -m tests.catalogue` from the tests and from `scenario_ids.txt`; a test fails when it is stale.

| where | question | needs |
| --- | --- | --- |
| `unit/` | is this rule right? | nothing |
| `scenarios/*.txt` | does the story read right? (`pytest tests/scenarios --rewrite` records what is printed) | nothing |
| `scenarios/test_*.py` | the scenarios below that are about the protocol, on a `World` (`world.py`) | nothing |
| `property/` | is there any sequence that breaks it? `python -m tests.property.walk 200` walks longer | nothing |
| `simulation/` | do several coordinators with faults keep the promises? | nothing |
| `store/` `streams/` | do all stores behave the same? is a drain proved? | its own Redis, PostgreSQL and MariaDB |
| `http/` `client/` `cli/` | is the edge a faithful translation? | its own Redis |
| `moving/` | is what is copied, or adopted, what it was? | its own Redis and PostgreSQL |
| `e2e/` | does it survive a kill? | whole processes |
| `fuzz/` | what nobody thought of (longer: `python -m tests.fuzz --cases 10000`) | nothing, and whole processes |
| `memory/` | what do strangers leave behind? (a real server: `python -m tests.memory --requests 1000000`) | nothing |

## Scenarios

How systems of this kind have failed, each a test whose name begins with its id (`test_a1_…`). What waits is named with the
work that it waits for.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One line of the list; `waits_for` is None when nothing of it waits."""

    section: str
    id: str
    title: str
    waits_for: str | None


def listed(text: str) -> Iterator[Scenario]:
    """Read the list of ids."""
    section = ""
    for line in text.splitlines():
        if line.startswith("== "):
            section = line.removeprefix("== ")
        elif line and not line.startswith("#"):
            found = _LINE.fullmatch(line)
            assert found, f"not a line of the list: {line!r}"
            yield Scenario(section=section, id=found[1], title=found[2], waits_for=found[3])


@cache
def places(folder: Path) -> dict[str, set[str]]:
    """Find for each id the files that have tests named for it."""
    files: dict[str, set[str]] = {}
    for path in sorted(folder.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and (found := _NAME.match(node.name)):
                files.setdefault(found[1].upper(), set()).add(str(path.relative_to(folder)))
    return files


def state(scenario: Scenario, files: Mapping[str, set[str]]) -> str:
    """Say where it is tested and what it waits for. Raises AssertionError when it is neither."""
    where = ", ".join(f"`{name}`" for name in sorted(files.get(scenario.id, ())))
    assert where or scenario.waits_for, f"{scenario.id} is neither tested nor waiting"
    if not where:
        return f"waiting for {scenario.waits_for}"
    return f"done: {where}" + (f"; the rest waits for {scenario.waits_for}" if scenario.waits_for else "")


def readme() -> str:
    """Give what tests/README.md must be."""
    files = places(TESTS)
    told, section = [HEAD], ""
    for scenario in listed(IDS.read_text(encoding="utf-8")):
        if scenario.section != section:
            section = scenario.section
            told += [f"### {section}\n", "| id | scenario | state |", "| --- | --- | --- |"]
        told.append(f"| {scenario.id} | {scenario.title} | {state(scenario, files)} |")
    text = "\n".join(told) + "\n"
    return text.replace("|\n### ", "|\n\n### ")


if __name__ == "__main__":
    README.write_text(readme(), encoding="utf-8")
    print(f"wrote {README}")
