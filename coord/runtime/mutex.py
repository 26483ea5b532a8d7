"""The state mutex: keeps instances from wasting work on each other. What makes updates safe is the guard of the commit.

`contended`: taken after a lost compare-and-set; who does not get it in time goes on without it, a jittered pause later.
`always`: taken before every change, in the order acquire, read, process, save, release; who does not get it is refused.
A mutex is one acquire's own, by a random token: other threads and processes neither share nor release it. It is renewed while it
is held; one that lapsed all the same is a normal outcome. Source: design page `events-and-stores.md`, "Group commit".
"""

from __future__ import annotations

import random
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Final, Literal, Protocol

import structlog

from coord.names import AggregateKey
from coord.store.base import StoreError, StoreUnavailable

log: Final = structlog.get_logger(__name__)

RENEW_SHARE: Final = 1 / 3
"""The share of the time to live after which a mutex is renewed."""
RENEWALS_MAX: Final = 30
"""A holder that hangs is not renewed for ever: about ten times to live."""
LINGER_S: Final = 5.0
"""How long the renewing thread waits for another mutex before it ends."""


class Mutexes(Protocol):
    """Where mutexes are kept. Each call is bounded and may raise StoreUnavailable."""

    def take(self, key: AggregateKey, token: str, *, ttl_ms: int) -> bool:
        """Take it unless another token holds it."""

    def keep(self, key: AggregateKey, token: str, *, ttl_ms: int) -> bool:
        """Renew it; False when it was lost."""

    def release(self, key: AggregateKey, token: str) -> bool:
        """Give it back; False when it had been lost."""


class MutexUnavailable(Exception):
    """The mutex of an aggregate was not to be had in time, and going on without it is not allowed (`always`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MutexPolicy:
    """When the mutex is taken, and within what bounds (ms). `acquire_timeout_ms` is for a command as a whole."""

    strategy: Literal["contended", "always"] = "contended"
    ttl_ms: int = 3000
    acquire_timeout_ms: int = 5000
    retry_interval_ms: int = 100


@dataclass(slots=True, eq=False)
class Turn:
    """One command's turn on an aggregate. Not for use by two threads."""

    key: AggregateKey
    _mutex: StateMutex | None = None
    is_held: bool = False
    token: str = field(default_factory=lambda: uuid.uuid4().hex)
    waited_s: float = 0.0
    may_be_held: bool = False
    """The token was sent, and may hold the mutex though no answer said so."""
    kept_at: float = 0.0
    renewals: int = 0

    def contended(self) -> None:
        """Say that a compare-and-set was lost: returns with the mutex, or without it after a pause. Never raises."""
        if self._mutex is not None:
            self._mutex.after_conflict(self)


class StateMutex:
    """The mutexes of one process. `mutexes` None: there are none (one process only, or switched off)."""

    def __init__(
        self, mutexes: Mutexes | None, policy: MutexPolicy | None = None, *, pause: Callable[[float], None] = time.sleep
    ) -> None:
        self._mutexes = mutexes
        self._policy = policy or MutexPolicy()
        self._pause = pause
        self._held: set[Turn] = set()
        self._changed = threading.Condition()
        self._renewer: threading.Thread | None = None

    @contextmanager
    def around(self, key: AggregateKey) -> Iterator[Turn]:
        """Give one command's turn on an aggregate; with `always` only once the mutex is held, else MutexUnavailable."""
        if self._mutexes is None:
            yield Turn(key)
            return
        turn = Turn(key, self)
        if self._policy.strategy == "always" and not self._acquire(self._mutexes, turn):
            message = f"{key}: the state mutex was not free within {self._policy.acquire_timeout_ms} ms"
            raise MutexUnavailable(message)
        is_store_away = False
        try:
            yield turn
        except StoreUnavailable:
            is_store_away = True
            raise
        finally:
            self._give_back(self._mutexes, turn, is_store_away=is_store_away)

    def after_conflict(self, turn: Turn) -> None:
        """Take the mutex, if there is time left for it; else pause."""
        assert self._mutexes is not None
        if turn.is_held:
            return
        try:
            if self._acquire(self._mutexes, turn):
                return
        except StoreError as error:
            log.warning("state mutex cannot be asked for; going on without it", aggregate=str(turn.key), reason=str(error))
        self._pause(self._interval_s())

    def _acquire(self, mutexes: Mutexes, turn: Turn) -> bool:
        """Try until the command's time for this is up."""
        limit_s = self._policy.acquire_timeout_ms / 1000
        if turn.waited_s >= limit_s:
            return False
        began = time.monotonic() - turn.waited_s
        while True:
            turn.may_be_held = True
            sent_at = time.monotonic()
            try:
                taken = mutexes.take(turn.key, turn.token, ttl_ms=self._policy.ttl_ms)
            finally:
                turn.waited_s = time.monotonic() - began
            if taken:
                self._hold(turn, sent_at)
                return True
            turn.may_be_held = False
            if turn.waited_s >= limit_s:
                log.warning("state mutex not free in time", aggregate=str(turn.key), waitedMs=int(turn.waited_s * 1000))
                return False
            self._pause(min(self._interval_s(), limit_s - turn.waited_s))
            turn.waited_s = time.monotonic() - began

    def _interval_s(self) -> float:
        return self._policy.retry_interval_ms / 1000 * random.uniform(0.5, 1.5)

    def _give_back(self, mutexes: Mutexes, turn: Turn, *, is_store_away: bool) -> None:
        """Release what is held; where the store is away, the time to live does it."""
        with self._changed:
            self._held.discard(turn)
        if not turn.may_be_held or is_store_away:
            return
        try:
            if not mutexes.release(turn.key, turn.token) and turn.is_held:
                log.warning("state mutex had lapsed before it was given back", aggregate=str(turn.key))
        except StoreError as error:
            log.warning("state mutex not given back; it lapses by itself", aggregate=str(turn.key), reason=str(error))
        turn.is_held = turn.may_be_held = False

    # -- renewal while held

    def _hold(self, turn: Turn, since: float) -> None:
        turn.is_held = True
        turn.kept_at = since
        with self._changed:
            self._held.add(turn)
            if self._renewer is None or not self._renewer.is_alive():
                self._renewer = threading.Thread(target=self._renew, name="state-mutex", daemon=True)
                self._renewer.start()
            self._changed.notify()

    def _renew(self) -> None:
        """Renew what is held, until nothing has been for a while."""
        every_s = self._policy.ttl_ms / 1000 * RENEW_SHARE
        while True:
            with self._changed:
                if not self._held and not self._changed.wait_for(lambda: bool(self._held), timeout=LINGER_S):
                    self._renewer = None
                    return
                held = list(self._held)
            wait_s = every_s
            for turn in held:
                left_s = turn.kept_at + every_s - time.monotonic()
                if left_s <= 0:
                    self._keep(turn)
                    left_s = every_s
                wait_s = min(wait_s, left_s)
            time.sleep(wait_s)

    def _keep(self, turn: Turn) -> None:
        assert self._mutexes is not None
        turn.kept_at = time.monotonic()
        turn.renewals += 1
        try:
            kept = turn.renewals <= RENEWALS_MAX and self._mutexes.keep(turn.key, turn.token, ttl_ms=self._policy.ttl_ms)
        except StoreError:
            return  # the next renewal, or the end of its time to live, decides
        if not kept:
            with self._changed:
                self._held.discard(turn)
