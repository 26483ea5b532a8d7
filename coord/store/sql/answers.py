"""Answers in a SQL database: a row each, and one for their aggregate, whose lock makes a swap one step."""

from __future__ import annotations

from typing import Final

from sqlalchemy import BigInteger, Connection, and_, bindparam, case, delete, insert, literal_column, select, update

from coord.names import AggregateKey
from coord.store.answers import ANSWERS_MAX, ANSWERS_TTL_MS, Swapped, digest_of
from coord.store.base import StoreError
from coord.store.sql.access import Access
from coord.store.sql.faults import told
from coord.store.sql.rows import Key, key_of
from coord.store.sql.statements import GROUP, STREAM, of
from coord.store.sql.tables import answered, answers

CLEARED_MAX: Final = 2
"""Aggregates whose answers are over that each new one removes: more than it adds, so that they do not pile up."""


class SqlAnswers:
    """`coord.store.answers.Answers` on a SQL database: a look is one statement, a change one short transaction."""

    def __init__(self, access: Access) -> None:
        self._access = access
        now = literal_column(access.dialect.clock, BigInteger).label("now")
        moment = select(now).subquery("moment")
        named = and_(of(answers), answers.c.name_key == bindparam("name"))
        self._look = select(moment.c.now, answered.c.changed_at, answers.c.answer).select_from(
            moment.outerjoin(answered, of(answered)).outerjoin(answers, named)
        )
        self._hold = access.dialect.upsert(answered, lambda old, _: {"changed_at": old.changed_at})
        self._held = select(now, answered.c.changed_at).where(of(answered))
        mine = case((answers.c.name_key == bindparam("name"), answers.c.answer)).label("answer")
        self._kept = select(answers.c.name_key, answers.c.n, mine).where(of(answers)).order_by(answers.c.n)
        self._now = select(now)
        self._over = (
            select(answered.c.stream_prefix, answered.c.consumer_group)
            .where(answered.c.changed_at <= bindparam("before"))
            .order_by(answered.c.changed_at)
            .limit(CLEARED_MAX)
            .with_for_update()
        )

    _put = insert(answers).values(
        stream_prefix=STREAM, consumer_group=GROUP, name_key=bindparam("name"), n=bindparam("number"), answer=bindparam("put")
    )
    _changed = update(answered).where(of(answered)).values(changed_at=bindparam("at"))
    _forget = delete(answers).where(of(answers), answers.c.name_key.in_(bindparam("names", expanding=True)))
    _forget_all = delete(answers).where(of(answers))
    _forget_aggregate = delete(answered).where(of(answered))

    def swap(self, key: AggregateKey, name: str, *, seen: bytes | None, put: bytes | None, alone: bool = False) -> Swapped:
        """Put an answer where `seen` is."""
        values = key_of(key) | {"name": digest_of(name)}
        with told(key):
            looked = self._access.read(lambda connection: self._looked(connection, values, seen))
            if not looked.done or (seen is None and put is None and not alone):
                return looked
            swapped, begun = self._access.write_once(
                lambda connection: self._swap(connection, values, seen=seen, put=put, alone=alone)
            )
        if begun:
            self._clear_what_is_over()
        return swapped

    def _looked(self, connection: Connection, values: Key, seen: bytes | None) -> Swapped:
        """Tell what is there at this moment; `done`: it is what was seen."""
        row = connection.execute(self._look, values).one()
        there = None if row.answer is None or _is_over(row.changed_at, row.now) else bytes(row.answer)
        return Swapped(done=there == seen, there=there, now=row.now)

    def _swap(
        self, connection: Connection, values: Key, *, seen: bytes | None, put: bytes | None, alone: bool
    ) -> tuple[Swapped, bool]:
        """Change under the lock of the aggregate's row; and whether that row is new."""
        key = {"stream": values["stream"], "group": values["group"]}
        connection.execute(self._hold, [{"stream_prefix": key["stream"], "consumer_group": key["group"], "changed_at": 0}])
        now, changed_at = connection.execute(self._held, key).one()
        is_over = _is_over(changed_at, now)
        rows = [] if is_over else connection.execute(self._kept, values).all()
        kept = {bytes(row.name_key): row for row in rows}
        mine = kept.pop(values["name"], None)
        there = bytes(mine.answer) if mine is not None else None
        if there != seen:
            return Swapped(done=False, there=there, now=now), False
        stay = [] if alone else list(kept)[-(ANSWERS_MAX - (put is not None)) :]
        if is_over or not stay:
            connection.execute(self._forget_all, key)
        elif gone := [each for each in (*kept, values["name"]) if each not in stay]:
            connection.execute(self._forget, key | {"names": gone})
        if put is not None:
            connection.execute(self._put, values | {"number": max((row.n for row in rows), default=0) + 1, "put": put})
        if put is None and not stay:
            connection.execute(self._forget_aggregate, key)
        else:
            connection.execute(self._changed, key | {"at": now})
        return Swapped(done=True, there=there, now=now), is_over and put is not None

    def _clear_what_is_over(self) -> None:
        """Remove a few aggregates' answers; what cannot be removed now is left to the next."""

        def clear(connection: Connection) -> None:
            before = connection.execute(self._now).scalar_one() - ANSWERS_TTL_MS
            over = [{"stream": row[0], "group": row[1]} for row in connection.execute(self._over, {"before": before})]
            for each in over:
                connection.execute(self._forget_all, each)
                connection.execute(self._forget_aggregate, each)

        try:
            with told():
                self._access.write(clear)
        except StoreError:
            return  # the swap itself is done


def _is_over(changed_at: int | None, now: int) -> bool:
    return changed_at is None or now - changed_at >= ANSWERS_TTL_MS
