"""What is stored in a SQL database, read and written as it stands."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from sqlalchemy import BigInteger, Connection, Select, and_, bindparam, delete, insert, literal_column, select

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.store.answers import ANSWERS_TTL_MS
from coord.store.base import LAYOUT_VERSION, SCHEMA_VERSION, CorruptAggregate, Head
from coord.store.sql.connections import Connections, Undo
from coord.store.sql.dialect import Dialect
from coord.store.sql.faults import told
from coord.store.sql.rows import STREAM, AnyRow, entry_of, key_of, place_of, place_text, written
from coord.store.sql.statements import GROUP, named, of
from coord.store.sql.statements import STREAM as STREAM_PARAMETER
from coord.store.sql.tables import answered, answers, events, leases, metadata, requests
from coord.store.transfer import Answered, Guard, Place, Record, Request, in_order

ROWS_AT_ONCE: Final = 1_000
_ENTRY: Final = (events.c.revision, events.c.n, events.c.event, events.c.chain, events.c.commit_id)
_RECORDS: Final = (
    select(*_ENTRY)
    .where(
        of(events),
        events.c.revision >= bindparam("after_revision"),
        (events.c.revision > bindparam("after_revision")) | (events.c.n > bindparam("after_n")),
    )
    .order_by(events.c.revision, events.c.n)
    .limit(bindparam("limit"))
)
_END: Final = select(*_ENTRY).where(of(events)).order_by(events.c.revision.desc(), events.c.n.desc()).limit(1)
_GUARD: Final = select(
    metadata.c.store_revision, metadata.c.commit_id, metadata.c.head, metadata.c.identity, metadata.c.updated_at
).where(of(metadata), metadata.c.metadata_json.is_not(None))
_OF_METADATA: Final = select(*named(metadata))
_NEXT_OF_EVENTS: Final = (
    select(*named(events))
    .where(
        (events.c.stream_prefix > STREAM_PARAMETER)
        | ((events.c.stream_prefix == STREAM_PARAMETER) & (events.c.consumer_group > GROUP))
    )
    .order_by(*named(events))
    .limit(1)
)
"""A name a question: the index gets there at once, however long the logs are."""


class SqlTransfer:
    """`coord.store.transfer.Transfer` on a database whose tables are there: what is written, is in one transaction."""

    def __init__(self, dialect: Dialect) -> None:
        self._connections = Connections(dialect)
        now = literal_column(dialect.clock, BigInteger).label("now")
        self._now = select(now)
        self._answers = (
            select(now, answered.c.changed_at, answers.c.name_key, answers.c.answer)
            .select_from(
                answered.join(answers, and_(*(one == other for one, other in zip(named(answered), named(answers), strict=True))))
            )
            .where(of(answered))
            .order_by(answers.c.n)
        )

    def aggregates(self) -> Sequence[AggregateKey]:
        """Read the names of all rows."""
        with told():
            rows = self._connections.read(_names)
        found: set[AggregateKey] = {StreamKey(prefix) if group == STREAM else GroupKey(prefix, group) for prefix, group in rows}
        return in_order(found)

    def records(self, key: AggregateKey, *, after: Place, limit: int) -> Sequence[Record]:
        """Read log entries after a place."""
        values = key_of(key) | {"after_revision": after[0], "after_n": after[1], "limit": limit}
        with told(key):
            return self._connections.read(lambda connection: [_record(row) for row in connection.execute(_RECORDS, values)])

    def end(self, key: AggregateKey) -> Record | None:
        """Give the log's last entry."""
        with told(key):
            return self._connections.read(lambda connection: _end(connection, key))

    def guard(self, key: AggregateKey) -> Guard | None:
        """Give what stands beside the aggregate."""
        with told(key):
            row = self._connections.read(lambda connection: connection.execute(_GUARD, key_of(key)).first())
        if row is None:
            return None
        last = place_of(row.head)
        if last is None:
            raise CorruptAggregate(key, "head is unreadable")
        return Guard(
            revision=row.store_revision, commit_id=row.commit_id, last=last, identity=row.identity, updated_at=row.updated_at
        )

    def put_records(self, key: AggregateKey, records: Sequence[Record], *, after: Record | None) -> bool:
        """Write entries, all or none."""
        rows = [row for each in records for row in written(key, (each.entry,), commit_id=each.commit_id or None)]

        def write(connection: Connection) -> bool:
            end = _end(connection, key)
            if end == records[-1]:
                return True
            if end != after:
                raise Undo(lambda _: False)
            connection.execute(insert(events), rows)
            return True

        with told(key):
            return self._connections.write(write)

    def put_aggregate(self, key: AggregateKey, head: Head, aggregate: bytes | None, guard: Guard) -> bool:
        """Put the row of the aggregate; a deleted one's has no JSON."""
        row = {
            "stream_prefix": key_of(key)["stream"],
            "consumer_group": key_of(key)["group"],
            "metadata_json": None if aggregate is None else aggregate.decode(),
            "store_revision": guard.revision,
            "schema_version": SCHEMA_VERSION,
            "layout_version": LAYOUT_VERSION,
            "updated_at": guard.updated_at,
            "commit_id": guard.commit_id,
            "head": place_text(head.last),
            "chain": head.chain,
            "identity": guard.identity,
        }

        def write(connection: Connection) -> bool:
            end = _end(connection, key)
            if end is None or (end.place, end.entry.chain) != (head.last, head.chain):
                raise Undo(lambda _: False)
            connection.execute(delete(metadata).where(of(metadata)), key_of(key))
            connection.execute(insert(metadata), [row])
            if aggregate is None:
                connection.execute(delete(leases).where(of(leases)), key_of(key))
            return True

        with told(key):
            return self._connections.write(write)

    def answers(self, key: AggregateKey) -> Sequence[Answered]:
        """Read what is remembered, the oldest first: only when the last was put is known."""
        with told(key):
            rows = self._connections.read(lambda connection: connection.execute(self._answers, key_of(key)).all())
        return [
            Answered(
                digest=bytes(row.name_key),
                body=bytes(row.answer),
                at=row.changed_at - len(rows) + number,
                left_ms=row.changed_at + ANSWERS_TTL_MS - row.now,
            )
            for number, row in enumerate(rows, 1)
            if row.changed_at + ANSWERS_TTL_MS > row.now
        ]

    def put_answers(self, key: AggregateKey, wanted: Sequence[Answered]) -> None:
        """Remember answers for what is left of their time."""
        of_key = {"stream_prefix": key_of(key)["stream"], "consumer_group": key_of(key)["group"]}
        left_ms = max((each.left_ms for each in wanted), default=0)
        rows = [of_key | {"name_key": each.digest, "n": n, "answer": each.body} for n, each in enumerate(wanted, 1)]

        def write(connection: Connection) -> None:
            connection.execute(delete(answers).where(of(answers)), key_of(key))
            connection.execute(delete(answered).where(of(answered)), key_of(key))
            if rows:
                now = connection.execute(self._now).scalar_one()
                connection.execute(insert(answered), [of_key | {"changed_at": now - ANSWERS_TTL_MS + left_ms}])
                connection.execute(insert(answers), rows)

        with told(key):
            self._connections.write(write)

    def requests(self) -> Sequence[Request]:
        """Read all that are kept, numbered within each ms in the order in which they were written."""
        found: list[Request] = []
        last = -1
        while True:
            page = select(requests).where(requests.c.id > last).order_by(requests.c.id).limit(ROWS_AT_ONCE)
            rows = self._rows(page)
            for row in rows:
                n = found[-1].n + 1 if found and found[-1].at == row.at else 0
                found.append(Request(row.at, n, row.entry.encode()))
            if len(rows) < ROWS_AT_ONCE:
                return found
            last = rows[-1].id

    def put_requests(self, wanted: Sequence[Request]) -> None:
        """Add rows, all or none."""
        rows = [{"at": each.at, "entry": each.entry.decode()} for each in wanted]
        if rows:
            with told():
                self._connections.write_once(lambda connection: connection.execute(insert(requests), rows))

    def _rows(self, query: Select[Any]) -> Sequence[AnyRow]:
        with told():
            return self._connections.read(lambda connection: connection.execute(query).all())

    def close(self) -> None:
        """Close all connections."""
        self._connections.close()


def _names(connection: Connection) -> set[tuple[str, str]]:
    """Give the names of all rows; a log without an aggregate is one that is there half."""
    found = {(row[0], row[1]) for row in connection.execute(_OF_METADATA)}
    last = ("", "")
    while (row := connection.execute(_NEXT_OF_EVENTS, {"stream": last[0], "group": last[1]}).first()) is not None:
        last = (row[0], row[1])
        found.add(last)
    return found


def _end(connection: Connection, key: AggregateKey) -> Record | None:
    row = connection.execute(_END, key_of(key)).first()
    return None if row is None else _record(row)


def _record(row: AnyRow) -> Record:
    return Record(entry_of(row), row.commit_id or "")
