"""Audit entries as lines: JSON for programs, CSV for spreadsheets, in which no value is a formula."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import Final

import msgspec

from coord.wire import AuditEntry

COLUMNS: Final = tuple(field.encode_name for field in msgspec.structs.fields(AuditEntry))
CHUNK: Final = 200
"""Entries that are written at once."""
_FORMULA: Final = frozenset("=+-@|%\t\r\n＝＋－＠")
"""What a spreadsheet takes for the beginning of a formula or a command, wide forms included."""


def ndjson(entries: Iterable[AuditEntry]) -> Iterator[bytes]:
    """Give one JSON object a line."""
    encoder = msgspec.json.Encoder()
    return (encoder.encode_lines(chunk) for chunk in _chunks(entries))


def csv_lines(entries: Iterable[AuditEntry]) -> Iterator[bytes]:
    """Give CSV (RFC 4180, UTF-8) with a line of names first. A text that a spreadsheet could run begins with a quote."""
    yield _csv([COLUMNS])
    for chunk in _chunks(entries):
        yield _csv([[cell(value) for value in msgspec.structs.astuple(entry)] for entry in chunk])


def cell(value: object) -> str:
    """Write a value for a spreadsheet."""
    if value is None:
        return ""
    if isinstance(value, tuple):
        return cell(" ".join(value))
    text = str(value)
    return f"'{text}" if isinstance(value, str) and text.lstrip(" ")[:1] in _FORMULA and text.strip(" ") else text


def _csv(rows: Iterable[Iterable[str]]) -> bytes:
    out = io.StringIO()
    csv.writer(out).writerows(rows)
    return out.getvalue().encode()


def _chunks(entries: Iterable[AuditEntry]) -> Iterator[list[AuditEntry]]:
    left = iter(entries)
    while chunk := list(islice(left, CHUNK)):
        yield chunk
