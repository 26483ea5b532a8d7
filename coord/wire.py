"""HTTP bodies as msgspec structs (camelCase on the wire), shared by server and client.

In requests an absent and a null optional field mean the same; unknown fields are ignored; types are strict. Responses
contain their null fields. Source: design page `api.md`, "Fields" and "Limits".
"""

from __future__ import annotations

from functools import lru_cache
from typing import Annotated, Literal

from msgspec import Meta, Struct

from coord.names import NAME_LENGTH_MAX, SAFE_INTEGER_MAX, SHARDS_MAX, TEXT_LENGTH_MAX

PROTOCOL_VERSION = 1
"""The coordination protocol version that this release speaks (the only one)."""
HEARTBEATS_MAX = 256
"""Most heartbeats that one request can carry."""

Name = Annotated[str, Meta(min_length=1, max_length=NAME_LENGTH_MAX)]
Text = Annotated[str, Meta(min_length=1, max_length=TEXT_LENGTH_MAX)]
ShardIndex = Annotated[int, Meta(ge=0, le=SHARDS_MAX)]
ShardCount = Annotated[int, Meta(ge=0, le=SHARDS_MAX)]
Version = Annotated[int, Meta(ge=-1, le=SAFE_INTEGER_MAX)]
Epoch = Annotated[int, Meta(ge=-SAFE_INTEGER_MAX, le=SAFE_INTEGER_MAX)]
Count = Annotated[int, Meta(ge=0, le=SAFE_INTEGER_MAX)]

HeartbeatStatus = Literal[
    "OK",
    "RETRY",
    "UNSUPPORTED_PROTOCOL",
    "INVALID_REQUEST",
    "UNKNOWN_MEMBER_ID",
    "FENCED_MEMBER_EPOCH",
    "SYNC_METADATA",
    "REVOKE_PENDING",
]
RevokeState = Literal["REVOKING", "DRAINING", "REVOKED"]
StartFrom = Literal["0", "$"]
GroupState = Literal["EMPTY", "RECONCILING", "ASSIGNING", "STABLE"]


class Body(Struct, frozen=True, rename="camel", kw_only=True):
    """What every body shares: immutable, camelCase on the wire."""


# -- access


class LoginRequest(Body, frozen=True, kw_only=True):
    """`POST /auth/login`."""

    username: Annotated[str, Meta(max_length=NAME_LENGTH_MAX)]
    password: Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)]


class LoginResponse(Body, frozen=True, kw_only=True):
    """A Bearer token; `expiresAt` ISO-8601 UTC with milliseconds."""

    access_token: str
    token_type: str
    expires_at: str
    expires_in_seconds: int
    roles: tuple[str, ...]


# -- mutations


class CreateStreamRequest(Body, frozen=True, kw_only=True):
    """`POST /streams/{streamPrefix}`."""

    requested_by: Name
    initial_shard_count: Annotated[int, Meta(ge=1, le=SHARDS_MAX)] | None = None
    reason: Text | None = None
    start_from: StartFrom | None = None


class CreateGroupRequest(CreateStreamRequest, frozen=True, kw_only=True):
    """`POST /streams/{streamPrefix}/groups/{consumerGroup}`."""


class AdoptStreamRequest(Body, frozen=True, kw_only=True):
    """`POST /streams/{streamPrefix}/adopt`: take over shard keys that exist."""

    shard_count: Annotated[int, Meta(ge=1, le=SHARDS_MAX)]
    requested_by: Name
    reason: Text


class StreamCreateResponse(Body, frozen=True, kw_only=True):
    """A stream as it was made or adopted."""

    stream_prefix: str
    shard_count: int
    metadata_version: int


class ScaleRequest(Body, frozen=True, kw_only=True):
    """`POST …/scale`. `deprecatedAfter` is accepted for compatibility and kept in the audit entry."""

    target_shard_count: ShardCount
    requested_by: Name
    reason: Text
    deprecated_after: Text | None = None


class DeleteGroupRequest(Body, frozen=True, kw_only=True):
    """`DELETE` of a group or stream, as a body or as query parameters."""

    requested_by: Name
    reason: Text
    force: bool | None = None
    destroy_consumer_groups: bool | None = None


class RollbackMigrationRequest(Body, frozen=True, kw_only=True):
    """`POST …/migrations/{id}/rollback`."""

    requested_by: Name
    reason: Text


class CompleteMigrationRequest(Body, frozen=True, kw_only=True):
    """`POST …/migrations/{id}/complete`; `force` steps past named blockers."""

    requested_by: Name
    reason: Text
    force: bool | None = None


class Migration(Body, frozen=True, kw_only=True):
    """One resharding as a group sees it. `state` `noop` migrations are `DEPRECATED` with id `noop`."""

    resharding_id: str
    from_shard_count: int
    to_shard_count: int
    state: str
    created_at: str | None
    updated_at: str | None
    drain_blockers: tuple[str, ...] = ()
    requested_by: str | None = None
    reason: str | None = None


class StreamScaleResponse(Body, frozen=True, kw_only=True):
    """A stream's scale: one migration per affected group."""

    stream_prefix: str
    target_shard_count: int
    affected_consumer_groups: tuple[str, ...]
    migrations: tuple[Migration, ...]


class GroupResponse(Body, frozen=True, kw_only=True):
    """A group's summary. The assignment summaries give member -> number of shards."""

    stream_prefix: str
    consumer_group: str
    state: str
    group_epoch: int
    assignment_epoch: int
    metadata_version: int
    shard_count: int
    active_migration: Migration | None
    target_assignment_summary: dict[str, int]
    current_assignment_summary: dict[str, int]
    read_shard_count: int
    store_revision: int
    active_members: int
    expired_members: int
    revoking_shards: int


class ConsumerGroupDestroyedResponse(Body, frozen=True, kw_only=True):
    """`DELETE /streams/{streamPrefix}/consumer-groups/{name}`: pending entries per shard key that went with it."""

    stream_prefix: str
    consumer_group: str
    destroyed: int
    pending_counts: dict[str, int]


# -- routing


class ShardRoute(Body, frozen=True, kw_only=True):
    """Where one shard of the write set lives."""

    shard_index: int
    stream_key: str
    redis_slot: int


class ProducerRoutingResponse(Body, frozen=True, kw_only=True):
    """The write set of a stream, for producers; `metadataVersion` is the stream's."""

    stream_prefix: str
    metadata_version: int
    shard_count: int
    stream_key_pattern: str
    shards: tuple[ShardRoute, ...]
    consumer_group: str | None = None


# -- heartbeat


class Shard(Body, frozen=True, kw_only=True):
    """A shard by its index."""

    shard_index: ShardIndex


@lru_cache(maxsize=SHARDS_MAX + 1)
def shard(index: int) -> Shard:
    """Give the shard of an index, which is made once: every answer is full of them."""
    return Shard(shard_index=index)


class Capacity(Body, frozen=True, kw_only=True):
    """How many workers a member runs, and how many are free."""

    runtime_max_concurrency: Annotated[int, Meta(ge=1, le=SAFE_INTEGER_MAX)]
    available_concurrency: Count


class RevokingShard(Body, frozen=True, kw_only=True):
    """What became of a shard that the member was told to give up."""

    shard: Shard
    state: RevokeState
    in_flight: Count = 0
    acked_at: str | None = None


class ShardProgress(Body, frozen=True, kw_only=True):
    """How far a member has come on one shard; ids are Redis Stream ids."""

    shard: Shard
    stream_key: Annotated[str, Meta(max_length=TEXT_LENGTH_MAX)] | None = None
    last_delivered_id: Annotated[str, Meta(max_length=64)] | None = None
    last_acked_id: Annotated[str, Meta(max_length=64)] | None = None
    pending_count: Count | None = None
    updated_at: Annotated[str, Meta(max_length=64)] | None = None


class HeartbeatRequest(Body, frozen=True, kw_only=True):
    """`POST …/members/{memberId}/heartbeat`."""

    protocol_version: Annotated[int, Meta(ge=1, le=SAFE_INTEGER_MAX)]
    request_id: Name
    member_id: Name
    member_epoch: Epoch
    metadata_version: Version
    runtime_consumer_capacity: Capacity
    member_name: Name | None = None
    owned_shards: Annotated[tuple[Shard, ...], Meta(max_length=SHARDS_MAX)] | None = None
    revoking_shards: Annotated[tuple[RevokingShard, ...], Meta(max_length=SHARDS_MAX)] | None = None
    shard_progress: Annotated[tuple[ShardProgress, ...], Meta(max_length=SHARDS_MAX)] | None = None


class Assignment(Body, frozen=True, kw_only=True):
    """A full set: what the member may read, and what it waits for. Lists ascend by shardIndex."""

    assigned_shards: tuple[Shard, ...]
    pending_shards: tuple[Shard, ...]
    metadata_version: int


class HeartbeatResponse(Body, frozen=True, kw_only=True):
    """Every field always there, never null, for every status; times in milliseconds."""

    response_to: str
    status: HeartbeatStatus
    member_id: str
    member_epoch: int
    heartbeat_interval_ms: int
    rebalance_timeout_ms: int
    group_epoch: int
    assignment_epoch: int
    metadata_version: int
    assignment: Assignment
    member_lease_ttl_ms: int


class HeartbeatsRequest(Body, frozen=True, kw_only=True):
    """`POST …/heartbeats`: members of one group in one request, each memberId once."""

    heartbeats: Annotated[tuple[HeartbeatRequest, ...], Meta(min_length=1, max_length=HEARTBEATS_MAX)]


class HeartbeatsResponse(Body, frozen=True, kw_only=True):
    """One answer a heartbeat, in the order of the request."""

    responses: tuple[HeartbeatResponse, ...]


# -- monitoring


class MemberMetadata(Body, frozen=True, kw_only=True):
    """One member; times ISO-8601 UTC or null."""

    member_id: str
    member_name: str
    state: str
    member_epoch: int
    metadata_version: int
    runtime_max_concurrency: int
    active_consumer_workers: int | None
    current_assignment: tuple[Shard, ...]
    granted_assignment: tuple[Shard, ...]
    revoking: tuple[Shard, ...]
    last_heartbeat_at: str | None
    member_lease_expires_at: str | None
    rebalance_timeout_ms: int
    rebalance_deadline_at: str | None
    shard_progress: tuple[ShardProgress, ...]


class MembersResponse(Body, frozen=True, kw_only=True):
    """All members of a group, by memberId."""

    members: tuple[MemberMetadata, ...]


class RevokeProgress(Body, frozen=True, kw_only=True):
    """A shard that its holder is giving up."""

    member_id: str
    shard: Shard
    deadline_at: str


class AssignmentsResponse(Body, frozen=True, kw_only=True):
    """Where each shard should be, where it is, and which invariants are broken (none, in health)."""

    target_assignment: dict[str, tuple[Shard, ...]]
    current_assignments: dict[str, tuple[Shard, ...]]
    revoke_progress: tuple[RevokeProgress, ...]
    invariant_violations: tuple[str, ...]


class ConsumptionProgress(Body, frozen=True, kw_only=True):
    """What one member last said of one shard."""

    stream_prefix: str
    consumer_group: str
    member_id: str
    member_name: str
    member_state: str
    shard: Shard
    stream_key: str | None
    last_delivered_id: str | None
    last_acked_id: str | None
    pending_count: int | None
    updated_at: str | None


class ConsumptionProgressResponse(Body, frozen=True, kw_only=True):
    """All progress rows of a group."""

    progress: tuple[ConsumptionProgress, ...]


class MigrationsResponse(Body, frozen=True, kw_only=True):
    """Reshardings, oldest first."""

    migrations: tuple[Migration, ...]
    active_resharding_id: str | None


class GroupsResponse(Body, frozen=True, kw_only=True):
    """A page of groups."""

    groups: tuple[GroupResponse, ...]
    next_cursor: str | None


class StreamSummary(Body, frozen=True, kw_only=True):
    """A stream's summary."""

    stream_prefix: str
    shard_count: int
    read_shard_count: int
    metadata_version: int
    store_revision: int
    state: str
    active_resharding_id: str | None
    consumer_groups: tuple[str, ...]


class StreamsResponse(Body, frozen=True, kw_only=True):
    """A page of streams."""

    streams: tuple[StreamSummary, ...]
    next_cursor: str | None


class HealthResponse(Body, frozen=True, kw_only=True):
    """UP, DEGRADED or DOWN; `loopAgeMs` is null until the loop ticked once."""

    status: Literal["UP", "DEGRADED", "DOWN"]
    coordinator_id: str
    redis: Literal["UP", "DOWN", "UNKNOWN", "NOT_CONFIGURED"]
    loop: Literal["UP", "DOWN"]
    loop_age_ms: int | None
    store: Literal["UP", "DOWN"]
    unhealthy_groups: tuple[str, ...]


AuditOutcome = Literal["SUCCESS", "FAILED", "FORBIDDEN", "UNAUTHORIZED", "ERROR"]


class AuditEntry(Body, frozen=True, kw_only=True):
    """One administrative request and what became of it.

    `revision`: of the log that holds it, null for one on no log. `streamPrefix`, `consumerGroup`: what it was about, null where
    it named nothing legal. Of the body there is only its SHA-256. `action` REQUESTS_SUPPRESSED: refused requests beyond those
    that a log takes in a minute, how many says `requestSummary`.
    """

    timestamp: str
    coordinator_id: str
    action: str
    outcome: AuditOutcome
    status: int = 0
    error_code: str | None = None
    principal: str | None = None
    roles: tuple[str, ...] = ()
    requested_by: str | None = None
    reason: str | None = None
    request_id: str = ""
    client_address: str | None = None
    user_agent: str | None = None
    method: str = ""
    route: str = ""
    path: str = ""
    query_string: str = ""
    duration_ms: int = 0
    stream_prefix: str | None = None
    consumer_group: str | None = None
    resharding_id: str | None = None
    request_summary: str = ""
    request_body_sha256: Annotated[str, Meta(max_length=64)] = ""
    revision: int | None = None


class AuditResponse(Body, frozen=True, kw_only=True):
    """Audit entries, newest first. A page may hold fewer than asked for, or none: there are more while there is a cursor."""

    entries: tuple[AuditEntry, ...]
    next_cursor: str | None


class MonitoringSessionResponse(Body, frozen=True, kw_only=True):
    """Who the caller is."""

    authenticated: bool
    username: str | None
    roles: tuple[str, ...]


class VersionRange(Body, frozen=True, kw_only=True):
    """Both ends included."""

    min: int
    max: int


class TimingDefaults(Body, frozen=True, kw_only=True):
    """Milliseconds."""

    heartbeat_interval_ms: int
    member_lease_ttl_ms: int
    rebalance_timeout_ms: int


class CoordinationVersion(Body, frozen=True, kw_only=True):
    """One protocol version and its life."""

    version: int
    status: str
    introduced_in: str
    deprecated_in: str | None
    minimum_supported_until: str | None
    removed_in: str | None
    timing_defaults: TimingDefaults


class CoordinatorCompatibilityResponse(Body, frozen=True, kw_only=True):
    """Which protocol versions this coordinator speaks."""

    current_coordination_version: int
    supported_coordination_versions: VersionRange
    coordination_versions: tuple[CoordinationVersion, ...]


class StatusResponse(Body, frozen=True, kw_only=True):
    """What a probe is told."""

    status: Literal["UP", "DEGRADED", "DOWN"]


class ApplicationInfo(Body, frozen=True, kw_only=True):
    """Which program answers."""

    name: str
    version: str


class InfoResponse(Body, frozen=True, kw_only=True):
    """`/actuator/info`."""

    app: ApplicationInfo


class ErrorResponse(Body, frozen=True, kw_only=True):
    """`status` is the HTTP status NAME (`CONFLICT`)."""

    status: str
    error_code: str
    message: str
    request_id: str | None = None
    details: tuple[str, ...] = ()
