"""Servers with the users that the README documents, made by its own lines."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.access.users import Owned
from tests.store.redis_server import BINARY, BINARY_70


@pytest.fixture(scope="session", params=[BINARY, BINARY_70], ids=["newest", "7.0"])
def shared_owned(request: pytest.FixtureRequest) -> Iterator[Owned]:
    binary: Path = request.param
    if not binary.exists():
        pytest.skip("Redis 7.0 is not there: make redis70")
    owned = Owned(binary)
    yield owned
    owned.close()


@pytest.fixture
def owned(shared_owned: Owned) -> Owned:
    """An empty server, its users as documented."""
    shared_owned.call("FLUSHALL")
    shared_owned.make_users()
    return shared_owned
