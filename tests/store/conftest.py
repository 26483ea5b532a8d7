"""Servers of the store tests: one shared by all that leave it well, own ones for tests that break theirs."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TypeVar

import pytest

from tests.store.redis_server import BINARY_70, RedisServer
from tests.store.sql_servers import MariadbServer, PostgresqlServer, SqlServer

Server = TypeVar("Server", bound=SqlServer)


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A running server, empty, which knows the scripts."""
    shared_server.wipe()
    return shared_server


@pytest.fixture
def own_server() -> Iterator[RedisServer]:
    """A server that the test may stop, freeze and start again."""
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture(scope="session")
def shared_server70() -> Iterator[RedisServer]:
    if not BINARY_70.exists():
        pytest.skip("Redis 7.0 is not there: make redis70")
    server = RedisServer(binary=BINARY_70)
    yield server
    server.close()


@pytest.fixture
def server70(shared_server70: RedisServer) -> RedisServer:
    """A running Redis 7.0, empty, which knows the scripts."""
    shared_server70.wipe()
    return shared_server70


@pytest.fixture(scope="session")
def shared_postgresql() -> Iterator[PostgresqlServer]:
    yield from running(PostgresqlServer)


@pytest.fixture(scope="session")
def shared_mariadb() -> Iterator[MariadbServer]:
    yield from running(MariadbServer)


@pytest.fixture
def postgresql(shared_postgresql: PostgresqlServer) -> str:
    """An empty database on the shared PostgreSQL."""
    return shared_postgresql.new_database()


@pytest.fixture
def mariadb(shared_mariadb: MariadbServer) -> str:
    """An empty database on the shared MariaDB."""
    return shared_mariadb.new_database()


def running(kind: type[Server]) -> Iterator[Server]:
    """Run a server, where its programs were fetched."""
    if not kind.is_there():
        pytest.skip(f"{kind.folder} is not there: ops/setup/{kind.folder}.sh")
    server = kind()
    yield server
    server.close()
