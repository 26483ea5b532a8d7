"""Windows and answers in SQL databases: the contract, that nothing stays, and what several processes share."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from alembic import command
from sqlalchemy import Connection, Select, event, text

from coord.names import StreamKey
from coord.store.answers import ANSWERS_MAX, ANSWERS_TTL_MS
from coord.store.base import OutcomeUnknown, StoreUnavailable
from coord.store.sql import windows as sql_windows
from coord.store.sql.choice import dialect_of
from coord.store.sql.schema import SqlTables, _config
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from tests.store.author import KEY, committed
from tests.store.beside import GROUP, HOUR_MS, BesideContract, Place
from tests.store.sql_servers import MariadbServer, PostgresqlServer, SqlServer
from tests.tap import Tap

KINDS = ("sqlite", "postgresql", "mariadb")


@pytest.fixture(params=KINDS)
def settings(request: pytest.FixtureRequest, tmp_path: Path) -> SqlSettings:
    """An empty database of each kind."""
    return settings_of(request.param, request, tmp_path)


def settings_of(kind: str, request: pytest.FixtureRequest, folder: Path) -> SqlSettings:
    if kind == "sqlite":
        return SqlSettings(kind="sqlite", database=str(folder / "coord.db"), migrates=True, timeout_ms=20_000)
    server: SqlServer = request.getfixturevalue(f"shared_{kind}")
    return server.settings(server.new_database(), timeout_ms=20_000)


@pytest.fixture
def store(settings: SqlSettings) -> Iterator[SqlStore]:
    with closing(SqlStore(dialect_of(settings))) as store:
        yield store


def run(store: SqlStore, statement: str) -> list[tuple[object, ...]]:
    """Run a statement behind the adapters' back."""

    def work(connection: Connection) -> list[tuple[object, ...]]:
        done = connection.execute(text(statement))
        return [tuple(row) for row in done] if done.returns_rows else []

    store.ping()
    return store._connections.write(work)


def count(store: SqlStore, table: str) -> object:
    return run(store, f"SELECT count(*) FROM coordinator_{table}")[0][0]


class TestSql(BesideContract):
    @pytest.fixture
    def place(self, store: SqlStore) -> Place:
        return Place(store.windows, store.answers)


def test_l3_a_window_that_is_over_counts_no_more_and_goes(store: SqlStore) -> None:
    """Each that begins removes some that are over: more than it adds, and none that runs."""
    for index in range(15):
        assert store.windows.take(StreamKey(f"s{index}"), "ada", limit=1, window_ms=HOUR_MS) == 0
    assert store.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 0
    assert count(store, "windows") == 16
    place = sql_windows.place_of(GROUP, "ada").hex()
    mine = "x'" + place + "'" if store._dialect.settings.kind != "postgresql" else f"'\\x{place}'"
    run(store, f"UPDATE coordinator_windows SET ends_at = ends_at - {HOUR_MS} WHERE place <> {mine}")
    assert store.windows.take(StreamKey("s0"), "ada", limit=1, window_ms=HOUR_MS) == 0, "its window is another one"
    assert count(store, "windows") == 16 - sql_windows.CLEARED_MAX
    assert store.windows.take(StreamKey("new"), "ada", limit=1, window_ms=HOUR_MS) == 0
    assert count(store, "windows") == 3, "the one that ran, the one that began again, the new one"
    assert store.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) > 0
    assert store.windows.take(StreamKey("s0"), "ada", limit=1, window_ms=HOUR_MS) > 0


def test_answers_go_some_time_after_the_last_with_their_rows(store: SqlStore) -> None:
    def age(ms: int) -> None:
        run(store, f"UPDATE coordinator_answered SET changed_at = changed_at - {ms}")

    for name in ("a", "b", "c", "d"):
        for answer in ("1", "2"):
            assert store.answers.swap(StreamKey(name), answer, seen=None, put=b"x").done
    age(ANSWERS_TTL_MS - 60_000)
    assert store.answers.swap(StreamKey("a"), "1", seen=b"?", put=None).there == b"x"
    age(60_000)
    assert store.answers.swap(StreamKey("a"), "1", seen=b"x", put=b"y").there is None
    assert store.answers.swap(StreamKey("a"), "1", seen=None, put=b"y").done
    assert (count(store, "answered"), count(store, "answers")) == (2, 3), "two others went"
    assert store.answers.swap(StreamKey("new"), "1", seen=None, put=b"y").done
    assert (count(store, "answered"), count(store, "answers")) == (2, 2)
    for name in ("a", "new"):
        assert store.answers.swap(StreamKey(name), "1", seen=b"y", put=None).done
    assert (count(store, "answered"), count(store, "answers")) == (0, 0), "what holds nothing is not there"


def test_what_was_put_longest_ago_goes_first(store: SqlStore) -> None:
    for index in range(ANSWERS_MAX):
        store.answers.swap(GROUP, f"k{index}", seen=None, put=b"x")
    store.answers.swap(GROUP, "k0", seen=b"x", put=b"again")
    store.answers.swap(GROUP, "one more", seen=None, put=b"x" * 300_000)
    assert store.answers.swap(GROUP, "k0", seen=b"?", put=None).there == b"again"
    assert store.answers.swap(GROUP, "k1", seen=b"?", put=None).there is None
    assert store.answers.swap(GROUP, "one more", seen=b"?", put=None).there == b"x" * 300_000
    assert count(store, "answers") == ANSWERS_MAX


def test_l3_two_processes_share_windows_and_answers(settings: SqlSettings, store: SqlStore) -> None:
    with closing(SqlStore(dialect_of(settings))) as other, ThreadPoolExecutor(8) as pool:
        waits = list(pool.map(lambda n: (store, other)[n % 2].windows.take(GROUP, "ada", limit=30, window_ms=HOUR_MS), range(80)))
        assert waits.count(0) == 30
        assert store.answers.swap(GROUP, "k", seen=None, put=b"x").done
        assert other.answers.swap(GROUP, "k", seen=None, put=b"y").there == b"x"


def test_clearing_looks_at_no_more_rows_than_it_takes(settings: SqlSettings, store: SqlStore) -> None:
    """By an index: a request must not pay for all that others left."""
    store.ping()
    engine = store._connections._engine

    def plan(connection: Connection, asked: Select[Any]) -> str:
        if settings.kind == "postgresql":
            connection.execute(text("SET LOCAL enable_seqscan = off"))  # the table is tiny
        explain = "EXPLAIN QUERY PLAN" if settings.kind == "sqlite" else "EXPLAIN"
        filled = asked.params(before=7).compile(engine, compile_kwargs={"literal_binds": True})
        return "\n".join(str(tuple(row)) for row in connection.execute(text(f"{explain} {filled}")))

    for asked, index in (
        (store.windows._over, "coordinator_windows_by_end"),
        (store.answers._over, "coordinator_answered_by_change"),
    ):
        assert index in store._connections.write(lambda connection, asked=asked: plan(connection, asked))  # type: ignore[misc]  # bound at once


@pytest.mark.parametrize("kind", [PostgresqlServer, MariadbServer])
def test_what_may_have_been_done_is_not_done_twice(kind: type[SqlServer], request: pytest.FixtureRequest) -> None:
    """The answer to COMMIT is lost: nothing says whether it was counted, and it is not counted again."""
    server: SqlServer = request.getfixturevalue(f"shared_{kind.folder}")
    name = server.new_database()
    with Tap(server.port) as tap, closing(server.store(name)) as direct:
        direct.ping()
        with closing(server.store(name, port=tap.port, timeout_ms=1_000)) as store:
            store.ping()

            event.listen(
                store._connections._engine,
                "before_cursor_execute",
                lambda *arguments: tap.drop_replies() if arguments[2] == "COMMIT" else None,
            )
            with pytest.raises(OutcomeUnknown):
                store.windows.take(GROUP, "ada", limit=2, window_ms=HOUR_MS)
        waits = [direct.windows.take(GROUP, "ada", limit=2, window_ms=HOUR_MS) for _ in range(2)]
        assert waits[0] == 0
        assert waits[1] > 0


def test_what_cannot_be_cleared_is_left_and_what_cannot_be_counted_is_said(
    store: SqlStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.ping()

    def refuse(_: object) -> object:
        raise StoreUnavailable("busy")

    with monkeypatch.context() as patched:
        patched.setattr(store._access, "write", refuse)
        assert store.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 0
        assert store.answers.swap(GROUP, "k", seen=None, put=b"x").done
    for table in ("windows", "answers"):
        run(store, f"DROP TABLE coordinator_{table}")
    with pytest.raises(StoreUnavailable, match="coord store migrate"):
        store.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS)
    with pytest.raises(StoreUnavailable, match="coord store migrate"):
        store.answers.swap(GROUP, "k", seen=None, put=b"x")


def test_tables_of_the_former_release_are_raised_and_keep_what_they_hold(settings: SqlSettings) -> None:
    """Also where the step was begun and interrupted, as databases that change tables outside of transactions allow."""
    tables = SqlTables(dialect_of(settings))

    def as_former(connection: Connection) -> None:
        config = _config()
        config.attributes["connection"] = connection
        command.upgrade(config, "0001")

    with closing(tables):
        tables._connections.apart(as_former, seconds=60)
        assert (tables.look().current, tables.look().pending, tables.look().usable) == ("0001", ("0002",), False)
        with closing(SqlStore(dialect_of(settings))) as store:
            committed(store)
            run(store, "DROP TABLE coordinator_answers")
            run(store, "UPDATE coordinator_schema_version SET version_num = '0001'")
        assert tables.migrate().current == "0001"
        assert tables.look().usable
    with closing(SqlStore(dialect_of(settings))) as store:
        assert store.load(KEY).head.revision == 1
        assert store.windows.take(GROUP, "ada", limit=1, window_ms=HOUR_MS) == 0
        assert store.answers.swap(GROUP, "k", seen=None, put=b"x").done
