"""Assignors: pure functions from read set, members, the target of before and the holders to the moves that make a new target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Protocol

from coord.core.assignors.sticky import Before, Moves, sticky_moves
from coord.projections.group import Hold

__all__ = ["Assignor", "Before", "Moves", "sticky_moves"]


class Assignor(Protocol):
    """One owner per shard of the read set, a function of its arguments alone."""

    def __call__(self, read_set: Sequence[int], members: Sequence[str], before: Before, ownership: Mapping[int, Hold]) -> Moves:
        """Give the moves from `before` to the new target; everything loses its target when there are no members."""
