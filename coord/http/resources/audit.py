"""`/monitoring/…/audit`: who asked for which change, and what became of it. A user sees the streams of its scope only."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Final

import falcon

from coord.http.errors import RefusedError
from coord.http.inputs import check_names, read_audit_query
from coord.http.request import ApiRequest, Principal
from coord.http.resources.base import answer_result
from coord.http.routes import CSV, NDJSON
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.auditformats import csv_lines, ndjson
from coord.runtime.auditreading import AuditReader
from coord.store.base import Store
from coord.wire import AuditEntry

PAGE_LENGTH: Final = 100
"""Entries of a page when the caller names no number."""


class AuditResource:
    """Pages of JSON, newest first; as CSV and ndjson everything that is wanted, oldest first."""

    def __init__(self, store: Store) -> None:
        self._reader = AuditReader(store)

    def on_get_strays(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Show what is on no log: strangers, and names that do not exist."""
        wanted, limit, cursor = read_audit_query(req)
        caller = _caller(req)
        if (media_type := _lines(req)) is None:
            page = self._reader.stray_page(
                wanted, limit=limit or PAGE_LENGTH, cursor=cursor, may_see=lambda entry: _may_see(caller, entry)
            )
            answer_result(req, resp, page)
        else:
            seen = (entry for entry in self._reader.strays(wanted) if _may_see(caller, entry))
            _answer_lines(resp, media_type, seen)

    def on_get_stream(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Show what is on a stream's log."""
        self._answer(req, resp, StreamKey(stream_prefix))

    def on_get_group(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Show what is on a group's log."""
        self._answer(req, resp, GroupKey(stream_prefix, consumer_group))

    def _answer(self, req: ApiRequest, resp: falcon.Response, key: AggregateKey) -> None:
        check_names(req)
        wanted, limit, cursor = read_audit_query(req)
        if (media_type := _lines(req)) is None:
            answer_result(req, resp, self._reader.page(key, wanted, limit=limit or PAGE_LENGTH, cursor=cursor))
        else:
            if refused := self._reader.missing(key):
                raise RefusedError(refused)
            _answer_lines(resp, media_type, self._reader.all_of(key, wanted))


def _lines(req: ApiRequest) -> str | None:
    """Give the media type of lines that the caller prefers, None for a page."""
    preferred = req.client_prefers((falcon.MEDIA_JSON, NDJSON, CSV))
    return preferred if preferred in {NDJSON, CSV} else None


def _answer_lines(resp: falcon.Response, media_type: str, entries: Iterator[AuditEntry]) -> None:
    """Answer line by line; what can be wrong with the store from the beginning is found before the status leaves."""
    lines = csv_lines(entries) if media_type == CSV else ndjson(entries)
    begin = list(islice(lines, 2))
    resp.content_type = f"{media_type}; charset=utf-8"
    resp.stream = chain(begin, lines)


def _may_see(caller: Principal, entry: AuditEntry) -> bool:
    """What names no stream is for those who may see all of them."""
    return "*" in caller.streams if entry.stream_prefix is None else caller.may_touch(entry.stream_prefix)


def _caller(req: ApiRequest) -> Principal:
    principal = req.call.principal
    assert principal is not None, "the gate lets nobody in unnamed"
    return principal
