"""Says what is being measured: one changing line on a terminal, plain lines elsewhere."""

from __future__ import annotations

from types import TracebackType
from typing import Self

from rich.console import Console


class Progress:
    """`line` begins a line of the table, `step` a part of it."""

    def __init__(self, console: Console, *, lines: int) -> None:
        self._console = console
        self._lines = lines
        self._at = 0
        self._name = ""
        self._status = console.status("starting") if console.is_terminal else None

    def line(self, name: str) -> None:
        """Begin the next line."""
        self._at += 1
        self._name = name
        self.step("begins")

    def step(self, what: str) -> None:
        """Tell what goes on now."""
        text = f"[{self._at}/{self._lines}] {self._name}: {what}"
        if self._status is not None:
            self._status.update(text.replace("[", "\\[", 1))
        else:
            self._console.print(text, markup=False, highlight=False)

    def note(self, text: str) -> None:
        """Leave a line standing."""
        self._console.print(text, markup=False, highlight=False)

    def __enter__(self) -> Self:
        if self._status is not None:
            self._status.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._status is not None:
            self._status.stop()
