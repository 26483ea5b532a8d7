"""Old event bodies to new, one version a step, pure.

`UPCASTS[(type, version)]` lifts the `data` of that version to the next. The fixtures in `tests/unit/events/golden/` are
kept for ever, so an upcaster is never edited, only followed by another.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

Upcast: TypeAlias = Callable[[dict[str, Any]], dict[str, Any]]

UPCASTS: Mapping[tuple[str, int], Upcast] = {}


def lift(name: str, version: int, current: int, data: dict[str, Any]) -> dict[str, Any]:
    """Lift `data` of event `name` from `version` to `current`; KeyError when a step is missing."""
    for step in range(version, current):
        data = UPCASTS[name, step](data)
    return data
