"""Canonical bytes of both aggregates: UTF-8 JSON by msgspec in struct order, no spaces, integers only.

A group is stored by member, each with its target and what is on record for it, and what is the usual case is left out: a
group of a thousand takes some 150 bytes a member. Shard sets are ascending integer arrays. Reading fails closed: a shard
that is stored with a second holder or target is malformed. Source: design page `events-and-stores.md`, "Canonical bytes".
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import chain
from typing import Final, TypeAlias

import msgspec
from msgspec import Struct

from coord.events.catalog import FollowedMigration, Shards
from coord.projections.group import NO_SHARDS, Correction, Group, Hold, Member, MemberState
from coord.projections.stream import Stream

Assigned: TypeAlias = tuple[tuple[int, Shards], ...]
Revoking: TypeAlias = tuple[tuple[int, int, Shards], ...]

LEFT_OUT: Final = -1
"""Stands for a number that is not written, because another one says it."""


class MalformedAggregate(ValueError):
    """A stored aggregate that cannot be read, or contradicts itself."""


class StoredMember(Struct, frozen=True, rename="camel", omit_defaults=True, gc=False):
    """A member as stored under its memberId; its fields, in this order, stand in ARCHITECTURE. What is left out is the usual.

    `join`: joinEpoch, joinedMetadataVersion, joinedAt, joinRequestId. `assigned`: pairs of since epoch and shards; `revoking`:
    triples of since epoch, deadline and shards; both ascending. Left out, `name` is the memberId, `acked` is `epoch`, `since`
    (of the state) is joinedAt, `target` and `owned` (the current assignment) are the shards in `assigned`.
    """

    epoch: int
    join: tuple[int, int, int, str]
    name: str = ""
    state: MemberState = "ACTIVE"
    since: int = LEFT_OUT
    acked: int = LEFT_OUT
    rejoined_at: int = 0
    capacity: int = 1
    target: Shards | None = None
    assigned: Assigned = ()
    revoking: Revoking = ()
    owned: Shards | None = None
    foreign: Shards = ()
    foreign_since: int = 0
    elder_until: int = 0
    elder: Shards = ()
    abandoned: Shards = ()


class StoredGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """The group aggregate as stored; its fields, in this order, stand in ARCHITECTURE."""

    stream_prefix: str
    consumer_group: str
    store_revision: int
    epoch: int
    group_epoch: int
    assignment_epoch: int
    metadata_version: int
    registration: int
    stream_revision: int
    shard_count: int
    read_set: Shards
    migration: FollowedMigration | None
    grants_from: int
    correction: Correction | None
    report_round_at: int
    identity: str
    members: dict[str, StoredMember]
    created_at: int
    updated_at: int


_encode: Final = msgspec.json.Encoder(order="deterministic").encode
_decode_group: Final = msgspec.json.Decoder(StoredGroup).decode
_decode_stream: Final = msgspec.json.Decoder(Stream).decode


def encode(aggregate: Group | Stream) -> bytes:
    """Give the canonical bytes of an aggregate."""
    return _encode(aggregate if isinstance(aggregate, Stream) else _to_stored(aggregate))


def decode_group(data: bytes) -> Group:
    """Read a stored group; `MalformedAggregate` when it is unreadable or a shard has two holders or targets."""
    try:
        return _from_stored(_decode_group(data))
    except (msgspec.MsgspecError, ValueError, KeyError, RecursionError) as error:
        message = f"group aggregate is unreadable: {error}"
        raise MalformedAggregate(message) from error


def decode_stream(data: bytes) -> Stream:
    """Read a stored stream; `MalformedAggregate` when it is unreadable."""
    try:
        return _decode_stream(data)
    except (msgspec.MsgspecError, RecursionError) as error:
        message = f"stream aggregate is unreadable: {error}"
        raise MalformedAggregate(message) from error


def by_member(target: dict[int, str]) -> dict[str, Shards]:
    """Turn shard -> member into member -> ascending shards."""
    grouped: dict[str, list[int]] = {}
    for shard in sorted(target):
        grouped.setdefault(target[shard], []).append(shard)
    return {member: tuple(shards) for member, shards in grouped.items()}


def _to_stored(group: Group) -> StoredGroup:
    members = group.members.keys()
    if not (group.held.keys() <= members and group.targeted.keys() <= members):
        strangers = sorted((group.held.keys() | group.targeted.keys()) - members)
        message = f"{group.stream_prefix}/{group.consumer_group} cannot be stored: {strangers} have shards, and are no members"
        raise ValueError(message)
    return StoredGroup(
        stream_prefix=group.stream_prefix,
        consumer_group=group.consumer_group,
        store_revision=group.store_revision,
        epoch=group.epoch,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        metadata_version=group.metadata_version,
        registration=group.registration,
        stream_revision=group.stream_revision,
        shard_count=group.shard_count,
        read_set=group.read_set,
        migration=group.migration,
        grants_from=group.grants_from,
        correction=group.correction,
        report_round_at=group.report_round_at,
        identity=group.identity,
        members={member_id: _member_to_stored(group, member) for member_id, member in group.members.items()},
        created_at=group.created_at,
        updated_at=group.updated_at,
    )


# The two below are called for every member on every read and write: arguments by place cost a fifth of those by name.


def _member_to_stored(group: Group, member: Member) -> StoredMember:
    member_id = member.member_id
    held, targeted = group.held.get(member_id, NO_SHARDS), group.targeted.get(member_id, NO_SHARDS)
    assigned, revoking = _phases(group.ownership, sorted(held)) if held else ((), ())
    usual = _shards_of(assigned)
    as_usual = held == targeted if not revoking else targeted == frozenset(usual)
    return StoredMember(
        member.member_epoch,
        (member.join_epoch, member.joined_metadata_version, member.joined_at, member.join_request_id),
        member.member_name if member.member_name != member_id else "",
        member.state,
        member.state_since if member.state_since != member.joined_at else LEFT_OUT,
        member.acked_epoch if member.acked_epoch != member.member_epoch else LEFT_OUT,
        member.rejoined_at,
        member.runtime_max_concurrency,
        None if as_usual else tuple(sorted(targeted)),
        assigned,
        revoking,
        member.current_assignment if member.current_assignment != usual else None,
        member.foreign,
        member.foreign_since,
        member.elder_until,
        member.elder,
        member.abandoned,
    )


def _phases(ownership: Mapping[int, Hold], shards: list[int]) -> tuple[Assigned, Revoking]:
    """Group a member's shards (ascending) by how they are on record."""
    first = ownership[shards[0]]
    if first.phase == "ASSIGNED" and all([ownership[shard] is first for shard in shards]):  # noqa: C419  few, and a list is quicker
        return ((first.since_epoch, tuple(shards)),), ()
    by_hold: dict[Hold, list[int]] = {}
    for shard in shards:
        by_hold.setdefault(ownership[shard], []).append(shard)
    held = sorted(by_hold.items())
    assigned = tuple((hold.since_epoch, tuple(its)) for hold, its in held if hold.phase == "ASSIGNED")
    return assigned, tuple((hold.since_epoch, hold.deadline_at, tuple(its)) for hold, its in held if hold.phase == "REVOKING")


def _from_stored(stored: StoredGroup) -> Group:
    group = Group(
        stream_prefix=stored.stream_prefix,
        consumer_group=stored.consumer_group,
        store_revision=stored.store_revision,
        epoch=stored.epoch,
        group_epoch=stored.group_epoch,
        assignment_epoch=stored.assignment_epoch,
        metadata_version=stored.metadata_version,
        registration=stored.registration,
        stream_revision=stored.stream_revision,
        shard_count=stored.shard_count,
        read_set=stored.read_set,
        migration=stored.migration,
        grants_from=stored.grants_from,
        correction=stored.correction,
        report_round_at=stored.report_round_at,
        identity=stored.identity,
        created_at=stored.created_at,
        updated_at=stored.updated_at,
    )
    targets = holders = 0
    for member_id, member in stored.members.items():
        usual = _shards_of(member.assigned)
        group.put(_member_from_stored(member_id, member, usual))
        target = usual if member.target is None else member.target
        held = _hold(group.ownership, member_id, member)
        targets, holders = targets + len(target), holders + len(held)
        group.target.update(dict.fromkeys(target, member_id))
        if held:
            group.held[member_id] = frozenset(held)
        if target:
            group.targeted[member_id] = group.held[member_id] if target is held else frozenset(target)
    if len(group.target) != targets or len(group.ownership) != holders:
        message = f"a shard is stored with a second {'target' if len(group.target) != targets else 'holder'}"
        raise ValueError(message)
    return group


def _hold(ownership: dict[int, Hold], member_id: str, stored: StoredMember) -> Shards:
    """Put on record what is stored for a member, and give those shards; the caller counts them."""
    for since, shards in stored.assigned:
        ownership.update(dict.fromkeys(shards, Hold(member_id, "ASSIGNED", since, 0)))
    for since, deadline_at, shards in stored.revoking:
        ownership.update(dict.fromkeys(shards, Hold(member_id, "REVOKING", since, deadline_at)))
    usual = _shards_of(stored.assigned)
    return (*usual, *chain.from_iterable(shards for _, _, shards in stored.revoking)) if stored.revoking else usual


def _shards_of(assigned: Assigned) -> Shards:
    if len(assigned) == 1:
        return assigned[0][1]
    return tuple(sorted(chain.from_iterable(shards for _, shards in assigned)))


def _member_from_stored(member_id: str, stored: StoredMember, usual: Shards) -> Member:
    join_epoch, joined_metadata_version, joined_at, join_request_id = stored.join
    return Member(
        member_id,
        stored.name or member_id,
        stored.state,
        stored.epoch,
        stored.acked if stored.acked != LEFT_OUT else stored.epoch,
        join_epoch,
        join_request_id,
        joined_metadata_version,
        joined_at,
        stored.rejoined_at,
        stored.elder_until,
        stored.capacity,
        stored.since if stored.since != LEFT_OUT else joined_at,
        stored.foreign_since,
        stored.elder,
        stored.abandoned,
        usual if stored.owned is None else stored.owned,
        stored.foreign,
    )
