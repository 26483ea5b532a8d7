"""How far a long walk has come, on stderr: a moving line on a terminal, else a line now and then."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from rich.status import Status

from coord.cli.output import console, note, printable

INTERVAL_S: Final = 2.0


class Progress:
    """Counts; of the present log and of all before it."""

    def __init__(self, doing: str, what: str, status: Status | None) -> None:
        self._doing = doing
        self._what = what
        self._status = status
        self._told_at = time.monotonic()
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
        now = time.monotonic()
        if now - self._told_at >= (INTERVAL_S if self._status is None else 0.1):
            self._told_at = now
            self._tell(f"{self._doing} … {self.count} {self._what} of {self._logs + 1} logs")

    def done(self, name: str) -> None:
        """The present log is done."""
        self._before, self._present, self._logs = self.count, 0, self._logs + 1
        if self._status is not None:
            self._tell(f"{self._doing} … {self.count} {self._what} of {self._logs} logs; last {printable(name)}")

    def _tell(self, text: str) -> None:
        if self._status is not None:
            self._status.update(text)
        else:
            note(text)


@contextmanager
def progress(doing: str, what: str) -> Iterator[Progress]:
    """Give what tells the progress."""
    screen = console(err=True)
    if not screen.is_terminal:
        yield Progress(doing, what, None)
        return
    with screen.status(f"{doing} …") as status:
        yield Progress(doing, what, status)
