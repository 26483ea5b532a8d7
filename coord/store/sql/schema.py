"""The tables' version: looked at when a process first needs the database, and raised where that is allowed.

Migrations run one at a time, under a lock of the database; who waited for it finds nothing left to do.
"""

from __future__ import annotations

import logging
import threading
import uuid
from pathlib import Path
from typing import Final

import structlog
from alembic import command
from alembic.config import Config
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, column, func, insert, inspect, literal_column, select, table, text
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.sql.elements import ColumnElement

from coord.store.base import StoreError, StoreUnavailable
from coord.store.sql.connections import Connections, Failed
from coord.store.sql.dialect import MIGRATION_S_MAX, Dialect, first_line
from coord.store.sql.faults import told
from coord.store.sql.tables import ONE, VERSION_TABLE, loop, store
from coord.store.versions import Version

log: Final = structlog.get_logger(__name__)

USABLE_FROM: Final = 1
"""The lowest schema version whose releases can work with the tables as the newest step leaves them."""
_ALEMBIC: Final = threading.Lock()
"""Alembic keeps what it works on in the module `alembic.context`: one thread at a time."""
_VERSIONS: Final = table(VERSION_TABLE, column("version_num"))


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent / "migrations"))
    config.set_main_option("path_separator", "os")
    return config


def look(connection: Connection) -> Version:
    """Read the version of the tables."""
    scripts = ScriptDirectory.from_config(_config())
    newest = scripts.get_current_head() or ""
    known = [each.revision for each in reversed(list(scripts.walk_revisions()))]
    current, usable_from = "", 0
    if inspect(connection).has_table(VERSION_TABLE):
        current = connection.execute(select(_VERSIONS.c.version_num)).scalar() or ""
        if current and current not in known:
            usable_from = connection.execute(select(func.max(store.c.usable_from))).scalar() or 0
    pending = tuple(known[known.index(current) + 1 :] if current in known else known if not current else ())
    usable = current == newest or (current not in {"", *known} and usable_from <= int(newest))
    return Version(current=current, newest=newest, pending=pending, usable=usable)


def migrate(connection: Connection, dialect: Dialect) -> Version:
    """Bring the tables to the newest version; gives what was there before. Others wait, and find it done."""
    with dialect.migrating(connection):
        before = look(connection)
        if before.pending:
            _check_encoding(connection, dialect)
            config = _config()
            config.attributes["connection"] = connection
            logging.getLogger("alembic").setLevel(logging.WARNING)
            with _ALEMBIC:
                command.upgrade(config, "head")
        if before.usable or before.pending:
            _fill(connection, dialect)
        return before


def _fill(connection: Connection, dialect: Dialect) -> None:
    """Write the rows that there is one of, where they are missing."""
    if connection.execute(select(loop.c.id)).first() is None:
        connection.execute(insert(loop).values(id=ONE, ticker="", ticked_at=0))
    if connection.execute(select(store.c.id)).first() is not None:
        return
    now: ColumnElement[int] = literal_column(dialect.clock)
    connection.execute(insert(store).values(id=ONE, store_id=uuid.uuid4().hex[:12], created_at=now, usable_from=USABLE_FROM))


def _check_encoding(connection: Connection, dialect: Dialect) -> None:
    """Refuse a PostgreSQL database that cannot hold every name."""
    if connection.dialect.name != "postgresql":
        return
    encoding = connection.execute(text("SHOW server_encoding")).scalar()
    if encoding != "UTF8":
        message = f"{dialect.settings.place}: the database's encoding is {encoding}, it must be UTF8"
        raise StoreUnavailable(message)


class Readiness:
    """Whether this process has found the tables as it needs them. They are looked at in a thread; callers wait their time."""

    def __init__(self, connections: Connections, *, wait_s: float) -> None:
        self._connections = connections
        self._wait_s = wait_s
        self._lock = threading.Lock()
        self._done: threading.Event | None = None
        self._why = ""
        self.is_ready = False

    def ensure(self) -> None:
        """Return once the tables are as needed; StoreUnavailable when they are not within a call's time."""
        if self.is_ready:
            return
        with self._lock:
            done = self._done
            if done is None:
                done = self._done = threading.Event()
                threading.Thread(target=self._look, args=(done,), name="store schema", daemon=True).start()
        if not done.wait(self._wait_s):
            message = "the tables are being looked at, or migrated"
            raise StoreUnavailable(message)
        if not self.is_ready:
            raise StoreUnavailable(self._why)

    def _look(self, done: threading.Event) -> None:
        try:
            self._prepare()
            self.is_ready = True
        except (StoreError, Failed) as error:
            self._why = str(error)
        except SQLAlchemyError as error:
            self._why = first_line(error)
        finally:
            with self._lock:
                self._done = None
            done.set()

    def _prepare(self) -> None:
        dialect = self._connections.dialect

        version = self._connections.read(look)
        if version.pending and dialect.settings.migrates:
            before = run_migration(self._connections)
            if before.pending:
                log.info("tables migrated", store=dialect.settings.place, before=before.current or None, now=before.newest)
        elif version.pending:
            what = f"are at version {version.current}, this release needs {version.newest}" if version.current else "are missing"
            raise StoreUnavailable(f"{dialect.settings.place}: the tables {what}: run `coord store migrate`")
        elif not version.usable:
            raise StoreUnavailable(
                f"{dialect.settings.place}: the tables are at version {version.current}, of a newer release than this, which"
                f" knows {version.newest}"
            )
        self._connections.read(dialect.probe)


class SqlTables:
    """The tables of one database, for an operator's command. Every method may raise StoreUnavailable."""

    def __init__(self, dialect: Dialect) -> None:
        self._connections = Connections(dialect)

    def look(self) -> Version:
        """Give the version that is there."""
        with told():
            return self._connections.read(look)

    def migrate(self) -> Version:
        """Bring the tables to the newest version; gives what was there before."""
        with told():
            return run_migration(self._connections)

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()


def run_migration(connections: Connections) -> Version:
    """Migrate over a connection of its own bound; its session settings go with it."""
    return connections.apart(lambda connection: migrate(connection, connections.dialect), seconds=MIGRATION_S_MAX)
