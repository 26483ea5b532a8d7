"""Whether the shards' Redis answers, asked once a second however many ask here: health checks may come in crowds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from msgspec import structs

from coord.runtime.glance import Glance
from coord.streams.provisioning import ShardStreams
from coord.wire import HealthResponse

FRESH_S: Final = 1.0
PATIENCE_S: Final = 0.5


class Pulse:
    """Of a Redis beside the store."""

    def __init__(self, shards: ShardStreams) -> None:
        self._shards = shards
        self.after_fork()

    def beside(self, health_of_store: Callable[[], HealthResponse]) -> HealthResponse:
        """Give the health of the store with what this Redis adds to it; both are asked at the same time. Never raises."""
        self._glance.begin()
        health = health_of_store()
        is_up = self._glance.look() is True
        status = health.status if is_up or health.status == "DOWN" else "DEGRADED"
        return structs.replace(health, redis="UP" if is_up else "DOWN", status=status)

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""
        self._glance = Glance(self._shards.is_reachable, fresh_s=FRESH_S, patience_s=PATIENCE_S)
        self._shards.after_fork()

    def close(self) -> None:
        """Close the shards' connections."""
        self._shards.close()
