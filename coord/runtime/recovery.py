"""What a request committed, and the answer to it, from the log alone.

For a request whose answer was lost with the process that made it: its audit entry is part of what it committed, so the log says
whether it was done, at which revision, and what there was to see then. Where provisioning comes between the claim on record and
the audit entry, the claim says it: the tick completes what was begun. Source: design page `api.md`, "Idempotency".
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

from msgspec import Struct

from coord.events import codec
from coord.events.catalog import AdminRequest, ReshardingRequested, Snapshot, StreamCreated, StreamDeleted
from coord.events.envelope import Envelope
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.aggregate import Aggregate, decode, evolve
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.runtime import shown
from coord.runtime.executor import Executor
from coord.runtime.groups import stream_of
from coord.runtime.verify import entries_of
from coord.store.base import CorruptAggregate, Store

GROUP_LOGS: Final = frozenset({"CREATE_GROUP", "DELETE_GROUP"})
"""Actions whose entry is in the group's log; all others' is in the stream's."""


BEGINNINGS: Final = (StreamCreated, ReshardingRequested)
"""Facts that a request commits before its audit entry, which follows once provisioning is done."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What is looked for. `scope`: what its path names; `revisions`: of stream and group before it (0 for no group)."""

    scope: AggregateKey
    action: str
    principal: str
    request_id: str
    body_sha256: str
    success_status: int
    revisions: tuple[int, int]

    @property
    def log(self) -> AggregateKey:
        """Whose log says whether it was done."""
        return self.scope if isinstance(self.scope, StreamKey) or self.action in GROUP_LOGS else self.scope.stream

    def is_told_by(self, entry: AdminRequest) -> bool:
        """Say whether an audit entry is this request's."""
        told = (entry.action, entry.principal, entry.request_id, entry.request_body_sha256)
        return told == (self.action, self.principal, self.request_id, self.body_sha256)

    @property
    def after(self) -> int:
        """The revision of that log before it."""
        return self.revisions[1] if isinstance(self.log, GroupKey) else self.revisions[0]


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """A mutation that took place: the status and the body of its answer, and the revision that holds it."""

    status: int
    revision: int
    view: Struct


def committed_by(executor: Executor, request: Request) -> Committed | None:
    """Find what a request committed; None when it committed nothing that is its answer.

    None too where the log does not hold all of its answer (`DESTROY_CONSUMER_GROUP`). Raises StoreUnavailable, CorruptAggregate.
    """
    key = request.log
    begun: Envelope | None = None
    for envelope in _after(executor.store, key, request.after):
        event, cause = envelope.event, envelope.cause
        if isinstance(event, AdminRequest):
            if event.outcome == "SUCCESS" and request.is_told_by(event):
                view = _view(executor, key, event.action, event.resharding_id, envelope.revision)
                return None if view is None else Committed(status=event.status, revision=envelope.revision, view=view)
        elif isinstance(event, StreamDeleted):
            begun = None
        elif isinstance(event, BEGINNINGS) and (cause.request_id, cause.actor.principal) == (
            request.request_id,
            request.principal,
        ):
            begun = envelope
    return None if begun is None else _begun(executor, key, request, begun)


def _begun(executor: Executor, key: AggregateKey, request: Request, begun: Envelope) -> Committed | None:
    """Give the answer to what was claimed on record and is completed by the tick: a stream's shards, a resharding."""
    event = begun.event
    if isinstance(event, StreamCreated) and request.action == "CREATE_STREAM":
        view = _view(executor, key, request.action, None, begun.revision)
    elif isinstance(event, ReshardingRequested) and request.action in {"SCALE_STREAM", "SCALE_GROUP"}:
        view = _view(executor, key, request.action, event.resharding_id, begun.revision)
    else:
        view = None
    return None if view is None else Committed(status=request.success_status, revision=begun.revision, view=view)


def _after(store: Store, key: AggregateKey, revision: int) -> Iterator[Envelope]:
    """Read a log after a revision. Raises CorruptAggregate for an entry that cannot be read."""
    for entry in entries_of(store, key, (revision, 0)):
        try:
            yield codec.decode(entry)
        except codec.MalformedEntry as error:
            raise CorruptAggregate(key, str(error)) from error


def state_at(store: Store, key: AggregateKey, revision: int) -> Aggregate | None:
    """Fold a log up to and with a revision; None when there was no aggregate then, or the log no longer says."""
    state: Aggregate | None = None
    first = True
    for entry in entries_of(store, key):
        if entry.revision > revision:
            break
        envelope = codec.decode(entry)
        if isinstance(envelope.event, Snapshot):
            state = decode(key, bytes(envelope.event.aggregate)) if first else state
        else:
            state = evolve(state, envelope.event, key=key, revision=entry.revision, at=envelope.at)
        first = False
    return state


def _view(executor: Executor, key: AggregateKey, action: str, resharding_id: str | None, revision: int) -> Struct | None:
    """Give the body that a request of that revision was, or would have been, answered with."""
    deletes = action in {"DELETE_GROUP", "DELETE_STREAM"}
    state = state_at(executor.store, key, revision - 1 if deletes else revision)
    if isinstance(state, Group) and isinstance(key, GroupKey):
        return shown.group(state, stream_of(executor, key.stream))
    if not isinstance(state, Stream) or not isinstance(key, StreamKey):
        return None
    if action in {"CREATE_STREAM", "ADOPT_STREAM"}:
        return shown.created(state)
    if action == "DELETE_STREAM":
        return shown.stream(state)
    migration = state.migration(resharding_id or "")
    if migration is None:
        return None
    return shown.scaled(state, migration) if action == "SCALE_STREAM" else shown.migration(migration)
