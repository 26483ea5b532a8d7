"""A SQL store, and the hands of fate for what is under it."""

from __future__ import annotations

import time
from dataclasses import dataclass

from sqlalchemy import text

from coord.names import GroupKey
from coord.store.sql.store import SqlStore


@dataclass
class SqlWorld:
    """What fate does goes the way of the store's own connections."""

    store: SqlStore

    def wait(self, ms: int) -> None:
        time.sleep((ms + 1) / 1000)

    def lose_log(self, key: GroupKey) -> None:
        self._execute("DELETE FROM coordinator_events", key)

    def lose_last_entry(self, key: GroupKey) -> None:
        last = self.store.tail(key, after=(0, 0), limit=1_000)[-1]
        self._execute("DELETE FROM coordinator_events", key, revision=last.revision, n=last.index)

    def lose_metadata(self, key: GroupKey) -> None:
        self._execute("DELETE FROM coordinator_metadata", key)

    def set_versions(self, key: GroupKey, schema: int, layout: int) -> None:
        self._execute(f"UPDATE coordinator_metadata SET schema_version = {schema}, layout_version = {layout}", key)

    def set_revision(self, key: GroupKey, revision: int) -> None:
        self._execute(f"UPDATE coordinator_metadata SET store_revision = {revision}", key)

    def _execute(self, statement: str, key: GroupKey, **more: object) -> None:
        values: dict[str, object] = {"stream_prefix": key.stream_prefix, "consumer_group": key.consumer_group, **more}
        where = " AND ".join(f"{name} = :{name}" for name in values)
        changed = self.store._connections.write(
            lambda connection: connection.execute(text(f"{statement} WHERE {where}"), values).rowcount
        )
        assert changed >= 1
