"""Every path, once: which methods it has, who may call them, what goes in and what comes out.

The app, the gate, the audit entries and the API description are all made from this table. Parameter names and operation ids are
part of the compatible contract. Source: design page `api.md`, "Endpoints".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Final, Literal

from msgspec import Struct

from coord import wire
from coord.refusals import Code

Role = Literal["READ", "WRITE", "MEMBER"]
Query = Literal["limit", "cursor", "since", "until", "action", "outcome"]
CSV: Final = "text/csv"
NDJSON: Final = "application/x-ndjson"

FIELD: Final = re.compile(r"\{(\w+)\}")
"""A path parameter in a template."""
_CAPITAL: Final = re.compile(r"(?<!^)(?=[A-Z])")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method of a path.

    `role`: None is open to everybody. `action`: of the audit entry; None for what changes nothing. `reply`: None where the
    answer is no JSON struct. `also`: media types of lines, for whoever accepts those. `refusals`: beyond those that any operation
    of its kind has (see `codes_of`). `body_in_query`: the same fields may come as query parameters. `statuses`: other statuses
    that are no errors, with what they mean.
    """

    id: str
    tag: str
    summary: str
    role: Role | None
    success: int = 200
    body: type[Struct] | None = None
    body_required: bool = True
    body_in_query: bool = False
    query: tuple[Query, ...] = ()
    reply: type[Struct] | None = None
    media_type: str = "application/json"
    also: tuple[str, ...] = ()
    action: str | None = None
    refusals: tuple[Code, ...] = ()
    statuses: Mapping[int, str] = field(default_factory=dict)
    tells_revision: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """One path. `resource` and `suffix` name the Falcon responders (`on_post_<suffix>`); `under_base`: below `api.base-path`."""

    path: str
    resource: str
    operations: Mapping[str, Operation]
    suffix: str | None = None
    under_base: bool = True

    @property
    def parameters(self) -> tuple[str, ...]:
        """The names of its path parameters, as documented."""
        return tuple(FIELD.findall(self.path))

    @property
    def allowed(self) -> tuple[str, ...]:
        """The methods it answers: its own, HEAD where there is GET, and OPTIONS."""
        own = set(self.operations)
        return tuple(sorted(own | ({"HEAD"} if "GET" in own else set()) | {"OPTIONS"}))

    def operation(self, method: str) -> Operation | None:
        """Give the operation that answers a method; HEAD is answered as GET."""
        return self.operations.get("GET" if method == "HEAD" else method)

    def template(self, base_path: str) -> str:
        """Give the whole path with its documented parameter names."""
        return f"{base_path}{self.path}" if self.under_base else self.path

    def falcon_template(self, base_path: str) -> str:
        """Give the whole path with the parameter names that responders take (`stream_prefix`)."""
        return _with_snake_fields(self.template(base_path))


@cache
def _with_snake_fields(template: str) -> str:
    return FIELD.sub(lambda match: f"{{{snake(match[1])}}}", template)


def snake(name: str) -> str:
    """Give a documented parameter name as Python code writes it."""
    return _CAPITAL.sub("_", name).lower()


STREAM: Final = "/streams/{streamPrefix}"
GROUP: Final = f"{STREAM}/groups/{{consumerGroup}}"
MIGRATION: Final = f"{GROUP}/migrations/{{reshardingId}}"

_UNCHANGED: Final[Mapping[int, str]] = {304: "The routing is still the one that If-None-Match names."}
_STREAM_MISSING: Final = (Code.STREAM_NOT_FOUND,)
_GROUP_MISSING: Final = (Code.GROUP_NOT_FOUND,)
_SCALING: Final = (
    Code.STREAM_NOT_FOUND,
    Code.GROUP_NOT_FOUND,
    Code.ACTIVE_MIGRATION_EXISTS,
    Code.REDIS_STREAM_PROVISIONING_FAILED,
)

_LOGIN = Route(
    path="/auth/login",
    resource="login",
    operations={
        "POST": Operation(
            id="loginCoordinatorApi",
            tag="Authentication",
            summary="Exchange a user name and password (body, or Basic header) for a Bearer token",
            role=None,
            body=wire.LoginRequest,
            body_required=False,
            reply=wire.LoginResponse,
            refusals=(Code.UNAUTHORIZED, Code.RATE_LIMIT_EXCEEDED),
        )
    },
)

_STREAMS = (
    Route(
        path=STREAM,
        resource="stream",
        operations={
            "POST": Operation(
                id="createStreamGroup",
                tag="Groups",
                summary="Create a stream with its shards",
                role="WRITE",
                success=201,
                body=wire.CreateStreamRequest,
                reply=wire.StreamCreateResponse,
                action="CREATE_STREAM",
                refusals=(Code.STREAM_PREFIX_ALREADY_EXISTS, Code.REDIS_STREAM_PROVISIONING_FAILED),
                tells_revision=True,
            ),
            "DELETE": Operation(
                id="deleteStream",
                tag="Groups",
                summary="Delete a stream that has no groups; shard keys stay",
                role="WRITE",
                body=wire.DeleteGroupRequest,
                body_in_query=True,
                reply=wire.StreamSummary,
                action="DELETE_STREAM",
                refusals=(Code.STREAM_NOT_FOUND, Code.STREAM_HAS_GROUPS),
                tells_revision=True,
            ),
        },
    ),
    Route(
        path=f"{STREAM}/adopt",
        resource="stream",
        suffix="adopt",
        operations={
            "POST": Operation(
                id="adoptStream",
                tag="Groups",
                summary="Take over shard keys that exist in Redis already",
                role="WRITE",
                success=201,
                body=wire.AdoptStreamRequest,
                reply=wire.StreamCreateResponse,
                action="ADOPT_STREAM",
                refusals=(
                    Code.STREAM_PREFIX_ALREADY_EXISTS,
                    Code.REDIS_NOT_CONFIGURED,
                    Code.REDIS_STREAM_PROVISIONING_FAILED,
                ),
                tells_revision=True,
            )
        },
    ),
    Route(
        path=f"{STREAM}/scale",
        resource="stream",
        suffix="scale",
        operations={
            "POST": Operation(
                id="scaleStreamShards",
                tag="Resharding",
                summary="Change a stream's shard count, for all of its groups",
                role="WRITE",
                success=202,
                body=wire.ScaleRequest,
                reply=wire.StreamScaleResponse,
                action="SCALE_STREAM",
                refusals=_SCALING,
                tells_revision=True,
            )
        },
    ),
    Route(
        path=f"{STREAM}/consumer-groups/{{name}}",
        resource="redis_consumer_group",
        operations={
            "DELETE": Operation(
                id="destroyRedisConsumerGroup",
                tag="Resharding",
                summary="Destroy a foreign Redis consumer group that blocks a drain",
                role="WRITE",
                body=wire.DeleteGroupRequest,
                body_in_query=True,
                reply=wire.ConsumerGroupDestroyedResponse,
                action="DESTROY_CONSUMER_GROUP",
                refusals=(
                    Code.STREAM_NOT_FOUND,
                    Code.NOT_FOUND,
                    Code.CONSUMER_GROUP_COORDINATED,
                    Code.REDIS_NOT_CONFIGURED,
                    Code.REDIS_STREAM_PROVISIONING_FAILED,
                ),
                tells_revision=True,
            )
        },
    ),
)

_ROUTING = (
    Route(
        path=f"{STREAM}/producer-routing",
        resource="routing",
        operations={
            "GET": Operation(
                id="getStreamProducerRoutingMetadata",
                tag="Producer Routing",
                summary="Where a stream's records go; ETag is the metadataVersion",
                role="READ",
                reply=wire.ProducerRoutingResponse,
                refusals=_STREAM_MISSING,
                statuses=_UNCHANGED,
            )
        },
    ),
    Route(
        path=f"{GROUP}/producer-routing",
        resource="routing",
        suffix="group",
        operations={
            "GET": Operation(
                id="getProducerRoutingMetadata",
                tag="Producer Routing",
                summary="The stream's routing, asked for by a group's path; the group need not exist",
                role="READ",
                reply=wire.ProducerRoutingResponse,
                refusals=_STREAM_MISSING,
                statuses=_UNCHANGED,
            )
        },
    ),
)

_GROUPS = (
    Route(
        path=GROUP,
        resource="group",
        operations={
            "POST": Operation(
                id="createCoordinatorGroup",
                tag="Groups",
                summary="Create a group, and its stream when that does not exist",
                role="WRITE",
                success=201,
                body=wire.CreateGroupRequest,
                reply=wire.GroupResponse,
                action="CREATE_GROUP",
                refusals=(
                    Code.GROUP_ALREADY_EXISTS,
                    Code.STREAM_SHARD_TOPOLOGY_CONFLICT,
                    Code.GROUP_LIMIT_REACHED,
                    Code.STREAM_PREFIX_ALREADY_EXISTS,
                    Code.REDIS_STREAM_PROVISIONING_FAILED,
                ),
                tells_revision=True,
            ),
            "GET": Operation(
                id="getCoordinatorGroup",
                tag="Groups",
                summary="A group's summary",
                role="READ",
                reply=wire.GroupResponse,
                refusals=_GROUP_MISSING,
            ),
            "DELETE": Operation(
                id="deleteCoordinatorGroup",
                tag="Groups",
                summary="Delete a group without live members, or with force",
                role="WRITE",
                body=wire.DeleteGroupRequest,
                body_in_query=True,
                reply=wire.GroupResponse,
                action="DELETE_GROUP",
                refusals=(
                    Code.GROUP_NOT_FOUND,
                    Code.GROUP_HAS_ACTIVE_MEMBERS,
                    Code.REDIS_NOT_CONFIGURED,
                    Code.REDIS_STREAM_PROVISIONING_FAILED,
                ),
                tells_revision=True,
            ),
        },
    ),
    Route(
        path=f"{GROUP}/scale",
        resource="group",
        suffix="scale",
        operations={
            "POST": Operation(
                id="startGroupResharding",
                tag="Resharding",
                summary="Scale the stream, answering with this group's migration",
                role="WRITE",
                success=202,
                body=wire.ScaleRequest,
                reply=wire.Migration,
                action="SCALE_GROUP",
                refusals=_SCALING,
                tells_revision=True,
            )
        },
    ),
    Route(
        path=MIGRATION,
        resource="migration",
        operations={
            "GET": Operation(
                id="getReshardingMigration",
                tag="Resharding",
                summary="One resharding as the group sees it",
                role="READ",
                reply=wire.Migration,
                refusals=(Code.GROUP_NOT_FOUND, Code.MIGRATION_NOT_FOUND),
            )
        },
    ),
    Route(
        path=f"{MIGRATION}/rollback",
        resource="migration",
        suffix="rollback",
        operations={
            "POST": Operation(
                id="rollbackReshardingMigration",
                tag="Resharding",
                summary="Turn a resharding of the stream back, while it is PREPARING or ACTIVE",
                role="WRITE",
                success=202,
                body=wire.RollbackMigrationRequest,
                reply=wire.Migration,
                action="ROLLBACK_MIGRATION",
                refusals=(Code.GROUP_NOT_FOUND, Code.MIGRATION_NOT_FOUND, Code.ROLLBACK_NOT_ALLOWED),
                tells_revision=True,
            )
        },
    ),
    Route(
        path=f"{MIGRATION}/complete",
        resource="migration",
        suffix="complete",
        operations={
            "POST": Operation(
                id="completeReshardingMigration",
                tag="Resharding",
                summary="End a drain that cannot be proved",
                role="WRITE",
                success=202,
                body=wire.CompleteMigrationRequest,
                reply=wire.Migration,
                action="COMPLETE_MIGRATION",
                refusals=(Code.GROUP_NOT_FOUND, Code.MIGRATION_NOT_FOUND, Code.COMPLETION_NOT_ALLOWED),
                tells_revision=True,
            )
        },
    ),
    Route(
        path=f"{GROUP}/members/{{memberId}}/heartbeat",
        resource="heartbeat",
        operations={
            "POST": Operation(
                id="sendConsumerHeartbeat",
                tag="Members",
                summary="A member reports; the outcome is in `status`, refusals included",
                role="MEMBER",
                body=wire.HeartbeatRequest,
                reply=wire.HeartbeatResponse,
                tells_revision=True,
            )
        },
    ),
    Route(
        path=f"{GROUP}/heartbeats",
        resource="heartbeats",
        operations={
            "POST": Operation(
                id="sendConsumerHeartbeats",
                tag="Members",
                summary="Several members report, each memberId once; one answer each, in their order",
                role="MEMBER",
                body=wire.HeartbeatsRequest,
                reply=wire.HeartbeatsResponse,
                tells_revision=True,
            )
        },
    ),
)


_PAGE: Final[tuple[Query, ...]] = ("limit", "cursor")


def _reading(
    path: str,
    operation_id: str,
    summary: str,
    reply: type[Struct],
    *,
    suffix: str,
    query: tuple[Query, ...] = (),
    refusals: tuple[Code, ...] = (),
) -> Route:
    operation = Operation(
        id=operation_id, tag="Monitoring", summary=summary, role="READ", reply=reply, query=query, refusals=refusals
    )
    return Route(path=f"/monitoring{path}", resource="monitoring", suffix=suffix, operations={"GET": operation})


def _auditing(path: str, operation_id: str, summary: str, *, suffix: str, refusals: tuple[Code, ...] = ()) -> Route:
    operation = Operation(
        id=operation_id,
        tag="Monitoring",
        summary=summary,
        role="READ",
        reply=wire.AuditResponse,
        query=("since", "until", "action", "outcome", *_PAGE),
        refusals=refusals,
        also=(NDJSON, CSV),
    )
    return Route(path=f"/monitoring{path}/audit", resource="audit", suffix=suffix, operations={"GET": operation})


_MONITORING = (
    _reading("/health", "getCoordinatorHealth", "Health, 200 whatever it is", wire.HealthResponse, suffix="health"),
    _reading("/session", "getMonitoringSession", "Who the caller is", wire.MonitoringSessionResponse, suffix="session"),
    _reading(
        "/compatibility",
        "getCoordinatorCompatibility",
        "Which protocol versions this coordinator speaks",
        wire.CoordinatorCompatibilityResponse,
        suffix="compatibility",
    ),
    _reading("/groups", "listCoordinatorGroups", "All groups, by page", wire.GroupsResponse, suffix="groups", query=_PAGE),
    _reading("/streams", "listStreams", "All streams, by page", wire.StreamsResponse, suffix="streams", query=_PAGE),
    _reading(STREAM, "getMonitoringStream", "A stream", wire.StreamSummary, suffix="stream", refusals=_STREAM_MISSING),
    _reading(
        f"{STREAM}/migrations",
        "listStreamMigrations",
        "A stream's reshardings, oldest first, with drain blockers",
        wire.MigrationsResponse,
        suffix="stream_migrations",
        refusals=_STREAM_MISSING,
    ),
    _reading(GROUP, "getMonitoringGroup", "A group", wire.GroupResponse, suffix="group", refusals=_GROUP_MISSING),
    _reading(
        f"{GROUP}/members", "listGroupMembers", "Its members", wire.MembersResponse, suffix="members", refusals=_GROUP_MISSING
    ),
    _reading(
        f"{GROUP}/assignments",
        "getGroupAssignments",
        "Where its shards should be and where they are, and broken invariants",
        wire.AssignmentsResponse,
        suffix="assignments",
        refusals=_GROUP_MISSING,
    ),
    _reading(
        f"{GROUP}/consumption",
        "getConsumptionProgress",
        "How far its members said they have come",
        wire.ConsumptionProgressResponse,
        suffix="consumption",
        refusals=_GROUP_MISSING,
    ),
    _reading(
        f"{GROUP}/migrations",
        "listReshardingMigrations",
        "Its reshardings, oldest first, with drain blockers",
        wire.MigrationsResponse,
        suffix="migrations",
        refusals=_GROUP_MISSING,
    ),
    _auditing("", "listStrayAuditEntries", "Requests on no log: of strangers, and about what does not exist", suffix="strays"),
    _auditing(STREAM, "listStreamAuditEntries", "Requests about a stream", suffix="stream", refusals=_STREAM_MISSING),
    _auditing(GROUP, "listGroupAuditEntries", "Requests about a group", suffix="group", refusals=_GROUP_MISSING),
)


def _open(
    path: str,
    operation_id: str,
    summary: str,
    *,
    resource: str,
    suffix: str,
    reply: type[Struct] | None,
    media_type: str = "application/json",
    statuses: Mapping[int, str] | None = None,
) -> Route:
    operation = Operation(
        id=operation_id,
        tag="Probes and documentation",
        summary=summary,
        role=None,
        reply=reply,
        media_type=media_type,
        statuses=statuses or {},
    )
    return Route(path=path, resource=resource, suffix=suffix, under_base=False, operations={"GET": operation})


_OPEN = (
    _open("/livez", "getLiveness", "The process answers", resource="probe", suffix="livez", reply=wire.StatusResponse),
    _open(
        "/readyz",
        "getReadiness",
        "The process takes requests",
        resource="probe",
        suffix="readyz",
        reply=wire.StatusResponse,
        statuses={503: "It is stopping, or `server.readyz-needs-store` is set and the store is away."},
    ),
    _open(
        "/actuator/health",
        "getActuatorHealth",
        "Health in one word",
        resource="probe",
        suffix="health",
        reply=wire.StatusResponse,
        statuses={503: "The coordinator is DOWN."},
    ),
    _open("/actuator/info", "getActuatorInfo", "Name and version", resource="probe", suffix="info", reply=wire.InfoResponse),
    _open("/v3/api-docs", "getApiDescription", "This description", resource="docs", suffix="description", reply=None),
    _open("/docs", "getReferencePage", "It, for people", resource="docs", suffix="page", reply=None, media_type="text/html"),
    _open("/scalar", "getScalarPage", "The same page", resource="docs", suffix="page", reply=None, media_type="text/html"),
)

ROUTES: Final[tuple[Route, ...]] = (_LOGIN, *_STREAMS, *_ROUTING, *_GROUPS, *_MONITORING, *_OPEN)


def codes_of(operation: Operation, path: str) -> tuple[Code, ...]:
    """Give every error code that an operation can answer, those of its kind included."""
    codes: list[Code] = []
    if "{" in path or operation.query or operation.body:
        codes.append(Code.INVALID_REQUEST)
    if operation.body:
        codes += [Code.PAYLOAD_TOO_LARGE, Code.UNSUPPORTED_MEDIA_TYPE]
    if operation.role:
        codes += [Code.UNAUTHORIZED, Code.FORBIDDEN, Code.RATE_LIMIT_EXCEEDED]
    if operation.action:
        codes += [
            Code.METADATA_SYNC_IN_PROGRESS,
            Code.IDEMPOTENCY_KEY_REUSED,
            Code.STATE_VERSION_CONFLICT,
            Code.COORDINATOR_STATE_MUTEX_UNAVAILABLE,
            Code.COORDINATOR_TERMINATING,
        ]
    reads_store = "{" in path or bool(operation.query)
    if reads_store and operation.role != "MEMBER":
        codes += [Code.COORDINATOR_METADATA_CORRUPT, Code.STORE_UNAVAILABLE]
    codes += operation.refusals
    if operation.reply:
        codes.append(Code.INTERNAL_ERROR)
    return tuple(dict.fromkeys(codes))
