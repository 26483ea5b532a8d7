"""Windows in a SQL database: one row a principal and aggregate, counted under its lock and by the database's clock."""

from __future__ import annotations

import hashlib
from typing import Final

from sqlalchemy import BigInteger, Connection, bindparam, delete, literal_column, select, update

from coord.names import AggregateKey
from coord.store.base import StoreError
from coord.store.sql.access import Access
from coord.store.sql.faults import told
from coord.store.sql.rows import key_of
from coord.store.sql.tables import windows

CLEARED_MAX: Final = 10
"""Rows of windows that are over that each new window removes: more than it adds, so that they do not pile up."""


class SqlWindows:
    """`coord.store.windows.Windows` on a SQL database: a count is one short transaction."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._hold = access.dialect.upsert(windows, lambda old, _: {"taken": old.taken})
        now = literal_column(access.dialect.clock, BigInteger).label("now")
        place = windows.c.place == bindparam("of")
        self._held = select(now, windows.c.ends_at, windows.c.taken).where(place)
        self._count = update(windows).where(place).values(ends_at=bindparam("ends"), taken=bindparam("count"))
        self._now = select(now)
        self._over = (
            select(windows.c.place)
            .where(windows.c.ends_at <= bindparam("before"))
            .order_by(windows.c.ends_at)
            .limit(CLEARED_MAX)
            .with_for_update()
        )
        self._clear = delete(windows).where(windows.c.place.in_(bindparam("places", expanding=True)))

    def take(self, key: AggregateKey, principal: str, *, limit: int, window_ms: int) -> int:
        """Count one, unless the window is full."""
        place = place_of(key, principal)

        def count(connection: Connection) -> tuple[int, bool]:
            connection.execute(self._hold, [{"place": place, "ends_at": 0, "taken": 0}])
            now, ends_at, taken = connection.execute(self._held, {"of": place}).one()  # the clock once the row is held
            ends = now - now % window_ms + window_ms
            begins = ends_at != ends
            taken = 0 if begins else taken
            if taken >= limit:
                return ends - now, False
            connection.execute(self._count, {"of": place, "ends": ends, "count": taken + 1})
            return 0, begins

        with told():
            wait_ms, begun = self._access.write_once(count)
        if begun:
            self._clear_what_is_over()
        return wait_ms

    def _clear_what_is_over(self) -> None:
        """Remove a few; what cannot be removed now is left to the next window."""

        def clear(connection: Connection) -> None:
            now = connection.execute(self._now).scalar_one()
            over = connection.execute(self._over, {"before": now}).scalars().all()
            if over:
                connection.execute(self._clear, {"places": over})

        try:
            with told():
                self._access.write(clear)
        except StoreError:
            return  # it was counted


def place_of(key: AggregateKey, principal: str) -> bytes:
    """Give what a principal's row for an aggregate is found by: a digest of all names, none of which runs into the next."""
    whole = hashlib.sha256()
    for part in (*key_of(key).values(), principal):
        data = part.encode("utf-8", "surrogatepass")
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.digest()
