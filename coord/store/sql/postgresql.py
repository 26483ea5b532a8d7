"""PostgreSQL by psycopg 3."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from typing import Any, ClassVar, Final, TypeVar

import psycopg
from psycopg.abc import PQGen
from sqlalchemy import Connection, Engine, Table, event, func, text
from sqlalchemy.dialects.postgresql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ColumnElement, TextClause

from coord.store.base import Touch, Touched
from coord.store.sql.dialect import CONSTANT, MIGRATION_LOCK, MIGRATION_S_MAX, STORE_ID, Change, Dialect, Fault
from coord.store.sql.rows import Renewal, member_key, stored_identity
from coord.store.sql.settings import LOCK_SHARE, STATEMENT_SHARE, SqlSettings

POLL_S: Final = 0.1
"""psycopg looks up this often, for Ctrl-C."""
CONNECT_S_MIN: Final = 2
"""libpq knows no shorter one."""
IDLE_SHARE: Final = 2
"""After how many call bounds without a word the server ends an open transaction: its client is gone."""

T = TypeVar("T")

_FAULTS: Final[dict[str, Fault]] = {
    "40001": "contention",  # serialization_failure
    "40P01": "contention",  # deadlock_detected
    "23505": "duplicate",  # unique_violation
    "25006": "lost",  # read_only_sql_transaction: a primary no more; a fresh connection may lead to the new one
    "55P03": "busy",  # lock_not_available
    "57014": "busy",  # query_canceled: statement_timeout
    "42P01": "missing",  # undefined_table
    "3F000": "missing",  # invalid_schema_name
}

_NEVER_TOLD: Final = frozenset({"42501", "42883", "0A000"})
"""insufficient_privilege, undefined_function, feature_not_supported: so it is for this user, and stays so."""

_PARTS: Final = (
    ("its system identifier", "(SELECT system_identifier::text FROM pg_control_system())"),
    ("its timeline", "left(pg_walfile_name(pg_current_wal_lsn()), 8)"),
    ("its tables", "('coordinator_metadata'::regclass)::oid::text"),
)
"""Of the identity. The system identifier changes with the cluster. The timeline changes when a replica is promoted or a backup is
rolled forward; it is asked of the write-ahead log, as the control file tells the new one only after the next checkpoint.
The tables' oid changes when a dump is put back."""

_TOUCH: Final = """
WITH stored AS MATERIALIZED (
  SELECT store_revision, commit_id FROM coordinator_metadata
  WHERE stream_prefix = :stream AND consumer_group = :group AND metadata_json IS NOT NULL{lock}
), store AS MATERIALIZED (
  SELECT {clock} AS now, {identity} AS identity
){renewed}
SELECT store.now, store.identity, coalesce(stored.store_revision, 0),
  coalesce(stored.store_revision = :revision AND stored.commit_id = :commit_id AND store.identity = :identity, false)
FROM store LEFT JOIN stored ON true
"""
_RENEWED: Final = """, renewed AS (
  INSERT INTO coordinator_leases AS leases (stream_prefix, consumer_group, member_key, member_id, deadline_ms, report)
  SELECT :stream, :group, :member_key, :member, CASE WHEN :ttl > 0 THEN store.now + :ttl END, CAST(:report AS bytea)
  FROM stored, store
  WHERE stored.store_revision = :revision AND stored.commit_id = :commit_id AND store.identity = :identity
  ON CONFLICT (stream_prefix, consumer_group, member_key) DO UPDATE
  SET deadline_ms = greatest(leases.deadline_ms, excluded.deadline_ms), report = coalesce(excluded.report, leases.report)
)"""
_CONCERNS: Final = """
SELECT 'the database runs with ' || name || '=off: a crash of its machine can lose or spoil what it has acknowledged'
FROM pg_settings WHERE name IN ('fsync', 'full_page_writes') AND setting = 'off' ORDER BY name
"""


class BoundedConnection(psycopg.Connection[Any]):
    """Waits for the server until `until` (monotonic, s) and no longer; then it is of no more use and closed.

    Bounds on the server's side do not help against a server, or a network, that is silent.
    """

    until: float = math.inf

    def wait(self, gen: PQGen[T], interval: float = POLL_S, timeout: float | None = None) -> T:
        """Carry on a conversation with the server."""
        left_s = max(self.until - time.monotonic(), 0.0)
        try:
            return super().wait(gen, interval, None if timeout is None and math.isinf(left_s) else min(timeout or left_s, left_s))
        except psycopg.errors._WaitTimeout:  # noqa: SLF001  psycopg's name for it
            self.pgconn.finish()
            message = "the server was silent for too long"
            raise psycopg.OperationalError(message) from None


class PostgresqlDialect(Dialect):
    """PostgreSQL 12 or later, in a database whose encoding is UTF8."""

    begin: ClassVar[str] = "BEGIN ISOLATION LEVEL READ COMMITTED"

    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings)
        self.clock = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint"
        self._untold: list[str] = []
        self.identity = f"'{CONSTANT}'" if self.is_constant else self._identity_of([sql for _, sql in _PARTS])

    def engine(self) -> Engine:
        """Make an engine."""
        engine = self.pooled("postgresql+psycopg://", self._connect, use_native_hstore=False)
        event.listen(engine, "connect", self._prepare)
        return engine

    def _connect(self) -> BoundedConnection:
        settings = self.settings
        named = {name: value for name, value in settings.options.items() if name != "schema"}
        return BoundedConnection.connect(
            host=",".join(host for host, _ in settings.hosts) or None,
            port=",".join(str(port or "") for _, port in settings.hosts) or None,
            dbname=settings.database,
            user=settings.username,
            password=settings.password,
            connect_timeout=max(CONNECT_S_MIN, round(settings.timeout_s)),
            client_encoding="UTF8",
            autocommit=True,
            **({"application_name": "coord"} | named),  # type: ignore[arg-type]  # libpq's keywords are texts
        )

    def _prepare(self, driver_connection: Any, _record: object) -> None:
        """Bound the session, and let no commit be acknowledged before it is on disk, whatever the server's default."""
        bound_ms = self.settings.timeout_ms
        values = {
            "statement_timeout": str(round(bound_ms * STATEMENT_SHARE)),
            "lock_timeout": str(round(bound_ms * LOCK_SHARE)),
            "idle_in_transaction_session_timeout": str(bound_ms * IDLE_SHARE),
            "default_transaction_isolation": "read committed",
        }
        if schema := self.settings.options.get("schema"):
            values["search_path"] = schema
        wanted = ", ".join("set_config(%s, %s, false)" for _ in values)
        flat = [part for pair in values.items() for part in pair]
        driver_connection.until = time.monotonic() + self.settings.timeout_s
        driver_connection.execute(
            f"SELECT {wanted}, set_config('synchronous_commit', CASE current_setting('synchronous_commit')"
            " WHEN 'off' THEN 'on' ELSE current_setting('synchronous_commit') END, false)",
            flat,
        )

    def limit(self, driver_connection: Any, until: float) -> None:
        """Bound the conversation."""
        driver_connection.until = until

    def probe(self, connection: Connection) -> None:
        """Leave out of the identity what this server, or this user, does not tell."""
        if self.is_constant:
            return
        self._untold, told = [], []
        for what, sql in _PARTS:
            try:
                connection.execute(text(f"SELECT {sql}"))
            except DBAPIError as error:
                # Anything else is of this moment, as on a replica: all processes must come to one identity.
                if getattr(error.orig, "sqlstate", None) not in _NEVER_TOLD:
                    raise
                self._untold.append(what)
            else:
                told.append(sql)
        self.identity = self._identity_of(told)

    @staticmethod
    def _identity_of(parts: Sequence[str]) -> str:
        joined = " || '-' || ".join(("'postgresql'", *parts, STORE_ID))
        return f"({joined})"

    def fault_of(self, error: BaseException) -> Fault:
        """Say what an error means, by its SQLSTATE."""
        cause = getattr(error, "orig", None) or error
        state = getattr(cause, "sqlstate", None)
        if state is None:
            return "lost" if isinstance(cause, psycopg.OperationalError | psycopg.InterfaceError) else "refused"
        if state[:2] in {"08", "57"} and state != "57014":  # connection exceptions; shut down, crashed, starting up
            return "lost"
        return _FAULTS.get(state, "refused")

    def upsert(self, table: Table, change: Change) -> Insert:
        """Give INSERT … ON CONFLICT DO UPDATE."""
        statement = insert(table)
        return statement.on_conflict_do_update(
            index_elements=list(table.primary_key.columns), set_=dict(change(table.c, statement.excluded))
        )

    def greater(self, one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
        """Give the larger number."""
        return func.greatest(one, other)

    def touch(self, connection: Connection, touch: Touch, renewal: Renewal | None) -> Touched:
        """Touch in one statement. The row of the aggregate is held shared, so that no commit comes between check and renewal."""
        values: dict[str, object] = {
            "stream": touch.key.stream_prefix,
            "group": touch.key.consumer_group,
            "revision": touch.revision,
            "commit_id": touch.commit_id,
            "identity": touch.identity,
        }
        if renewal is not None:
            values |= {"member_key": member_key(renewal.member_id), "member": renewal.member_id}
            values |= {"ttl": renewal.ttl_ms, "report": renewal.report}
        now, identity, revision, current = connection.execute(self._touches[renewal is not None], values).one()
        return Touched(current=current, revision=revision, identity=stored_identity(identity), now=now)

    @cached_property
    def _touches(self) -> Mapping[bool, TextClause]:
        """The statement that only looks, and the one that writes."""
        looks = _TOUCH.format(clock=self.clock, identity=self.identity, lock="", renewed="")
        writes = _TOUCH.format(clock=self.clock, identity=self.identity, lock=" FOR SHARE", renewed=_RENEWED)
        return {False: text(looks), True: text(writes)}

    def concerns(self, connection: Connection) -> Sequence[str]:
        """Name settings that lose commits, and what of the identity is not told."""
        found = list(connection.execute(text(_CONCERNS)).scalars())
        if self._untold:
            found.append(f"the database does not tell {' and '.join(self._untold)}: some failovers that lose commits stay unseen")
        return found

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        """Hold an advisory lock of the transaction."""
        with super().migrating(connection):
            for name in ("statement_timeout", "lock_timeout", "idle_in_transaction_session_timeout"):
                connection.execute(text(f"SET LOCAL {name} = '{MIGRATION_S_MAX}s'"))
            connection.execute(text("SELECT pg_advisory_xact_lock(hashtext(:name))"), {"name": MIGRATION_LOCK})
            yield
