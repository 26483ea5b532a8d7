"""The way of one process to its database: connections, and tables that were found as they are needed."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from sqlalchemy import Connection

from coord.store.sql.connections import Connections
from coord.store.sql.dialect import Dialect
from coord.store.sql.schema import Readiness

T = TypeVar("T")


class Access:
    """`coord.store.sql.connections.Connections` once the tables are ready. Every call may raise StoreUnavailable, in time."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self.connections = Connections(dialect)
        self._ready = self._readiness()

    def _readiness(self) -> Readiness:
        return Readiness(self.connections, wait_s=self.dialect.settings.timeout_s)

    def read(self, work: Callable[[Connection], T]) -> T:
        """Do what is one statement, or harmless when it is done twice."""
        self._ready.ensure()
        return self.connections.read(work)

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do all of it in one transaction, or nothing; recognised, or harmless, when it is done twice."""
        self._ready.ensure()
        return self.connections.write(work)

    def write_once(self, work: Callable[[Connection], T]) -> T:
        """Do what must not be done twice, in one transaction; OutcomeUnknown where nothing says whether it was done."""
        self._ready.ensure()
        return self.connections.write_once(work)

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent, and look at the tables anew."""
        self.connections.after_fork()
        self._ready = self._readiness()

    def close(self) -> None:
        """Close all connections."""
        self.connections.close()
