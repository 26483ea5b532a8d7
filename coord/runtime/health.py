"""Health that neither hangs nor lies: the store is asked at most once a second, whoever asks, and is waited for a moment only.

A store that does not answer at once is told as DOWN, though it may be slow only. Source: design page `api.md`, "Endpoints".
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

import structlog

from coord.runtime.corruption import CorruptionWalk
from coord.runtime.glance import Glance
from coord.store.base import Store, StoreError
from coord.wire import HealthResponse

log: Final = structlog.get_logger(__name__)

FRESH_S: Final = 1.0
PATIENCE_S: Final = 0.5
SURVEY_FRESH_S: Final = 10.0
SURVEY_PATIENCE_S: Final = 0.35
"""Together with `PATIENCE_S` less than the second that probes are commonly given."""
SURVEY_S_MAX: Final = 0.3
RedisState = Literal["UP", "DOWN", "UNKNOWN", "NOT_CONFIGURED"]


class Worry(NamedTuple):
    """What is not as it should be about the store, and whether that makes the health DEGRADED."""

    text: str
    degrades: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class _Look:
    store_up: bool
    loop_age_ms: int | None


class Health:
    """Answers for one process; what it tells of the loop comes from the store, so it is the same in all.

    What cannot be read it names as far as this process has found out (see `coord.runtime.corruption`).

    `redis_counts`: a Redis is configured and needed; `loop_late_ms`: a loop older than this is DOWN; `worries` names what is
    not as it should be about the store, each in a log line once.
    """

    def __init__(
        self,
        *,
        store: Store,
        walk: CorruptionWalk,
        coordinator_id: str,
        redis_counts: bool,
        loop_late_ms: int,
        worries: Callable[[], Sequence[Worry]] = tuple,
    ) -> None:
        self._store = store
        self._walk = walk
        self._coordinator_id = coordinator_id
        self._redis_counts = redis_counts
        self._loop_late_ms = loop_late_ms
        self._ask_worries = worries
        self._worries: frozenset[Worry] = frozenset()
        self._loop_age_ms: int | None = None
        self._unhealthy: tuple[str, ...] = ()
        self._store_glance = Glance(self._ask, fresh_s=FRESH_S, patience_s=PATIENCE_S)
        self._survey_glance = Glance(self._survey, fresh_s=SURVEY_FRESH_S, patience_s=SURVEY_PATIENCE_S)

    def health(self) -> HealthResponse:
        """Give the health; never raises."""
        look = self._store_glance.look() or _Look(store_up=False, loop_age_ms=self._loop_age_ms)
        if look.store_up:
            self._survey_glance.look()
        unhealthy, unsafe = self._unhealthy, any(worry.degrades for worry in self._worries)
        late = look.loop_age_ms is None or look.loop_age_ms > self._loop_late_ms
        redis: RedisState = "NOT_CONFIGURED"
        if self._redis_counts:
            redis = "UP" if look.store_up else "DOWN"
        return HealthResponse(
            status="DOWN" if not look.store_up else "DEGRADED" if late or unhealthy or unsafe else "UP",
            coordinator_id=self._coordinator_id,
            redis=redis,
            loop="DOWN" if late else "UP",
            loop_age_ms=look.loop_age_ms,
            store="UP" if look.store_up else "DOWN",
            unhealthy_groups=unhealthy,
        )

    def _ask(self) -> _Look:
        try:
            ticked_at, now = self._store.last_tick()
        except StoreError:
            return _Look(store_up=False, loop_age_ms=self._loop_age_ms)
        self._loop_age_ms = max(now - ticked_at, 0) if ticked_at else None
        return _Look(store_up=True, loop_age_ms=self._loop_age_ms)

    def _survey(self) -> None:
        """Go on with the walk over all aggregates, to name what cannot be read; ask what is unsafe about the store."""
        deadline = time.monotonic() + SURVEY_S_MAX
        try:
            self._unhealthy = self._walk.step(lambda: time.monotonic() < deadline)
            worries = frozenset(self._ask_worries())
        except StoreError:
            return
        for worry in sorted(worries - self._worries):
            log.warning("the store is not safe as it is", reason=worry.text)
        self._worries = worries
