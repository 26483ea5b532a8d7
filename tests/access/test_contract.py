"""The store's contract, run as the documented users: what they may do is enough."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from coord.rediscommands.link import Reply
from coord.store.redis.store import RedisStore
from tests.access.users import Owned
from tests.store.contract import StoreContract, World
from tests.store.worlds import RedisWorld


@dataclass
class UserWorld(RedisWorld):
    """The store is a user's; fate is not bound by what that may do."""

    fate: RedisStore

    def _call(self, command: str, key: str, *arguments: str | bytes | int) -> Reply:
        return self.fate._commands._template.call(key, command, key, *arguments)


def world_of(owned: Owned, user: str) -> Iterator[World]:
    store, fate = RedisStore(owned.commands_of(user)), RedisStore(owned.commands())
    yield UserWorld(store, fate)
    store.close()
    fate.close()


class TestCoordinator(StoreContract):
    @pytest.fixture
    def world(self, owned: Owned) -> Iterator[World]:
        yield from world_of(owned, "coordinator")


class TestCoordinatorOnly(StoreContract):
    """Without provisioning the store needs no less, and no more."""

    @pytest.fixture
    def world(self, owned: Owned) -> Iterator[World]:
        yield from world_of(owned, "coordinator-only")
