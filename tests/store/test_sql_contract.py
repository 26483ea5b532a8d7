"""The contract, run on SQLite, PostgreSQL and MariaDB."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from tests.store.contract import StoreContract, World
from tests.store.sql_servers import MariadbServer, PostgresqlServer
from tests.store.sql_worlds import SqlWorld


class TestSqlite(StoreContract):
    @pytest.fixture
    def world(self, tmp_path: Path) -> Iterator[World]:
        settings = SqlSettings(kind="sqlite", database=str(tmp_path / "coord.db"), migrates=True, timeout_ms=10_000)
        store = SqlStore(dialect_of(settings))
        yield SqlWorld(store)
        store.close()


class TestPostgresql(StoreContract):
    @pytest.fixture
    def world(self, shared_postgresql: PostgresqlServer) -> Iterator[World]:
        store = shared_postgresql.store(shared_postgresql.emptied_database(), timeout_ms=10_000)
        yield SqlWorld(store)
        store.close()


class TestPostgresqlOfConstantIdentity(StoreContract):
    @pytest.fixture
    def world(self, shared_postgresql: PostgresqlServer) -> Iterator[World]:
        store = shared_postgresql.store(shared_postgresql.emptied_database(), timeout_ms=10_000, identity_source="constant")
        assert store.identity() == "constant"
        yield SqlWorld(store)
        store.close()


class TestMariadb(StoreContract):
    @pytest.fixture
    def world(self, shared_mariadb: MariadbServer) -> Iterator[World]:
        store = shared_mariadb.store(shared_mariadb.emptied_database(), timeout_ms=10_000)
        yield SqlWorld(store)
        store.close()
