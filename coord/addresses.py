"""Where the Redis of a configuration is, and whether there is one."""

from __future__ import annotations

from coord.config import Configuration
from coord.config.loading import DEFAULT_ORIGIN
from coord.config.rules import split_node
from coord.config.schema import RedisCluster, RedisSentinel
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.keys import Keys
from coord.rediscommands.settings import Address, ClusterSettings, RedisSettings, RedisTls, SentinelSettings


def redis_settings(config: Configuration) -> RedisSettings:
    """Give how Redis is reached."""
    redis = config.redis
    tls = None
    if redis.ssl:
        tls = RedisTls(
            ca_file=redis.tls.ca_file or None,
            cert_file=redis.tls.cert_file or None,
            key_file=redis.tls.key_file or None,
            verify=redis.tls.verify,
        )
    return RedisSettings(
        host=redis.host,
        port=redis.port,
        db=redis.database,
        username=redis.username or None,
        password=redis.password.reveal() or None,
        tls=tls,
        sentinel=sentinel_settings(redis.sentinel),
        cluster=cluster_settings(redis.cluster),
        timeout_ms=redis.timeout_ms,
        max_connections=redis.max_connections,
    )


def redis_commands(config: Configuration) -> RedisCommands:
    """Give the way to the configured Redis."""
    return RedisCommands(redis_settings(config), keys=Keys(config.store.key_prefix), identity_source=config.store.identity)


def sentinel_settings(sentinel: RedisSentinel) -> SentinelSettings | None:
    """Give how a master behind Sentinels is found, if that is what is configured."""
    if not sentinel.nodes:
        return None
    return SentinelSettings(
        master=sentinel.master,
        nodes=tuple(Address(*split_node(node)) for node in sentinel.nodes),
        username=sentinel.username or None,
        password=sentinel.password.reveal() or None,
    )


def cluster_settings(cluster: RedisCluster) -> ClusterSettings | None:
    """Give how a cluster is found, if that is what is configured."""
    if not cluster.nodes:
        return None
    pairs = [pair.partition("=") for pair in cluster.address_map]
    return ClusterSettings(
        nodes=tuple(Address(*split_node(node)) for node in cluster.nodes),
        address_map={Address(*split_node(told)): Address(*split_node(reached)) for told, _, reached in pairs},
    )


def uses_redis(config: Configuration) -> bool:
    """Tell whether there is a Redis beside a SQL store: shards or audit entries are to be in it, or any key of it is set."""
    is_told = any(key.startswith("redis.") and origin != DEFAULT_ORIGIN for key, origin in config.origins.items())
    return config.streams.provisioning_enabled or config.audit.sink == "redis" or is_told
