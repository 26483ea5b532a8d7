"""Undoes an adoption: a Kotlin coordinator's keys go back to where they were, and ours are taken away; our logs are kept aside.

That is safe as long as nobody has been given, told or denied anything here since: the old state is still the true one. Otherwise
members hold epochs and shards of which it knows nothing, and it is undone on an operator's word only.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from coord.events import codec
from coord.events.catalog import (
    AdminRequest,
    AdminRequestsSuppressed,
    Event,
    GroupAdopted,
    MemberUpdated,
    OwnershipReported,
    Snapshot,
    StreamAdopted,
)
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.adoptable import ADOPTER, NotAdopted, first_of, is_of, told_by
from coord.runtime.atwork import at_work
from coord.runtime.kotlin import KotlinAggregate
from coord.runtime.verify import entries_of, groups_of
from coord.store.adoption import ASIDE, Adoption, Foreign
from coord.store.base import Store

HARMLESS: Final[tuple[type[Event], ...]] = (
    OwnershipReported,
    MemberUpdated,
    AdminRequest,
    AdminRequestsSuppressed,
    Snapshot,
)
"""What may have happened since, without the old state being wrong: reports, and notes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Undoing:
    """What would be undone.

    `ours`: aggregates that go; `streams`: those that are in the index for the adoption's sake; `kept`: keys that come back;
    `stale`: copies of what was written on since, which go; `moved_on`: why that is not safe.
    """

    ours: Sequence[AggregateKey]
    streams: Sequence[StreamKey]
    kept: Sequence[Foreign]
    stale: Sequence[Foreign]
    moved_on: Sequence[str]


def undoing(adoption: Adoption, store: Store, *, stream: str | None = None) -> Undoing:
    """Look at what can be undone, of everything or of one stream. Raises NotAdopted, MalformedForeign; writes nothing."""
    found = [each for each in adoption.found() if is_of(each, stream)]
    there = {each.key: each for each in found if not each.is_aside}
    told = [(each, told_by(each)) for each in found if each.is_aside]
    told = [(foreign, each) for foreign, each in told if stream is None or each.stream_prefix == stream]
    ours: list[AggregateKey] = []
    streams: list[StreamKey] = []
    moved_on: list[str] = []
    for prefix in sorted({each.stream_prefix for _, each in told}):
        of_stream = [(foreign, each) for foreign, each in told if each.stream_prefix == prefix]
        names = {each.consumer_group for _, each in of_stream if each.consumer_group is not None}
        for name in sorted(names):
            key = GroupKey(prefix, name)
            sources = {foreign.key.removesuffix(ASIDE) for foreign, each in of_stream if each.consumer_group == name}
            first = first_of(store, key)
            if first is None:
                continue
            if not isinstance(first.event, GroupAdopted) or first.event.source_key not in sources:
                raise NotAdopted(f"group {key} was not adopted from what is kept aside")
            ours.append(key)
            moved_on += _moved_on(store, key, first.revision)
        stream_key = StreamKey(prefix)
        begun = _stream_of(store, stream_key, names, moved_on)
        ours += begun
        if begun or store.load(stream_key).aggregate is None:
            streams.append(stream_key)
    stale = [foreign for foreign, each in told if _is_stale(each, there.get(foreign.key.removesuffix(ASIDE)))]
    kept = [foreign for foreign, _ in told if foreign not in stale]
    return Undoing(ours=ours, streams=streams, kept=kept, stale=stale, moved_on=moved_on)


def _is_stale(aside: KotlinAggregate, there: Foreign | None) -> bool:
    """Tell whether the other coordinator has written on after an adoption that stopped: then what is there is the truth."""
    return there is not None and there.text != aside.raw.text and told_by(there).store_revision >= aside.store_revision


def _stream_of(store: Store, key: StreamKey, names: set[str], moved_on: list[str]) -> list[AggregateKey]:
    first = first_of(store, key)
    if first is None or not isinstance(first.event, StreamAdopted) or first.cause.actor != ADOPTER:
        return []
    if others := [group.consumer_group for group in groups_of(store, key) if group.consumer_group not in names]:
        raise NotAdopted(f"stream {key} has groups that were made here: delete them first: {', '.join(others[:5])}")
    moved_on += _moved_on(store, key, first.revision)
    return [key]


def _moved_on(store: Store, key: AggregateKey, revision: int) -> list[str]:
    """Say what has happened to an aggregate since it was adopted, where that matters."""
    events = (codec.decode(entry).event for entry in entries_of(store, key, (revision, 2**31 - 1)))
    happened = sorted({codec.NAME_OF[type(event)] for event in events if not isinstance(event, HARMLESS)})
    return [f"{key}: {', '.join(happened)}"] if happened else []


def undo(found: Undoing, adoption: Adoption, store: Store, *, force: bool, tick_ms: int) -> None:
    """Put everything back. Raises NotAdopted while a coordinator works here, or has moved on without `force`."""
    if running := at_work(store, tick_ms=tick_ms):
        raise NotAdopted(f"{running}; stop the coordinators of this store first")
    if found.moved_on and not force:
        raise NotAdopted(
            "members were given, told or denied something here since, of which the old state knows nothing (--force undoes it all"
            f" the same, and they have to join again): {'; '.join(found.moved_on)}"
        )
    for key in found.ours:
        adoption.retire(key, store.load(key).head)
    for stream in found.streams:
        store.index_remove(stream)
    for foreign in found.kept:
        adoption.put_back(foreign)
    for foreign in (*found.kept, *found.stale):
        adoption.drop(foreign)
