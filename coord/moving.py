"""Opens a configured store for those who carry it to another one, or take over what another coordinator left in it."""

from __future__ import annotations

from coord.addresses import redis_settings
from coord.bootstrap import open_store, sql_settings
from coord.config import Configuration
from coord.rediscommands.keys import Keys
from coord.rediscommands.moving import MovingCommands
from coord.store.adoption import Adoption
from coord.store.base import Store
from coord.store.redis.adoption import RedisAdoption
from coord.store.redis.transfer import RedisTransfer
from coord.store.transfer import Transfer


def open_transfer(config: Configuration, *, migrates: bool) -> tuple[Store, Transfer]:
    """Give the configured store, which outlives this process, and the way to all that is in it, as it stands."""
    store, _ = open_store(config, migrates=migrates)
    if config.store.type == "jdbc":
        from coord.store.sql.choice import dialect_of  # noqa: PLC0415  SQLAlchemy and the drivers are an extra
        from coord.store.sql.transfer import SqlTransfer  # noqa: PLC0415  as above

        return store, SqlTransfer(dialect_of(sql_settings(config, migrates=False)))
    return store, RedisTransfer(moving_commands(config))


def open_adoption(config: Configuration) -> Adoption:
    """Give the way to what another coordinator left in the configured Redis."""
    return RedisAdoption(moving_commands(config))


def moving_commands(config: Configuration) -> MovingCommands:
    """Give the way to the configured Redis."""
    return MovingCommands(redis_settings(config), keys=Keys(config.store.key_prefix), identity_source=config.store.identity)
