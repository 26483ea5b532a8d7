"""What a line is, and how it is carried out: whatever goes wrong with one stops that one only."""

from __future__ import annotations

import traceback
from collections.abc import Callable
from dataclasses import dataclass

from ops.bench.bench import Bench
from ops.bench.results import AbsentError, Bound, Measured, Result


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A figure with a name, a unit and perhaps a goal, and the way to measure it."""

    name: str
    unit: str
    measure: Callable[[Bench], Measured]
    goal: tuple[Bound, ...] = ()

    def result(self, bench: Bench) -> Result:
        """Measure; an absent part or a failure becomes the reason why there is no value."""
        try:
            measured = self.measure(bench)
        except AbsentError as absent:
            return Result(name=self.name, unit=self.unit, goal=self.goal, reason=str(absent))
        except Exception as error:  # noqa: BLE001  one broken line must not cost the others
            bench.progress.note(traceback.format_exc())
            reason = f"failed: {type(error).__name__}: {error}"
            return Result(name=self.name, unit=self.unit, goal=self.goal, reason=reason, failed=True)
        return Result(name=self.name, unit=self.unit, goal=self.goal, measured=measured)
