"""What Redis did not do, as the port's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from coord.names import AggregateKey
from coord.rediscommands.errors import RedisFault, Refused
from coord.store.base import CorruptAggregate, StoreError, StoreUnavailable


@contextmanager
def told(key: AggregateKey | None = None) -> Iterator[None]:
    """Turn what Redis did not do into the port's errors; a key of a wrong type is the fault of aggregate `key`, where given."""
    try:
        yield
    except RedisFault as fault:
        raise error_of(fault, key) from fault


def error_of(fault: RedisFault, key: AggregateKey | None = None) -> StoreError:
    """Give what Redis did not do as an error of the port, as `told` raises it."""
    if not isinstance(fault, Refused):
        return StoreUnavailable(str(fault))
    if fault.code == "WRONGTYPE" and key is not None:
        return CorruptAggregate(key, str(fault))
    return StoreUnavailable(f"Redis refused: {fault}")
