"""One server for the tests of shards."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.store.redis_server import RedisServer


@pytest.fixture(scope="session")
def shared_server() -> Iterator[RedisServer]:
    server = RedisServer()
    yield server
    server.close()


@pytest.fixture
def server(shared_server: RedisServer) -> RedisServer:
    """A running server, empty."""
    shared_server.call("FLUSHALL")
    return shared_server
