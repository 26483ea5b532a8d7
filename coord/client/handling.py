"""Entries and their handler: how often it is tried, how many run at once, and what becomes of an entry that it cannot do."""

from __future__ import annotations

import logging
import threading
from dataclasses import dataclass
from typing import Protocol

from coord.client.health import ShardHealth

_log = logging.getLogger("coord.client.handling")
_PERMIT_WAIT_S = 0.05


@dataclass(frozen=True, slots=True)
class Entry:
    """A record of a shard. Fields are bytes as Redis holds them: a payload that is no UTF-8 reaches the handler too."""

    shard: int
    stream_key: str
    id: str
    fields: dict[bytes, bytes]


class Handler(Protocol):
    """Works on one entry; returning acknowledges it. Raising leaves it pending (see `ReaderSettings.attempts_max`)."""

    def __call__(self, entry: Entry, /) -> None:
        """Work on one entry."""


class PoisonPolicy(Protocol):
    """Asked when the handler failed for good; True acknowledges the entry (it was put aside), False leaves it pending."""

    def __call__(self, entry: Entry, error: Exception, /) -> bool:
        """Say whether the entry is to be acknowledged."""


def leave_pending(entry: Entry, error: Exception, /) -> bool:
    """Keep a poisonous entry pending: it is tried again when the shard is taken over, and stands in health until then."""
    del entry, error
    return False


@dataclass(frozen=True, slots=True, kw_only=True)
class ReaderSettings:
    """How shards are read. Times in milliseconds."""

    batch_max: int = 10
    block_ms: int = 500
    """Longest wait for new entries; always cut to a quarter of the lease and to what is left of it."""
    attempts_max: int = 3
    retry_backoff_ms: int = 100
    on_poison: PoisonPolicy = leave_pending
    ack_delay_ms_max: int = 100
    """Longest that a handled entry waits to be acknowledged together with its neighbours."""
    claim_page: int = 100
    sweep_interval_ms: int = 5_000
    """How often pending entries of earlier holders are looked for again."""
    redis_backoff_ms_max: int = 1_000
    lease_margin_ms: int = 50
    """No call to Redis begins this close to the end of the lease (at most a tenth of the lease)."""


class Permits:
    """How many handlers run at once in this process. The heartbeat reads `free` and takes no lock."""

    def __init__(self, concurrency: int) -> None:
        self.concurrency = concurrency
        self.free = concurrency
        self._changed = threading.Condition()

    def acquire(self, *, timeout_s: float) -> bool:
        """Take a permit; False when none was free in time."""
        with self._changed:
            if not self._changed.wait_for(lambda: self.free > 0, timeout_s):
                return False
            self.free -= 1
            return True

    def release(self) -> None:
        """Give a permit back."""
        with self._changed:
            self.free += 1
            self._changed.notify()


class Holding(Protocol):
    """The tenancy for which an entry is handled."""

    @property
    def draining(self) -> bool:
        """The shard was revoked: finish, but begin nothing that can wait."""

    def may_touch(self) -> bool:
        """The shard is held and the lease runs."""

    def pause(self, delay_ms: int) -> None:
        """Sleep, but wake up when told to drain or lose."""


class Handling:
    """Runs the handler on one entry at a time, for one shard."""

    def __init__(
        self, handler: Handler, settings: ReaderSettings, permits: Permits, health: ShardHealth, holding: Holding
    ) -> None:
        self._handler = handler
        self._settings = settings
        self._permits = permits
        self._health = health
        self._holding = holding

    def handle(self, entry: Entry) -> bool:
        """Run the handler, at most `attempts_max` times; True when the entry may be acknowledged."""
        attempt = 0
        while True:
            if attempt and (self._holding.draining or not self._holding.may_touch()):
                return False
            if not self._acquire_permit():
                return False
            failure = self._failure(entry)
            if failure is None:
                self._health.handled += 1
                if entry.id in self._health.poison_ids:  # tried again after a take-over or an outage, and done
                    self._health.poison_ids.remove(entry.id)
                return True
            self._health.handler_errors += 1
            self._health.last_error = f"{entry.id}: {type(failure).__name__}: {failure}"
            if attempt + 1 >= self._settings.attempts_max:
                return self._put_aside(entry, failure)
            self._holding.pause(self._settings.retry_backoff_ms * 2**attempt)
            attempt += 1

    def _failure(self, entry: Entry) -> Exception | None:
        try:
            self._handler(entry)
        except Exception as error:  # noqa: BLE001  the handler is foreign code: its failure is one entry's, not the shard's
            return error
        finally:
            self._permits.release()
        return None

    def _put_aside(self, entry: Entry, failure: Exception) -> bool:
        _log.error("entry %s of %s failed %d times: %r", entry.id, entry.stream_key, self._settings.attempts_max, failure)
        try:
            aside = self._settings.on_poison(entry, failure)
        except Exception as error:  # noqa: BLE001  as above
            self._health.last_error = f"{entry.id}: on_poison: {type(error).__name__}: {error}"
            aside = False
        if not aside and entry.id not in self._health.poison_ids:
            self._health.poison_ids.append(entry.id)
        return aside

    def _acquire_permit(self) -> bool:
        while self._holding.may_touch():
            if self._permits.acquire(timeout_s=_PERMIT_WAIT_S):
                if self._holding.may_touch():
                    return True
                self._permits.release()
        return False
