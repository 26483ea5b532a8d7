"""What of a Kotlin coordinator's state can be taken over: all of it is read and judged, and nothing is written.

The groups of a stream share its shards here, so their keys must agree on the shard count and on the resharding that is under way.
Source: design page `events-and-stores.md`, "Versions".
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from coord.core.adoption import ForeignResharding
from coord.events import codec
from coord.events.catalog import GroupAdopted, StreamAdopted
from coord.events.envelope import Actor, Envelope
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.aggregate import decode
from coord.projections.stream import Stream
from coord.runtime.kotlin import KotlinAggregate, MalformedForeign, Raw, read
from coord.store.adoption import ASIDE, Adoption, Foreign
from coord.store.base import EMPTY_HEAD, Store

ADOPTER: Final = Actor("adoption")


class NotAdopted(Exception):
    """It cannot be taken over, or put back, as things stand: why, and what to do."""


@dataclass(slots=True, kw_only=True)
class GroupPlan:
    """A group to be taken over. `superseded`: an older form of it beside it. `is_done`: it was, and its old key is left."""

    key: GroupKey
    foreign: Foreign
    told: KotlinAggregate
    superseded: list[Foreign] = field(default_factory=list)
    is_done: bool = False


@dataclass(slots=True, kw_only=True)
class StreamPlan:
    """A stream to be begun around its groups. `foreign`: its own old key, where it had one. `exists`: it was begun already."""

    key: StreamKey
    groups: list[GroupPlan]
    shard_count: int
    resharding: ForeignResharding | None
    metadata_version: int
    foreign: Foreign | None = None
    told: KotlinAggregate | None = None
    exists: bool = False

    @property
    def keys(self) -> list[Foreign]:
        """All old keys that it is made of."""
        own = [self.foreign] if self.foreign is not None else []
        return own + [each for group in self.groups for each in (group.foreign, *group.superseded)]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What would be done, and what is left alone (`notes`)."""

    streams: Sequence[StreamPlan]
    notes: Sequence[str]


def first_of(store: Store, key: AggregateKey) -> Envelope | None:
    """Give the first entry of a log, if there is one."""
    entries = store.tail(key, after=(0, 0), limit=1)
    return codec.decode(entries[0]) if entries else None


def told_by(foreign: Foreign) -> KotlinAggregate:
    """Read a key; raises MalformedForeign for one that cannot be read, or whose name says something else than it does."""
    if foreign.kind == "other":
        raise MalformedForeign(foreign.key, "type", "is neither a hash nor a string")
    told = read(
        Raw(foreign.key, foreign.text, foreign.fields if foreign.kind == "hash" else None), is_group=foreign.role == "group"
    )
    named = told.stream_prefix if told.consumer_group is None else f"{told.stream_prefix}:{told.consumer_group}"
    if named != foreign.tag:
        where = "streamPrefix" if told.consumer_group is None else "streamPrefix, consumerGroup"
        raise MalformedForeign(foreign.key, where, "is not what the key is named after")
    return told


def is_of(foreign: Foreign, stream: str | None) -> bool:
    """Tell whether a key may belong to a stream, by its name."""
    return stream is None or foreign.tag == stream or foreign.tag.startswith(f"{stream}:")


def plan(adoption: Adoption, store: Store, *, stream: str | None = None) -> Plan:
    """Read and judge everything, or one stream. Raises MalformedForeign, NotAdopted; writes nothing."""
    found = [each for each in adoption.found() if is_of(each, stream)]
    asides = {each.key.removesuffix(ASIDE): each for each in found if each.is_aside}
    told = [(each, told_by(each)) for each in found if not each.is_aside]
    told = [(foreign, each) for foreign, each in told if stream is None or each.stream_prefix == stream]
    streams = []
    for prefix in sorted({each.stream_prefix for _, each in told}):
        of_stream = [(foreign, each) for foreign, each in told if each.stream_prefix == prefix]
        streams.append(_stream_plan(StreamKey(prefix), of_stream, adoption, store, asides))
    names = {each.key for each in found}
    known = {*names, *asides}
    strangers = [name for name in adoption.indexed() if name not in known] if stream is None else []
    return Plan(
        streams=streams, notes=[f"an index names {name}, which is not there, or taken over already" for name in strangers]
    )


def _stream_plan(
    key: StreamKey,
    told: Sequence[tuple[Foreign, KotlinAggregate]],
    adoption: Adoption,
    store: Store,
    asides: dict[str, Foreign],
) -> StreamPlan:
    groups: dict[GroupKey, GroupPlan] = {}
    own = next(((foreign, each) for foreign, each in told if each.consumer_group is None), None)
    for foreign, each in sorted(told, key=lambda pair: (pair[0].kind != "hash", pair[0].key)):
        if each.consumer_group is None:
            continue
        name = GroupKey(key.stream_prefix, each.consumer_group)
        if name in groups:
            if each.store_revision > groups[name].told.store_revision:
                raise NotAdopted(f"{foreign.key} is newer than {groups[name].foreign.key}, which holds the same group")
            groups[name].superseded.append(foreign)
        else:
            groups[name] = GroupPlan(key=name, foreign=foreign, told=each)
    for group in groups.values():
        _judge_group(group, adoption, store, asides)
    shard_count, resharding = _topology([each for _, each in told])
    planned = StreamPlan(
        key=key,
        groups=list(groups.values()),
        shard_count=shard_count,
        resharding=resharding,
        metadata_version=max(_versions(each for _, each in told)),
        foreign=own[0] if own else None,
        told=own[1] if own else None,
    )
    _judge_stream(planned, store)
    return planned


def _versions(told: Iterable[KotlinAggregate]) -> Iterable[int]:
    """Give every metadata version that somebody may have been told: a group of ours begins one above its own."""
    for each in told:
        yield each.metadata_version + 1
        yield from (member.metadata_version + 1 for member in each.members)


def _topology(told: Sequence[KotlinAggregate]) -> tuple[int, ForeignResharding | None]:
    """Give the one shard count and resharding that all keys of a stream agree on."""
    first = told[0]
    found: KotlinAggregate | None = None
    for each in told:
        if each.shard_count != first.shard_count:
            raise MalformedForeign(
                each.raw.key, "shardCount", f"is {each.shard_count}, but {first.shard_count} in {first.raw.key}: the groups of a"
                " stream share its shards; let the other coordinator bring them to one count first",
            )  # fmt: skip
        active = each.resharding
        if active is None:
            continue
        expected = active.from_shard_count if active.phase in ("PREPARING", "ROLLING_BACK") else active.to_shard_count
        if each.shard_count != expected:
            raise MalformedForeign(each.raw.key, "shardCount", f"is {each.shard_count}, not {expected} as of its resharding")
        if found is not None and found.resharding is not None and _steps(found.resharding) != _steps(active):
            raise MalformedForeign(each.raw.key, "activeReshardingId", f"is in another resharding than {found.raw.key}")
        found = found or each
    return first.shard_count, found.resharding if found else None


def _steps(resharding: ForeignResharding) -> tuple[int, int, str]:
    """Two groups may have their own names for the resharding of their stream."""
    return resharding.from_shard_count, resharding.to_shard_count, resharding.phase


def _judge_group(group: GroupPlan, adoption: Adoption, store: Store, asides: dict[str, Foreign]) -> None:
    """Make sure that there is nothing of ours in its place, but what an earlier run put there."""
    first = first_of(store, group.key)
    if first is None:
        if group.foreign.key != adoption.metadata_key(group.key) and store.load(group.key).head != EMPTY_HEAD:
            raise NotAdopted(f"group {group.key} exists here already")
        return
    kept = asides.get(group.foreign.key)
    is_ours = isinstance(first.event, GroupAdopted) and first.event.source_key == group.foreign.key
    if not is_ours or kept is None or kept.text != group.foreign.text:
        raise NotAdopted(f"group {group.key} has a log here already, which does not begin with {group.foreign.key}")
    group.is_done = True


def _judge_stream(planned: StreamPlan, store: Store) -> None:
    """A stream of ours may be there if an adoption began it, and if producers will not take its version for an old one."""
    first = first_of(store, planned.key)
    loaded = store.load(planned.key)
    if loaded.aggregate is None:
        return
    state = decode(planned.key, loaded.aggregate)
    assert isinstance(state, Stream)
    if first is None or not isinstance(first.event, StreamAdopted) or first.cause.actor != ADOPTER:
        raise NotAdopted(f"stream {planned.key} exists here already: delete it, or the other coordinator's, first")
    if state.shard_count != planned.shard_count:
        raise NotAdopted(f"stream {planned.key} exists here with {state.shard_count} shards, not {planned.shard_count}")
    if state.metadata_version < planned.metadata_version:
        raise NotAdopted(f"stream {planned.key} exists here with a metadata version that producers would take for an old one")
    planned.exists = True
