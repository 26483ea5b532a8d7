"""`coord verify`: the logs in the store against themselves and against what is stored. Reads only, from the store itself."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Literal

import click

from coord.bootstrap import open_store
from coord.cli.context import NAME, NotReachable
from coord.cli.direct import config_option, configuration, progress, without_logs
from coord.cli.output import console, no_color_option, output_option, print_json, print_table, printable
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.verify import Report, groups_of, verify_aggregate, verify_all
from coord.store.base import Store, StoreError

EXIT_FOUND = 1


@click.command()
@click.argument("stream", type=NAME, required=False)
@click.argument("group", type=NAME, required=False)
@config_option
@click.option("--redis-url", help="Redis that holds the store; wins over the configuration.")
@output_option
@no_color_option
@click.pass_context
def verify(
    context: click.Context,
    *,
    stream: str | None,
    group: str | None,
    file: Path | None,
    redis_url: str | None,
    output: Literal["table", "json"],
) -> None:
    """Verify the log of every stream and group: its chain, its fold, the invariants after each revision.

    STREAM: only this stream and its groups; GROUP: only this group of it. It reads the store directly, changes nothing and
    needs no coordinator. Exit code 0: all holds; 1: something was found; 3: the store cannot be reached.
    """
    store, _ = open_store(configuration(file, redis_url))
    try:
        with without_logs(), progress("verifying") as tell:
            reports = list(_told(_reports(store, stream, group), tell))
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


def _told(reports: Iterable[Report], tell: Callable[[str], None]) -> Iterator[Report]:
    """Tell of each report as it comes."""
    entries = 0
    for done, report in enumerate(reports, 1):
        entries += report.entries
        tell(f"verified {done} aggregates, {entries} entries; last {report.key}")
        yield report


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
