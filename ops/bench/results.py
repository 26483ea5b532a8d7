"""What a line gives: a value, its fields, its goal and whether that was reached; or the reason why there is no value."""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final, Literal, TypeAlias

Scalar: TypeAlias = float | int | str | bool
Comparison: TypeAlias = Literal["≥", "≤", "<"]
_HOLDS: Final[Mapping[Comparison, Callable[[float, float], bool]]] = {"≥": operator.ge, "≤": operator.le, "<": operator.lt}


class AbsentError(Exception):
    """This line cannot be measured here; the text says why, for people."""


@dataclass(frozen=True, slots=True)
class Bound:
    """One condition of a goal: a field (`value` is the line's own) beside a limit."""

    field: str
    comparison: Comparison
    limit: float

    def __str__(self) -> str:
        return f"{'' if self.field == 'value' else f'{self.field} '}{self.comparison} {self.limit:,g}"

    def holds(self, fields: Mapping[str, Scalar]) -> bool | None:
        """Say whether it is kept; None where the field was not measured."""
        found = fields.get(self.field)
        return None if found is None or isinstance(found, str) else _HOLDS[self.comparison](found, self.limit)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """What measuring gave. `valid` is False where the floors moved too far for the ratios to mean anything."""

    value: float
    fields: Mapping[str, Scalar] = field(default_factory=dict)
    valid: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A line of the table, and an object of `build/bench.json`. Either `measured` or `reason` is there."""

    name: str
    unit: str
    goal: tuple[Bound, ...] = ()
    measured: Measured | None = None
    reason: str | None = None
    failed: bool = False
    """The line could have been measured and was not: something is broken."""

    @property
    def reached(self) -> bool | None:
        """Whether every condition of the goal holds; None without a goal, or where one was not measured."""
        if self.measured is None or not self.goal:
            return None
        fields = {**self.measured.fields, "value": self.measured.value}
        kept = [bound.holds(fields) for bound in self.goal]
        if False in kept:
            return False
        return None if None in kept else True

    def as_json(self) -> dict[str, Scalar | None]:
        """Give the flat object: name, value, unit, goal, reached, valid, reason, then the fields."""
        measured = self.measured
        return {
            "name": self.name,
            "value": None if measured is None else measured.value,
            "unit": self.unit,
            "goal": " and ".join(map(str, self.goal)) or None,
            "reached": self.reached,
            "valid": measured is not None and measured.valid,
            "reason": self.reason,
            **({} if measured is None else measured.fields),
        }
