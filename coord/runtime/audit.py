"""Audit entries of administrative requests that changed nothing: refused, failed, or about what does not exist.

A request that changed something carries its entry in the commit itself. The others are appended to the log of the aggregate
that they name, at most 60 a minute and process; beyond that one entry says how many were left out. What names no existing
aggregate goes to the store's bounded `:requests`. Then the sink has it (`coord.runtime.auditsinks`). When the store takes none
of it, the entry goes to the structured log at error. Source: design page `events-and-stores.md`, "Events".
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import Final

import msgspec

from coord.events import codec
from coord.events.catalog import AdminRequest, AdminRequestsSuppressed, Event
from coord.names import AggregateKey
from coord.runtime.auditentries import shown, stray_entry_of
from coord.runtime.executor import Executor
from coord.runtime.requests import Errand, RequestInfo
from coord.store.base import StoreError
from coord.wire import AuditEntry

ENTRIES_A_MINUTE_MAX: Final = 60
WINDOWS_MAX: Final = 1_000
APPENDS_MAX: Final = 4
WINDOW_S: Final = 60.0
NS_PER_MS: Final = 1_000_000


@dataclass(slots=True)
class _Window:
    """One aggregate's minute: how many entries were written, how many left out, since when (ms, store clock)."""

    began: float
    since: int
    written: int = 0
    left_out: int = 0


class AuditTrail:
    """Writes audit entries that no commit carries. Never raises."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._windows: OrderedDict[AggregateKey, _Window] = OrderedDict()
        self._lock = threading.Lock()

    def record(self, key: AggregateKey | None, info: RequestInfo, request: AdminRequest) -> None:
        """Write one entry, to the log of `key` if that aggregate exists."""
        delivery, coordinator_id = self._executor.delivery, self._executor.coordinator_id
        stray = stray_entry_of(request, info, at=time.time_ns() // NS_PER_MS, coordinator_id=coordinator_id)
        try:
            if key is None or not self._append(key, info, request, stray):
                self._executor.store.append_request(msgspec.json.encode(stray))
                delivery.deliver(stray, None)
        except StoreError as error:
            delivery.not_stored(stray, error)

    def _append(self, key: AggregateKey, info: RequestInfo, request: AdminRequest, stray: AuditEntry) -> bool:
        """Append to an existing aggregate's log; False when there is none, or it kept moving.

        What the log has no room for in this minute is on no log, though it is counted there: the sink alone may have it.
        """
        if self._executor.aggregates.load(key).state is None:
            return False
        events = self._admitted(key, request)
        if not events:
            self._executor.delivery.deliver(stray, None)
            return True
        for _ in range(APPENDS_MAX):
            seen = self._executor.aggregates.load(key)
            if seen.state is None:
                return False
            cause = self._executor.cause(Errand(actor=info.actor, request_id=info.request_id))
            revision, last = seen.head.last
            entries = codec.seal(
                events,
                revision=revision,
                first=last + 1,
                at=self._executor.clock.now(key),
                cause=cause,
                prev=seen.head.chain,
            )
            if self._executor.store.append(key, expected=seen.head, entries=entries) is not None:
                self._executor.aggregates.forget(key)
                for entry in entries:
                    written = shown(codec.decode(entry), key)
                    assert written is not None, "audit entries and nothing else"
                    self._executor.delivery.deliver(written, key)
                return True
        return False

    def _admitted(self, key: AggregateKey, request: AdminRequest) -> tuple[Event, ...]:
        """Count the entry against its aggregate's minute; give what is to be written now."""
        with self._lock:
            now = time.monotonic()
            window = self._windows.get(key)
            events: tuple[Event, ...] = (request,)
            if window is None or now - window.began >= WINDOW_S:
                if window is not None and window.left_out:
                    events = (AdminRequestsSuppressed(count=window.left_out, since=window.since), request)
                window = self._windows[key] = _Window(began=now, since=self._executor.clock.now(key))
            self._windows.move_to_end(key)
            while len(self._windows) > WINDOWS_MAX:
                self._windows.popitem(last=False)
            if window.written >= ENTRIES_A_MINUTE_MAX:
                window.left_out += 1
                return ()
            window.written += 1
            return events
