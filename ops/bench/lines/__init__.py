"""The lines of the bench, in the order in which they are measured: each module holds those of one kind."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from ops.bench.lines import assignor, handover, heartbeats, idle, joins, memory, paced, replay, starting, ticking
from ops.bench.lines.line import Line

__all__ = ["LINES", "Line"]

LINES: Final[Sequence[Line]] = (
    *starting.LINES,
    *assignor.LINES,
    *replay.LINES,
    *heartbeats.LINES,
    *paced.LINES,
    *joins.LINES,  # after all that use the same groups: the churn leaves them changed
    *handover.LINES,
    *idle.LINES,
    *memory.LINES,
    *ticking.LINES,
)
