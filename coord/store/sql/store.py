"""The store on SQL: each step one statement or one transaction, so that it happens whole or not at all."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import Final

from sqlalchemy import Connection, text

from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.store.base import (
    Commit,
    Committed,
    Conflict,
    Due,
    Head,
    Loaded,
    Soft,
    Standing,
    StoreError,
    Tail,
    Touch,
    Touched,
    Turn,
)
from coord.store.reading import attempted, check_append, check_commit
from coord.store.sql import aggregates, leasing, looking
from coord.store.sql.access import Access
from coord.store.sql.answers import SqlAnswers
from coord.store.sql.connections import Failed
from coord.store.sql.dialect import Dialect
from coord.store.sql.faults import told
from coord.store.sql.rows import (
    entry_of,
    key_of,
    member_key,
    renewals_of,
    stored_identity,
)
from coord.store.sql.statements import Statements
from coord.store.sql.windows import SqlWindows

REQUESTS_MAX: Final = 10_000
REQUESTS_TRIM_EVERY: Final = 100
"""The audit entries of no aggregate are trimmed each so many."""

NUMBER_MAX: Final = 2**63 - 1
"""Above every revision, and every number that the database counts up."""


class SqlStore:
    """`coord.store.base.Store` on a SQL database. Connects on first use."""

    def __init__(self, dialect: Dialect) -> None:
        self._dialect = dialect
        self._access = Access(dialect)
        self._connections = self._access.connections
        self._read, self._write = self._access.read, self._access.write
        self.windows = SqlWindows(self._access)
        self.answers = SqlAnswers(self._access)

    @cached_property
    def _statements(self) -> Statements:
        """Made once the server has told how it tells its identity."""
        return Statements(self._dialect)

    # -- an aggregate

    def load(self, key: AggregateKey) -> Loaded:
        """Read aggregate, head, clock and identity in one statement."""
        with told(key):
            return self._read(lambda connection: aggregates.load(connection, self._statements, key))

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        """Read the log's tail with the head that it leads to, or the whole."""
        with told(key):
            tail = self._read(lambda connection: aggregates.catch_up(connection, self._statements, key, seen, limit))
        return tail if tail is not None else self.load(key)

    def tail(self, key: AggregateKey, *, after: tuple[int, int], limit: int) -> Sequence[Entry]:
        """Read log entries after an id, oldest first."""
        revision, n = after if after != (0, 0) else (-1, 0)
        values = key_of(key) | {"after_revision": revision, "after_n": n, "limit": limit}
        with told(key):
            return self._read(lambda connection: [entry_of(row) for row in connection.execute(self._statements.tail, values)])

    def latest(self, key: AggregateKey, *, before: tuple[int, int] | None, limit: int) -> Sequence[Entry]:
        """Read log entries before an id, newest first."""
        revision, n = before or (NUMBER_MAX, 0)
        values = key_of(key) | {"before_revision": revision, "before_n": n, "limit": limit}
        with told(key):
            return self._read(lambda connection: [entry_of(row) for row in connection.execute(self._statements.latest, values)])

    def commit(self, commit: Commit) -> Committed | Conflict:
        """Write, or not, in one transaction."""
        check_commit(commit)
        with told(commit.key):
            try:
                return self._write(lambda connection: aggregates.write(connection, self._statements, commit))
            except Failed as error:
                if error.fault != "contention":
                    raise
            # Others were in the way again and again: whoever decided this decides it once more.
            return self._read(lambda connection: aggregates.overtaken(connection, self._statements, commit))

    def append(self, key: AggregateKey, *, expected: Head, entries: tuple[Entry, ...]) -> Head | None:
        """Write entries of the same revision in one transaction."""
        check_append(expected, entries)
        last = entries[-1]
        head = Head(
            exists=expected.exists,
            revision=expected.revision,
            commit_id=expected.commit_id,
            last=(last.revision, last.index),
            chain=last.chain,
        )
        with told(key):
            done = self._write(lambda connection: aggregates.append(connection, self._statements, key, expected, entries))
            return head if done else None

    # -- soft state

    def touch(self, touch: Touch) -> Touched:
        """Check, renew and report; for one member in one statement, where the dialect can."""
        renewals = renewals_of(touch)
        with told(touch.key):
            if self._dialect.touches_at_once and len(renewals) <= 1:
                return self._read(lambda connection: self._dialect.touch(connection, touch, next(iter(renewals), None)))
            do = self._write if renewals else self._read
            return do(lambda connection: aggregates.touch(connection, self._statements, touch))

    def touch_many(self, touches: Sequence[Touch]) -> list[Touched | StoreError]:
        """Touch one after another: rows of several groups, locked by one transaction, would invite deadlocks."""
        return [attempted(self.touch, touch) for touch in touches]

    def lease(self, key: GroupKey, member_id: str) -> tuple[int | None, int]:
        """Give a member's deadline and the clock."""
        values = key_of(key) | {"member_key": member_key(member_id)}
        with told(key):
            row = self._read(lambda connection: connection.execute(self._statements.lease, values).one())
        return row.deadline_ms, row.now

    def soft(self, key: GroupKey) -> Soft:
        """Read all leases and reports."""
        with told(key):
            rows = self._read(lambda connection: connection.execute(self._statements.soft, key_of(key)).all())
        return Soft(
            leases={row.member_id: row.deadline_ms for row in rows if row.deadline_ms is not None},
            reports={row.member_id: bytes(row.report) for row in rows if row.report is not None},
            now=rows[0].now,
        )

    def due_many(self, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        """Stamp the looks and give lapsed leases, in one transaction; its failure is the answer for each."""
        try:
            with told():
                found = self._write(
                    lambda connection: looking.look(connection, self._statements, keys, lease_ttl_ms=lease_ttl_ms, grace=grace)
                )
        except StoreError as error:
            return [error] * len(keys)
        return [found[key] for key in keys]

    def standings(self, keys: Sequence[AggregateKey]) -> list[Standing | StoreError]:
        """Tell where each aggregate stands; a failure is the answer for each."""
        try:
            with told():
                return self._read(lambda connection: looking.standings(connection, self._statements, keys))
        except StoreError as error:
            return [error] * len(keys)

    def grant_missing_leases(self, key: GroupKey, members: Sequence[str], *, ttl_ms: int) -> None:
        """Give a whole lease to those without an entry; nothing where the group does not exist."""

        def grant(connection: Connection) -> None:
            of, statements = key_of(key), self._statements
            if connection.execute(statements.holds, of).first() is not None:
                now = connection.execute(statements.moment).one().now
                rows = [leasing.lease_row(of, member, now + ttl_ms) for member in sorted(set(members))]
                connection.execute(statements.grant, rows)

        if members:
            with told(key):
                self._write(grant)

    # -- what belongs to no aggregate

    def streams(self) -> Sequence[str]:
        """Give the index, sorted."""
        with told():
            return sorted(self._read(lambda connection: connection.execute(self._statements.prefixes).scalars().all()))

    def index_add(self, key: StreamKey) -> None:
        """Put a stream into the index."""
        with told():
            row = {"stream_prefix": key.stream_prefix}
            self._write(lambda connection: connection.execute(self._statements.index_add, [row]))

    def index_remove(self, key: StreamKey) -> None:
        """Take a stream out of the index."""
        with told():
            self._write(lambda connection: connection.execute(self._statements.index_remove, {"stream": key.stream_prefix}))

    def take_turn(self, instance: str, *, takeover_ms: int) -> Turn:
        """Ask to tick; a clock that went back keeps nobody from it."""
        with told():
            return self._write(
                lambda connection: looking.take_turn(connection, self._statements, instance, takeover_ms=takeover_ms)
            )

    def announce(self, instance: str, *, reads: int, within_ms: int) -> int:
        """Note what an instance reads, and give the lowest level of all that were heard of lately."""
        with told():
            return self._write(
                lambda connection: looking.announce(connection, self._statements, instance, reads=reads, within_ms=within_ms)
            )

    def last_tick(self) -> tuple[int, int]:
        """Give when anybody ticked last, and the clock."""
        with told():
            row = self._read(lambda connection: connection.execute(self._statements.last_tick).one())
        return row.ticked_at, row.now

    def append_request(self, entry: bytes) -> None:
        """Keep an audit entry; the oldest go."""

        def add(connection: Connection) -> None:
            added = connection.execute(self._statements.add_request, {"entry": entry.decode(errors="replace")})
            number = added.inserted_primary_key[0] if added.inserted_primary_key is not None else 0
            if number % REQUESTS_TRIM_EVERY == 0:
                connection.execute(self._statements.trim_requests, {"upto": number - REQUESTS_MAX})

        with told():
            self._access.write_once(add)

    def requests(self, *, before: str | None, limit: int) -> Sequence[tuple[str, bytes]]:
        """Read the kept entries, newest first; an entry's place is its number."""
        values = {"before": NUMBER_MAX if before is None else int(before), "limit": limit}
        with told():
            rows = self._read(lambda connection: connection.execute(self._statements.latest_requests, values).all())
        return [(str(row.id), row.entry.encode()) for row in rows]

    def identity(self) -> str:
        """Give the identity."""
        with told():
            return stored_identity(self._read(lambda connection: connection.execute(self._statements.moment).one().identity))

    def ping(self) -> int:
        """Give the database's clock."""
        with told():
            now: int = self._read(lambda connection: connection.execute(text(f"SELECT {self._dialect.clock}")).scalar_one())
        return now

    def unsafe(self) -> Sequence[str]:
        """Say by which settings the database loses what it has acknowledged, as far as it tells."""
        with told():
            return self._read(self._dialect.concerns)

    # -- connections

    def after_fork(self) -> None:
        """Leave the parent's connections to the parent."""
        self._access.after_fork()

    def close(self) -> None:
        """Close all connections."""
        self._access.close()
