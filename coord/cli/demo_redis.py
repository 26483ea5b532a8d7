"""Where the demo keeps its data: a private Redis that ends with it, or a Redis Cluster of the user's, left as it was found."""

from __future__ import annotations

import contextlib
import secrets
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import click
from redis.exceptions import RedisError

from coord.cli.context import NotReachable
from coord.cli.demo_story import GROUP, SHARDS_MOST, STREAM
from coord.cli.output import note
from coord.client.connecting import connect
from coord.client.dataplane import DataPlane
from coord.client.redisurl import RedisPlace, read_redis_url
from coord.names import GroupKey, StreamKey
from coord.rediscommands.keys import Keys
from coord.runtime.embedded import EmbeddedRedis, EmbeddedRedisError

TIMEOUT_MS: Final = 3_000
SCHEMES: Final = ("redis-cluster", "rediss-cluster")


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoRedis:
    """A Redis to play on. `section`: the coordinator's configuration of it; `url`: for the clients, it may hold a password."""

    shown: str
    url: str = field(repr=False)
    section: Mapping[str, object] = field(repr=False)
    stream: str = STREAM
    key_prefix: str | None = None


@contextlib.contextmanager
def private_redis() -> Iterator[DemoRedis]:
    """Start a Redis of the demo's own. Raises NotReachable."""
    try:
        server = EmbeddedRedis.start()
    except EmbeddedRedisError as error:
        raise NotReachable(str(error)) from None
    with server:
        yield DemoRedis(shown=server.url, url=server.url, section={"url": server.url})


@contextlib.contextmanager
def users_cluster(given: str) -> Iterator[DemoRedis]:
    """Play on a cluster that is somebody's: under names that nobody else has, and these are removed at the end.

    Raises BadParameter for what names no cluster, NotReachable when it does not answer.
    """
    url = given if "://" in given else f"redis-cluster://{given}"
    try:
        place = read_redis_url(url)
    except ValueError as error:
        raise click.BadParameter(str(error), param_hint="--redis-cluster") from None
    if place.kind != "cluster":
        raise click.BadParameter(f"must be host:port,host:port or begin with {SCHEMES[0]}://", param_hint="--redis-cluster")
    nonce = secrets.token_hex(4)
    played = DemoRedis(
        shown=f"cluster {','.join(f'{host}:{port}' for host, port in place.nodes)}",
        url=url,
        section=section_of(place),
        stream=f"{STREAM}-demo-{nonce}",
        key_prefix=f"coord-demo-{nonce}",
    )
    plane = connect(url, timeout_ms=TIMEOUT_MS)
    try:
        if (failure := _on_all_keys(plane, played, "EXISTS")) is not None:
            raise NotReachable(f"the Redis Cluster does not answer: {failure}")
        try:
            yield played
        finally:
            if (failure := _on_all_keys(plane, played, "UNLINK")) is not None:
                note(f"keys of the demo are left ({played.stream}:*, {played.key_prefix}:*): {failure}")
    finally:
        plane.close()


def _on_all_keys(plane: DataPlane, played: DemoRedis, command: str) -> RedisError | None:
    """Send a command for every key; gives the first error."""
    replies = plane.batch([(key, (command, key)) for key in keys_of(played)])
    return next((reply for reply in replies if isinstance(reply, RedisError)), None)


def keys_of(played: DemoRedis) -> list[str]:
    """Give every key that the demo may make."""
    assert played.key_prefix is not None
    keys = Keys(played.key_prefix)
    found = [keys.index, keys.loop, keys.requests, *(f"{played.stream}:{shard}" for shard in range(SHARDS_MOST))]
    for aggregate in (StreamKey(played.stream), GroupKey(played.stream, GROUP)):
        of = keys.aggregate(aggregate)
        found += [of.metadata, of.events, of.leases, of.reports, of.mutex]
    return found


def section_of(place: RedisPlace) -> dict[str, object]:
    """Give the coordinator's section `redis` for a cluster's URL."""
    tls = {"ca-file": "ssl_ca_certs", "cert-file": "ssl_certfile", "key-file": "ssl_keyfile"}
    files = {name: place.options[option] for name, option in tls.items() if option in place.options}
    return {
        "cluster": {"nodes": [f"[{host}]:{port}" if ":" in host else f"{host}:{port}" for host, port in place.nodes]},
        **{name: place.options[name] for name in ("username", "password") if name in place.options},
        **({"ssl": True} if place.is_tls else {}),
        **({"tls": files} if files else {}),
    }
