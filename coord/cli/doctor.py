"""`coord doctor`: what is wrong with a configuration and the store behind it, and what to do about it. Changes nothing."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final, Literal

import click

from coord.addresses import redis_commands, uses_redis
from coord.bootstrap import sql_store, sql_tables, unsafe_settings
from coord.cli.checkup import Line, fail, of_configuration, of_problems, ok, warn
from coord.cli.checkup_redis import CLOCK_SKEW_MS_MAX, STREAMS_LOOKED_AT, RedisCheckup, now_ms
from coord.cli.direct import config_option, without_logs
from coord.cli.output import console, no_color_option, output_option, print_json, printable
from coord.config import Configuration, ConfigurationError, load
from coord.rediscommands.errors import RedisFault
from coord.store.base import StoreError

EXIT_FOUND: Final = 1
EXIT_REFUSED: Final = 2
EXIT_UNREACHABLE: Final = 3
STYLES: Final = {"OK": "green", "WARN": "yellow", "FAIL": "bold red"}


@click.command()
@config_option
@click.option("--redis-url", help="Redis to look at; wins over the configuration.")
@click.option("--strict", is_flag=True, help="A warning is a finding too.")
@output_option
@no_color_option
@click.pass_context
def doctor(
    context: click.Context,
    *,
    file: Path | None,
    redis_url: str | None,
    strict: bool,
    output: Literal["table", "json"],
) -> None:
    """Look at the configuration and the store behind it; say of each thing whether it is fine, and what to do if not.

    Reads only, as the user and with the rights that a coordinator of this configuration would have. OK: fine. WARN: a risk, or
    something that could not be looked at. FAIL: does not work, or is not safe. Exit code 0: nothing FAILs (with --strict: nothing
    WARNs either); 1: something does; 2: the configuration is refused; 3: the store cannot be reached.
    """
    lines: list[Line] = []
    code = 0
    try:
        config = load(file, overrides={"redis.url": redis_url} if redis_url is not None else None)
    except ConfigurationError as error:
        lines, code = list(of_problems(error.problems)), EXIT_REFUSED
    else:
        lines += of_configuration(config)
        try:
            with without_logs():
                lines.extend(_of_store(config))
        except (RedisFault, StoreError) as error:
            lines.append(fail("reachable", f"the store cannot be reached: {error}", "start it, or correct where it is"))
            code = EXIT_UNREACHABLE
    bad = {"FAIL", "WARN"} if strict else {"FAIL"}
    if not code and any(line.status in bad for line in lines):
        code = EXIT_FOUND
    if output == "json":
        print_json({"healthy": code == 0, "checks": [_as_json(line) for line in lines]})
    else:
        _print(lines)
    context.exit(code)


def _of_store(config: Configuration) -> Iterator[Line]:
    """Look at the store, and at the shards' Redis where that is another. Raises RedisFault or StoreError without an answer."""
    if config.store.type == "memory":
        yield warn("store", "store.type is memory: all groups are gone when the coordinator ends", "use it for trials only")
        return
    streams: list[str] | None = None
    if config.store.type == "jdbc":
        streams = []
        yield from _of_database(config, streams)
        if not uses_redis(config):
            return
    commands = redis_commands(config)
    try:
        yield from RedisCheckup(config, commands, streams=streams).lines()
    finally:
        commands.close()


def _of_database(config: Configuration, streams: list[str]) -> Iterator[Line]:
    """Look at a SQL store; the prefixes of its first streams are added to `streams`."""
    tables = sql_tables(config)
    try:
        version = tables.look()
    finally:
        tables.close()
    yield ok("reachable", "the database answers")
    if version.usable:
        yield ok("schema", f"the tables are at version {version.current}, this release knows {version.newest}")
    elif not version.pending:
        text = f"the tables are at version {version.current} of a newer release; this one knows {version.newest}"
        yield fail("schema", text, "run the newer release")
        return
    elif config.store.jdbc.migrate:
        text = f"the tables are at version {version.current or 'none'}, {version.newest} is needed"
        yield warn("schema", text, "the next start of a coordinator brings them there, or `coord store migrate` now")
        return
    else:
        text = f"the tables are at version {version.current or 'none'}, {version.newest} is needed"
        yield fail("schema", text, "run `coord store migrate`: store.jdbc.migrate is off")
        return
    store = sql_store(config, migrates=False)
    try:
        unsafe = unsafe_settings(store)
        for text in unsafe:
            yield fail("durability", text, "change it in the database")
        if not unsafe:
            yield ok("durability", "the database keeps what it acknowledges, as far as it tells")
        skew_ms = store.ping() - now_ms()
        streams += store.streams()[:STREAMS_LOOKED_AT]
    finally:
        store.close()
    if abs(skew_ms) > CLOCK_SKEW_MS_MAX:
        text = f"the database's clock differs from this machine's by {skew_ms} ms"
        yield warn("clock", text, "run NTP on both: tokens and logs go by this machine's clock, leases by the database's")
    else:
        yield ok("clock", f"the database's clock and this machine's differ by {skew_ms} ms")


def _as_json(line: Line) -> dict[str, str | None]:
    return {"check": line.check, "status": line.status, "text": line.text, "advice": line.advice or None}


def _print(lines: Iterable[Line]) -> None:
    """One line each, and below those that are not fine what to do."""
    screen = console()
    for line in lines:
        screen.print(f"{line.status:<4}  {line.check:<13}  {printable(line.text)}", style=STYLES[line.status])
        if line.advice:
            screen.print(f"      {'':<13}  → {printable(line.advice)}")
