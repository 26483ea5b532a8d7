"""SQLite: one file on this machine, for several processes."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path
from typing import Any, ClassVar, Final

from sqlalchemy import Engine, Table, event, func
from sqlalchemy.dialects.sqlite import insert
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ColumnElement
from tenacity import Retrying, retry_if_exception, stop_after_delay, wait_fixed

from coord.store.sql.dialect import CONSTANT, STORE_ID, Change, Dialect, Fault
from coord.store.sql.settings import SqlSettings

SWITCH_POLL_S: Final = 0.02


class SqliteDialect(Dialect):
    """SQLite 3.35 or later. Who may write takes the lock at the start, and waits for it; halfway it would wait in vain."""

    begin: ClassVar[str] = "BEGIN IMMEDIATE"
    one_writer: ClassVar[bool] = True
    touches_at_once: ClassVar[bool] = False

    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings)
        self.clock = "(CAST(strftime('%s', 'now') AS INTEGER) * 1000 + CAST(substr(strftime('%f', 'now'), 4) AS INTEGER))"
        self.identity = f"'{CONSTANT}'" if self.is_constant else f"('sqlite-' || coord_file() || '-' || {STORE_ID})"

    def engine(self) -> Engine:
        """Make an engine."""
        engine = self.pooled("sqlite+pysqlite://", self._connect)
        event.listen(engine, "connect", self._prepare)
        return engine

    def _connect(self) -> sqlite3.Connection:
        connection = sqlite3.connect(
            self.settings.database,
            timeout=self.settings.timeout_s,
            isolation_level=None,
            check_same_thread=False,
            factory=FileConnection,
        )
        assert isinstance(connection, FileConnection)
        connection.place = os.path.realpath(self.settings.database)
        return connection

    def _prepare(self, driver_connection: Any, _record: object) -> None:
        """Commits reach the disk before they are acknowledged; readers and the writer do not stop each other."""
        driver_connection.create_function("coord_file", 0, lambda: driver_connection.file)
        patiently = Retrying(
            retry=retry_if_exception(
                lambda error: isinstance(error, sqlite3.OperationalError) and self.fault_of(error) == "busy"
            ),
            wait=wait_fixed(SWITCH_POLL_S),
            stop=stop_after_delay(self.settings.timeout_s),
            reraise=True,
        )
        # Two processes that open a new file at once: here SQLite waits for nobody, whatever its time-out.
        patiently(lambda: driver_connection.execute("PRAGMA journal_mode = WAL").fetchall())
        driver_connection.execute("PRAGMA synchronous = FULL").fetchall()
        driver_connection.file = file_of(driver_connection.place)

    def is_current(self, driver_connection: Any) -> bool:
        """Tell whether the path still names the file that is open: another one may have been put there."""
        return bool(file_of(driver_connection.place) == driver_connection.file)

    def fault_of(self, error: BaseException) -> Fault:
        """Say what an error means."""
        cause = getattr(error, "orig", None) or error
        code = getattr(cause, "sqlite_errorcode", None)
        if code is None:
            return "unreadable" if "decode to UTF-8" in str(cause) else "refused"
        if code in {sqlite3.SQLITE_CONSTRAINT_PRIMARYKEY, sqlite3.SQLITE_CONSTRAINT_UNIQUE}:
            return "duplicate"
        if code & 0xFF in {sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED}:
            return "busy"
        if code == sqlite3.SQLITE_ERROR and "no such table" in str(cause):
            return "missing"
        return "refused"

    def upsert(self, table: Table, change: Change) -> Insert:
        """Give INSERT … ON CONFLICT DO UPDATE."""
        statement = insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=dict(change(table.c, statement.excluded))
        )

    def greater(self, one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
        """Give the larger number."""
        return func.max(one, other)


class FileConnection(sqlite3.Connection):
    """A connection that knows which file it has open."""

    place: str
    file: str


def file_of(place: str) -> str:
    """Give which file is at a path now: its number on its device, "" for none. A copy that was put there has another one."""
    try:
        return f"{Path(place).stat().st_ino:x}"
    except OSError:
        return ""
