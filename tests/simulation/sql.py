"""The SQL store on a real PostgreSQL under simulated time: its statements as shipped, but for where they read clock and identity.

Both are expressions of the dialect; here they read a table that the simulation sets. Falling back is done by putting back an
earlier copy of every row.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager

import psycopg
from psycopg import sql
from sqlalchemy import Connection

from coord.store.sql.postgresql import PostgresqlDialect
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from coord.store.sql.tables import schema
from tests.store.sql_servers import PASSWORD, USER, PostgresqlServer

Rows = Mapping[str, Sequence[tuple[object, ...]]]


class SimulatedPostgresql(PostgresqlDialect):
    """PostgreSQL whose clock and identity are the simulation's."""

    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings)
        self.clock = "(SELECT now_ms FROM simulated)"
        self.identity = "(SELECT identity FROM simulated)"

    def probe(self, connection: Connection) -> None:
        """Nothing to learn."""


class SimulatedSql(SqlStore):
    """A SQL store whose clock and identity are the simulation's. The database is the test's own."""

    def __init__(self, settings: SqlSettings) -> None:
        ((host, port),) = settings.hosts
        self._connection = psycopg.connect(
            host=host, port=port, dbname=settings.database, user=USER, password=PASSWORD, autocommit=True
        )
        self._connection.execute("CREATE TABLE simulated (now_ms bigint NOT NULL, identity text NOT NULL)")
        self._connection.execute("INSERT INTO simulated VALUES (0, 'store-0')")
        self._identity = "store-0"
        super().__init__(SimulatedPostgresql(settings))
        self.ping()  # makes the tables

    @property
    def store_identity(self) -> str:
        """The identity that the statements see."""
        return self._identity

    @store_identity.setter
    def store_identity(self, identity: str) -> None:
        self._identity = identity
        self._connection.execute("UPDATE simulated SET identity = %s", [identity])

    def set_clock(self, ms: int) -> None:
        """Set the time that the statements see."""
        self._connection.execute("UPDATE simulated SET now_ms = %s", [ms])

    def dump(self) -> Rows:
        """Give a copy of every row."""
        with self._connection.transaction():
            return {
                table.name: self._connection.execute(sql.SQL("SELECT * FROM {}").format(sql.Identifier(table.name))).fetchall()
                for table in schema.sorted_tables
            }

    def restore(self, state: Rows) -> None:
        """Put a copy back; every other row goes."""
        with self._connection.transaction(), self._connection.cursor() as cursor:
            for name, rows in state.items():
                table = sql.Identifier(name)
                cursor.execute(sql.SQL("DELETE FROM {}").format(table))
                if rows:
                    places = sql.SQL(", ").join(sql.Placeholder() * len(rows[0]))
                    cursor.executemany(sql.SQL("INSERT INTO {} VALUES ({})").format(table, places), rows)

    def close(self) -> None:
        """Give up all connections."""
        super().close()
        self._connection.close()


def simulated_sql(server: PostgresqlServer) -> SimulatedSql:
    """Give a store on an empty database of a server."""
    return SimulatedSql(server.settings(server.new_database(), timeout_ms=10_000))


@contextmanager
def private_postgresql() -> Iterator[PostgresqlServer]:
    """Run a PostgreSQL of one's own."""
    server = PostgresqlServer("synchronous_commit=off")
    try:
        yield server
    finally:
        server.close()
