"""Mutants as they are kept: a header, and a unified diff with little context."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
HERE = Path(__file__).parent
TICKS = 1_000
PYTEST = "pytest "
_FIELD = re.compile(r"^# (rule|killed by|ticks|variant): (.+)$")


class MalformedMutant(Exception):
    """A patch whose header lacks something, or that does not fit the tree."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One rule taken out. `killers` are checkers; or one `test`, a pytest node id. `variant` None: that of each seed's number."""

    name: str
    path: Path
    rule: str
    killers: tuple[str, ...]
    test: str | None
    ticks: int
    variant: str | None

    def apply(self, root: Path) -> None:
        """Change the tree under `root`; MalformedMutant when it does not fit."""
        command = ["git", "apply", "-p1", str(self.path)]
        done = subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)
        if done.returncode:
            raise MalformedMutant(f"{self.path.name} does not apply: {done.stderr.strip()}")


def mutants() -> list[Mutant]:
    """Read all of them, by name."""
    return [read(path) for path in sorted(HERE.glob("*.patch"))]


def read(path: Path) -> Mutant:
    """Read one; MalformedMutant names what its header lacks."""
    head = path.read_text().split("\n--- ", 1)[0]
    fields = {found[1]: found[2].strip() for line in head.splitlines() if (found := _FIELD.match(line))}
    for name in ("rule", "killed by"):
        if name not in fields:
            raise MalformedMutant(f"{path.name}: the header has no `# {name}:`")
    by = fields["killed by"]
    test = by.removeprefix(PYTEST) if by.startswith(PYTEST) else None
    killers = () if test else tuple(name.strip() for name in by.split(","))
    ticks = int(fields.get("ticks", TICKS))
    return Mutant(
        name=path.stem, path=path, rule=fields["rule"], killers=killers, test=test, ticks=ticks, variant=fields.get("variant")
    )


def places(mutant: Mutant) -> list[tuple[str, str]]:
    """Give what each hunk of a patch looks for: (file, text before the change)."""
    found: list[tuple[str, str]] = []
    file = ""
    for line in mutant.path.read_text().splitlines(keepends=True):
        if line.startswith("--- a/"):
            file = line.removeprefix("--- a/").strip()
        elif line.startswith("@@"):
            found.append((file, ""))
        elif found and line[0] in " -" and not line.startswith("---"):
            found[-1] = (file, found[-1][1] + line[1:])
    return found
