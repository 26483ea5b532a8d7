"""Alembic's entry: runs the steps over the connection that `coord.store.sql.schema` hands in, inside its transaction."""

from __future__ import annotations

from alembic import context

from coord.store.sql.tables import VERSION_TABLE, schema

connection = context.config.attributes["connection"]
context.configure(
    connection=connection,
    target_metadata=schema,
    version_table=VERSION_TABLE,
    transaction_per_migration=False,
    transactional_ddl=False,
)
context.run_migrations()
