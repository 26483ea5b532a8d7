"""Where Redis is, and within what bounds it is used."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple, Self

from redis.connection import parse_url

TIMEOUT_MS = 2000
CONNECTIONS_MAX = 64
_URL_FIELDS = frozenset({"host", "port", "db", "username", "password"})


class Address(NamedTuple):
    """Where a server listens."""

    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisTls:
    """TLS of a connection: paths of PEM files; `verify` false accepts any certificate (never outside of tests)."""

    ca_file: str | None = None
    cert_file: str | None = None
    key_file: str | None = None
    verify: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class SentinelSettings:
    """A master behind Sentinels: its name there, where the Sentinels are, and their own credentials. TLS is as for Redis."""

    master: str
    nodes: tuple[Address, ...]
    username: str | None = None
    password: str | None = field(default=None, repr=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """A Redis Cluster: some of its nodes, and how addresses that it tells are reached from here, where that differs."""

    nodes: tuple[Address, ...]
    address_map: Mapping[Address, Address] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisSettings:
    """A standalone server, or the master behind Sentinels, or a cluster.

    With `sentinel` or `cluster` set, `host` and `port` say nothing. `timeout_ms` bounds every call as a whole, connecting
    included; `max_connections` is per process and node. `tls` None means plain TCP. The password is in no repr.
    """

    host: str = "localhost"
    port: int = 6379
    db: int = 0
    username: str | None = None
    password: str | None = field(default=None, repr=False)
    tls: RedisTls | None = None
    sentinel: SentinelSettings | None = None
    cluster: ClusterSettings | None = None
    timeout_ms: int = TIMEOUT_MS
    max_connections: int = CONNECTIONS_MAX

    def __post_init__(self) -> None:
        """Refuse what cannot work, naming the field."""
        for name, value, least in (
            ("port", self.port, 1),
            ("db", self.db, 0),
            ("timeout-ms", self.timeout_ms, 1),
            ("max-connections", self.max_connections, 1),
        ):
            if value < least:
                message = f"redis.{name} must be at least {least}, not {value}"
                raise ValueError(message)
        if self.sentinel is not None and self.cluster is not None:
            message = "redis.sentinel and redis.cluster exclude each other"
            raise ValueError(message)
        for kind, topology in (("sentinel", self.sentinel), ("cluster", self.cluster)):
            if topology is not None and not topology.nodes:
                message = f"redis.{kind}.nodes names no node"
                raise ValueError(message)
        if self.cluster is not None and self.db:
            message = f"redis.database {self.db} cannot be used: a cluster has database 0 only"
            raise ValueError(message)

    @property
    def endpoint(self) -> str:
        """Host and port, for messages."""
        return f"{self.host}:{self.port}"

    def at(self, address: Address) -> Self:
        """Give the settings of one node, as if it were a standalone server."""
        return replace(self, host=address.host, port=address.port, sentinel=None, cluster=None)

    def at_sentinel(self, address: Address) -> Self:
        """Give the settings of one Sentinel."""
        assert self.sentinel is not None
        return replace(self.at(address), db=0, username=self.sentinel.username, password=self.sentinel.password)


def from_url(
    url: str,
    *,
    tls: RedisTls | None = None,
    timeout_ms: int = TIMEOUT_MS,
    max_connections: int = CONNECTIONS_MAX,
) -> RedisSettings:
    """Read `redis://[user[:password]@]host[:port][/db]`, `rediss://` for TLS. No error shows the url: it may hold a password."""
    try:
        parts: dict[str, Any] = parse_url(url)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    except ValueError:
        message = "redis.url must be redis://[user[:password]@]host[:port][/db], or rediss:// for TLS"
        raise ValueError(message) from None
    secured = parts.pop("connection_class", None) is not None
    if unknown := sorted(parts.keys() - _URL_FIELDS):
        message = f"redis.url has options that are not supported: {', '.join(unknown)}"
        raise ValueError(message)
    if secured and tls is None:
        tls = RedisTls()
    return RedisSettings(**parts, tls=tls, timeout_ms=timeout_ms, max_connections=max_connections)
