"""What every store checks of an aggregate that it reads, so that a contradiction stops this aggregate and nothing else."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final, ParamSpec, TypeVar

import msgspec

from coord.events.catalog import GroupDeleted, StreamDeleted
from coord.events.codec import NAME_OF
from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.store.base import LAYOUT_VERSION, SCHEMA_VERSION, Commit, CorruptAggregate, Head, LeaseGuards, StoreError

P = ParamSpec("P")
R = TypeVar("R")

TAIL_FREE_BYTES: Final = 4096
"""So much larger than the aggregate a log's tail may be and still serve better: a few events fold faster than all is read."""
TOMBSTONES: Final = frozenset({NAME_OF[GroupDeleted], NAME_OF[StreamDeleted]})


class _Type(msgspec.Struct):
    type: str


_type_of: Final = msgspec.json.Decoder(_Type).decode


def attempted(function: Callable[P, R], *args: P.args, **kwargs: P.kwargs) -> R | StoreError:
    """Give what a function gives, or the StoreError that it raises."""
    try:
        return function(*args, **kwargs)
    except StoreError as error:
        return error


def check_versions(key: AggregateKey, schema: int, layout: int) -> None:
    """Raise CorruptAggregate unless this release reads these versions."""
    if (schema, layout) == (SCHEMA_VERSION, LAYOUT_VERSION):
        return
    if (schema, layout) == (1, 1):
        why = "schema 1, layout 1 is a Kotlin coordinator's: take it over with `coord adopt`"
    else:
        why = f"schema {schema}, layout {layout} is unknown to this release, which reads {SCHEMA_VERSION}, {LAYOUT_VERSION}"
    raise CorruptAggregate(key, why)


def check_head(key: AggregateKey, head: Head, *, last: Entry | None, highest: tuple[int, int]) -> None:
    """Raise CorruptAggregate unless the log ends where the aggregate says. `highest`: the highest id that the log ever had."""
    if last is None:
        raise CorruptAggregate(
            key, f"its log is missing, or has no entry left; it should end at {head.last[0]}-{head.last[1]}", says=head.last
        )
    if (last.revision, last.index) != head.last or highest != head.last:
        raise CorruptAggregate(
            key, f"its log ends at {last.entry_id}, the aggregate says {head.last[0]}-{head.last[1]}", says=head.last
        )
    if last.chain != head.chain:
        raise CorruptAggregate(key, f"the chain value of {last.entry_id} is not the one in the aggregate")
    if head.revision != last.revision:
        raise CorruptAggregate(key, f"revision {head.revision} is not that of its last log entry, {last.entry_id}")


def tombstone(key: AggregateKey, committed: Sequence[Entry], *, last: Entry) -> Entry:
    """Give the deletion among the entries that the last commit wrote in the last revision.

    Audit entries may follow it. Raises CorruptAggregate when there is none: the aggregate itself has been lost.
    """
    for entry in reversed(committed):
        try:
            kind = _type_of(entry.body).type
        except msgspec.MsgspecError as error:
            raise CorruptAggregate(key, f"log entry {entry.entry_id} is unreadable: {error}") from error
        if kind in TOMBSTONES:
            return entry
    raise CorruptAggregate(key, f"it is missing, though its log ends without a deletion at {last.entry_id}: see `coord repair`")


def check_commit(commit: Commit) -> None:
    """Raise ValueError for a commit whose entries are none, or do not follow the expected head without a gap."""
    allowed = {(commit.expected.revision + 1, 0)}
    for entry in commit.entries:
        if (entry.revision, entry.index) not in allowed:
            message = f"entry {entry.entry_id} is not one of {sorted(allowed)}"
            raise ValueError(message)
        allowed = {(entry.revision, entry.index + 1), (entry.revision + 1, 0)}
    if not commit.entries:
        message = "a commit without entries"
        raise ValueError(message)


def check_append(expected: Head, entries: Sequence[Entry]) -> None:
    """Raise ValueError for entries that are none, or do not go on within the expected head's revision."""
    ids = [(entry.revision, entry.index) for entry in entries]
    first = expected.last[1] + 1
    if not ids or expected.revision < 1 or ids != [(expected.revision, first + place) for place in range(len(ids))]:
        message = f"entries {ids} do not follow {expected.last} in revision {expected.revision}"
        raise ValueError(message)


def leases_allow(guards: LeaseGuards, deadlines: Mapping[str, int], *, now: int) -> bool:
    """Tell whether soft state is as a decision needs it. `deadlines`: those of the members that the guards name, or all."""
    if any(member not in deadlines or deadlines[member] >= now for member in guards.lapsed):
        return False
    if any(deadlines.get(member) != deadline for member, deadline in guards.unchanged.items()):
        return False
    latest = max(deadlines.values(), default=-1)
    if guards.none_running and latest >= now:
        return False
    return guards.latest_at_most is None or latest <= guards.latest_at_most
