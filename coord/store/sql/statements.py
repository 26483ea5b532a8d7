"""The statements on aggregates, made once a store: what a database is asked, in one place."""

from __future__ import annotations

from typing import Any, Final

from sqlalchemy import (
    BigInteger,
    BindParameter,
    Select,
    String,
    and_,
    bindparam,
    delete,
    func,
    insert,
    literal,
    literal_column,
    select,
    true,
    tuple_,
    update,
)
from sqlalchemy.sql.dml import Insert
from sqlalchemy.sql.elements import ColumnElement

from coord.store.base import LAYOUT_VERSION, SCHEMA_VERSION
from coord.store.sql.dialect import Dialect
from coord.store.sql.tables import events, instances, leases, looks, loop, metadata, requests, streams

STREAM: Final[BindParameter[str]] = bindparam("stream")
GROUP: Final[BindParameter[str]] = bindparam("group")


def of(table: Any) -> ColumnElement[bool]:
    """Select the rows of one aggregate."""
    return and_(table.c.stream_prefix == STREAM, table.c.consumer_group == GROUP)


def named(table: Any) -> tuple[Any, Any]:
    """Give the columns that name an aggregate."""
    return table.c.stream_prefix, table.c.consumer_group


def of_many(table: Any) -> ColumnElement[bool]:
    """Select the rows of several aggregates."""
    return tuple_(*named(table)).in_(bindparam("keys", expanding=True))


IS_SEEN: Final = and_(
    of(metadata),
    metadata.c.store_revision == bindparam("seen_revision"),
    metadata.c.commit_id == bindparam("seen_commit_id"),
    metadata.c.head == bindparam("seen_head"),
    metadata.c.chain == bindparam("seen_chain"),
)
EXISTS: Final = metadata.c.metadata_json.is_not(None)
IS_GONE: Final = metadata.c.metadata_json.is_(None)


class Statements:
    """Statements in one dialect, its clock and identity in them."""

    def __init__(self, dialect: Dialect) -> None:
        self.now: ColumnElement[int] = literal_column(dialect.clock, BigInteger)
        self.identity: ColumnElement[str] = literal_column(dialect.identity, String)
        self._moment = select(self.now.label("now"), self.identity.label("moment_identity")).subquery("moment")
        self.moment = select(self.now.label("now"), self.identity.label("identity"))
        self.load = self._load()
        self.standing = self._standing()
        self.facts = self._facts()
        self.conflict = self._conflict()
        self._of_leases(dialect)
        self._of_the_rest(dialect)

    # -- an aggregate

    def _last(self) -> Any:
        """The log's last entry."""
        return (
            select(
                events.c.revision.label("last_revision"),
                events.c.n.label("last_n"),
                events.c.chain.label("last_chain"),
            )
            .where(of(events))
            .order_by(events.c.revision.desc(), events.c.n.desc())
            .limit(1)
            .subquery("last_entry")
        )

    def _load(self) -> Select[Any]:
        """Aggregate, head, end of the log, clock and identity: one statement, hence one moment."""
        last = self._last()
        return select(self._moment, metadata, last).select_from(
            self._moment.outerjoin(metadata, of(metadata)).outerjoin(last, true())
        )

    def _standing(self) -> Select[Any]:
        """The same without the aggregate itself: whether it is there, and how large it is."""
        last = self._last()
        columns = [column for column in metadata.c if column is not metadata.c.metadata_json]
        size = func.length(metadata.c.metadata_json).label("size")
        return select(self._moment, *columns, EXISTS.label("is_there"), size, last).select_from(
            self._moment.outerjoin(metadata, of(metadata)).outerjoin(last, true())
        )

    def _facts(self) -> Select[Any]:
        """What a write is judged on once it holds the row."""
        last = self._last()
        return select(self._moment, last).select_from(self._moment.outerjoin(last, true()))

    def _conflict(self) -> Select[Any]:
        """What became of an aggregate instead, and who wrote the entry that a commit would begin with."""
        last = self._last()
        first = events.alias("first_entry")
        here = and_(of(first), first.c.revision == bindparam("first_revision"), first.c.n == bindparam("first_n"))
        return select(self._moment, metadata.c.store_revision, last, first.c.commit_id.label("written_by")).select_from(
            self._moment.outerjoin(metadata, of(metadata)).outerjoin(last, true()).outerjoin(first, here)
        )

    committed = (
        select(events.c.revision, events.c.n, events.c.event, events.c.chain, events.c.commit_id)
        .where(of(events), events.c.revision == bindparam("revision"), events.c.commit_id.is_not(None))
        .order_by(events.c.n)
    )
    tail = (
        select(events.c.revision, events.c.n, events.c.event, events.c.chain)
        .where(
            of(events),
            events.c.revision >= bindparam("after_revision"),  # the index gets there at once, however long the log
            (events.c.revision > bindparam("after_revision")) | (events.c.n > bindparam("after_n")),
        )
        .order_by(events.c.revision, events.c.n)
        .limit(bindparam("limit"))
    )
    latest = (
        select(events.c.revision, events.c.n, events.c.event, events.c.chain)
        .where(
            of(events),
            events.c.revision <= bindparam("before_revision"),
            (events.c.revision < bindparam("before_revision")) | (events.c.n < bindparam("before_n")),
        )
        .order_by(events.c.revision.desc(), events.c.n.desc())
        .limit(bindparam("limit"))
    )
    record = insert(events)
    chain_at = select(events.c.chain).where(of(events), events.c.revision == bindparam("revision"), events.c.n == bindparam("n"))
    holds = select(metadata.c.store_revision).where(of(metadata), EXISTS).with_for_update(read=True)
    """Holds the row shared: no commit comes before this transaction has ended. No row: there is no aggregate."""

    def change(self, *, exists: bool) -> Any:
        """A commit's first statement: the guard and the new fold in one. No row: the head is another one."""
        return update(metadata).where(IS_SEEN, EXISTS if exists else IS_GONE).values(self._fold())

    def create(self) -> Insert:
        """The same where no row was seen."""
        return insert(metadata).values(stream_prefix=STREAM, consumer_group=GROUP, **self._fold())

    def _fold(self) -> dict[str, Any]:
        return {
            "metadata_json": bindparam("json"),
            "store_revision": bindparam("new_revision"),
            "schema_version": literal(SCHEMA_VERSION),
            "layout_version": literal(LAYOUT_VERSION),
            "updated_at": self.now,
            "commit_id": bindparam("new_commit_id"),
            "head": bindparam("new_head"),
            "chain": bindparam("new_chain"),
            "identity": bindparam("new_identity"),
        }

    @staticmethod
    def move_head(*, exists: bool) -> Any:
        """An append's first statement."""
        return (
            update(metadata)
            .where(IS_SEEN, EXISTS if exists else IS_GONE)
            .values(head=bindparam("new_head"), chain=bindparam("new_chain"))
        )

    # -- soft state

    def _of_leases(self, dialect: Dialect) -> None:
        def renewed(old: Any, new: Any) -> dict[str, Any]:
            later = dialect.greater(
                func.coalesce(old.deadline_ms, new.deadline_ms), func.coalesce(new.deadline_ms, old.deadline_ms)
            )
            return {"deadline_ms": later, "report": func.coalesce(new.report, old.report)}

        def granted(old: Any, new: Any) -> dict[str, Any]:
            return {"deadline_ms": func.coalesce(old.deadline_ms, new.deadline_ms)}

        def looked(_: Any, new: Any) -> dict[str, Any]:
            return {"looked_at": new.looked_at, "grace_until": new.grace_until}

        self.renew = dialect.upsert(leases, renewed)
        self.grant = dialect.upsert(leases, granted)
        self.look = dialect.upsert(looks, looked)
        deadline: BindParameter[int] = bindparam("deadline")
        self.renew_all = (
            update(leases)
            .where(of(leases), leases.c.deadline_ms.is_not(None))
            .values(deadline_ms=dialect.greater(leases.c.deadline_ms, deadline))
        )
        of_member = and_(of(leases), leases.c.member_key == bindparam("member_key"))
        self.lease = select(self._moment.c.now, leases.c.deadline_ms).select_from(self._moment.outerjoin(leases, of_member))
        self.soft = select(self._moment.c.now, leases.c.member_id, leases.c.deadline_ms, leases.c.report).select_from(
            self._moment.outerjoin(leases, of(leases))
        )

    deadlines = select(leases.c.member_id, leases.c.deadline_ms).where(of(leases), leases.c.deadline_ms.is_not(None))
    some_deadlines = deadlines.where(leases.c.member_key.in_(bindparam("member_keys", expanding=True)))
    forget = delete(leases).where(of(leases), leases.c.member_key.in_(bindparam("member_keys", expanding=True)))
    forget_leases = delete(leases).where(of(leases))
    forget_looks = delete(looks).where(of(looks))
    stand_many = select(*named(metadata), metadata.c.store_revision, metadata.c.commit_id).where(of_many(metadata), EXISTS)
    """Where several aggregates stand; those that do not exist are left out."""
    hold_many = stand_many.order_by(*named(metadata)).with_for_update(read=True)
    """As `holds`, for several groups."""
    looked_many = (
        select(*named(looks), looks.c.looked_at, looks.c.grace_until)
        .where(of_many(looks))
        .order_by(*named(looks))
        .with_for_update()
    )
    deadlines_of_many = select(*named(leases), leases.c.member_id, leases.c.deadline_ms).where(
        of_many(leases), leases.c.deadline_ms.is_not(None)
    )

    # -- what belongs to no aggregate

    def _of_the_rest(self, dialect: Dialect) -> None:
        self.index_add = dialect.upsert(streams, lambda old, _: {"stream_prefix": old.stream_prefix})
        self.note = dialect.upsert(instances, lambda _, new: {"reads_level": new.reads_level, "seen_at": new.seen_at})
        self.turn = dialect.upsert(loop, lambda _, new: {"ticker": new.ticker, "ticked_at": new.ticked_at})
        self.last_tick = select(self._moment.c.now, func.coalesce(loop.c.ticked_at, 0).label("ticked_at")).select_from(
            self._moment.outerjoin(loop, true())
        )
        self.add_request = insert(requests).values(at=self.now, entry=bindparam("entry"))

    prefixes = select(streams.c.stream_prefix)
    index_remove = delete(streams).where(streams.c.stream_prefix == STREAM)
    ticker = select(loop.c.ticker, loop.c.ticked_at).with_for_update()
    notes = select(instances.c.instance, instances.c.reads_level, instances.c.seen_at)
    drop_note = delete(instances).where(instances.c.instance == bindparam("gone"))
    latest_requests = (
        select(requests.c.id, requests.c.entry)
        .where(requests.c.id < bindparam("before"))
        .order_by(requests.c.id.desc())
        .limit(bindparam("limit"))
    )
    trim_requests = delete(requests).where(requests.c.id <= bindparam("upto"))
