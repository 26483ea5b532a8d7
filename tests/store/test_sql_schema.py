"""Which tables there are and who makes them; which store it is, and when it is another one."""

from __future__ import annotations

import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from threading import Barrier

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext

from coord.store.base import Committed, Conflict, CorruptAggregate, StoreUnavailable, Touch
from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from coord.store.sql.tables import VERSION_TABLE, schema
from tests.store.author import KEY, commit_on, committed
from tests.store.sql_servers import MariadbServer, PostgresqlServer, SqlServer

ROOT = Path(__file__).parents[2]


@dataclass
class Base:
    """An empty database: how to reach it, and how to change it behind the store's back."""

    settings: Callable[..., SqlSettings]
    execute: Callable[[str], object]

    def store(self, **changes: object) -> SqlStore:
        return SqlStore(dialect_of(self.settings(**{"timeout_ms": 10_000, **changes})))


@pytest.fixture(params=["sqlite", "postgresql", "mariadb"])
def base(request: pytest.FixtureRequest, tmp_path: Path) -> Base:
    if request.param == "sqlite":
        return sqlite_at(tmp_path / "coord.db")
    server: SqlServer = request.getfixturevalue(f"shared_{request.param}")
    name = server.new_database()
    return Base(lambda **changes: server.settings(name, **changes), lambda statement: server.execute(name, statement))


def sqlite_at(file: Path) -> Base:
    def execute(statement: str) -> object:
        with closing(sqlite3.connect(file, isolation_level=None)) as connection:
            return connection.execute(statement).fetchall()

    def settings(**changes: object) -> SqlSettings:
        plain: dict[str, object] = {"kind": "sqlite", "database": str(file), "migrates": True}
        return SqlSettings(**(plain | changes))  # type: ignore[arg-type]  # a test changes any field

    return Base(settings, execute)


# -- tables


def test_the_steps_lead_to_the_tables_that_the_statements_use(base: Base) -> None:
    with closing(base.store()) as store:
        store.ping()
        engine = store._connections._engine
        with engine.connect() as connection:
            context = MigrationContext.configure(connection, opts={"version_table": VERSION_TABLE, "compare_type": True})
            assert compare_metadata(context, schema) == []


def test_many_that_start_at_once_make_the_tables_once(base: Base) -> None:
    """Each a store of its own, as worker processes have them."""
    stores = [base.store(timeout_ms=30_000) for _ in range(8)]
    together = Barrier(len(stores))

    def start(store: SqlStore) -> str:
        together.wait()
        return store.identity()

    with ThreadPoolExecutor(len(stores)) as pool:
        identities = set(pool.map(start, stores))
    assert len(identities) == 1
    for store in stores:
        store.close()


def test_who_may_not_make_tables_says_that_they_are_missing(base: Base) -> None:
    with closing(base.store(migrates=False)) as store, closing(base.store()) as maker:
        with pytest.raises(StoreUnavailable, match="coord store migrate"):
            store.load(KEY)
        maker.ping()
        assert store.load(KEY).head.revision == 0
        base.execute("DROP TABLE coordinator_leases")
        with pytest.raises(StoreUnavailable, match="missing"):
            store.soft(KEY)


def test_a_migration_that_was_interrupted_is_finished(base: Base) -> None:
    """As a crash leaves it where tables are changed outside of transactions: some are there, the version is not."""
    with closing(base.store()) as store:
        committed(store)
        base.execute("DROP TABLE coordinator_leases")
        base.execute(f"DELETE FROM {VERSION_TABLE}")
    with closing(base.store()) as store:
        assert store.load(KEY).head.revision == 1
        assert store.soft(KEY).leases == {}


def test_tables_of_a_newer_release_are_used_as_far_as_it_allows(base: Base) -> None:
    with closing(base.store()) as store:
        committed(store)
        base.execute(f"UPDATE {VERSION_TABLE} SET version_num = '0099'")
    with closing(base.store()) as store:
        assert committed(store).head.revision == 2
        base.execute("UPDATE coordinator_store SET usable_from = 99")
        assert committed(store).head.revision == 3, "a process that runs goes on"
    with closing(base.store()) as store, pytest.raises(StoreUnavailable, match="newer release"):
        store.load(KEY)


def test_a_database_that_cannot_hold_every_name_is_refused(shared_postgresql: PostgresqlServer) -> None:
    shared_postgresql.execute("postgres", "CREATE DATABASE latin ENCODING 'LATIN1' LOCALE 'C' TEMPLATE template0 OWNER coord")
    with closing(shared_postgresql.store("latin")) as store, pytest.raises(StoreUnavailable, match="must be UTF8"):
        store.load(KEY)


def test_a_schema_of_ones_own(shared_postgresql: PostgresqlServer, postgresql: str) -> None:
    """`currentSchema`: two coordinators in one database that share nothing."""
    shared_postgresql.execute(postgresql, "CREATE SCHEMA other AUTHORIZATION coord")
    with (
        closing(shared_postgresql.store(postgresql, options={"schema": "other"})) as other,
        closing(shared_postgresql.store(postgresql)) as store,
    ):
        committed(other)
        assert store.load(KEY).head.revision == 0
        assert other.identity() != store.identity()


# -- which store it is


def test_a_store_is_known_by_its_name_for_each_step(base: Base) -> None:
    """An operator who put rows back by hand gives the store another name: the next commit and touch see it."""
    with closing(base.store()) as store:
        committed(store)
        commit = commit_on(store.load(KEY))
        before = store.identity()
        base.execute("UPDATE coordinator_store SET store_id = 'restored'")
        answer = store.commit(commit)
        assert isinstance(answer, Conflict)
        assert answer.what == "identity"
        assert answer.identity == store.identity() == store.load(KEY).identity != before


def test_a_store_without_a_name_is_unavailable_until_it_has_one(base: Base) -> None:
    with closing(base.store()) as store:
        commit = commit_on(store.load(KEY))
        base.execute("DELETE FROM coordinator_store")
        touch = Touch(key=KEY, revision=1, commit_id="", identity="", renew=("m",), ttl_ms=1)
        for step in (lambda: store.commit(commit), lambda: store.load(KEY), lambda: store.touch(touch), store.identity):
            with pytest.raises(StoreUnavailable, match="coordinator_store"):
                step()


def test_tables_that_were_made_again_are_another_store(base: Base) -> None:
    with closing(base.store()) as store:
        before = store.identity()
    for table in (*(table.name for table in schema.sorted_tables), VERSION_TABLE):
        base.execute(f"DROP TABLE {table}")
    with closing(base.store()) as store:
        assert store.identity() != before


def test_a_promoted_replica_is_another_store() -> None:
    """What the old primary acknowledged and did not pass on is lost; the first to come sees that the store has changed."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    with closing(PostgresqlServer(durable=True)) as primary:
        name = primary.new_database()
        with closing(primary.store(name, timeout_ms=10_000)) as store:
            committed(store)
            replica = primary.replica()
            with closing(replica):
                assert replica.execute("postgres", "SELECT pg_is_in_recovery()") == [(True,)]
                behind = replica.store(name, timeout_ms=10_000)
                with pytest.raises(StoreUnavailable, match=r"recovery|read-only"):
                    committed(behind)
                behind.close()
                replica.kill()
                lost = committed(store)
                commit = commit_on(store.load(KEY))
                primary.kill()
                replica.start()
                replica.promote()
                with closing(replica.store(name, timeout_ms=10_000)) as after:
                    read = after.load(KEY)
                    assert (lost.head.revision, read.head.revision) == (2, 1)
                    assert read.identity != commit.identity
                    answer = after.commit(commit_on(read, identity=commit.identity))
                    assert isinstance(answer, Conflict)
                    assert answer.what == "identity"
                    assert isinstance(after.commit(commit_on(read)), Committed)


def test_another_mariadb_is_another_store(shared_mariadb: MariadbServer, mariadb: str) -> None:
    with closing(shared_mariadb.store(mariadb)) as store:
        before = store.identity()
        ((number,),) = shared_mariadb.execute("mysql", "SELECT @@server_id")
        shared_mariadb.execute("mysql", "SET GLOBAL server_id = 4711")
        try:
            assert store.identity() != before
        finally:
            shared_mariadb.execute("mysql", f"SET GLOBAL server_id = {number}")
        assert store.identity() == before


def test_a_file_that_was_put_in_its_place_is_another_store(tmp_path: Path) -> None:
    """A backup that is put back: who had the old file open follows."""
    base = sqlite_at(tmp_path / "coord.db")
    with closing(base.store()) as store:
        committed(store)
        base.execute("PRAGMA wal_checkpoint(TRUNCATE)")
        shutil.copy(tmp_path / "coord.db", tmp_path / "backup.db")
        committed(store)
        before = store.load(KEY)
        for name in ("coord.db-wal", "coord.db-shm"):
            (tmp_path / name).unlink()
        (tmp_path / "backup.db").rename(tmp_path / "coord.db")
        after = store.load(KEY)
        assert (before.head.revision, after.head.revision) == (2, 1)
        assert before.identity != after.identity


def test_what_a_server_does_not_tell_is_said(shared_postgresql: PostgresqlServer, postgresql: str) -> None:
    shared_postgresql.execute(postgresql, "REVOKE EXECUTE ON FUNCTION pg_control_system() FROM PUBLIC")
    with closing(shared_postgresql.store(postgresql)) as store:
        committed(store)
        assert any("system identifier" in concern for concern in store.unsafe())


@pytest.mark.parametrize("kind", [PostgresqlServer, MariadbServer])
def test_settings_that_lose_commits_are_named(kind: type[SqlServer], request: pytest.FixtureRequest) -> None:
    """The shared servers of the tests keep nothing for long; one that does has nothing to be said of."""
    shared: SqlServer = request.getfixturevalue(f"shared_{kind.folder}")
    with closing(shared.store(shared.new_database())) as store:
        assert any("fsync=off" in concern or "innodb_flush_log" in concern for concern in store.unsafe())
    with closing(kind(durable=True)) as server, closing(server.store(server.new_database())) as store:
        assert list(store.unsafe()) == []


def test_no_commit_is_acknowledged_before_it_is_on_disk(shared_postgresql: PostgresqlServer, postgresql: str) -> None:
    """Whatever the server's default is: a lost one would leave no trace."""
    shared_postgresql.execute("postgres", f"ALTER DATABASE {postgresql} SET synchronous_commit = off")
    with closing(shared_postgresql.store(postgresql)) as store:
        store.ping()
        shown = store._connections.read(lambda c: c.exec_driver_sql("SHOW synchronous_commit").scalar_one())
        assert shown == "on"


# -- SQLite


def test_text_that_is_none_is_a_corrupt_aggregate(tmp_path: Path) -> None:
    base = sqlite_at(tmp_path / "coord.db")
    with closing(base.store()) as store:
        committed(store)
        base.execute("UPDATE coordinator_metadata SET metadata_json = CAST(x'ff' AS TEXT)")
        with pytest.raises(CorruptAggregate):
            store.load(KEY)


WRITER = """
import sys
import uuid
from coord.store.base import Committed
from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from tests.store.author import KEY, commit_on, fact

store = SqlStore(dialect_of(SqlSettings(kind="sqlite", database=sys.argv[1], migrates=True, timeout_ms=20_000)))
wins = 0
while wins < int(sys.argv[2]):
    wins += isinstance(store.commit(commit_on(store.load(KEY), (fact(str(wins)),), commit_id=uuid.uuid4().hex)), Committed)
"""


@pytest.fixture
def long_reader(tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """A transaction that reads, for as long as the test runs."""
    base = sqlite_at(tmp_path / "coord.db")
    with closing(base.store()) as store:
        committed(store)
    with closing(sqlite3.connect(tmp_path / "coord.db", isolation_level=None)) as connection:
        connection.execute("BEGIN")
        connection.execute("SELECT count(*) FROM coordinator_events").fetchall()
        yield connection


def test_n2_processes_that_write_one_file_lose_nothing_and_see_no_lock(long_reader: sqlite3.Connection, tmp_path: Path) -> None:
    processes, each = 4, 25
    writers = [
        subprocess.Popen(
            [sys.executable, "-c", WRITER, str(tmp_path / "coord.db"), str(each)],
            cwd=ROOT,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(processes)
    ]
    for writer in writers:
        _, told = writer.communicate(timeout=110)
        assert writer.returncode == 0, told[-2000:]
    with closing(sqlite_at(tmp_path / "coord.db").store()) as store:
        assert store.load(KEY).head.revision == processes * each + 1
        assert len(store.tail(KEY, after=(0, 0), limit=999)) == processes * each + 1
    assert long_reader.execute("SELECT count(*) FROM coordinator_events").fetchall() == [(1,)], "it read all the while"


def test_who_starts_on_a_replica_waits_until_it_is_promoted() -> None:
    """It may not settle for less of an identity than the others tell, or each would take the other's for another store."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    with closing(PostgresqlServer()) as primary:
        name = primary.new_database()
        with closing(primary.store(name, timeout_ms=10_000)) as store:
            told = store.identity()
        with closing(primary.replica()) as replica, closing(replica.store(name, timeout_ms=10_000)) as early:
            with pytest.raises(StoreUnavailable, match="recovery"):
                early.identity()
            replica.promote()
            after = early.identity()
            with closing(replica.store(name, timeout_ms=10_000)) as late:
                assert late.identity() == after
            assert after != told
            assert after.split("-")[1] == told.split("-")[1], "one system identifier"
            assert after.split("-")[2] != told.split("-")[2], "another timeline"


def test_a_new_sqlite_file_is_opened_by_many_at_once(tmp_path: Path) -> None:
    """Switching a file to write-ahead logging waits for nobody, whatever the time-out: so the one who comes second asks again."""
    for number in range(10):
        settings = SqlSettings(kind="sqlite", database=str(tmp_path / f"{number}.db"), migrates=True)
        stores = [SqlStore(dialect_of(settings)) for _ in range(6)]
        with ThreadPoolExecutor(len(stores)) as pool:
            identities = set(pool.map(lambda store: store.identity(), stores))
        for store in stores:
            store.close()
        assert len(identities) == 1
