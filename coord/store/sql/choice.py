"""Which dialect serves which database. A driver is imported only where it is used."""

from __future__ import annotations

from coord.store.sql.dialect import Dialect
from coord.store.sql.settings import SqlSettings


def dialect_of(settings: SqlSettings) -> Dialect:
    """Give the dialect of a database."""
    match settings.kind:
        case "postgresql":
            from coord.store.sql.postgresql import PostgresqlDialect  # noqa: PLC0415  psycopg may not be there

            return PostgresqlDialect(settings)
        case "mysql":
            from coord.store.sql.mysql import MysqlDialect  # noqa: PLC0415  PyMySQL may not be there

            return MysqlDialect(settings)
        case "sqlite":
            from coord.store.sql.sqlite import SqliteDialect  # noqa: PLC0415  as the others

            return SqliteDialect(settings)
