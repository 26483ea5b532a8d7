"""The reading side: monitoring and routing. Never changes state.

Reads come from the store, so that no reader sees a lower version than one it has seen before; a corrupt group is shown as
such and does not hide the others. Raises StoreUnavailable, CorruptAggregate (for the one aggregate asked for).
"""

from __future__ import annotations

from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.refusals import Code, Refused
from coord.runtime import shown
from coord.runtime.listings import Listings
from coord.runtime.reports import SoftReport, report_of
from coord.runtime.requests import Result
from coord.wire import (
    PROTOCOL_VERSION,
    AssignmentsResponse,
    ConsumptionProgress,
    ConsumptionProgressResponse,
    CoordinationVersion,
    CoordinatorCompatibilityResponse,
    GroupResponse,
    MembersResponse,
    Migration,
    MigrationsResponse,
    ProducerRoutingResponse,
    ShardProgress,
    StreamSummary,
    TimingDefaults,
    VersionRange,
)


class Views(Listings):
    """Reads for the HTTP face."""

    # -- one group

    def group(self, key: GroupKey) -> Refused | Result[GroupResponse]:
        """A8: a group's summary."""
        state = self._group(key)
        return state if isinstance(state, Refused) else Result(shown.group(state, self._stream(key.stream)), state.store_revision)

    def members(self, key: GroupKey) -> Refused | Result[MembersResponse]:
        """List the members, by memberId."""
        state = self._group(key)
        if isinstance(state, Refused):
            return state
        soft = self._store.soft(key)
        rows = []
        for member_id, record in sorted(state.members.items()):
            report = report_of(soft, member_id)
            progress = _held_progress(state, member_id, report)
            rows.append(shown.member(state, record, soft, self._policy, free=report.available_concurrency, progress=progress))
        return Result(MembersResponse(members=tuple(rows)), state.store_revision)

    def assignments(self, key: GroupKey) -> Refused | Result[AssignmentsResponse]:
        """Show target, ownership, and broken invariants."""
        state = self._group(key)
        return state if isinstance(state, Refused) else Result(shown.assignments(state), state.store_revision)

    def consumption(self, key: GroupKey) -> Refused | Result[ConsumptionProgressResponse]:
        """Show what members last said of the shards on record for them."""
        state = self._group(key)
        if isinstance(state, Refused):
            return state
        soft = self._store.soft(key)
        rows = tuple(
            ConsumptionProgress(
                stream_prefix=key.stream_prefix,
                consumer_group=key.consumer_group,
                member_id=member_id,
                member_name=record.member_name,
                member_state=record.state,
                shard=row.shard,
                stream_key=row.stream_key,
                last_delivered_id=row.last_delivered_id,
                last_acked_id=row.last_acked_id,
                pending_count=row.pending_count,
                updated_at=row.updated_at,
            )
            for member_id, record in sorted(state.members.items())
            for row in _held_progress(state, member_id, report_of(soft, member_id))
        )
        return Result(ConsumptionProgressResponse(progress=rows), state.store_revision)

    def migrations(self, key: StreamKey | GroupKey) -> Refused | Result[MigrationsResponse]:
        """List reshardings, oldest first, with what blocks the active one's drain."""
        if isinstance(key, GroupKey) and isinstance(refused := self._group(key), Refused):
            return refused
        stream_key = key.stream if isinstance(key, GroupKey) else key
        stream = self._stream(stream_key)
        if stream is None:
            return Refused(Code.STREAM_NOT_FOUND, f"stream {stream_key} does not exist")
        rows = [shown.migration(ended) for ended in stream.ended]
        if stream.resharding is not None:
            rows.append(shown.migration(stream.resharding, self._resharder.blockers(stream)))
        active = stream.resharding.resharding_id if stream.resharding is not None else None
        return Result(MigrationsResponse(migrations=tuple(rows), active_resharding_id=active), stream.store_revision)

    def migration(self, key: GroupKey, resharding_id: str) -> Refused | Result[Migration]:
        """A11: one resharding."""
        listed = self.migrations(key)
        if isinstance(listed, Refused):
            return listed
        for row in listed.value.migrations:
            if row.resharding_id == resharding_id:
                return Result(row, listed.revision)
        return Refused(Code.MIGRATION_NOT_FOUND, f"stream {key.stream_prefix} has no resharding {resharding_id}")

    # -- streams

    def routing(self, key: StreamKey, consumer_group: str | None) -> Refused | Result[ProducerRoutingResponse]:
        """A4, A5: the write set; any group name is answered for, since producers start before consumers."""
        stream = self._stream(key)
        if stream is None:
            return Refused(Code.STREAM_NOT_FOUND, f"stream {key} does not exist")
        return Result(shown.routing(stream, consumer_group), stream.store_revision)

    def stream(self, key: StreamKey) -> Refused | Result[StreamSummary]:
        """Give a stream's summary."""
        stream = self._stream(key)
        if stream is None:
            return Refused(Code.STREAM_NOT_FOUND, f"stream {key} does not exist")
        return Result(shown.stream(stream), stream.store_revision)

    def compatibility(self) -> CoordinatorCompatibilityResponse:
        """Say which protocol versions are spoken."""
        timing = TimingDefaults(
            heartbeat_interval_ms=self._policy.heartbeat_interval_ms,
            member_lease_ttl_ms=self._policy.member_lease_ttl_ms,
            rebalance_timeout_ms=self._policy.rebalance_timeout_ms,
        )
        version = CoordinationVersion(
            version=PROTOCOL_VERSION,
            status="SUPPORTED",
            introduced_in="0.1.0",
            deprecated_in=None,
            minimum_supported_until=None,
            removed_in=None,
            timing_defaults=timing,
        )
        return CoordinatorCompatibilityResponse(
            current_coordination_version=PROTOCOL_VERSION,
            supported_coordination_versions=VersionRange(min=PROTOCOL_VERSION, max=PROTOCOL_VERSION),
            coordination_versions=(version,),
        )


def _held_progress(state: Group, member_id: str, report: SoftReport) -> tuple[ShardProgress, ...]:
    """Keep progress of shards on record for the member; the rest is what a stale process believes."""
    held = state.shards_of(member_id)
    rows = (row for row in report.shard_progress if row.shard.shard_index in held)
    return tuple(sorted(rows, key=lambda row: row.shard.shard_index))
