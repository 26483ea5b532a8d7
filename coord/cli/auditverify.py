"""What `coord audit verify` walks, by which checkpoints, and how it tells what it found."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path

import click

from coord.cli.output import console, print_json, print_table, printable
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.auditreading import every_log
from coord.runtime.chainwalk import START, ChainReport
from coord.runtime.checkpoints import BadCheckpoint, BadKey, Signed, marks_of, public_key, verified
from coord.store.base import Store


def read_checkpoints(files: Sequence[Path], key_file: Path | None) -> tuple[Signed, ...]:
    """Read checkpoints and hold them to the key. Raises UsageError for a key that is none, ClickException for a bad signature."""
    if not files or key_file is None:
        return ()
    if find_spec("cryptography") is None:
        raise click.UsageError("checkpoints need cryptography: pip install 'redis-stream-coordinator[audit]'")
    try:
        key = public_key(key_file.read_bytes())
    except BadKey as error:
        raise click.UsageError(f"--public-key: {key_file} {error}") from None
    found = []
    for file in files:
        try:
            found.append(verified(file.read_bytes(), key))
        except BadCheckpoint as error:
            raise click.ClickException(f"{printable(str(file))}: {error}") from None
    return tuple(found)


class ChainRun:
    """The walks of one run. Raises ClickException for checkpoints that contradict each other."""

    def __init__(self, checkpoints: Sequence[Signed]) -> None:
        self.checkpoints = checkpoints
        self.reports: list[ChainReport] = []
        try:
            self._marks = marks_of(checkpoints)
        except BadCheckpoint as error:
            raise click.ClickException(printable(str(error))) from None

    @property
    def holds(self) -> bool:
        """Whether every log holds."""
        return all(report.holds for report in self.reports)

    def marks(self, key: AggregateKey) -> Mapping[tuple[int, int], str]:
        """Give what the checkpoints say of a log."""
        return self._marks.get(key, {})

    def keys(self, store: Store, stream: str | None, group: str | None) -> Iterator[AggregateKey]:
        """Give the logs to walk: those that the store tells of, and those that only a checkpoint knows any more."""
        walked: set[AggregateKey] = set()
        for key in every_log(store, stream, group):
            walked.add(key)
            yield key
        for key in self._marks:
            in_question = stream is None or (key.stream_prefix == stream and (group is None or key == GroupKey(stream, group)))
            if in_question and key not in walked:
                yield key

    def add(self, report: ChainReport) -> None:
        """Keep what a walk found; a group that was registered only has no log, and there is nothing to say of it."""
        if report.last != START or not report.holds:
            self.reports.append(report)

    def show(self, *, as_json: bool, err: bool = False) -> None:
        """Tell what was found."""
        if as_json:
            print_json(
                {
                    "holds": self.holds,
                    "checkpoints": [each.at for each in self.checkpoints],
                    "logs": [_as_json(each) for each in self.reports],
                }
            )
            return
        if not err:
            rows = [
                (
                    str(each.key),
                    "stream" if isinstance(each.key, StreamKey) else "group",
                    each.entries,
                    f"{each.first[0]}..{each.last[0]}",
                    "holds" if each.holds else f"broken at revision {each.bad}",
                )
                for each in self.reports
            ]
            print_table(("LOG", "KIND", "ENTRIES", "REVISIONS", "RESULT"), rows, empty="the store holds no streams")
        screen = console(err=err)
        for each in self.reports:
            if not each.holds:
                screen.print(f"{printable(str(each.key))}: revision {each.bad}: {printable(each.why)}", style="red")


def _as_json(report: ChainReport) -> dict[str, object]:
    return {
        "streamPrefix": report.key.stream_prefix,
        "consumerGroup": report.key.consumer_group if isinstance(report.key, GroupKey) else None,
        "holds": report.holds,
        "entries": report.entries,
        "firstRevision": report.first[0],
        "revision": report.last[0],
        "badRevision": report.bad,
        "finding": report.why or None,
    }
