"""What a commit rests on in a group's leases, and what it does to them. Its transaction holds the aggregate's row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from sqlalchemy import Connection

from coord.store.base import LeaseChanges, LeaseGuards
from coord.store.reading import leases_allow
from coord.store.sql.rows import Key, member_key
from coord.store.sql.statements import Statements

NAMED_MAX = 500
"""More members than this are not named in a statement: all of the group are read."""


def allow(connection: Connection, statements: Statements, guards: LeaseGuards, key: Key, *, now: int) -> bool:
    """Tell whether soft state is as the decision needs it."""
    named = {*guards.lapsed, *guards.unchanged}
    wants_all = guards.none_running or guards.latest_at_most is not None
    if not named and not wants_all:
        return True
    if wants_all or len(named) > NAMED_MAX:
        rows = connection.execute(statements.deadlines, key)
    else:
        rows = connection.execute(statements.some_deadlines, key | {"member_keys": [member_key(each) for each in named]})
    deadlines = {row.member_id: row.deadline_ms for row in rows}
    return leases_allow(guards, deadlines, now=now)


def change(connection: Connection, statements: Statements, changes: LeaseChanges, key: Key, *, now: int) -> None:
    """Change leases and reports. A member that is removed and renewed begins a new lease."""
    for some in _chunks(changes.remove):
        connection.execute(statements.forget, key | {"member_keys": [member_key(each) for each in some]})
    deadline = now + changes.ttl_ms
    rows = [
        lease_row(key, member, deadline if member in renewed else None, changes.reports.get(member))
        for renewed in (frozenset(changes.renew),)
        for member in sorted(renewed | changes.reports.keys())
    ]
    if rows:
        connection.execute(statements.renew, rows)
    if changes.renew_all:
        connection.execute(statements.renew_all, key | {"deadline": deadline})


def lease_row(key: Key, member_id: str, deadline: int | None, report: bytes | None = None) -> dict[str, object]:
    """Give a row of the lease table."""
    return {
        "stream_prefix": key["stream"],
        "consumer_group": key["group"],
        "member_key": member_key(member_id),
        "member_id": member_id,
        "deadline_ms": deadline,
        "report": report,
    }


def _chunks(members: Sequence[str]) -> Iterable[Sequence[str]]:
    return (members[at : at + NAMED_MAX] for at in range(0, len(members), NAMED_MAX))
