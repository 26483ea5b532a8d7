"""Rows and the port's values."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, Final, NamedTuple, TypeAlias

from sqlalchemy import Row

from coord.events.chain import GENESIS
from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey
from coord.store.base import CorruptAggregate, Head, StoreUnavailable, Touch
from coord.store.reading import check_head, check_versions

STREAM: Final = ""
"""The consumer group of a stream's own aggregate: no group has an empty name."""
_PLACE: Final = re.compile(r"(0|[1-9][0-9]*)-(0|[1-9][0-9]*)")

Key: TypeAlias = dict[str, Any]
AnyRow: TypeAlias = Row[*tuple[Any, ...]]


def key_of(key: AggregateKey) -> Key:
    """Give an aggregate's key as the statements take it."""
    return {"stream": key.stream_prefix, "group": key.consumer_group if isinstance(key, GroupKey) else STREAM}


def member_key(member_id: str) -> bytes:
    """Give what a member's row is found by."""
    return hashlib.sha256(member_id.encode()).digest()


class Renewal(NamedTuple):
    """What a touch does for one member: `ttl_ms` 0 renews no lease, `report` None stores none."""

    member_id: str
    ttl_ms: int
    report: bytes | None


def renewals_of(touch: Touch) -> list[Renewal]:
    """Give what a touch writes where the aggregate is current."""
    members = dict.fromkeys((*touch.renew, *touch.reports))
    return [Renewal(each, touch.ttl_ms if each in touch.renew else 0, touch.reports.get(each)) for each in members]


def place_of(text: str) -> tuple[int, int] | None:
    """Give (revision, index) of a log entry's id; None for what is none."""
    place = _PLACE.fullmatch(text)
    return (int(place[1]), int(place[2])) if place else None


def place_text(place: tuple[int, int]) -> str:
    """Give the id of a log entry: `<revision>-<index>`."""
    return f"{place[0]}-{place[1]}"


def seen(head: Head) -> dict[str, object]:
    """Give a head as the statements compare it."""
    return {
        "seen_revision": head.revision,
        "seen_commit_id": head.commit_id,
        "seen_head": place_text(head.last),
        "seen_chain": head.chain,
    }


def written(key: AggregateKey, entries: Sequence[Entry], *, commit_id: str | None) -> list[dict[str, object]]:
    """Give entries as rows."""
    base = key_of(key)
    return [
        {
            "stream_prefix": base["stream"],
            "consumer_group": base["group"],
            "revision": entry.revision,
            "n": entry.index,
            "event": entry.body.decode(),
            "chain": entry.chain,
            "commit_id": commit_id,
        }
        for entry in entries
    ]


def entry_of(row: AnyRow) -> Entry:
    """Give the entry of an event row."""
    return Entry(revision=row.revision, index=row.n, body=row.event.encode(), chain=row.chain)


def stored_identity(identity: str | None) -> str:
    """Give the identity as the database told it; StoreUnavailable where it cannot."""
    if identity is None:
        message = "the database has lost the row of coordinator_store: see `coord store migrate`"
        raise StoreUnavailable(message)
    return identity


def last_entry(row: AnyRow) -> Entry | None:
    """Give the log's last entry, without its body."""
    if row.last_revision is None:
        return None
    return Entry(revision=row.last_revision, index=row.last_n, body=b"", chain=row.last_chain)


def stored_head(key: AggregateKey, row: AnyRow, *, exists: bool) -> Head:
    """Give the head that stands beside the aggregate (or in its place); CorruptAggregate for any contradiction with the log."""
    check_versions(key, row.schema_version, row.layout_version)
    if not (place := place_of(row.head)):
        raise CorruptAggregate(key, "head is unreadable")
    head = Head(
        exists=exists,
        revision=row.store_revision,
        commit_id=row.commit_id,
        last=place,
        chain=row.chain,
    )
    last = last_entry(row)
    check_head(key, head, last=last, highest=(last.revision, last.index) if last else (0, 0))
    return head


def end_of(last: Entry | None) -> tuple[tuple[int, int], str]:
    """Give place and chain value of a log's end."""
    return ((last.revision, last.index), last.chain) if last else ((0, 0), GENESIS)
