"""Connections of one process, and what is done over them: bounded in time, transactions whole, nothing repeated blindly.

An attempt whose connection breaks is made again, once, on a fresh connection. Whoever repeats a commit finds it in the log, if
it took place; and an open transaction of the first attempt still holds its row, so that the second cannot miss it.
"""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Final, TypeVar

from sqlalchemy import Connection, Engine, text
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from coord.store.base import OutcomeUnknown, StoreUnavailable
from coord.store.sql.dialect import Dialect, DriverError, Fault, first_line
from coord.store.sql.settings import FIRST_TRY_SHARE

CONTENTIONS_MAX: Final = 5
PAUSE_S_MAX: Final = 0.02

T = TypeVar("T")


class Failed(Exception):
    """A driver's error, told apart. `committing`: COMMIT went out, and no answer came."""

    def __init__(self, fault: Fault, why: str, *, committing: bool = False) -> None:
        super().__init__(why)
        self.fault = fault
        self.committing = committing


class Undo(Exception):
    """Ends a transaction without a trace. `then` gives its outcome, on the same connection, once nothing is held any more."""

    def __init__(self, then: Callable[[Connection], Any]) -> None:
        super().__init__()
        self.then = then


@dataclass(frozen=True, slots=True)
class Span:
    """The time of an attempt: waiting may take it all, the conversation this share of what is left then."""

    deadline: float
    share: float = 1.0

    def left_s(self) -> float:
        """What is left for waiting."""
        return max(0.0, self.deadline - time.monotonic())

    def until(self) -> float:
        """When a conversation that begins now must have ended (monotonic, s)."""
        return time.monotonic() + self.left_s() * self.share


class Connections:
    """The pool of one process. Every method may raise StoreUnavailable, and does so in time."""

    def __init__(self, dialect: Dialect) -> None:
        self.dialect = dialect
        self._settings = dialect.settings
        self._engine: Engine = dialect.engine()
        self._slots = threading.BoundedSemaphore(self._settings.max_connections)
        self._writer = threading.Lock()

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent."""
        self._engine.dispose(close=False)
        self._slots = threading.BoundedSemaphore(self._settings.max_connections)
        self._writer = threading.Lock()

    def close(self) -> None:
        """Close what is not in use."""
        self._engine.dispose()

    # -- calls

    def read(self, work: Callable[[Connection], T]) -> T:
        """Do what is one statement, or harmless when it is done twice; each statement commits by itself."""
        return self._told(lambda span: self._alone(work, span))

    def write(self, work: Callable[[Connection], T]) -> T:
        """Do all of it in one transaction, or nothing (`Undo`). Must be recognised, or harmless, when it is done twice."""
        return self._told(lambda span: self._transaction(work, span))

    def write_once(self, work: Callable[[Connection], T]) -> T:
        """Do what must not be done twice: in one transaction, and never again after COMMIT went out."""
        return self._told(lambda span: self._transaction(work, span), repeat_commit=False)

    def apart(self, work: Callable[[Connection], T], *, seconds: float) -> T:
        """Do what takes longer, once, on a connection that is given up afterwards: its session settings go with it."""
        try:
            with self.connection(Span(time.monotonic() + seconds)) as connection:
                outcome = work(connection)
                connection.invalidate()
                return outcome
        except Failed as error:
            raise self._as_unavailable(error, unknown=False) from error

    def _told(self, attempt: Callable[[Span], T], *, repeat_commit: bool = True) -> T:
        """Make an attempt, and another one where the first came to nothing; Failed of kind `contention` or `missing` is left."""
        deadline = time.monotonic() + self._settings.timeout_s
        try:
            return self._uncontended(attempt, Span(deadline, share=FIRST_TRY_SHARE))
        except Failed as error:
            if error.fault != "lost" or (error.committing and not repeat_commit):
                raise self._as_unavailable(error, unknown=error.committing) from error
            first = error
        try:
            return self._uncontended(attempt, Span(deadline))
        except Failed as error:
            raise self._as_unavailable(error, unknown=first.committing or error.committing) from error
        except StoreUnavailable as error:
            if first.committing:
                raise OutcomeUnknown(_unknown(str(error))) from error
            raise

    @staticmethod
    def _uncontended(attempt: Callable[[Span], T], span: Span) -> T:
        """Try again after a deadlock or a serialization failure, a few times; then the contention is told."""
        for _ in range(CONTENTIONS_MAX):
            try:
                return attempt(span)
            except Failed as error:
                if error.fault != "contention" or span.left_s() <= 0:
                    raise
            time.sleep(random.uniform(0, PAUSE_S_MAX))
        return attempt(span)

    def _as_unavailable(self, error: Failed, *, unknown: bool) -> Exception:
        if unknown:
            return OutcomeUnknown(_unknown(str(error)))
        if error.fault in {"contention", "unreadable"}:
            return error
        if error.fault == "missing":
            return StoreUnavailable(f"tables of the coordinator are missing, run `coord store migrate`: {error}")
        return StoreUnavailable(f"{self._settings.place}: {error}")

    # -- attempts

    def _alone(self, work: Callable[[Connection], T], span: Span) -> T:
        with self.connection(span) as connection:
            return work(connection)

    def _transaction(self, work: Callable[[Connection], T], span: Span) -> T:
        with self._turn(span), self.connection(span) as connection:
            connection.execute(text(self.dialect.begin))
            try:
                outcome = work(connection)
            except Undo as undone:
                connection.execute(text("ROLLBACK"))
                instead: T = undone.then(connection)
                return instead
            except BaseException:
                self._roll_back(connection)
                raise
            self._commit(connection)
            return outcome

    def _commit(self, connection: Connection) -> None:
        try:
            connection.execute(text("COMMIT"))
        except DBAPIError as error:
            fault = self.dialect.fault_of(error)
            if fault != "lost":
                self._roll_back(connection)
            raise Failed(fault, first_line(error), committing=fault == "lost") from error

    @staticmethod
    def _roll_back(connection: Connection) -> None:
        """Undo, or else give the connection up: nobody may find an open transaction on it."""
        if connection.invalidated:
            return
        try:
            connection.execute(text("ROLLBACK"))
        except SQLAlchemyError:
            with suppress(SQLAlchemyError):
                connection.invalidate()

    @contextmanager
    def _turn(self, span: Span) -> Iterator[None]:
        """Wait for this process's turn to write, where the database has no queue for it."""
        if not self.dialect.one_writer:
            yield
            return
        if not self._writer.acquire(timeout=span.left_s()):
            message = "other writers of this process have not ended in time"
            raise StoreUnavailable(message)
        try:
            yield
        finally:
            self._writer.release()

    @contextmanager
    def connection(self, span: Span) -> Iterator[Connection]:
        """Lend a connection for that time; what its driver raises comes out as Failed."""
        slots = self._slots
        if not slots.acquire(timeout=span.left_s()):
            message = f"all {self._settings.max_connections} connections (store.jdbc.max-connections) are in use"
            raise StoreUnavailable(message)
        try:
            with self._told_apart(), self._connected() as connection:
                try:
                    self.dialect.limit(connection.connection.driver_connection, span.until())
                    yield connection
                except Exception as error:
                    if self._is_lost(error) and not connection.invalidated:
                        connection.invalidate()
                    raise
        finally:
            slots.release()

    def _connected(self) -> Connection:
        """Give a connection to the database that is at this place now."""
        for _ in range(self._settings.max_connections):
            connection = self._engine.connect()
            if self.dialect.is_current(connection.connection.driver_connection):
                return connection
            connection.invalidate()
            connection.close()
        return self._engine.connect()

    def _is_lost(self, error: BaseException) -> bool:
        if isinstance(error, Failed):
            return error.fault == "lost"
        return isinstance(error, DBAPIError | DriverError) and self.dialect.fault_of(error) == "lost"

    @contextmanager
    def _told_apart(self) -> Iterator[None]:
        try:
            yield
        except (DBAPIError, DriverError) as error:
            raise Failed(self.dialect.fault_of(error), first_line(error)) from error
        except SQLAlchemyError as error:
            raise Failed("refused", first_line(error)) from error


def _unknown(why: str) -> str:
    return f"nothing says whether a write took place: {why}"
