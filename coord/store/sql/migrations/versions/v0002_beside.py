"""Windows and answers, which all processes share from here on: releases before keep their own, and may go on meanwhile."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def key() -> list[sa.Column[str]]:
    """Give the columns that name an aggregate."""
    exact: TypeEngine[str] = sa.String(255).with_variant(postgresql.VARCHAR(255, collation="C"), "postgresql")
    exact = exact.with_variant(mysql.VARCHAR(255, charset="utf8mb4", collation="utf8mb4_bin"), "mysql")
    return [sa.Column(name, exact, primary_key=True) for name in ("stream_prefix", "consumer_group")]


def digest(name: str) -> sa.Column[bytes]:
    """Give a column of SHA-256, part of the key."""
    return sa.Column(name, sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql"), primary_key=True)


def create_index(name: str, table: str, column: str) -> None:
    """Create an index, unless a step that was interrupted did; MySQL knows no IF NOT EXISTS for it."""
    if name not in {index["name"] for index in sa.inspect(op.get_bind()).get_indexes(table)}:
        op.create_index(name, table, [column])


def upgrade() -> None:
    """Make the tables."""
    op.create_table(
        "coordinator_windows",
        digest("place"),
        sa.Column("ends_at", sa.BigInteger, nullable=False),
        sa.Column("taken", sa.BigInteger, nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
        postgresql_with={"fillfactor": 70},  # a count changes in place, no index with it
    )
    create_index("coordinator_windows_by_end", "coordinator_windows", "ends_at")
    op.create_table(
        "coordinator_answered",
        *key(),
        sa.Column("changed_at", sa.BigInteger, nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
    )
    create_index("coordinator_answered_by_change", "coordinator_answered", "changed_at")
    op.create_table(
        "coordinator_answers",
        *key(),
        digest("name_key"),
        sa.Column("n", sa.BigInteger, nullable=False),
        sa.Column("answer", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql"), nullable=False),
        if_not_exists=True,
        mysql_engine="InnoDB",
    )
