"""`coord store`: what an operator does to the store itself, with no coordinator in between."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import click

from coord.bootstrap import sql_tables
from coord.cli.context import NotReachable
from coord.cli.copying import copy_command
from coord.cli.direct import config_option, loaded
from coord.cli.output import output_option, print_json, printable
from coord.config import Configuration
from coord.store.base import StoreError
from coord.store.versions import Version

EXIT_PENDING = 1


@click.group("store")
def store_commands() -> None:
    """Look after the store."""


store_commands.add_command(copy_command)


@store_commands.command("migrate")
@config_option
@click.option("--check", is_flag=True, help="Change nothing, tell what would be done.")
@output_option
@click.pass_context
def migrate(
    context: click.Context,
    *,
    file: Path | None,
    check: bool,
    output: Literal["table", "json"],
) -> None:
    """Bring the tables of a SQL store to the version that this release needs.

    Safe to run beside coordinators and other migrations: one works at a time. With store.jdbc.migrate on, which is the
    default, every coordinator does it at its start. Exit code 0: the tables are as needed; 1: with --check, they are not, or
    they are a newer release's; 2: wrong usage, or no SQL store; 3: the database cannot be reached, or refuses.
    """
    tables = sql_tables(_configuration(file))
    try:
        version = tables.look() if check else tables.migrate()
    except StoreError as error:
        raise NotReachable(printable(str(error))) from None
    finally:
        tables.close()
    migrated = bool(version.pending) and not check
    as_needed = migrated or version.usable
    if output == "json":
        print_json(
            {
                "current": version.newest if migrated else version.current or None,
                "before": version.current or None,
                "newest": version.newest,
                "pending": [] if migrated else list(version.pending),
                "migrated": migrated,
                "asNeeded": as_needed,
            }
        )
    else:
        click.echo(_told(version, migrated=migrated))
    if not as_needed:
        context.exit(EXIT_PENDING)


def _told(version: Version, *, migrated: bool) -> str:
    there = f"version {version.current}" if version.current else "no tables"
    if migrated:
        return f"migrated: {there} before, version {version.newest} now"
    if version.pending:
        return f"to be done: {there}, this release needs version {version.newest}"
    if version.current == version.newest:
        return f"nothing to do: version {version.current}"
    if version.usable:
        return f"nothing to do: version {version.current} of a newer release, which this one can work with"
    return f"version {version.current} is of a newer release; this one knows version {version.newest} and cannot work with it"


def _configuration(file: Path | None) -> Configuration:
    """Load the configuration; raises UsageError for one that is refused, or that names no database."""
    config = loaded(file)
    if config.store.type != "jdbc":
        raise click.UsageError(f"store.type is {config.store.type}: only a SQL store (jdbc) has tables")
    return config
