"""Where the shards' Redis is, as one URL says it: a server, the master behind Sentinels, or a cluster.

    redis://[user[:password]@]host[:port][/db]
    redis-sentinel://[user[:password]@]host[:port],host[:port]/master-name[/db]
    redis-cluster://[user[:password]@]host[:port],host[:port]

`rediss://`, `rediss-sentinel://` and `rediss-cluster://` speak TLS. User and password are those of Redis; those of the Sentinels
themselves are the options `?sentinel_username=…&sentinel_password=…`. Other options (`?ssl_ca_certs=/path.pem`) go to redis-py.
No error shows a URL: it may hold a password.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal
from urllib.parse import SplitResult, unquote, urlsplit

from redis.connection import parse_url

Kind = Literal["server", "sentinel", "cluster"]
_KINDS: Final[dict[str, Kind]] = {
    "redis": "server",
    "rediss": "server",
    "redis-sentinel": "sentinel",
    "rediss-sentinel": "sentinel",
    "redis-cluster": "cluster",
    "rediss-cluster": "cluster",
}
_PORTS: Final[dict[Kind, int]] = {"server": 6379, "sentinel": 26379, "cluster": 6379}
_PORT_MAX: Final = 65_535
_OURS: Final = ("host", "port", "socket_timeout", "socket_connect_timeout", "retry_on_timeout", "protocol", "decode_responses")


@dataclass(frozen=True, slots=True, kw_only=True)
class RedisPlace:
    """A URL that was read. `nodes`: the server, the Sentinels, or some nodes of the cluster; `options` are redis-py's."""

    kind: Kind
    nodes: tuple[tuple[str, int], ...]
    master: str = ""
    db: int = 0
    is_tls: bool = False
    options: dict[str, Any] = field(default_factory=dict, repr=False)
    sentinel_options: dict[str, Any] = field(default_factory=dict, repr=False)


def read_redis_url(urls: str | Sequence[str]) -> RedisPlace:
    """Read one URL, or several that each name nodes of the same cluster or of the same Sentinels. Raises ValueError."""
    places = [_read(url) for url in ([urls] if isinstance(urls, str) else urls)]
    if not places:
        message = "redis_url: give one"
        raise ValueError(message)
    first = places[0]
    if len(places) == 1:
        return first
    if first.kind == "server" or any(_apart_from_nodes(place) != _apart_from_nodes(first) for place in places):
        message = "redis_url: several may only name nodes of one cluster, or Sentinels of one master, all else being equal"
        raise ValueError(message)
    nodes = dict.fromkeys(node for place in places for node in place.nodes)
    return RedisPlace(
        kind=first.kind,
        nodes=tuple(nodes),
        master=first.master,
        db=first.db,
        is_tls=first.is_tls,
        options=first.options,
        sentinel_options=first.sentinel_options,
    )


def _apart_from_nodes(place: RedisPlace) -> tuple[object, ...]:
    return place.kind, place.master, place.db, place.is_tls, place.options, place.sentinel_options


def _read(url: str) -> RedisPlace:
    try:
        parts = urlsplit(url.strip())
    except ValueError:
        message = "redis_url: is no URL"
        raise ValueError(message) from None
    kind = _KINDS.get(parts.scheme)
    if kind is None:
        message = f"redis_url: must begin with {', '.join(f'{scheme}://' for scheme in _KINDS)}"
        raise ValueError(message)
    credentials, at, hosts = parts.netloc.rpartition("@")
    nodes = tuple(_node(text, kind) for text in hosts.split(","))
    if kind == "server" and len(nodes) > 1:
        message = "redis_url: redis:// names one server; several are redis-cluster:// or redis-sentinel://"
        raise ValueError(message)
    is_tls = parts.scheme.startswith("rediss")
    options, sentinel_options = _options(parts, f"{credentials}{at}")
    master, db = _path(parts, kind)
    db = options.pop("db", db)
    if kind == "cluster" and db:
        message = f"redis_url: a cluster has database 0 only, not {db}"
        raise ValueError(message)
    return RedisPlace(
        kind=kind, nodes=nodes, master=master, db=db, is_tls=is_tls, options=options, sentinel_options=sentinel_options
    )


def _node(text: str, kind: Kind) -> tuple[str, int]:
    host, colon, port = text.strip().rpartition(":") if not text.strip().endswith("]") else (text.strip(), "", "")
    if not colon:
        host, port = text.strip(), str(_PORTS[kind])
    host = unquote(host).strip("[]")
    if not host or not (port.isascii() and port.isdigit() and 0 < int(port) <= _PORT_MAX):
        message = f"redis_url: {text!r} is not host:port, the port being 1 to {_PORT_MAX}"
        raise ValueError(message)
    return host, int(port)


def _path(parts: SplitResult, kind: Kind) -> tuple[str, int]:
    """Give the master's name, where there is one, and the database."""
    steps = [unquote(step) for step in parts.path.split("/")[1:] if step]
    master = ""
    if kind == "sentinel":
        if not steps:
            message = "redis_url: name the master: redis-sentinel://host:port,host:port/master-name"
            raise ValueError(message)
        master = steps.pop(0)
    if not steps:
        return master, 0
    if len(steps) > 1 or not (steps[0].isascii() and steps[0].isdigit()):
        message = f"redis_url: the database must be a number, not {'/'.join(steps)!r}"
        raise ValueError(message)
    return master, int(steps[0])


def _options(parts: SplitResult, credentials: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """Read credentials and options as redis-py reads them; gives those for Redis, and those for the Sentinels."""
    try:
        options: dict[str, Any] = parse_url(f"redis://{credentials}localhost?{parts.query}")  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    except ValueError:
        message = "redis_url: an option after ? has a value that it cannot have"
        raise ValueError(message) from None
    for name in _OURS:
        options.pop(name, None)
    named = {name: options.pop(f"sentinel_{name}", None) for name in ("username", "password")}
    tls = {name: value for name, value in options.items() if name.startswith("ssl_")}
    return options, {**tls, **{name: value for name, value in named.items() if value}}
