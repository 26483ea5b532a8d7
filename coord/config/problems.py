"""What can be wrong with a configuration: problems stop the start, warnings do not."""

from __future__ import annotations

from dataclasses import dataclass, field

Path = tuple[str | int, ...]
"""The place of a value below `coordinator`: kebab-case names and list indices."""


def dotted(path: Path) -> str:
    """Write a path as people do: `api.users[0].username`."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing to tell about the configuration: `key` (empty: the whole file) and a sentence without secrets."""

    key: str
    message: str

    def __str__(self) -> str:
        return f"{self.key}: {self.message}" if self.key else self.message


class ConfigurationError(Exception):
    """The start is refused. `problems` has every reason, `warnings` what would only have been warned about."""

    def __init__(self, problems: tuple[Problem, ...], warnings: tuple[Problem, ...] = ()) -> None:
        super().__init__(problems, warnings)
        self.problems = problems
        self.warnings = warnings

    def __str__(self) -> str:
        count = len(self.problems)
        title = f"the configuration is refused, {count} problem{'' if count == 1 else 's'}:"
        return "\n".join([title, *(f"  - {problem}" for problem in self.problems)])


@dataclass(slots=True)
class Findings:
    """Collects all problems and warnings of one load, so that nobody mends a file one error at a time."""

    problems: list[Problem] = field(default_factory=list)
    warnings: list[Problem] = field(default_factory=list)
    broken: set[str] = field(default_factory=set)

    def refuse(self, key: str, message: str) -> None:
        """Record a reason not to start; the key counts as broken from now on."""
        self.problems.append(Problem(key, message))
        self.broken.add(key)

    def refuse_pair(self, keys: tuple[str, ...], message: str) -> None:
        """Record an impossible combination, named by its first key, unless one of the keys is broken already."""
        if not self.broken.intersection(keys):
            self.problems.append(Problem(keys[0], message))

    def warn(self, key: str, message: str) -> None:
        """Record something that deserves a line at every start."""
        self.warnings.append(Problem(key, message))
