"""The results for people (a table) and for programs (`build/bench.json`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table
from rich.text import Text

from ops.bench.results import Result, Scalar

SHOWN_DIGITS: Final = 3
_RATIOS: Final = ("ratio_to_floor", "ratio_to_baseline", "ratio_to_10", "ratio_to_etcd", "ratio_to_single")


def write_json(file: Path, machine: Mapping[str, Scalar | None], results: Sequence[Result]) -> None:
    """Write `{"machine": {...}, "results": [{"name", "value", "unit", ...}]}`."""
    file.parent.mkdir(parents=True, exist_ok=True)
    document = {"machine": machine, "results": [result.as_json() for result in results]}
    file.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=2) + b"\n")


def print_table(console: Console, machine: Mapping[str, Scalar | None], results: Sequence[Result]) -> None:
    """Print a line a result: its value or the reason why there is none, its goal and whether that was reached."""
    table = Table(title=_machine_line(machine), title_justify="left", title_style="dim")
    table.add_column("line", no_wrap=True)
    table.add_column("value", justify="right", no_wrap=True)
    table.add_column("unit", no_wrap=True)
    table.add_column("goal", overflow="fold")
    table.add_column("reached", justify="center")
    table.add_column("more")
    for result in results:
        table.add_row(
            result.name, _value(result), result.unit, " and ".join(map(str, result.goal)), _reached(result), _more(result)
        )
    console.print(table)


def shown(value: Scalar) -> str:
    """Write a number as people read it: three digits that count, no exponent."""
    if isinstance(value, str | bool):
        return str(value)
    if value == 0 or abs(value) >= 10 ** (SHOWN_DIGITS - 1):
        return f"{value:,.0f}"
    return f"{value:.{SHOWN_DIGITS}g}"


def _machine_line(machine: Mapping[str, Scalar | None]) -> str:
    effort = "QUICK: rough figures only; " if machine.get("quick") else ""
    return f"{effort}{machine.get('cpu') or 'unknown processor'}, {machine.get('cores')} cores, Python {machine.get('python')}"


def _value(result: Result) -> Text:
    if result.measured is None:
        return Text("failed", style="red") if result.failed else Text("–", style="dim")
    return Text(shown(result.measured.value), style="" if result.measured.valid else "yellow")


def _reached(result: Result) -> Text:
    if result.measured is not None and not result.measured.valid:
        return Text("invalid", style="yellow")
    known = {True: Text("yes", style="green"), False: Text("no", style="red"), None: Text("")}
    return known[result.reached]


def _more(result: Result) -> Text:
    if result.measured is None:
        return Text(result.reason or "", style="red" if result.failed else "dim")
    fields = result.measured.fields
    told = [name for name in fields if name in _RATIOS] or [bound.field for bound in result.goal if bound.field in fields]
    told += [name for name in fields if name.endswith("_reason")]
    return Text(", ".join(f"{name} {shown(fields[name])}" for name in told), style="dim")
