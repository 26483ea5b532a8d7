"""What commands share that go to the store itself, with no coordinator in between: configuration, silence, progress."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Final

import click
import structlog

from coord.cli.output import console, note, printable
from coord.config import Configuration, ConfigurationError, load

PROGRESS_INTERVAL_S: Final = 2.0
"""A line in a file or a pipe."""
STATUS_INTERVAL_S: Final = 0.1
"""The moving line of a terminal."""

config_option = click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The coordinator's configuration; default $COORDINATOR_CONFIG, then ./coordinator.yaml if it is there.",
)


def loaded(file: Path | None, redis_url: str | None = None) -> Configuration:
    """Load the configuration; raises UsageError for one that is refused."""
    try:
        return load(file, overrides={"redis.url": redis_url} if redis_url is not None else None)
    except ConfigurationError as error:
        raise refused("the configuration", error) from None


def configuration(file: Path | None, redis_url: str | None) -> Configuration:
    """Load the configuration; raises UsageError for one that is refused, or whose store is in another process."""
    config = loaded(file, redis_url)
    if config.store.type == "memory":
        raise click.UsageError("store.type is memory: that store lives inside its coordinator, nobody else can read it")
    return config


def refused(what: str, error: ConfigurationError) -> click.UsageError:
    """Give what ends a command whose configuration is refused: all that is wrong with it, a line each."""
    problems = "\n".join(printable(str(each)) for each in error.problems)
    return click.UsageError(f"{what} is refused:\n{problems}")


@contextmanager
def without_logs() -> Iterator[None]:
    """Keep the log lines of the store, such as those about a cluster's masters, off the output; what fails raises."""
    before = structlog.get_config()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    try:
        yield
    finally:
        structlog.configure(**before)


@contextmanager
def progress(doing: str) -> Iterator[Callable[[str], None]]:
    """Give what tells on stderr how far a long work has come: a moving line on a terminal, else a line now and then."""
    screen = console(err=True)
    told_at = time.monotonic()
    with screen.status(f"{doing} …") if screen.is_terminal else nullcontext() as status:

        def tell(line: str) -> None:
            nonlocal told_at
            now = time.monotonic()
            if now - told_at < (PROGRESS_INTERVAL_S if status is None else STATUS_INTERVAL_S):
                return
            told_at = now
            if status is None:
                note(line)
            else:
                status.update(printable(line))

        yield tell
