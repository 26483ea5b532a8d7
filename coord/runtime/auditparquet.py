"""Audit entries as Parquet, in batches, so that memory does not grow with their number. `pyarrow` is an extra (`parquet`)."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime
from itertools import islice
from typing import IO, Any, Final

import msgspec

from coord.runtime.auditformats import COLUMNS
from coord.wire import AuditEntry

BATCH: Final = 10_000
_NUMBERS: Final = frozenset({"status", "durationMs", "revision"})


def write_parquet(entries: Iterable[AuditEntry], file: IO[bytes]) -> None:
    """Write entries as one Parquet file: numbers as int64, `timestamp` as UTC ms, `roles` as a list, everything else as text."""
    import pyarrow as pa  # noqa: PLC0415  an extra
    from pyarrow import parquet  # noqa: PLC0415  as above

    types: dict[str, Any] = {name: pa.int64() for name in _NUMBERS}
    types |= {"timestamp": pa.timestamp("ms", tz="UTC"), "roles": pa.list_(pa.string())}
    schema = pa.schema([(name, types.get(name, pa.string())) for name in COLUMNS])
    left = iter(entries)
    with parquet.ParquetWriter(file, schema, compression="zstd") as writer:
        while batch := list(islice(left, BATCH)):
            writer.write_table(pa.Table.from_pylist([_row(entry) for entry in batch], schema=schema))


def _row(entry: AuditEntry) -> dict[str, Any]:
    row: dict[str, Any] = msgspec.to_builtins(entry)
    return {**row, "timestamp": datetime.fromisoformat(entry.timestamp)}
