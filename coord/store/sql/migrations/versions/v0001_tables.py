"""The first tables."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa
from alembic import op
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def exact(length: int) -> TypeEngine[str]:
    """Give the type of a text that is compared byte for byte."""
    plain = sa.String(length).with_variant(postgresql.VARCHAR(length, collation="C"), "postgresql")
    return plain.with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql")


def document() -> TypeEngine[str]:
    """Give the type of canonical JSON."""
    return sa.Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")


def key() -> list[sa.Column[str]]:
    """Give the columns that name an aggregate."""
    return [sa.Column("stream_prefix", exact(255), primary_key=True), sa.Column("consumer_group", exact(255), primary_key=True)]


def create(name: str, *columns: sa.Column[Any], often: bool = False, **options: bool) -> None:
    """Create a table, unless a step that was interrupted did.

    `often`: its rows change all the time and no index with them; room in its pages lets PostgreSQL change them in place.
    """
    room = {"fillfactor": 70} if often else {}
    op.create_table(name, *columns, if_not_exists=True, mysql_engine="InnoDB", postgresql_with=room, **options)


def upgrade() -> None:
    """Make the tables, and the one row of `coordinator_store`, which `coord.store.sql.schema` fills in."""
    create(
        "coordinator_metadata",
        *key(),
        sa.Column("metadata_json", document()),
        sa.Column("store_revision", sa.BigInteger, nullable=False),
        sa.Column("schema_version", sa.Integer, nullable=False),
        sa.Column("layout_version", sa.Integer, nullable=False),
        sa.Column("updated_at", sa.BigInteger, nullable=False),
        sa.Column("commit_id", exact(255), nullable=False),
        sa.Column("head", exact(64), nullable=False),
        sa.Column("chain", exact(64), nullable=False),
        sa.Column("identity", exact(255), nullable=False),
    )
    create(
        "coordinator_events",
        *key(),
        sa.Column("revision", sa.BigInteger, primary_key=True, autoincrement=False),
        sa.Column("n", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("event", document(), nullable=False),
        sa.Column("chain", exact(64), nullable=False),
        sa.Column("commit_id", exact(255)),
    )
    create(
        "coordinator_leases",
        *key(),
        sa.Column("member_key", sa.LargeBinary(32).with_variant(mysql.BINARY(32), "mysql"), primary_key=True),
        sa.Column("member_id", exact(255), nullable=False),
        sa.Column("deadline_ms", sa.BigInteger),
        sa.Column("report", sa.LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")),
        often=True,
    )
    create(
        "coordinator_looks",
        *key(),
        sa.Column("looked_at", sa.BigInteger, nullable=False),
        sa.Column("grace_until", sa.BigInteger, nullable=False),
        often=True,
    )
    _create_the_rest()


def _create_the_rest() -> None:
    """Make what belongs to no aggregate."""
    create("coordinator_streams", sa.Column("stream_prefix", exact(255), primary_key=True))
    create(
        "coordinator_loop",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("ticker", exact(400), nullable=False),
        sa.Column("ticked_at", sa.BigInteger, nullable=False),
        often=True,
    )
    create(
        "coordinator_instances",
        sa.Column("instance", exact(400), primary_key=True),
        sa.Column("reads_level", sa.Integer, nullable=False),
        sa.Column("seen_at", sa.BigInteger, nullable=False),
        often=True,
    )
    create(
        "coordinator_requests",
        sa.Column("id", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True),
        sa.Column("at", sa.BigInteger, nullable=False),
        sa.Column("entry", document(), nullable=False),
        sqlite_autoincrement=True,
    )
    create(
        "coordinator_store",
        sa.Column("id", sa.Integer, primary_key=True, autoincrement=False),
        sa.Column("store_id", exact(64), nullable=False),
        sa.Column("created_at", sa.BigInteger, nullable=False),
        sa.Column("usable_from", sa.Integer, nullable=False),
    )
