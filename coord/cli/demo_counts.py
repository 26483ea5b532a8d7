"""Counts the demo's records while they are produced and consumed, from the traces that the programs write."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import msgspec

READ_BYTES_MAX: Final = 8 * 1024 * 1024
"""Of one file in one look; what is left is read at the next."""


class Line(msgspec.Struct, frozen=True):
    """What is needed of a trace line."""

    kind: str
    member: str = ""
    shard: int = -1
    id: str = ""
    ids: tuple[str, ...] = ()
    at: int = 0


@dataclass(slots=True)
class _File:
    """How far a trace has been read, and whose it is."""

    offset: int = 0
    member: str = ""


@dataclass(slots=True)
class Counts:
    """What the traces of a directory say so far. A record counts as consumed when its acknowledgement was answered."""

    directory: Path
    produced: int = 0
    consumed_by_member: Counter[str] = field(default_factory=Counter)
    starts: list[tuple[int, int, str]] = field(default_factory=list)
    _pending: set[tuple[int, str]] = field(default_factory=set)
    _early: set[tuple[int, str]] = field(default_factory=set)
    _files: dict[Path, _File] = field(default_factory=dict)
    _decoder: msgspec.json.Decoder[Line] = field(default_factory=lambda: msgspec.json.Decoder(Line))

    @property
    def pending(self) -> int:
        """Records produced and not yet acknowledged."""
        return len(self._pending)

    @property
    def consumed(self) -> int:
        """Records produced and acknowledged."""
        return self.produced - len(self._pending)

    @property
    def moves(self) -> int:
        """How often a shard went to another member than the one that read it before."""
        last: dict[int, str] = {}
        moves = 0
        for _, shard, member in sorted(self.starts):
            moves += last.get(shard, member) != member
            last[shard] = member
        return moves

    def look(self) -> None:
        """Read what was written since the last look."""
        for path in sorted(self.directory.glob("*.jsonl")):
            known = self._files.setdefault(path, _File())
            with path.open("rb") as trace:
                trace.seek(known.offset)
                data = trace.read(READ_BYTES_MAX)
            whole = data[: data.rfind(b"\n") + 1]
            known.offset += len(whole)
            for row in whole.splitlines():
                self._take(known, self._decoder.decode(row))

    def _take(self, file: _File, line: Line) -> None:
        match line.kind:
            case "process":
                file.member = line.member
            case "xadd":
                self._produce((line.shard, line.id))
            case "ack":
                self.consumed_by_member[file.member] += len(line.ids)
                for record in line.ids:
                    self._consume((line.shard, record))
            case "start":
                self.starts.append((line.at, line.shard, file.member))

    def _produce(self, record: tuple[int, str]) -> None:
        """A consumer's file may be read before the producer's, so an acknowledgement may come first."""
        self.produced += 1
        if record in self._early:
            self._early.remove(record)
        else:
            self._pending.add(record)

    def _consume(self, record: tuple[int, str]) -> None:
        if record in self._pending:
            self._pending.remove(record)
        else:
            self._early.add(record)
