"""Writes commits for store tests: real events, sealed and chained as the runtime does it."""

from __future__ import annotations

from itertools import count

from coord.events.catalog import AdminRequest, Event, GroupDeleted, MemberPruned
from coord.events.codec import seal
from coord.events.envelope import Actor, Cause, Entry
from coord.names import AggregateKey, GroupKey
from coord.store.base import Commit, Committed, Due, Head, LeaseChanges, LeaseGuards, Loaded, Store, StoreError

KEY = GroupKey("orders", "orders-consumer")
CAUSE = Cause(command_id="command", actor=Actor("test"), request_id=None, coordinator_id="test")
NO_GUARDS = LeaseGuards()
NO_CHANGES = LeaseChanges()
_numbers = count(1)


def fact(name: str = "member-0") -> Event:
    """Any event: the store reads none but tombstones."""
    return MemberPruned(member_id=name)


def deletion() -> Event:
    return GroupDeleted(registration=1, epoch=7, metadata_version=9, latest_lease=0, requested_by="test")


def request_entry() -> Event:
    return AdminRequest(
        action="DELETE", outcome="OK", status=200, principal="admin", roles=(), requested_by=None, reason=None, request_id="r",
        client_address=None, user_agent=None, method="DELETE", route="/", path="/", query_string="", duration_ms=1,
        request_summary="", request_body_sha256="",
    )  # fmt: skip


def entries(head: Head, *batches: tuple[Event, ...]) -> tuple[Entry, ...]:
    """Seal batches of events, one revision each, on top of a head."""
    sealed: list[Entry] = []
    previous = head.chain
    for revision, events in enumerate(batches, head.revision + 1):
        sealed += seal(events, revision=revision, first=0, at=1, cause=CAUSE, prev=previous)
        previous = sealed[-1].chain
    return tuple(sealed)


def appended(head: Head, *events: Event) -> tuple[Entry, ...]:
    """Seal events that raise no revision, on top of a head."""
    return seal(events, revision=head.revision, first=head.last[1] + 1, at=1, cause=CAUSE, prev=head.chain)


def commit_on(
    read: Loaded,
    *batches: tuple[Event, ...],
    key: AggregateKey = KEY,
    head: Head | None = None,
    identity: str | None = None,
    commit_id: str | None = None,
    aggregate: bytes | None = b'{"storeRevision":1}',
    guards: LeaseGuards = NO_GUARDS,
    leases: LeaseChanges = NO_CHANGES,
) -> Commit:
    """Give a commit on what was read; without batches of one event."""
    expected = read.head if head is None else head
    return Commit(
        key=key,
        expected=expected,
        identity=read.identity if identity is None else identity,
        commit_id=commit_id or f"commit-{next(_numbers)}",
        entries=entries(expected, *(batches or ((fact(),),))),
        aggregate=aggregate,
        guards=guards,
        leases=leases,
    )


def committed(
    store: Store,
    *batches: tuple[Event, ...],
    key: AggregateKey = KEY,
    aggregate: bytes | None = b'{"storeRevision":1}',
    leases: LeaseChanges = NO_CHANGES,
) -> Committed:
    """Load, commit and expect success."""
    answer = store.commit(commit_on(store.load(key), *batches, key=key, aggregate=aggregate, leases=leases))
    assert isinstance(answer, Committed)
    assert not answer.already
    return answer


def due(store: Store, key: GroupKey, *, lease_ttl_ms: int, grace: bool) -> Due:
    """Look at one group; raises what stands for its answer."""
    (answer,) = store.due_many([key], lease_ttl_ms=lease_ttl_ms, grace=grace)
    if isinstance(answer, StoreError):
        raise answer
    return answer


def deleted(store: Store, *, key: AggregateKey = KEY) -> Committed:
    """Load and commit a deletion, with an audit entry after the tombstone."""
    return committed(store, (deletion(), request_entry()), key=key, aggregate=None)
