"""Reads audit entries back: from the logs of streams and groups, also of those that were deleted, and from `:requests`.

A page goes back from the newest and looks at a bounded number of log entries; what is exported goes forward through all of
them, page by page. Reads only.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import msgspec

from coord.events import codec
from coord.events.catalog import GroupRegistered
from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.refusals import Code, Refused
from coord.runtime.auditentries import shown
from coord.runtime.listings import cursor_of, cursor_parts
from coord.runtime.requests import Result
from coord.runtime.shown import iso
from coord.runtime.verify import entries_of, groups_of
from coord.store.base import CorruptAggregate, Store
from coord.wire import AuditEntry, AuditResponse

PAGE: Final = 1_000
LOOKED_AT_MAX: Final = 10_000
"""Log entries that are looked at for one page."""
_AUDIT: Final = b'{"type":"AdminRequest'
"""How the canonical bodies of both kinds of audit entries begin."""
_REGISTERED: Final = b'{"type":"GroupRegistered",'
_NUMBER: Final = re.compile(r"[0-9]{1,18}")
_PLACE: Final = re.compile(r"[0-9]{1,18}(-[0-9]{1,18})?")


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which entries are wanted: from `since` on, before `until` (ms), of this action and outcome; None: any."""

    since: int | None = None
    until: int | None = None
    action: str | None = None
    outcome: str | None = None

    def admits(self, entry: AuditEntry) -> bool:
        """Tell whether an entry is wanted; times are texts of one width, so that they compare as texts."""
        return (
            (self.since is None or entry.timestamp >= iso(self.since))
            and (self.until is None or entry.timestamp < iso(self.until))
            and (self.action is None or entry.action == self.action)
            and (self.outcome is None or entry.outcome == self.outcome)
        )


ALL: Final = Wanted()


def everything(entry: AuditEntry) -> bool:  # noqa: ARG001  every entry may be seen
    """Let every entry be seen."""
    return True


class AuditReader:
    """Reads from a store. Raises StoreUnavailable and CorruptAggregate."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def missing(self, key: AggregateKey) -> Refused | None:
        """Refuse what never was: it has no log."""
        if self._store.latest(key, before=None, limit=1):
            return None
        what, code = ("group", Code.GROUP_NOT_FOUND) if isinstance(key, GroupKey) else ("stream", Code.STREAM_NOT_FOUND)
        return Refused(code, f"{what} {key} does not exist, nor did it")

    def page(self, key: AggregateKey, wanted: Wanted, *, limit: int, cursor: str | None) -> Refused | Result[AuditResponse]:
        """Give the newest entries of a log, below the cursor."""
        parts = cursor_parts(cursor)
        if isinstance(parts, Refused):
            return parts
        if parts is not None and (len(parts) != 2 or not all(_NUMBER.fullmatch(part) for part in parts)):  # noqa: PLR2004  revision, index
            return _foreign_cursor()
        if refused := self.missing(key):
            return refused
        place = None if parts is None else (int(parts[0]), int(parts[1]))
        found: list[AuditEntry] = []
        looked_at = 0
        while looked_at < LOOKED_AT_MAX:
            entries = self._store.latest(key, before=place, limit=PAGE)
            for entry in entries:
                place = (entry.revision, entry.index)
                looked_at += 1
                audit = _read(entry, key)
                if audit is not None and wanted.admits(audit):
                    found.append(audit)
                    if len(found) == limit:
                        return _page(found, str(place[0]), str(place[1]))
            if len(entries) < PAGE:
                return _page(found)
        assert place is not None, "something was looked at"
        return _page(found, str(place[0]), str(place[1]))

    def stray_page(
        self, wanted: Wanted, *, limit: int, cursor: str | None, may_see: Callable[[AuditEntry], bool] = everything
    ) -> Refused | Result[AuditResponse]:
        """Give the newest entries that are on no log, below the cursor."""
        parts = cursor_parts(cursor)
        if isinstance(parts, Refused):
            return parts
        if parts is not None and (len(parts) != 1 or not _PLACE.fullmatch(parts[0])):
            return _foreign_cursor()
        found: list[AuditEntry] = []
        try:
            for place, entry in self._newest_strays(parts[0] if parts else None):
                if wanted.admits(entry) and may_see(entry):
                    found.append(entry)
                    if len(found) == limit:
                        return _page(found, place)
        except ValueError:  # a place of another kind of store
            return _foreign_cursor()
        return _page(found)

    def all_of(self, key: AggregateKey, wanted: Wanted = ALL) -> Iterator[AuditEntry]:
        """Give all wanted entries of a log, oldest first."""
        for entry in entries_of(self._store, key):
            audit = _read(entry, key)
            if audit is not None and wanted.admits(audit):
                yield audit

    def strays(self, wanted: Wanted = ALL) -> Iterator[AuditEntry]:
        """Give all wanted entries that are on no log, oldest first: there is a bound to how many there are."""
        newest_first = [entry for _, entry in self._newest_strays(None) if wanted.admits(entry)]
        yield from reversed(newest_first)

    def _newest_strays(self, before: str | None) -> Iterator[tuple[str, AuditEntry]]:
        while kept := self._store.requests(before=before, limit=PAGE):
            for place, body in kept:
                with suppress(msgspec.MsgspecError):  # what is no entry was put there by somebody else
                    yield place, msgspec.json.decode(body, type=AuditEntry)
            before = kept[-1][0]


def every_log(store: Store, stream: str | None = None, group: str | None = None) -> Iterator[AggregateKey]:
    """Give the streams of the index and all groups that they ever had; or those of one stream, or one group alone."""
    if stream is not None and group is not None:
        yield GroupKey(stream, group)
        return
    for prefix in store.streams() if stream is None else (stream,):
        key = StreamKey(prefix)
        yield key
        yield from (GroupKey(prefix, name) for name in sorted({*_once_registered(store, key), *_registered(store, key)}))


def _registered(store: Store, key: StreamKey) -> Iterator[str]:
    return (group.consumer_group for group in groups_of(store, key))


def _once_registered(store: Store, key: StreamKey) -> Iterator[str]:
    """Give the names of all groups that a stream's log tells of, as far as it can be read."""
    with suppress(CorruptAggregate):
        for entry in entries_of(store, key):
            if entry.body.startswith(_REGISTERED):
                with suppress(codec.MalformedEntry):
                    event = codec.decode(entry).event
                    assert isinstance(event, GroupRegistered)
                    yield event.consumer_group


def _read(entry: Entry, key: AggregateKey) -> AuditEntry | None:
    if not entry.body.startswith(_AUDIT):
        return None
    try:
        return shown(codec.decode(entry), key)
    except codec.MalformedEntry as error:
        raise CorruptAggregate(key, str(error)) from error


def _page(found: list[AuditEntry], *cursor: str) -> Result[AuditResponse]:
    return Result(AuditResponse(entries=tuple(found), next_cursor=cursor_of(*cursor) if cursor else None), 0)


def _foreign_cursor() -> Refused:
    return Refused(Code.INVALID_REQUEST, "cursor: is not one that this path gave")
