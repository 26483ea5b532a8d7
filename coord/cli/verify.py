"""`coord verify`: the logs in the store against themselves and against what is stored. Reads only, from the store itself."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal

import click
import structlog

from coord.bootstrap import open_store
from coord.cli.context import NAME, NotReachable
from coord.cli.output import console, note, print_json, print_table, printable
from coord.config import Configuration, ConfigurationError, load
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.verify import Report, groups_of, verify_aggregate, verify_all
from coord.store.base import Store, StoreError

EXIT_FOUND = 1
PROGRESS_INTERVAL_S = 2.0


@click.command()
@click.argument("stream", type=NAME, required=False)
@click.argument("group", type=NAME, required=False)
@click.option(
    "--config",
    "file",
    type=click.Path(dir_okay=False, path_type=Path),
    metavar="FILE",
    help="The coordinator's configuration; default $COORDINATOR_CONFIG, then ./coordinator.yaml if it is there.",
)
@click.option("--redis-url", help="Redis that holds the store; wins over the configuration.")
@click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.option("--no-color", is_flag=True, help="No colours.")
@click.pass_context
def verify(
    context: click.Context,
    *,
    stream: str | None,
    group: str | None,
    file: Path | None,
    redis_url: str | None,
    output: Literal["table", "json"],
    no_color: bool,
) -> None:
    """Verify the log of every stream and group: its chain, its fold, the invariants after each revision.

    STREAM: only this stream and its groups; GROUP: only this group of it. It reads the store directly, changes nothing and
    needs no coordinator. Exit code 0: all holds; 1: something was found; 3: the store cannot be reached.
    """
    if no_color:
        context.meta["coord.no_color"] = True
    store, _ = open_store(configuration(file, redis_url))
    try:
        with without_logs(), _progress() as tell:
            reports = [tell(report) for report in _reports(store, stream, group)]
    except StoreError as error:
        raise NotReachable(f"the store cannot be read: {printable(str(error))}") from None
    finally:
        store.close()
    if output == "json":
        print_json({"holds": all(each.holds for each in reports), "aggregates": [_as_json(each) for each in reports]})
    else:
        _print(reports)
    if not all(each.holds for each in reports):
        context.exit(EXIT_FOUND)


def configuration(file: Path | None, redis_url: str | None) -> Configuration:
    """Load the configuration; raises UsageError for one that is refused, or whose store is in another process."""
    try:
        config = load(file, overrides={"redis.url": redis_url} if redis_url is not None else None)
    except ConfigurationError as error:
        problems = "\n".join(printable(str(each)) for each in error.problems)
        raise click.UsageError(f"the configuration is refused:\n{problems}") from None
    if config.store.type == "memory":
        raise click.UsageError("store.type is memory: that store lives inside its coordinator, nobody else can read it")
    return config


def _reports(store: Store, stream: str | None, group: str | None) -> Iterator[Report]:
    """Verify what was asked for, one aggregate after another."""
    if stream is None:
        yield from verify_all(store)
        return
    key = StreamKey(stream)
    wanted: list[AggregateKey] = [GroupKey(stream, group)] if group is not None else [key, *groups_of(store, key)]
    for each in wanted:
        report = verify_aggregate(store, each)
        if not report.entries and report.holds:
            report.add(f"there is no {'group' if isinstance(each, GroupKey) else 'stream'} of this name, and never was")
        yield report


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
def _progress() -> Iterator[Callable[[Report], Report]]:
    """Tell on stderr what has been read: a moving line on a terminal, else a line now and then."""
    screen = console(err=True)
    done = entries = 0
    last = time.monotonic()
    with screen.status("verifying …") if screen.is_terminal else _nothing() as status:

        def tell(report: Report) -> Report:
            nonlocal done, entries, last
            done, entries = done + 1, entries + report.entries
            if status is not None:
                status.update(f"verifying … {done} aggregates, {entries} entries; last {printable(str(report.key))}")
            elif time.monotonic() - last >= PROGRESS_INTERVAL_S:
                last = time.monotonic()
                note(f"verified {done} aggregates, {entries} entries; last {report.key}")
            return report

        yield tell


@contextmanager
def _nothing() -> Iterator[None]:
    yield None


def _as_json(report: Report) -> dict[str, object]:
    return {
        "streamPrefix": report.key.stream_prefix,
        "consumerGroup": report.key.consumer_group if isinstance(report.key, GroupKey) else None,
        "holds": report.holds,
        "entries": report.entries,
        "firstRevision": report.first_revision,
        "revision": report.revision,
        "findings": report.findings,
    }


def _print(reports: Iterable[Report]) -> None:
    rows = [
        (
            str(each.key),
            "group" if isinstance(each.key, GroupKey) else "stream",
            each.entries,
            f"{each.first_revision}..{each.revision}",
            "holds" if each.holds else f"{len(each.findings)} finding(s)",
        )
        for each in reports
    ]
    print_table(("AGGREGATE", "KIND", "ENTRIES", "REVISIONS", "RESULT"), rows, empty="the store holds no streams")
    screen = console()
    for each in reports:
        for finding in each.findings:
            screen.print(f"{each.key}: {printable(finding)}", style="red")
