"""What commands print: tables for people, JSON for scripts; results on stdout, everything else on stderr."""

from __future__ import annotations

import errno
import json
import os
import sys
from collections.abc import Iterable, Sequence

import click
import msgspec
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

WIDTH_OF_A_FILE = 1_000
"""A table that goes into a file or a pipe is as wide as it needs to be."""

output_option = click.option("--output", "-o", type=click.Choice(["table", "json"]), default="table", show_default=True)


def _note_no_color(context: click.Context, _: click.Parameter, value: bool) -> None:  # noqa: FBT001  # click's signature
    if value:
        context.meta["coord.no_color"] = True


no_color_option = click.option(
    "--no-color",
    is_flag=True,
    expose_value=False,
    is_eager=True,
    callback=_note_no_color,
    help="No colours; the environment variable NO_COLOR does the same.",
)


class OutputConsole(Console):
    """A console that reports a closed pipe instead of ending the program by itself."""

    def on_broken_pipe(self) -> None:
        """Let the command line end the program."""
        raise BrokenPipeError(errno.EPIPE, os.strerror(errno.EPIPE))


def console(*, err: bool = False) -> OutputConsole:
    """Give a console on stdout (or stderr), in colour only for a terminal that wants it."""
    context = click.get_current_context(silent=True)
    no_color = True if context is not None and context.meta.get("coord.no_color") else None
    stream = sys.stderr if err else sys.stdout
    width = None if stream.isatty() else WIDTH_OF_A_FILE
    return OutputConsole(file=stream, no_color=no_color, width=width, highlight=False, markup=False, emoji=False)


def printable(text: str) -> str:
    """Write control characters as escapes: texts from elsewhere must not steer the terminal."""
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode("ascii") for letter in text
    )


def cell(value: object) -> str:
    """Write a value for a table; a dash for what is not there."""
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return printable(str(value))


def table_of(columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None) -> Table:
    """Give a table; numbers stand to the right."""
    filled = [tuple(row) for row in rows]
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, title=title, title_justify="left", title_style="bold", show_edge=False)
    for index, column in enumerate(columns):
        numbers = bool(filled) and all(isinstance(row[index], int) and not isinstance(row[index], bool) for row in filled)
        table.add_column(column, justify="right" if numbers else "left", overflow="fold")
    for row in filled:
        table.add_row(*(Text(cell(value)) for value in row))
    return table


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[object]], *, title: str | None = None, empty: str = "none"
) -> None:
    """Print a table, or what to do when there is nothing to show."""
    filled = list(rows)
    screen = console()
    if title:
        screen.print()
    if filled:
        screen.print(table_of(columns, filled, title=title))
    else:
        screen.print(f"{title}: {empty}" if title else empty)


def print_facts(facts: Iterable[tuple[str, object]]) -> None:
    """Print one thing, a line a fact."""
    table = Table(box=None, show_header=False, pad_edge=False)
    table.add_column(style="bold")
    table.add_column(overflow="fold")
    for name, value in facts:
        table.add_row(name, Text(cell(value)))
    console().print(table)


def print_json(body: bytes | object) -> None:
    """Print a body as the API gave it, or a value, indented by two; names in their order."""
    if isinstance(body, bytes):
        click.echo(msgspec.json.format(body, indent=2))
    else:
        click.echo(json.dumps(body, indent=2, ensure_ascii=False))


def note(text: str) -> None:
    """Say something about the progress, on stderr."""
    click.echo(printable(text), err=True)
