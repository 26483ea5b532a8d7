"""`coord config`: what is in force, where it came from, and what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import click
import yaml

from coord.cli.direct import config_option
from coord.cli.output import printable
from coord.config import Configuration, ConfigurationError, effective, load

if TYPE_CHECKING:
    from collections.abc import Iterable

    from coord.config import Problem, Shown

EXIT_REFUSED = 2


@click.group("config")
def config_commands() -> None:
    """Look at the configuration before anything starts with it."""


@config_commands.command("show")
@config_option
@click.option("--output", type=click.Choice(["table", "json", "yaml"]), default="table", show_default=True)
def show(file: Path | None, output: str) -> None:
    """Print the effective configuration, secrets masked, and where each value came from.

    Exit code 2 when a start would be refused.
    """
    configuration = _loaded(file)
    rows = effective(configuration)
    if output == "json":
        values = {row.key: {"value": row.value, "origin": row.origin} for row in rows}
        click.echo(json.dumps({"values": values, "warnings": [_as_json(each) for each in configuration.warnings]}, indent=2))
    elif output == "yaml":
        click.echo(_as_yaml(rows), nl=False)
    else:
        click.echo(_as_table(rows), nl=False)
    if output != "json":
        for warning in configuration.warnings:
            click.echo(f"warning: {printable(str(warning))}", err=True)


@config_commands.command("check")
@config_option
@click.option("--output", type=click.Choice(["table", "json"]), default="table", show_default=True)
@click.pass_context
def check(context: click.Context, file: Path | None, output: str) -> None:
    """Print every problem and warning of the configuration. Exit code 0: it can start; 2: it would be refused."""
    problems: tuple[Problem, ...] = ()
    try:
        warnings = load(file).warnings
    except ConfigurationError as error:
        problems, warnings = error.problems, error.warnings
    if output == "json":
        report = {"problems": [_as_json(each) for each in problems], "warnings": [_as_json(each) for each in warnings]}
        click.echo(json.dumps(report, indent=2))
    else:
        for kind, found in (("refused", problems), ("warning", warnings)):
            for each in found:
                click.echo(f"{kind}  {printable(str(each))}")
        verdict = "a start would be refused" if problems else "the configuration is fine"
        click.echo(f"{verdict}: {len(problems)} problem(s), {len(warnings)} warning(s)")
    if problems:
        context.exit(EXIT_REFUSED)


class _RefusedError(click.ClickException):
    exit_code = EXIT_REFUSED


def _loaded(file: Path | None) -> Configuration:
    try:
        return load(file)
    except ConfigurationError as error:
        lines = ["the configuration is refused", *(printable(str(each)) for each in error.problems)]
        raise _RefusedError("\n".join(lines)) from None


def _as_json(problem: Problem) -> dict[str, str]:
    return {"key": problem.key, "message": problem.message}


def _scalar(value: object) -> str:
    """Write a value as YAML would, on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, width=10**6, allow_unicode=True)
    return text.removesuffix("...\n").strip()


def _as_table(rows: Iterable[Shown]) -> str:
    lines = [("KEY", "VALUE", "FROM"), *((row.key, _scalar(row.value), row.origin) for row in rows)]
    widths = [max(len(line[column]) for line in lines) for column in range(2)]
    return "".join(
        f"{key:<{widths[0]}}  {value:<{widths[1]}}  {printable(origin)}".rstrip() + "\n" for key, value, origin in lines
    )


def _as_yaml(rows: Iterable[Shown]) -> str:
    """Write the values as a file that has the same shape as the one that is read, each with its origin as a comment."""
    lines = ["coordinator:"]
    above: tuple[str | int, ...] = ()
    for row in rows:
        *sections, last = row.path
        shared = 0
        while shared < min(len(above), len(sections)) and above[shared] == sections[shared]:
            shared += 1
        bullet = ""
        for depth in range(shared, len(sections)):
            part = sections[depth]
            if isinstance(part, int):
                bullet = "- "
            else:
                lines.append(f"{'  ' * (depth + 1)}{part}:")
        indent = "  " * (len(sections) + 1 - (1 if bullet else 0))
        lines.append(f"{indent}{bullet}{last}: {_scalar(row.value)}  # {printable(row.origin)}")
        above = tuple(sections)
    return "\n".join(lines) + "\n"
