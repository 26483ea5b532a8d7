"""The real store, opened by itself: to write what no server has to be asked for one by one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coord import bootstrap
from coord.config import Configuration, load
from coord.store.base import Store


def configuration(redis_url: str, key_prefix: str) -> Configuration:
    """Give the default configuration on this Redis and prefix, whatever the environment says."""
    overrides: dict[str, object] = {"store.key-prefix": key_prefix}
    return load(None, environ={"REDIS_URL": redis_url}, overrides=overrides)


@contextmanager
def store_at(redis_url: str, key_prefix: str) -> Iterator[Store]:
    """Open the store of this Redis and prefix."""
    store, _ = bootstrap.open_store(configuration(redis_url, key_prefix))
    try:
        yield store
    finally:
        store.close()
