"""The version of a SQL store's tables, as an operator's command sees it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True, kw_only=True)
class Version:
    """What is there, and what this release wants. `current` "": no tables yet. `pending`: the steps between, oldest first."""

    current: str
    newest: str
    pending: tuple[str, ...]
    usable: bool
    """Whether this release can work with what is there."""


class Tables(Protocol):
    """The tables of one database. Every method may raise StoreUnavailable."""

    def look(self) -> Version:
        """Give the version that is there."""

    def migrate(self) -> Version:
        """Bring the tables to the newest version; gives what was there before."""

    def close(self) -> None:
        """Close all connections."""
