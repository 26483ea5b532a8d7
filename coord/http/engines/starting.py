"""What both engines do when they start: say where they listen, and make room for connections."""

from __future__ import annotations

import gc
import resource
import socket
from typing import Final

import structlog

import coord
from coord.config import Configuration

MS_PER_S: Final = 1000
CONNECTIONS_MAX: Final = 10_000
OTHER_FILES: Final = 256
"""Descriptors that a worker needs beside its clients' connections: Redis, logs, pipes."""
CONNECTIONS_MIN: Final = 128
COLLECTED_AFTER: Final = 10_000
"""New objects that are left over before the collector looks at them; Python's own 700 are those of a few requests at a time."""
_LOG = structlog.get_logger(__name__)


def log_start(config: Configuration) -> None:
    """Write the line that tells where everything is."""
    url = url_of(config)
    _LOG.info(
        "coordinator is listening",
        version=coord.__version__,
        url=url,
        api=f"{url}{config.api.base_path}",
        docs=f"{url}/docs",
        engine=config.server.engine,
        store=store_of(config),
        workers=config.server.workers,
        threads=config.server.threads,
        provisioning=config.streams.provisioning_enabled,
        warnings=len(config.warnings),
    )


def settle_memory() -> None:
    """Let the collector leave alone what a worker has loaded, and look for cycles less often: requests make hardly any."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECTED_AFTER)


def open_listener(config: Configuration, *, backlog: int = 0) -> socket.socket:
    """Bind the configured address; listen on it where `backlog` is given. Raises OSError."""
    host = config.server.host.removeprefix("[").removesuffix("]")
    found = socket.getaddrinfo(host, config.server.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    family, kind, _, _, address = found[0]
    listener = socket.socket(family, kind)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
        if backlog:
            listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener


def connections_max() -> int:
    """Give how many connections a worker may hold open: as many as its file limit, raised as far as allowed, has room for."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = CONNECTIONS_MAX + OTHER_FILES
    allowed = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft != resource.RLIM_INFINITY and soft < allowed:
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, hard))
        soft = allowed
    room = CONNECTIONS_MAX if soft == resource.RLIM_INFINITY else soft - OTHER_FILES
    return max(CONNECTIONS_MIN, min(CONNECTIONS_MAX, room))


def url_of(config: Configuration) -> str:
    """Give the address for a client on this machine."""
    scheme = "https" if config.server.tls.cert_file else "http"
    return f"{scheme}://{bracketed(config.server.host)}:{config.server.port}"


def store_of(config: Configuration) -> str:
    """Say where the state is, without credentials."""
    if config.store.type == "memory":
        return "memory (gone when the process ends)"
    if config.store.type == "jdbc":
        return str(config.store.url)
    redis = config.redis
    return f"redis{'s' if redis.ssl else ''}://{bracketed(redis.host)}:{redis.port}/{redis.database}"


def bracketed(host: str) -> str:
    """Give a host as it stands in a URL."""
    return f"[{host}]" if ":" in host and not host.startswith("[") else host
