"""Members of one group that run in one process share their heartbeats' requests.

    http = CoordinatorHttp("http://127.0.0.1:8080/coord/v1")
    batcher = HeartbeatBatcher(http)
    consumers = [Consumer(batcher, "redis://127.0.0.1:6379", ..., member_id=f"billing-{i}") for i in range(16)]

A batcher stands where a member loop expects HTTP. The first heartbeat that comes opens a *gathering*; its thread waits a
short window for the others, sends all of them as one request, and hands each its own answer. Whoever opens a gathering
calls the others to beat along: members that are due soon anyway come at once, so a process falls into step by itself.

* One failed request is one failed heartbeat of each member in it.
* A member's lease counts from its handing over, at most a window before the sending and never after it: the client still
  stops first.
* What refuses a list as a whole says nothing about a member: each then asks alone, within its own time. A server that has
  no lists (an older one) is not asked for them again for a while.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, field
from http import HTTPStatus

from coord.client.errors import CoordinatorError, FatalError, RetriableError
from coord.client.http import CoordinatorHttp
from coord.wire import HEARTBEATS_MAX, HeartbeatRequest, HeartbeatResponse

WINDOW_MS = 20
"""How long a gathering stays open while members are missing from it."""
TIMEOUT_MS = 5_000
OLDER_SERVER_S = 60.0
"""How long a server that has no lists is asked by each member alone, before it is tried again."""
_HAS_NO_LISTS = frozenset(
    {
        HTTPStatus.NOT_FOUND,
        HTTPStatus.METHOD_NOT_ALLOWED,
        # Servers that guard their whole API answer so to paths that they do not know, while heartbeats are open.
        HTTPStatus.UNAUTHORIZED,
        HTTPStatus.FORBIDDEN,
    }
)

_Group = tuple[str, str]


@dataclass(frozen=True, slots=True)
class _Waiting:
    """One heartbeat in a gathering. Its answer is None where the member is to ask alone; `until` is monotonic seconds."""

    body: HeartbeatRequest
    until: float
    answer: Future[HeartbeatResponse | None] = field(default_factory=Future)


@dataclass(slots=True)
class _Gathering:
    """Heartbeats that leave together, by memberId. Complete when nobody is missing, or no more fit."""

    waiting: dict[str, _Waiting] = field(default_factory=dict)
    complete: threading.Event = field(default_factory=threading.Event)


class HeartbeatBatcher:
    """Sends the heartbeats of this process's members of one group as one request. Thread-safe; closes nothing."""

    def __init__(self, http: CoordinatorHttp, *, window_ms: int = WINDOW_MS) -> None:
        self._http = http
        self._window_s = window_ms / 1000
        self._lock = threading.Lock()
        self._members: dict[_Group, dict[str, Callable[[], None]]] = {}
        self._gatherings: dict[_Group, _Gathering] = {}
        self._size_max = HEARTBEATS_MAX
        self._alone_until = 0.0

    def add(self, stream_prefix: str, consumer_group: str, member_id: str, beat_along: Callable[[], None]) -> Callable[[], None]:
        """Let a member take part, and give what ends that. `beat_along` is called, from any thread, when others send.

        Raises ValueError for a member id that takes part already: two processes under one id fence each other.
        """
        group = (stream_prefix, consumer_group)
        with self._lock:
            members = self._members.setdefault(group, {})
            if member_id in members:
                message = f"member_id: {member_id!r} is a member of this group in this process already"
                raise ValueError(message)
            members[member_id] = beat_along

        def remove() -> None:
            with self._lock:
                if members.get(member_id) is beat_along:
                    del members[member_id]

        return remove

    def heartbeat(
        self, stream_prefix: str, consumer_group: str, body: HeartbeatRequest, *, timeout_ms: int | None = None
    ) -> HeartbeatResponse:
        """Carry one heartbeat, together with others or alone; raises RetriableError or FatalError."""
        group = (stream_prefix, consumer_group)
        mine = _Waiting(body, time.monotonic() + (timeout_ms or TIMEOUT_MS) / 1000)
        if self._enter(group, mine):
            try:
                answer = mine.answer.result(max(0.0, mine.until - time.monotonic()))
            except TimeoutError:
                raise RetriableError("timeout", "no answer in time") from None
            if answer is not None:
                return answer
        left_ms = int((mine.until - time.monotonic()) * 1000)
        if left_ms <= 0:
            raise RetriableError("timeout", "no time left for this call")
        return self._http.heartbeat(stream_prefix, consumer_group, body, timeout_ms=left_ms)

    def _enter(self, group: _Group, mine: _Waiting) -> bool:
        """Put a heartbeat into its group's gathering, and see that through if it opens it; False: it goes alone."""
        member_id = mine.body.member_id
        with self._lock:
            members = self._members.get(group, {})
            size = min(len(members), self._size_max)
            if member_id not in members or size <= 1 or time.monotonic() < self._alone_until:
                return False
            gathering = self._gatherings.get(group)
            opens = gathering is None
            if gathering is None:
                gathering = self._gatherings[group] = _Gathering()
            superseded = gathering.waiting.pop(member_id, None)
            gathering.waiting[member_id] = mine
            if len(gathering.waiting) >= size:
                self._close(group, gathering)
            others = [call for name, call in members.items() if name not in gathering.waiting] if opens else []
        if superseded is not None:
            superseded.answer.set_exception(RetriableError("superseded", "the member has sent a newer heartbeat"))
        if opens:
            for beat_along in others:
                beat_along()
            gathering.complete.wait(min(self._window_s, max(0.0, mine.until - time.monotonic())))
            self._send(group, gathering)
        return True

    def _close(self, group: _Group, gathering: _Gathering) -> None:
        """Let nobody more in; the lock is held."""
        if self._gatherings.get(group) is gathering:
            del self._gatherings[group]
        gathering.complete.set()

    def _send(self, group: _Group, gathering: _Gathering) -> None:
        """Send a gathering and give everybody in it an answer, whatever happens."""
        with self._lock:
            self._close(group, gathering)
        waiting = list(gathering.waiting.values())
        try:
            for each, answer in zip(waiting, self._asked(group, waiting), strict=True):
                if isinstance(answer, RetriableError):
                    each.answer.set_exception(answer)
                else:
                    each.answer.set_result(answer)
        except BaseException as error:  # whoever waits must hear of it, whatever it is
            for each in waiting:
                if not each.answer.done():
                    each.answer.set_exception(error)
            if not isinstance(error, CoordinatorError):
                raise

    def _asked(self, group: _Group, waiting: list[_Waiting]) -> list[HeartbeatResponse | RetriableError | None]:
        """Ask for all at once, within the time of who has least; None for each where they are to ask alone."""
        alone: list[HeartbeatResponse | RetriableError | None] = [None] * len(waiting)
        if len(waiting) == 1:
            return alone
        left_ms = int((min(each.until for each in waiting) - time.monotonic()) * 1000)
        if left_ms <= 0:
            raise RetriableError("timeout", "no time left for this call")
        try:
            return [*self._http.heartbeats(*group, [each.body for each in waiting], timeout_ms=left_ms)]
        except CoordinatorError as error:
            if error.http_status in _HAS_NO_LISTS:
                self._alone_until = time.monotonic() + OLDER_SERVER_S
            elif error.http_status == HTTPStatus.REQUEST_ENTITY_TOO_LARGE:
                self._size_max = max(1, len(waiting) // 2)
            elif not isinstance(error, FatalError):
                raise
            return alone
