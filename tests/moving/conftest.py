"""Stores with a history to be moved, and the command line in this process."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.cli.conftest import run  # noqa: F401  a fixture
from tests.moving.lives import Life
from tests.store.conftest import running
from tests.store.sql_servers import PostgresqlServer


@pytest.fixture(scope="session")
def shared_postgresql() -> Iterator[PostgresqlServer]:
    yield from running(PostgresqlServer)


@pytest.fixture
def database(shared_postgresql: PostgresqlServer) -> str:
    """The URL of an empty database."""
    return shared_postgresql.url(shared_postgresql.new_database())


@pytest.fixture
def life(redis_url: str) -> Iterator[Life]:
    """A coordinator's life in Redis: streams and groups that came, changed and went."""
    lived = Life(redis_url)
    lived.live()
    yield lived
    lived.close()
