"""What an administrative request is, for the audit entry and for the cause of the events that it makes."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from msgspec import Struct, structs

from coord.events.catalog import AdminRequest, Event
from coord.events.envelope import Actor, Cause
from coord.store.base import Replicas

T = TypeVar("T")

NS_PER_MS = 1_000_000


@dataclass(slots=True)
class Replication:
    """Who has the commits of one request: of all that it made, the one that the fewest replicas confirmed."""

    fewest: Replicas | None = None

    def note(self, replicas: Replicas | None) -> None:
        """Take note of one commit; None where none was waited for."""
        if replicas is not None and (self.fewest is None or replicas < self.fewest):
            self.fewest = replicas


@dataclass(frozen=True, slots=True, kw_only=True)
class RequestInfo:
    """One administrative request.

    `started_ns`: `time.monotonic_ns()` when it came in; `success_status`: HTTP status if it succeeds. The body
    itself is not here, only a summary without secrets and its SHA-256. `stream_prefix`, `consumer_group`: what its path
    names, where that is legal.
    """

    action: str
    success_status: int
    principal: str | None
    roles: tuple[str, ...]
    requested_by: str | None
    reason: str | None
    request_id: str
    client_address: str | None
    user_agent: str | None
    method: str
    route: str
    path: str
    query_string: str
    request_summary: str
    request_body_sha256: str
    started_ns: int
    stream_prefix: str | None = None
    consumer_group: str | None = None
    replication: Replication = field(default_factory=Replication)

    @property
    def actor(self) -> Actor:
        """Who asks."""
        return Actor(self.principal or "anonymous", self.roles)

    def entry(
        self,
        *,
        outcome: str = "SUCCESS",
        status: int | None = None,
        error_code: str | None = None,
        resharding_id: str | None = None,
        summary: str | None = None,
    ) -> AdminRequest:
        """Give the audit entry of this request as it stands now."""
        return AdminRequest(
            action=self.action,
            outcome=outcome,
            status=self.success_status if status is None else status,
            principal=self.principal,
            roles=self.roles,
            requested_by=self.requested_by,
            reason=self.reason,
            request_id=self.request_id,
            client_address=self.client_address,
            user_agent=self.user_agent,
            method=self.method,
            route=self.route,
            path=self.path,
            query_string=self.query_string,
            duration_ms=(time.monotonic_ns() - self.started_ns) // NS_PER_MS,
            request_summary=self.request_summary if summary is None else summary,
            request_body_sha256=self.request_body_sha256,
            error_code=error_code,
            resharding_id=resharding_id,
        )


class Errand(Struct, frozen=True, kw_only=True):
    """Why a command is executed: who asks, the audit entry to commit with the change, a heartbeat's soft report.

    `replication`: an administrator's; commits wait for replicas, as configured, and note there who has them.
    """

    actor: Actor
    request_id: str | None = None
    audit: AdminRequest | None = None
    report: bytes | None = None
    replication: Replication | None = None

    def without_audit(self) -> Errand:
        """Give the same errand for a commit that carries no audit entry."""
        return structs.replace(self, audit=None)


@dataclass(frozen=True, slots=True)
class Recorded:
    """An event to commit, and why."""

    event: Event
    cause: Cause


@dataclass(frozen=True, slots=True)
class Result(Generic[T]):
    """What a request gave, and the store revision that holds what it did or saw."""

    value: T
    revision: int
