"""What is done to one aggregate over a connection: read it, write it under the head that was seen, or tell what is there instead.

What writes runs inside a transaction, and ends it by `Undo` where something is otherwise than it was seen.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import Connection
from sqlalchemy.exc import IntegrityError

from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.store.base import EMPTY_HEAD, Commit, Committed, Conflict, CorruptAggregate, Head, Loaded, Tail, Touch, Touched
from coord.store.reading import TAIL_FREE_BYTES, tombstone
from coord.store.sql import leasing
from coord.store.sql.connections import Undo
from coord.store.sql.rows import (
    Key,
    end_of,
    entry_of,
    key_of,
    last_entry,
    place_text,
    renewals_of,
    seen,
    stored_head,
    stored_identity,
    written,
)
from coord.store.sql.statements import Statements


def load(connection: Connection, statements: Statements, key: AggregateKey) -> Loaded:
    """Read aggregate, head, clock and identity at one moment; CorruptAggregate for any contradiction."""
    row = connection.execute(statements.load, key_of(key)).one()
    identity, now = stored_identity(row.moment_identity), row.now
    if row.metadata_json is not None:
        present = stored_head(key, row, exists=True)
        return Loaded(head=present, aggregate=row.metadata_json.encode(), tombstone=None, identity=identity, now=now)
    last = last_entry(row)
    head = stored_head(key, row, exists=False) if row.store_revision is not None else None
    if last is None:
        return Loaded(head=EMPTY_HEAD, aggregate=None, tombstone=None, identity=identity, now=now)
    # What the last commit wrote in this revision stays as it is, whatever comes after it: no need for the same moment.
    committed = list(connection.execute(statements.committed, key_of(key) | {"revision": last.revision}))
    deletion = tombstone(key, [entry_of(each) for each in committed], last=last)
    if head is None:
        place, chain = end_of(last)
        head = Head(exists=False, revision=last.revision, commit_id=committed[0].commit_id, last=place, chain=chain)
    return Loaded(head=head, aggregate=None, tombstone=deletion, identity=identity, now=now)


def write(connection: Connection, statements: Statements, commit: Commit) -> Committed | Conflict:
    """Write; `Undo` where something is otherwise than it was seen."""
    key = key_of(commit.key)
    created = _change(connection, statements, commit, key)
    facts = connection.execute(statements.facts, key).one()
    identity, end = stored_identity(facts.moment_identity), end_of(last_entry(facts))
    if end != (commit.expected.last, commit.expected.chain):
        if created:
            raise Undo(lambda connection: overtaken(connection, statements, commit))
        raise CorruptAggregate(
            commit.key, f"the log ends at {place_text(end[0])}, the aggregate says {place_text(commit.expected.last)}"
        )
    revision = commit.expected.revision if commit.expected.exists else end[0][0]
    if identity != commit.identity:
        raise Undo(lambda _: Conflict(what="identity", revision=revision, identity=identity, now=facts.now))
    if not leasing.allow(connection, statements, commit.guards, key, now=facts.now):
        raise Undo(lambda _: Conflict(what="lease", revision=revision, identity=identity, now=facts.now))
    connection.execute(statements.record, written(commit.key, commit.entries, commit_id=commit.commit_id))
    if commit.aggregate is None:
        connection.execute(statements.forget_leases, key)
        connection.execute(statements.forget_looks, key)
    else:
        leasing.change(connection, statements, commit.leases, key, now=facts.now)
    return Committed(head=commit.head_after, now=facts.now)


def _change(connection: Connection, statements: Statements, commit: Commit, key: Key) -> bool:
    """Put the new fold in place of the one that was seen, and so take the aggregate's turn; True where there was no row."""
    after = commit.head_after
    values: dict[str, Any] = (
        key
        | seen(commit.expected)
        | {
            "json": None if commit.aggregate is None else commit.aggregate.decode(),
            "new_revision": after.revision,
            "new_commit_id": after.commit_id,
            "new_head": place_text(after.last),
            "new_chain": after.chain,
            "new_identity": commit.identity,
        }
    )
    expected = commit.expected
    if expected.exists or expected.last != (0, 0):
        changed = connection.execute(statements.change(exists=expected.exists), values).rowcount
        if changed == 1:
            return False
        if expected.exists:
            raise Undo(lambda connection: overtaken(connection, statements, commit))
    try:
        connection.execute(statements.create(), {name: value for name, value in values.items() if "seen" not in name})
    except IntegrityError:
        raise Undo(lambda connection: overtaken(connection, statements, commit)) from None
    return True


def overtaken(connection: Connection, statements: Statements, commit: Commit) -> Committed | Conflict:
    """Tell what is there instead, or that this very commit is."""
    first = commit.entries[0]
    values = key_of(commit.key) | {"first_revision": first.revision, "first_n": first.index}
    row = connection.execute(statements.conflict, values).one()
    if row.written_by == commit.commit_id:
        return Committed(head=commit.head_after, now=row.now, already=True)
    revision = row.store_revision or row.last_revision or 0
    return Conflict(what="head", revision=revision, identity=stored_identity(row.moment_identity), now=row.now)


def append(connection: Connection, statements: Statements, key: AggregateKey, expected: Head, entries: tuple[Entry, ...]) -> bool:
    """Write entries that raise no revision; False when the head is another one."""
    of, last = key_of(key), entries[-1]
    values = of | seen(expected) | {"new_head": last.entry_id, "new_chain": last.chain}
    if connection.execute(statements.move_head(exists=expected.exists), values).rowcount != 1:
        place = {"revision": last.revision, "n": last.index}
        # The chain value covers these entries and all before them, so nobody else's entry has it.
        raise Undo(lambda connection: connection.execute(statements.chain_at, of | place).scalar() == last.chain)
    end = end_of(last_entry(connection.execute(statements.facts, of).one()))
    if end != (expected.last, expected.chain):
        raise CorruptAggregate(key, f"the log ends at {place_text(end[0])}, the head says {place_text(expected.last)}")
    connection.execute(statements.record, written(key, entries, commit_id=None))
    return True


def catch_up(connection: Connection, statements: Statements, key: AggregateKey, last_seen: Head, limit: int) -> Tail | None:
    """Read where an aggregate stands, and what its log holds from the head that was seen up to there; None: read the whole."""
    of = key_of(key)
    row = connection.execute(statements.standing, of).one()
    if not row.is_there:
        return None
    head = stored_head(key, row, exists=True)
    revision, n = last_seen.last
    if connection.execute(statements.chain_at, of | {"revision": revision, "n": n}).scalar() != last_seen.chain:
        return None
    values = of | {"after_revision": revision, "after_n": n, "limit": limit + 1}
    found = [entry_of(each) for each in connection.execute(statements.tail, values)]
    # Another commit may have come since the head was read; entries never change, so what leads to the head is what it was.
    entries = tuple(entry for entry in found if (entry.revision, entry.index) <= head.last)
    if len(found) > limit or sum(len(entry.body) for entry in entries) > row.size + TAIL_FREE_BYTES:
        return None
    return Tail(head=head, entries=entries, identity=stored_identity(row.moment_identity), now=row.now)


def touch(connection: Connection, statements: Statements, wanted: Touch) -> Touched:
    """Touch for several members in a transaction that keeps writers out."""
    renewals = renewals_of(wanted)
    if renewals:
        connection.execute(statements.holds, key_of(wanted.key)).all()
    row = connection.execute(statements.load, key_of(wanted.key)).one()
    identity = stored_identity(row.moment_identity)
    exists = row.metadata_json is not None
    revision = row.store_revision if exists else 0
    current = exists and (wanted.revision, wanted.commit_id, wanted.identity) == (revision, row.commit_id, identity)
    if current and renewals:
        leases = [
            leasing.lease_row(key_of(wanted.key), each.member_id, row.now + each.ttl_ms if each.ttl_ms else None, each.report)
            for each in sorted(renewals)
        ]
        connection.execute(statements.renew, leases)
    return Touched(current=current, revision=revision, identity=identity, now=row.now)
