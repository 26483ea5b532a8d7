"""Reads what a Kotlin coordinator stored: its group and stream aggregates of schema 1, and the older forms of them.

JSON with ISO instants. Older releases wrote `migrationId` and `activeMigrationId` for what is `reshardingId` now, a plain string
key without versions, and shards of several stream versions. What is needed is held to its type and bounds, and a fault names the
key and the field; what is known and not needed is not looked at; what is unknown is dropped, and named.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Annotated, Any, Final, TypeVar, get_args

import msgspec
from msgspec import Meta, Struct

from coord.core.adoption import ForeignMember, ForeignPhase, ForeignResharding, ForeignState
from coord.names import NAME_LENGTH_MAX, SAFE_INTEGER_MAX, SHARDS_MAX, name_fault

PHASES: Final = frozenset(get_args(ForeignPhase))
"""States of a resharding that is under way."""
ENDED: Final = frozenset({"DEPRECATED", "ROLLED_BACK"})
Number = Annotated[int, Meta(ge=0, le=SAFE_INTEGER_MAX - 1)]
Count = Annotated[int, Meta(ge=0, le=SHARDS_MAX)]
Index = Annotated[int, Meta(ge=0, lt=SHARDS_MAX)]
T = TypeVar("T", bound=Struct)


class MalformedForeign(Exception):
    """What another coordinator stored cannot be taken over: which key, which field of it, and why."""

    def __init__(self, key: str, where: str, why: str) -> None:
        super().__init__(f"{key}: {where}: {why}")
        self.key = key
        self.where = where
        self.why = why


class _Stored(Struct, frozen=True, kw_only=True, rename="camel"):
    """What is read of a mapping; `KNOWN` fields beside them are known and not needed."""


class _Shard(_Stored, frozen=True, kw_only=True):
    shard_index: Index
    stream_version: str | None = None


class _Resharding(_Stored, frozen=True, kw_only=True):
    resharding_id: Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
    from_shard_count: Count
    to_shard_count: Count
    state: str
    created_at: str | None = None
    updated_at: str | None = None


class _Member(_Stored, frozen=True, kw_only=True):
    member_id: str
    member_name: str | None = None
    state: ForeignState
    member_epoch: Number
    metadata_version: Number = 0
    runtime_max_concurrency: Number | None = None
    current_assignment: list[_Shard] | None = None
    granted_assignment: list[_Shard] | None = None
    revoking: list[_Shard] | None = None
    last_heartbeat_at: str | None = None
    member_lease_expires_at: str | None = None


class _Aggregate(_Stored, frozen=True, kw_only=True):
    """What groups and streams have in common."""

    stream_prefix: str
    schema_version: int | None = None
    store_revision: Number
    metadata_version: Number
    shard_count: Count | None = None
    active_write_version: str | None = None
    shard_counts_by_version: dict[str, Count] | None = None
    active_resharding_id: str | None = None
    migrations: dict[str, dict[str, Any]] | None = None
    created_at: str | None = None
    updated_at: str | None = None


class _Group(_Aggregate, frozen=True, kw_only=True):
    consumer_group: str
    group_epoch: Number
    assignment_epoch: Number = 0
    members: dict[str, dict[str, Any]] | None = None
    target_assignments: dict[str, list[_Shard]] | None = None
    metadata_correction: Any = None


KNOWN: Final[Mapping[type[Struct], frozenset[str]]] = {
    _Aggregate: frozenset({"readableVersions"}),
    _Group: frozenset({"readableVersions", "state"}),
    _Member: frozenset({"activeConsumerWorkers", "rebalanceTimeoutMs", "rebalanceDeadlineAt", "shardProgress"}),
    _Resharding: frozenset({"requestedBy", "reason"}),
}
ALIASES: Final[Mapping[str, str]] = {
    "migrationId": "reshardingId",
    "activeMigrationId": "activeReshardingId",
    "reshardings": "migrations",
}
_INSTANTS: Final = {
    "created_at": "createdAt",
    "updated_at": "updatedAt",
    "last_heartbeat_at": "lastHeartbeatAt",
    "member_lease_expires_at": "memberLeaseExpiresAt",
}
_PLACE: Final = re.compile(r"(?P<why>.*?)(?: - at `\$\.?(?P<place>.*)`)?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Raw:
    """A key of another coordinator as stored. `fields`: revision, schemaVersion, layoutVersion of a hash, None for a string."""

    key: str
    text: bytes
    fields: tuple[str | None, str | None, str | None] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class KotlinAggregate:
    """A group (`consumer_group` is set) or a stream. `dropped`: unknown fields; `notes`: what an operator should know."""

    raw: Raw
    stream_prefix: str
    consumer_group: str | None = None
    store_revision: int
    metadata_version: int
    shard_count: int
    resharding: ForeignResharding | None
    group_epoch: int = 0
    assignment_epoch: int = 0
    members: tuple[ForeignMember, ...] = ()
    dropped: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def read(raw: Raw, *, is_group: bool) -> KotlinAggregate:
    """Read an aggregate; raises MalformedForeign."""
    return _Reader(raw).aggregate(is_group=is_group)


@dataclass(slots=True)
class _Reader:
    """Reads one key, and collects what it does not know."""

    raw: Raw
    dropped: set[str] = field(default_factory=set)
    notes: list[str] = field(default_factory=list)

    def aggregate(self, *, is_group: bool) -> KotlinAggregate:
        try:
            told = msgspec.json.decode(self.raw.text)
        except (msgspec.MsgspecError, RecursionError) as error:
            raise self.fault("aggregate", f"is no JSON: {error}") from None
        except UnicodeDecodeError:
            raise self.fault("aggregate", "is no UTF-8 text") from None
        stored = self.mapping(told, _Group if is_group else _Aggregate, "")
        self.versions(stored)
        self.name(stored.stream_prefix, "streamPrefix")
        members: tuple[ForeignMember, ...] = ()
        if isinstance(stored, _Group):
            self.name(stored.consumer_group, "consumerGroup")
            members = tuple(self.members(stored))
            if stored.metadata_correction is not None:
                self.notes.append("a metadata correction was open; members that know more open one again")
        return KotlinAggregate(
            raw=self.raw,
            stream_prefix=stored.stream_prefix,
            consumer_group=stored.consumer_group if isinstance(stored, _Group) else None,
            store_revision=stored.store_revision,
            metadata_version=stored.metadata_version,
            shard_count=self.shard_count(stored),
            resharding=self.resharding(stored),
            group_epoch=stored.group_epoch if isinstance(stored, _Group) else 0,
            assignment_epoch=stored.assignment_epoch if isinstance(stored, _Group) else 0,
            members=members,
            dropped=tuple(sorted(self.dropped)),
            notes=tuple(self.notes),
        )

    def fault(self, where: str, why: str) -> MalformedForeign:
        return MalformedForeign(self.raw.key, where, why)

    def mapping(self, told: object, kind: type[T], where: str) -> T:
        """Give a mapping as a struct, older names in the place of newer ones; note what is unknown."""
        if not isinstance(told, dict):
            raise self.fault(where or "aggregate", "is no object")
        named: dict[str, object] = {}
        for name, value in told.items():
            current = ALIASES.get(name, name)
            if current in named and named[current] != value and None not in (value, named[current]):
                raise self.fault(_joined(where, current), "and its older name say different things")
            named[current] = value if value is not None else named.get(current)
        known = {each.encode_name for each in msgspec.structs.fields(kind)} | KNOWN.get(kind, frozenset())
        self.dropped |= {_joined(where and re.sub(r"\..*", ".*", where), name) for name in named.keys() - known}
        try:
            stored = msgspec.convert(named, kind)
        except msgspec.ValidationError as error:
            found = _PLACE.fullmatch(str(error))
            assert found is not None
            raise self.fault(_joined(where, found["place"] or ""), found["why"]) from None
        for attribute, name in _INSTANTS.items():
            self.instant(getattr(stored, attribute, None), _joined(where, name))
        return stored

    def instant(self, text: str | None, where: str) -> None:
        try:
            if text is not None:
                datetime.fromisoformat(text)
        except ValueError:
            raise self.fault(where, "is no ISO-8601 instant") from None

    def versions(self, stored: _Aggregate) -> None:
        """Hold what stands beside the JSON to what it says."""
        if stored.schema_version not in (None, 1):
            raise self.fault("schemaVersion", f"is {stored.schema_version}; only 1 can be taken over")
        if self.raw.fields is None:
            return
        for name, value, wanted in zip(
            ("revision", "schemaVersion", "layoutVersion"), self.raw.fields, (stored.store_revision, 1, 1), strict=True
        ):
            if value != str(wanted):
                raise self.fault(name, "is missing" if value is None else f"is not {wanted}")

    def name(self, name: str, where: str) -> None:
        if fault := name_fault(name):
            raise self.fault(where, fault)

    def shard_count(self, stored: _Aggregate) -> int:
        """Give the write set's size; of several stream versions it is that of the one that is written."""
        if stored.shard_count is not None:
            return stored.shard_count
        counts, version = stored.shard_counts_by_version or {}, stored.active_write_version
        if version is None or version not in counts:
            raise self.fault("shardCount", "is missing, and so is a count for activeWriteVersion in shardCountsByVersion")
        if others := sorted(counts.keys() - {version}):
            self.notes.append(f"stream versions are given up: {version} stays, records of {', '.join(others)} are not moved")
        return counts[version]

    def resharding(self, stored: _Aggregate) -> ForeignResharding | None:
        """Give the resharding that is under way; those that ended are history, which is not carried over."""
        found: ForeignResharding | None = None
        migrations = stored.migrations or {}
        active = stored.active_resharding_id
        if active is not None and active not in migrations:
            raise self.fault("activeReshardingId", "names no resharding in migrations")
        ended = 0
        for name, told in sorted(migrations.items()):
            where = f"migrations.{name}"
            each = self.mapping({"reshardingId": name, **told}, _Resharding, where)
            if name != active or each.state in ENDED:
                ended += 1
                continue
            if each.state not in PHASES:
                raise self.fault(f"{where}.state", f"is none of {', '.join(sorted(PHASES | ENDED))}")
            found = ForeignResharding(
                resharding_id=each.resharding_id,
                from_shard_count=each.from_shard_count,
                to_shard_count=each.to_shard_count,
                phase=each.state,  # type: ignore[arg-type]  # one of the phases
            )
        if ended:
            self.notes.append(f"{ended} reshardings that are over are not carried along")
        return found

    def members(self, stored: _Group) -> Iterator[ForeignMember]:
        targets = stored.target_assignments or {}
        if strangers := sorted(targets.keys() - (stored.members or {}).keys()):
            self.notes.append(f"targets of members that are not there are dropped: {', '.join(strangers[:5])}")
        for name, told in sorted((stored.members or {}).items()):
            where = f"members.{name}"
            member = self.mapping(told, _Member, where)
            if member.member_id != name:
                raise self.fault(f"{where}.memberId", "is not the name that the member stands under")
            self.name(member.member_id, f"{where}.memberId")
            shown = member.member_name or member.member_id
            self.name(shown, f"{where}.memberName")
            yield ForeignMember(
                member_id=member.member_id,
                member_name=shown,
                state=member.state,
                member_epoch=member.member_epoch,
                metadata_version=member.metadata_version,
                runtime_max_concurrency=max(member.runtime_max_concurrency or 1, 1),
                current=_indexes(member.current_assignment),
                granted=_indexes(member.granted_assignment),
                revoking=_indexes(member.revoking),
                target=_indexes(targets.get(name)),
                lease_until=member.member_lease_expires_at or "",
            )


def _indexes(shards: list[_Shard] | None) -> frozenset[int]:
    return frozenset(shard.shard_index for shard in shards or ())


def _joined(where: str, name: str) -> str:
    return f"{where}.{name}" if where and name else where or name or "aggregate"
