"""How far a walk over many logs has come: what was counted, of the present log and of all before it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from coord.cli import direct


class Progress:
    """Counts; of the present log and of all before it."""

    def __init__(self, doing: str, what: str, tell: Callable[[str], None]) -> None:
        self._doing = doing
        self._what = what
        self._tell = tell
        self._before = 0
        self._present = 0
        self._logs = 0

    @property
    def count(self) -> int:
        """How many there were so far."""
        return self._before + self._present

    def add(self, number: int) -> None:
        """So many more."""
        self.reached(self._present + number)

    def reached(self, present: int) -> None:
        """So many of the present log."""
        self._present = present
        self._tell(f"{self._doing} … {self.count} {self._what} of {self._logs + 1} logs")

    def done(self, name: str) -> None:
        """The present log is done."""
        self._before, self._present, self._logs = self.count, 0, self._logs + 1
        self._tell(f"{self._doing} … {self.count} {self._what} of {self._logs} logs; last {name}")


@contextmanager
def progress(doing: str, what: str) -> Iterator[Progress]:
    """Give what tells the progress."""
    with direct.progress(doing) as tell:
        yield Progress(doing, what, tell)
