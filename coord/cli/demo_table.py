"""What the demo shows while it plays: a live table on a terminal, plain lines elsewhere."""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from types import TracebackType
from typing import Final, Self

from rich.console import Group
from rich.live import Live
from rich.text import Text

from coord.cli.demo_counts import Counts
from coord.cli.groups import lease_text, shards_text
from coord.cli.output import console, note, table_of
from coord.wire import GroupResponse, MemberMetadata

LINE_INTERVAL_S: Final = 2.0
TOLD_MAX: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Ownership:
    """What the coordinator last said; `group` is None as long as it said nothing."""

    group: GroupResponse | None = None
    members: tuple[MemberMetadata, ...] = ()


@dataclass(slots=True)
class Stage:
    """Shows the demo. `live`: a table that is drawn anew; else lines on stderr."""

    live: bool
    seconds: int
    begun: float = field(default_factory=time.monotonic)
    _told: list[str] = field(default_factory=list)
    _screen: Live | None = None
    _last_line: float = 0.0

    def __enter__(self) -> Self:
        if self.live:
            self._screen = Live(console=console(), auto_refresh=False, redirect_stdout=False, redirect_stderr=False)
            self._screen.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        if self._screen is not None:
            self._screen.stop()
            self._screen = None

    def begin(self) -> None:
        """Count the seconds from now."""
        self.begun = time.monotonic()

    @property
    def elapsed_s(self) -> float:
        """Seconds since the beginning."""
        return time.monotonic() - self.begun

    def tell(self, text: str) -> None:
        """Tell something that happened."""
        line = f"{self.elapsed_s:5.1f} s  {text}"
        self._told.append(line)
        if self._screen is None:
            note(line)

    def show(self, ownership: Ownership, counts: Counts) -> None:
        """Show how things are."""
        if self._screen is not None:
            self._screen.update(self._picture(ownership, counts), refresh=True)
        elif time.monotonic() - self._last_line >= LINE_INTERVAL_S:
            self._last_line = time.monotonic()
            note(f"{self.elapsed_s:5.1f} s  {self._counts_text(counts)}  {_ownership_text(ownership)}")

    def _picture(self, ownership: Ownership, counts: Counts) -> Group:
        now = datetime.now(UTC)
        members = table_of(
            ("MEMBER", "STATE", "LEASE LEFT", "READS", "LETS GO", "CONSUMED"),
            [
                (
                    each.member_id,
                    each.state,
                    lease_text(each, now),
                    shards_text(each.granted_assignment),
                    shards_text(each.revoking),
                    counts.consumed_by_member[each.member_id],
                )
                for each in ownership.members
            ],
        )
        head = f"{min(self.elapsed_s, self.seconds):.0f} of {self.seconds} s   {_group_text(ownership.group)}"
        told = [Text(line) for line in self._told[-TOLD_MAX:]]
        return Group(Text(head, style="bold"), members, Text(self._counts_text(counts), style="bold"), *told)

    def _counts_text(self, counts: Counts) -> str:
        return f"produced {counts.produced}  consumed {counts.consumed}  pending {counts.pending}  moves {counts.moves}"


def _group_text(group: GroupResponse | None) -> str:
    if group is None:
        return "waiting for the coordinator"
    active = group.active_migration
    resharding = f"   resharding {active.from_shard_count} → {active.to_shard_count}: {active.state}" if active else ""
    return f"{group.state}   {group.shard_count} shards{resharding}"


def _ownership_text(ownership: Ownership) -> str:
    owned: Mapping[str, str] = {each.member_id: shards_text(each.granted_assignment) for each in ownership.members}
    held = "  ".join(f"{member}[{shards}]" for member, shards in owned.items() if shards)
    return f"{_group_text(ownership.group)}  {held}"
