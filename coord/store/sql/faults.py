"""What the database did not do, as the port's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coord.names import AggregateKey
from coord.store.base import CorruptAggregate, StoreUnavailable
from coord.store.sql.connections import Failed


@contextmanager
def told(key: AggregateKey | None = None) -> Iterator[None]:
    """Turn what is left of a failure into the port's errors; text that cannot be read is the fault of aggregate `key`."""
    try:
        yield
    except Failed as error:
        if error.fault == "unreadable" and key is not None:
            raise CorruptAggregate(key, str(error)) from error
        message = f"the database kept refusing: {error}"
        raise StoreUnavailable(message) from error
