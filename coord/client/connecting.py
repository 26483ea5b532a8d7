"""From a Redis URL to the plane that it asks for."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, cast

import redis
from redis.sentinel import Sentinel

from coord.client.clusterplane import ClusterPlane
from coord.client.dataplane import DataPlane, ServerPlane, never
from coord.client.redisurl import RedisPlace, read_redis_url

CONNECTIONS_MAX: Final = 65_536
"""Of one process to one server: one for each shard that it reads, and no limit of a library on top."""


def connect(redis_url: str | Sequence[str], *, timeout_ms: int) -> DataPlane:
    """Make the plane that a URL (see `redisurl`) asks for; `timeout_ms` bounds connecting, and each wait for an answer.

    Raises ValueError for a URL that cannot be read.
    """
    place = read_redis_url(redis_url)
    if place.kind == "cluster":
        return ClusterPlane(place, _options_of(place, timeout_ms))
    try:
        return ServerPlane(_server(place, timeout_ms) if place.kind == "server" else _sentinel_master(place, timeout_ms))
    except TypeError:
        message = "redis_url: an option after ? is none of redis-py's"
        raise ValueError(message) from None


def _options_of(place: RedisPlace, timeout_ms: int) -> dict[str, Any]:
    """Give what every connection to Redis is made with."""
    return {
        **place.options,
        "protocol": 2,
        "decode_responses": False,
        "socket_timeout": timeout_ms / 1000,
        "socket_connect_timeout": timeout_ms / 1000,
        "max_connections": CONNECTIONS_MAX,
        **({"ssl": True} if place.is_tls else {}),
    }


def _server(place: RedisPlace, timeout_ms: int) -> redis.Redis:
    host, port = place.nodes[0]
    return redis.Redis(host=host, port=port, db=place.db, retry=never(), **_options_of(place, timeout_ms))


def _sentinel_master(place: RedisPlace, timeout_ms: int) -> redis.Redis:
    about_sentinels = {
        **place.sentinel_options,
        "socket_timeout": timeout_ms / 1000,
        "socket_connect_timeout": timeout_ms / 1000,
        "retry": never(),
        **({"ssl": True} if place.is_tls else {}),
    }
    sentinel = Sentinel(list(place.nodes), sentinel_kwargs=about_sentinels)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    master = sentinel.master_for(place.master, db=place.db, retry=never(), **_options_of(place, timeout_ms))  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    return cast("redis.Redis", master)
