"""Which server a key is on, and what an answer says about that: one server, a master behind Sentinels, or a cluster.

Nothing here repeats a command. A topology only says where a command that surely did not run may be sent next.
"""

from __future__ import annotations

import os
import random
import threading
import time
import weakref
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Final, Protocol, TypeVar

from coord.rediscommands.errors import Refused, Unreachable
from coord.rediscommands.link import remaining
from coord.rediscommands.links import Links
from coord.rediscommands.settings import RedisSettings

T = TypeVar("T")

LOOK_AGAIN_S: Final = 0.1
"""How often, at most, a topology in doubt is asked for."""
COMPLAIN_EVERY_S: Final = 10.0
NOT_SERVING: Final = frozenset({"READONLY", "LOADING", "MASTERDOWN"})
"""What a server says that is no master, or not yet. It ran nothing."""


@dataclass(frozen=True, slots=True)
class Step:
    """Where to send a command that was not run: to `links`, or (None) to whoever holds its key by then.

    `asking`: behind an ASKING. `waits`: not at once.
    """

    links: Links | None = None
    asking: bool = False
    waits: bool = True


class Topology(Protocol):
    """Finds servers. Safe for threads and over a fork; every look is bounded by a deadline and made by one thread at a time."""

    heals: bool
    """Whether a command that left this process nowhere may find another server on a second try."""

    def links_for(self, key: str, *, deadline: float) -> Links:
        """Give the connections to the server that holds `key`; Unreachable when that is not known."""

    def doubt(self) -> None:
        """Take note that a server did not answer: what is known may be old."""

    def judge(self, refusal: Refused, links: Links) -> Step | None:
        """Say where to go with a command that `links` refused and did not run; None: the refusal is the answer."""

    def masters(self, *, deadline: float) -> Sequence[Links]:
        """Give the connections to each server that takes writes."""

    def after_fork(self) -> None:
        """Start afresh in a child process."""

    def close(self) -> None:
        """Close all idle connections; a later call opens new ones."""


class Standalone:
    """One server, or a name or a load balancer that always leads to the right one."""

    heals = False

    def __init__(self, settings: RedisSettings) -> None:
        self._links = Links(settings)

    def links_for(self, key: str, *, deadline: float) -> Links:
        """Give the connections to the server: it holds all keys."""
        del key, deadline
        return self._links

    def doubt(self) -> None:
        """Know nothing that could be old."""

    def judge(self, refusal: Refused, links: Links) -> Step | None:
        """Take every refusal for an answer; what is no master any more is left, so that the name may lead to another."""
        if refusal.code in NOT_SERVING:
            links.drop()
        if refusal.code in {"MOVED", "ASK", "CROSSSLOT"}:
            message = f"{refusal} (this Redis is a cluster: name its nodes in redis.cluster.nodes)"
            raise Refused(message)
        return None

    def masters(self, *, deadline: float) -> Sequence[Links]:
        """Give the connections to the server."""
        del deadline
        return (self._links,)

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""
        self._links.after_fork()

    def close(self) -> None:
        """Close all idle connections."""
        self._links.drop()


class Doubt:
    """Whether what is known may be old, and whether it is time to look again. Looks that fail are not repeated at once."""

    def __init__(self) -> None:
        self._is_on = False
        self._looked_at = float("-inf")
        self._complained_at = float("-inf")

    @property
    def age_s(self) -> float:
        """How long ago somebody looked last."""
        return time.monotonic() - self._looked_at

    def raise_it(self) -> None:
        """Doubt what is known."""
        self._is_on = True

    def is_due(self) -> bool:
        """Tell whether to look now."""
        return self._is_on and self.age_s >= LOOK_AGAIN_S

    def looking(self) -> None:
        """Take note that somebody looks now; doubts that come up meanwhile count for the next look."""
        self._is_on = False
        self._looked_at = time.monotonic()

    def complains(self) -> bool:
        """Tell whether a look that failed is worth a line in the log: not each of many."""
        if time.monotonic() - self._complained_at < COMPLAIN_EVERY_S:
            return False
        self._complained_at = time.monotonic()
        return True


_flights: weakref.WeakSet[SingleFlight] = weakref.WeakSet()


class SingleFlight:
    """One thread asks; those that come meanwhile wait, and take its answer, good or bad, for theirs."""

    def __init__(self) -> None:
        self.after_fork()
        _flights.add(self)

    def after_fork(self) -> None:
        """Leave a lock behind that a thread of the parent process may have held."""
        self._asking = threading.Lock()
        self._rounds = 0
        self._failure = ""

    def fly(self, ask: Callable[[], None], *, deadline: float) -> None:
        """Run `ask`, or wait for who runs it; raises its Unreachable, or one of its own at the deadline."""
        rounds = self._rounds
        if not self._asking.acquire(timeout=remaining(deadline)):
            message = "another look for the Redis servers has not ended in time"
            raise Unreachable(message, sent=False)
        try:
            if self._rounds != rounds:
                if self._failure:
                    raise Unreachable(self._failure, sent=False)
                return
            self._failure = ""
            try:
                ask()
            except Unreachable as error:
                self._failure = str(error)
                raise
            finally:
                self._rounds += 1
        finally:
            self._asking.release()

    @property
    def is_flying(self) -> bool:
        """Whether somebody asks at this moment."""
        return self._asking.locked()


def _after_fork() -> None:
    for flight in list(_flights):
        flight.after_fork()


os.register_at_fork(after_in_child=_after_fork)


def each_in_time(candidates: Iterable[T], *, deadline: float) -> Iterable[tuple[T, float]]:
    """Give each candidate with a deadline of its own, so that silent ones leave time for the rest."""
    waiting = list(candidates)
    while waiting and (left_s := deadline - time.monotonic()) > 0:
        yield waiting[0], time.monotonic() + left_s / len(waiting)
        del waiting[0]


class Patience:
    """How long a command that was not run is tried again: a share of its time, with jittered pauses, and not for ever."""

    SHARE: Final = 0.25
    PAUSE_S_FIRST: Final = 0.01
    PAUSE_S_MAX: Final = 0.1
    HOPS_MAX: Final = 16

    def __init__(self, deadline: float) -> None:
        now = time.monotonic()
        self._until = now + (deadline - now) * self.SHARE
        self._hops = 0
        self._pause_s = self.PAUSE_S_FIRST

    def hop(self) -> bool:
        """Tell whether the command may go on elsewhere at once."""
        self._hops += 1
        return self._hops <= self.HOPS_MAX

    def wait(self) -> bool:
        """Pause, and tell whether the command may be tried again."""
        pause_s = self._pause_s * random.uniform(0.5, 1)
        self._pause_s = min(self._pause_s * 2, self.PAUSE_S_MAX)
        if time.monotonic() + pause_s > self._until:
            return False
        time.sleep(pause_s)
        return True
