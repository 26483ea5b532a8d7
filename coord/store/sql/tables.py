"""The tables. Times are ms of the database's clock. An aggregate is (stream_prefix, consumer_group), the latter '' for a stream.

| table                 | holds                                                       | lost if deleted          |
|-----------------------|-------------------------------------------------------------|--------------------------|
| coordinator_metadata  | the fold of each log and its guard; JSON null: deleted      | nothing: `coord repair`  |
| coordinator_events    | the logs, entry id `revision-n`                             | the history              |
| coordinator_leases    | a member's deadline (null: none) and latest report          | a lease each             |
| coordinator_looks     | when a group's leases were last looked at, and its grace    | a grace                  |
| coordinator_streams   | the prefixes of all streams                                 | nothing: the tick's job  |
| coordinator_loop      | one row: who ticks, and when it did                         | a turn                   |
| coordinator_instances | which level of events each live instance reads              | a note                   |
| coordinator_requests  | audit entries of no aggregate, bounded                      | those entries            |
| coordinator_windows   | mutations that a principal made in the window that ends then | a window's counts       |
| coordinator_answered  | when an aggregate's answers changed; their lock             | nothing                  |
| coordinator_answers   | answers to the latest mutations that came with a key        | those answers            |
| coordinator_store     | one row: which store this is, which releases may write it   | a correction round       |

Names are compared byte for byte, whatever the database's own collation says.
"""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Column, Index, Integer, LargeBinary, MetaData, String, Table, Text
from sqlalchemy.dialects import mysql, postgresql
from sqlalchemy.types import TypeEngine

NAME_LENGTH: Final = 255
INSTANCE_LENGTH: Final = 400
"""A coordinator id of 255 characters, a pid and a random part."""
TOKEN_LENGTH: Final = 255
"""Commit ids and identities."""
HEX_LENGTH: Final = 64
MEMBER_KEY_BYTES: Final = 32


def exact(length: int) -> TypeEngine[str]:
    """Give the type of a text that is compared byte for byte."""
    plain = String(length)
    plain = plain.with_variant(postgresql.VARCHAR(length, collation="C"), "postgresql")
    return plain.with_variant(mysql.VARCHAR(length, charset="utf8mb4", collation="utf8mb4_bin"), "mysql")


def document() -> TypeEngine[str]:
    """Give the type of canonical JSON."""
    return Text().with_variant(mysql.LONGTEXT(charset="utf8mb4", collation="utf8mb4_bin"), "mysql")


def digest() -> TypeEngine[bytes]:
    """Give the type of a SHA-256."""
    return LargeBinary(MEMBER_KEY_BYTES).with_variant(mysql.BINARY(MEMBER_KEY_BYTES), "mysql")


def opaque() -> TypeEngine[bytes]:
    """Give the type of bytes that nobody looks into."""
    return LargeBinary().with_variant(mysql.LONGBLOB(), "mysql")


def counter() -> TypeEngine[int]:
    """Give the type of a number that the database counts up; SQLite counts an INTEGER only."""
    return BigInteger().with_variant(Integer(), "sqlite")


def aggregate_key() -> tuple[Column[str], Column[str]]:
    """Give the columns that name an aggregate."""
    return (
        Column("stream_prefix", exact(NAME_LENGTH), primary_key=True, nullable=False),
        Column("consumer_group", exact(NAME_LENGTH), primary_key=True, nullable=False),
    )


schema: Final = MetaData()

metadata: Final = Table(
    "coordinator_metadata",
    schema,
    *aggregate_key(),
    Column("metadata_json", document()),
    Column("store_revision", BigInteger, nullable=False),
    Column("schema_version", Integer, nullable=False),
    Column("layout_version", Integer, nullable=False),
    Column("updated_at", BigInteger, nullable=False),
    Column("commit_id", exact(TOKEN_LENGTH), nullable=False),
    Column("head", exact(HEX_LENGTH), nullable=False),
    Column("chain", exact(HEX_LENGTH), nullable=False),
    Column("identity", exact(TOKEN_LENGTH), nullable=False),
    mysql_engine="InnoDB",
)

events: Final = Table(
    "coordinator_events",
    schema,
    *aggregate_key(),
    Column("revision", BigInteger, primary_key=True, autoincrement=False),
    Column("n", Integer, primary_key=True, autoincrement=False),
    Column("event", document(), nullable=False),
    Column("chain", exact(HEX_LENGTH), nullable=False),
    Column("commit_id", exact(TOKEN_LENGTH)),
    mysql_engine="InnoDB",
)
"""`commit_id`: null for an entry that was appended."""

leases: Final = Table(
    "coordinator_leases",
    schema,
    *aggregate_key(),
    Column("member_key", digest(), primary_key=True),
    Column("member_id", exact(NAME_LENGTH), nullable=False),
    Column("deadline_ms", BigInteger),
    Column("report", opaque()),
    mysql_engine="InnoDB",
)
"""`member_key`: SHA-256 of the member id, since three names of full length do not fit into one index entry of PostgreSQL."""

looks: Final = Table(
    "coordinator_looks",
    schema,
    *aggregate_key(),
    Column("looked_at", BigInteger, nullable=False),
    Column("grace_until", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)

streams: Final = Table(
    "coordinator_streams",
    schema,
    Column("stream_prefix", exact(NAME_LENGTH), primary_key=True, nullable=False),
    mysql_engine="InnoDB",
)

loop: Final = Table(
    "coordinator_loop",
    schema,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("ticker", exact(INSTANCE_LENGTH), nullable=False),
    Column("ticked_at", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)

instances: Final = Table(
    "coordinator_instances",
    schema,
    Column("instance", exact(INSTANCE_LENGTH), primary_key=True, nullable=False),
    Column("reads_level", Integer, nullable=False),
    Column("seen_at", BigInteger, nullable=False),
    mysql_engine="InnoDB",
)

requests: Final = Table(
    "coordinator_requests",
    schema,
    Column("id", counter(), primary_key=True, autoincrement=True),
    Column("at", BigInteger, nullable=False),
    Column("entry", document(), nullable=False),
    mysql_engine="InnoDB",
    sqlite_autoincrement=True,
)

store: Final = Table(
    "coordinator_store",
    schema,
    Column("id", Integer, primary_key=True, autoincrement=False),
    Column("store_id", exact(HEX_LENGTH), nullable=False),
    Column("created_at", BigInteger, nullable=False),
    Column("usable_from", Integer, nullable=False),
    mysql_engine="InnoDB",
)
"""`usable_from`: the lowest schema version whose releases may still work with these tables."""

windows: Final = Table(
    "coordinator_windows",
    schema,
    Column("place", digest(), primary_key=True),
    Column("ends_at", BigInteger, nullable=False),
    Column("taken", BigInteger, nullable=False),
    Index("coordinator_windows_by_end", "ends_at"),
    mysql_engine="InnoDB",
)
"""`place`: digest of the principal with the aggregate's names. `ends_at`: 0 before the first window."""

answered: Final = Table(
    "coordinator_answered",
    schema,
    *aggregate_key(),
    Column("changed_at", BigInteger, nullable=False),
    Index("coordinator_answered_by_change", "changed_at"),
    mysql_engine="InnoDB",
)

answers: Final = Table(
    "coordinator_answers",
    schema,
    *aggregate_key(),
    Column("name_key", digest(), primary_key=True),
    Column("n", BigInteger, nullable=False),
    Column("answer", opaque(), nullable=False),
    mysql_engine="InnoDB",
)
"""`name_key`: SHA-256 of the answer's name. `n`: the answers of an aggregate in the order in which they were put."""

ONE: Final = 1
"""The id of the one row of `loop` and of `store`."""
VERSION_TABLE: Final = "coordinator_schema_version"
"""Where Alembic keeps the version: a name of our own, as the database may hold other applications' tables."""
