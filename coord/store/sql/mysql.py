"""MariaDB and MySQL by PyMySQL.

What differs from PostgreSQL: a statement that changes rows gives none back on both servers, so a touch is three statements
sent in one packet; and a change of tables is no part of a transaction, so a migration holds a named lock and can be repeated.
"""

from __future__ import annotations

import ssl
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar, Final

import pymysql
from pymysql.constants import CLIENT, CR, ER
from sqlalchemy import Connection, Engine, Table, event, func, text
from sqlalchemy.dialects.mysql import insert
from sqlalchemy.exc import DBAPIError
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ColumnElement

from coord.store.base import StoreUnavailable, Touch, Touched
from coord.store.sql.dialect import CONSTANT, MIGRATION_LOCK, MIGRATION_S_MAX, STORE_ID, Change, Dialect, DriverError, Fault
from coord.store.sql.rows import Renewal, member_key, stored_identity
from coord.store.sql.settings import LOCK_SHARE, STATEMENT_SHARE, SqlSettings

PORT: Final = 3306
READ_S_MIN: Final = 0.001
IDLE_SHARE: Final = 2
"""After how many call bounds without a word MariaDB ends an open transaction."""
IDLE_S: Final = 60
"""The same for MySQL, which ends the whole connection; the pool renews its own before."""
STATEMENT_TIMED_OUT: Final = 1969
"""MariaDB's ER_STATEMENT_TIMEOUT."""

_FAULTS: Final[dict[int, Fault]] = {
    ER.LOCK_DEADLOCK: "contention",
    1020: "contention",  # MariaDB: the record has changed since it was read
    ER.DUP_ENTRY: "duplicate",
    ER.LOCK_WAIT_TIMEOUT: "busy",
    STATEMENT_TIMED_OUT: "busy",
    3024: "busy",  # MySQL's ER_QUERY_TIMEOUT
    ER.NO_SUCH_TABLE: "missing",
    ER.OPTION_PREVENTS_STATEMENT: "lost",  # read only: a primary no more; a fresh connection may lead to the new one
    1836: "lost",  # MySQL's ER_READ_ONLY_MODE: as above
    ER.SERVER_SHUTDOWN: "lost",
    1317: "lost",  # ER_QUERY_INTERRUPTED
    1927: "lost",  # MariaDB: the connection was killed
    4031: "lost",  # MySQL: disconnected after inactivity
    CR.CR_SERVER_GONE_ERROR: "lost",
    CR.CR_SERVER_LOST: "lost",
    CR.CR_CONN_HOST_ERROR: "lost",
    CR.CR_CONNECTION_ERROR: "lost",
}
_MYSQL_IDENTITY: Final = "@@server_uuid"
_MARIADB_IDENTITY: Final = "CONCAT(@@GLOBAL.server_id, '-', @@hostname, '-', @@port)"
_CONCERNS: Final = """
SELECT CASE WHEN @@GLOBAL.innodb_flush_log_at_trx_commit <> 1 THEN CONCAT('the database runs with '
  'innodb_flush_log_at_trx_commit=', @@GLOBAL.innodb_flush_log_at_trx_commit, ': a crash can lose what it has acknowledged') END
"""
_SEEN: Final = "SET @coord_now = {clock}, @coord_store = {identity}"
_RENEW: Final = """INSERT INTO coordinator_leases
  (stream_prefix, consumer_group, member_key, member_id, deadline_ms, report)
SELECT stream_prefix, consumer_group, %s, %s, CASE WHEN %s > 0 THEN @coord_now + %s END, %s
FROM coordinator_metadata
WHERE stream_prefix = %s AND consumer_group = %s AND metadata_json IS NOT NULL AND store_revision = %s AND commit_id = %s
  AND @coord_store = %s LOCK IN SHARE MODE
ON DUPLICATE KEY UPDATE
  deadline_ms = GREATEST(COALESCE(coordinator_leases.deadline_ms, VALUES(deadline_ms)),
    COALESCE(VALUES(deadline_ms), coordinator_leases.deadline_ms)),
  report = COALESCE(VALUES(report), coordinator_leases.report)"""
_TELL: Final = """SELECT @coord_now, @coord_store, ROW_COUNT(), MAX(store_revision), MAX(commit_id) FROM coordinator_metadata
WHERE stream_prefix = %s AND consumer_group = %s AND metadata_json IS NOT NULL"""


class MysqlDialect(Dialect):
    """MariaDB 10.5 or later, MySQL 8.0 or later; InnoDB."""

    begin: ClassVar[str] = "START TRANSACTION"

    def __init__(self, settings: SqlSettings) -> None:
        super().__init__(settings)
        self.clock = "(TIMESTAMPDIFF(MICROSECOND, '1970-01-01', UTC_TIMESTAMP(3)) DIV 1000)"
        self.identity = f"'{CONSTANT}'" if self.is_constant else self._identity_of("mariadb", _MARIADB_IDENTITY)

    def engine(self) -> Engine:
        """Make an engine."""
        engine = self.pooled("mysql+pymysql://", self._connect, pool_recycle=IDLE_S // 2)
        event.listen(engine, "connect", self._prepare)
        event.listen(engine, "before_cursor_execute", self._bound)
        return engine

    def _connect(self) -> BoundedConnection:
        settings = self.settings
        ((host, port),) = settings.hosts
        return BoundedConnection(
            host=host,
            port=port or PORT,
            user=settings.username or "",
            password=settings.password or "",
            database=settings.database,
            charset="utf8mb4",
            autocommit=True,
            connect_timeout=settings.timeout_s,
            read_timeout=settings.timeout_s,
            write_timeout=settings.timeout_s,
            client_flag=CLIENT.MULTI_STATEMENTS | CLIENT.FOUND_ROWS,
            ssl=tls_of(settings),
            ssl_disabled=settings.options.get("ssl_verify") == "off",
        )

    def _prepare(self, driver_connection: Any, _record: object) -> None:
        """Bound the session and set its isolation level; an old snapshot would show a commit's guards an old state."""
        statement_s = self.settings.timeout_s * STATEMENT_SHARE
        is_mariadb = "MariaDB" in driver_connection.get_server_info()
        bound = f"max_statement_time = {statement_s:.3f}" if is_mariadb else f"max_execution_time = {round(statement_s * 1000)}"
        lock_s = max(1, round(self.settings.timeout_s * LOCK_SHARE))
        with driver_connection.cursor() as cursor:
            cursor.execute("SET SESSION TRANSACTION ISOLATION LEVEL READ COMMITTED")
            cursor.execute(f"SET SESSION {bound}, innodb_lock_wait_timeout = {lock_s}")
            # Who vanished without a word must not hold a group's row for long.
            idle_s = max(1, round(self.settings.timeout_s * IDLE_SHARE))
            abandoned = f"idle_transaction_timeout = {idle_s}" if is_mariadb else f"wait_timeout = {IDLE_S}"
            cursor.execute(f"SET SESSION {abandoned}")

    @staticmethod
    def _bound(connection: Connection, *_: object) -> None:
        """Give a statement what is left of its call's time."""
        driver_connection: Any = connection.connection.driver_connection
        driver_connection.bound()

    def limit(self, driver_connection: Any, until: float) -> None:
        """Bound the conversation."""
        driver_connection.until = until

    def probe(self, connection: Connection) -> None:
        """Learn whether this is MySQL, which has an identity of its own."""
        if self.is_constant:
            return
        try:
            connection.execute(text(f"SELECT {_MYSQL_IDENTITY}"))
        except DBAPIError as error:
            if getattr(error.orig, "args", (0,))[0] != ER.UNKNOWN_SYSTEM_VARIABLE:
                raise
            self.identity = self._identity_of("mariadb", _MARIADB_IDENTITY)
        else:
            self.identity = self._identity_of("mysql", _MYSQL_IDENTITY)

    @staticmethod
    def _identity_of(name: str, server: str) -> str:
        return f"CONCAT('{name}-', {server}, '-', {STORE_ID})"

    def fault_of(self, error: BaseException) -> Fault:
        """Say what an error means, by its number."""
        cause = getattr(error, "orig", None) or error
        if isinstance(cause, OSError):
            return "lost"
        number = cause.args[0] if cause.args and isinstance(cause.args[0], int) else None
        if number is None or number == 0:
            return "lost" if isinstance(cause, pymysql.err.InterfaceError | pymysql.err.OperationalError) else "refused"
        return _FAULTS.get(number, "refused")

    def upsert(self, table: Table, change: Change) -> Insert:
        """Give INSERT … ON DUPLICATE KEY UPDATE."""
        statement = insert(table)
        return statement.on_duplicate_key_update(**change(table.c, statement.inserted))

    def greater(self, one: ColumnElement[Any], other: ColumnElement[Any]) -> ColumnElement[Any]:
        """Give the larger number."""
        return func.greatest(one, other)

    def touch(self, connection: Connection, touch: Touch, renewal: Renewal | None) -> Touched:
        """Touch in one packet: note time and store, renew where all is as cached, tell.

        The renewal is one statement, which holds the aggregate's row shared: no commit comes between check and renewal.
        """
        key = (touch.key.stream_prefix, touch.key.consumer_group)
        cached = (touch.revision, touch.commit_id, touch.identity)
        statements: list[str] = [_SEEN.format(clock=self.clock, identity=self.identity)]
        values: tuple[object, ...] = key
        if renewal is not None:
            statements.append(_RENEW)
            renewed = (member_key(renewal.member_id), renewal.member_id, renewal.ttl_ms, renewal.ttl_ms, renewal.report)
            values = (*renewed, *key, *cached, *key)
        driver_connection: Any = connection.connection.driver_connection
        driver_connection.bound()
        try:
            with driver_connection.cursor() as cursor:
                cursor.execute(";".join((*statements, _TELL)), values)
                for _ in statements:
                    cursor.nextset()
                ((now, identity, changed, revision, commit_id),) = cursor.fetchall()
        except (pymysql.Error, OSError) as error:
            raise DriverError(error) from error
        seen = (revision, commit_id, stored_identity(identity))
        return Touched(
            current=changed > 0 if renewal is not None else seen == cached,
            revision=revision or 0,
            identity=identity,
            now=int(now),
        )

    def concerns(self, connection: Connection) -> Sequence[str]:
        """Name settings that lose commits."""
        return [found for found in connection.execute(text(_CONCERNS)).scalars() if found]

    @contextmanager
    def migrating(self, connection: Connection) -> Iterator[None]:
        """Hold a named lock of the session: tables are changed outside of any transaction."""
        lifted = f"innodb_lock_wait_timeout = {MIGRATION_S_MAX}, lock_wait_timeout = {MIGRATION_S_MAX}"
        connection.execute(text(f"SET SESSION {lifted}"))
        name = {"name": MIGRATION_LOCK, "wait_s": MIGRATION_S_MAX}
        if connection.execute(text("SELECT GET_LOCK(SHA1(CONCAT(DATABASE(), '.', :name)), :wait_s)"), name).scalar() != 1:
            message = f"another migration has not ended within {MIGRATION_S_MAX} s"
            raise StoreUnavailable(message)
        try:
            yield
        finally:
            connection.execute(text("SELECT RELEASE_LOCK(SHA1(CONCAT(DATABASE(), '.', :name)))"), name)


class BoundedConnection(pymysql.connections.Connection):  # type: ignore[misc]  # PyMySQL ships no types
    """Waits for the server until `until` (monotonic, s) and no longer."""

    until: float = float("inf")

    def bound(self) -> None:
        """Give the next statement what is left."""
        if self.until != float("inf"):
            self._read_timeout = self._write_timeout = max(READ_S_MIN, self.until - time.monotonic())

    def commit(self) -> None:
        """Commit, within what is left."""
        self.bound()
        super().commit()


def tls_of(settings: SqlSettings) -> ssl.SSLContext | None:
    """Give how the server's certificate is checked; None where the driver does as it likes, or has TLS switched off."""
    options = settings.options
    verify = options.get("ssl_verify", "off")
    if verify == "off":
        return None
    context = ssl.create_default_context(cafile=options.get("ssl_ca"))
    context.check_hostname = verify == "identity"
    context.verify_mode = ssl.CERT_NONE if verify == "none" else ssl.CERT_REQUIRED
    if "ssl_cert" in options:
        context.load_cert_chain(options["ssl_cert"], options.get("ssl_key"))
    return context
