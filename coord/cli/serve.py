"""`coord serve`: run the coordinator, on a configured store or with a private Redis of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from coord.config import Configuration

EXIT_FAILED = 1
EXIT_REFUSED = 2
EMBEDDED_HOST = "127.0.0.1"


class _RefusedError(click.ClickException):
    exit_code = EXIT_REFUSED


@click.command("serve")
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="YAML file; default $COORDINATOR_CONFIG, then ./coordinator.yaml if it is there.",
)
@click.option("--host", metavar="H", help="Address to listen on (server.host).")
@click.option("--port", type=click.IntRange(1, 65535), metavar="P", help="Port to listen on (server.port).")
@click.option("--workers", type=click.IntRange(1, 256), metavar="N", help="Worker processes (server.workers).")
@click.option("--embedded-redis", is_flag=True, help="Start a private Redis for the coordinator and its shards.")
@click.option(
    "--state-dir",
    type=click.Path(file_okay=False, path_type=Path),
    metavar="DIR",
    help="Where that Redis keeps its append-only file, so that a restart keeps state; without it all is gone at the end.",
)
@click.option("--log-format", type=click.Choice(["json", "console"]), default="json", show_default=True)
@click.option("--log-level", type=click.Choice(["debug", "info", "warning", "error"]), default="info", show_default=True)
def serve(
    file: Path | None,
    host: str | None,
    port: int | None,
    workers: int | None,
    embedded_redis: bool,  # noqa: FBT001  click hands every option over by its name
    state_dir: Path | None,
    log_format: str,
    log_level: str,
) -> None:
    """Run the coordinator until SIGTERM or Ctrl-C.

    A store that cannot be reached is no reason to stop: the coordinator waits for it, and its health is DOWN meanwhile.
    SIGHUP reads the configuration again.

    Exit codes: 0 told to stop; 1 something failed (the port is taken, no Redis binary); 2 wrong usage or configuration.
    """
    from coord.config import load, log_warnings
    from coord.observability.logging import configure

    if state_dir is not None and not embedded_redis:
        raise click.UsageError("--state-dir is for --embedded-redis: it is where that Redis keeps its state")
    given: dict[str, object] = {"server.host": host, "server.port": port, "server.workers": workers}
    overrides = {key: value for key, value in given.items() if value is not None}
    if embedded_redis:
        overrides["store.type"] = "redis"
    configuration = _loaded(file, overrides)
    configure("json" if log_format == "json" else "console", log_level, coordinator_id=configuration.id)
    log_warnings(configuration)
    _check_engine(configuration)
    _check_port(configuration)
    with contextlib.ExitStack() as stack:
        port_of_redis = stack.enter_context(_private_redis(state_dir)) if embedded_redis else None

        def reread() -> Configuration:
            return _with_redis(load(file, overrides=overrides), port_of_redis)

        _run(_with_redis(configuration, port_of_redis), reread, log_level)


def _with_redis(configuration: Configuration, port: int | None) -> Configuration:
    """Put a private Redis, which has neither password nor TLS, in the place of the configured one.

    Its shards are ours alone, so they are provisioned unless the configuration says otherwise.
    """
    from msgspec import structs

    from coord.config.schema import Redis

    if port is None:
        return configuration
    was = configuration.redis
    redis = Redis(host=EMBEDDED_HOST, port=port, timeout_ms=was.timeout_ms, max_connections=was.max_connections)
    streams = configuration.streams
    if configuration.origins["streams.provisioning-enabled"] == "default":
        streams = structs.replace(streams, provisioning_enabled=True)
    return structs.replace(configuration, redis=redis, streams=streams)


def _run(configuration: Configuration, reread: Callable[[], Configuration], log_level: str) -> None:
    """Run the configured HTTP server; raises SystemExit with our exit codes, not the server's."""
    from coord.http.server import run

    master = os.getpid()
    try:
        run(configuration, reread=reread, log_level=log_level)
    except SystemExit as ended:
        if os.getpid() != master:  # a worker of gunicorn ends here too, and its code tells the master whether to go on
            raise
        raise SystemExit(EXIT_FAILED if ended.code else 0) from None


def _check_engine(configuration: Configuration) -> None:
    """Say at once that the HTTP server is not installed, or that its certificate is of no use. Raises ClickException."""
    from coord.http.server import EngineUnfitError, check_engine

    try:
        check_engine(configuration)
    except EngineUnfitError as error:
        raise _RefusedError(f"the configuration is refused\n  {error}") from None


@contextlib.contextmanager
def _private_redis(state_dir: Path | None) -> Iterator[int]:
    import structlog

    from coord.runtime.embedded import EmbeddedRedis, EmbeddedRedisError

    log = structlog.get_logger(__name__)
    try:
        server = EmbeddedRedis.start(state_dir=state_dir, append_fsync="everysec" if state_dir else None)
    except EmbeddedRedisError as error:
        raise click.ClickException(str(error)) from None
    with server:
        log.info("private redis is running", url=server.url, state_dir=str(state_dir.resolve()) if state_dir else None)
        if state_dir is None:
            log.warning("without --state-dir the private redis keeps nothing: all groups are gone when this ends")
        yield server.port


def _loaded(file: Path | None, overrides: dict[str, object]) -> Configuration:
    from coord.config import ConfigurationError, load

    try:
        return load(file, overrides=overrides)
    except ConfigurationError as error:
        problems = "\n".join(f"  {each}" for each in error.problems)
        raise _RefusedError(f"the configuration is refused\n{problems}") from None


def _check_port(configuration: Configuration) -> None:
    """Say at once that the address cannot be had; gunicorn would try for seconds. Raises ClickException."""
    from coord.http.engines.starting import open_listener

    server = configuration.server
    try:
        open_listener(configuration).close()
    except OSError as error:
        reason = error.strerror or str(error)
        raise click.ClickException(
            f"cannot listen on {server.host} port {server.port} (server.host, server.port): {reason}"
        ) from None
