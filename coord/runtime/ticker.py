"""The tick: what only time brings. It runs in a worker, one instance at a time; it survives any exception and shows its age.

Each tick looks whether any stream of the index has changed, reads those that have, looks at the groups whose time or turn it is
(`coord.runtime.looks`), and takes reshardings forward; trouble with one aggregate stops that one only.
Source: design page `protocol.md`, "Time".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import structlog

from coord.events import codec
from coord.names import StreamKey
from coord.runtime.clock import JumpDetector
from coord.runtime.executor import Executor
from coord.runtime.groups import GroupSagas, stream_of
from coord.runtime.looks import GroupLooks
from coord.runtime.resharder import Resharder
from coord.runtime.watches import StreamWatch, Watches
from coord.store.base import Standing, Store, StoreError

log: Final = structlog.get_logger(__name__)

STOP_WAIT_S: Final = 5.0
EACH_TICK_MAX: Final = 256
"""So many groups are looked at in every tick; more take turns."""


class Ticker:
    """One thread a process. `instance` is unique to the process; `interval_ms` is the pause between ticks.

    When not `enabled` it only announces the instance, so that others know which events it reads.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        sagas: GroupSagas,
        resharder: Resharder,
        instance: str,
        interval_ms: int,
        enabled: bool = True,
    ) -> None:
        self._executor = executor
        self._resharder = resharder
        self._instance = instance
        self._interval_ms = interval_ms
        self._enabled = enabled
        self._jumps = JumpDetector(executor.clock.monotonic_ns)
        self._stop = threading.Event()
        self.watches = Watches(
            executor.policy, interval_ms=interval_ms, monotonic_ns=executor.clock.monotonic_ns, each_tick_max=EACH_TICK_MAX
        )
        self._looks = GroupLooks(executor, sagas, interval_ms=interval_ms, is_over=self._stop.is_set)
        self._thread: threading.Thread | None = None

    @property
    def _live_ms(self) -> int:
        """For so long after its last word an instance counts as live: what it may not read is not emitted yet."""
        return max(2 * self._executor.policy.member_lease_ttl_ms, 10 * self._interval_ms)

    @property
    def takeover_ms(self) -> int:
        """After this long without a tick, another instance takes over."""
        return max(self._executor.policy.member_lease_ttl_ms // 4, self._interval_ms)

    def start(self) -> None:
        """Start the loop in this process (after a fork, never before)."""
        self._stop.clear()
        self._thread = threading.Thread(target=self._run, name="ticker", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop; bounded."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(STOP_WAIT_S)
            self._thread = None

    def _run(self) -> None:
        while not self._stop.is_set():
            started = time.monotonic()
            try:
                self.tick()
            except StoreError as error:
                log.warning("tick skipped: the store is away", reason=str(error))
            except Exception:
                log.exception("tick failed")
            spent_s = time.monotonic() - started
            self._stop.wait(max(self._interval_ms / 1000 - spent_s, 0.01))

    def tick(self) -> bool:
        """Say that this instance is alive, and tick once if it is its turn; tells whether it was."""
        store = self._executor.store
        self._executor.level = store.announce(self._instance, reads=codec.LEVEL, within_ms=self._live_ms)
        if not self._enabled:
            return False
        turn = store.take_turn(self._instance, takeover_ms=self.takeover_ms)
        if not turn.mine:
            return False
        jumped = self._jumps.jumped(turn.now)
        if jumped:
            log.warning("the store's clock jumped; a grace of one lease begins")
        streams = self._see_streams(store.streams())
        self._looks.look(self.watches.to_look_at(streams, everything=jumped), grace=jumped)
        for watch in streams:
            if self._stop.is_set():
                break
            with _guarded(watch.key):
                self._advance(watch)
        return True

    def _see_streams(self, prefixes: Sequence[str]) -> list[StreamWatch]:
        """Read the streams that changed since the last tick; gives the watches of all that can be read."""
        keys = [StreamKey(prefix) for prefix in prefixes]
        for gone in self.watches.streams.keys() - set(prefixes):
            del self.watches.streams[gone]
        seen: list[StreamWatch] = []
        for key, standing in zip(keys, self._executor.store.standings(keys), strict=True):
            with _guarded(key):
                watch = self._see_stream(key, standing)
                if watch is not None:
                    seen.append(watch)
        return seen

    def _see_stream(self, key: StreamKey, standing: Standing | StoreError) -> StreamWatch | None:
        if isinstance(standing, StoreError):
            raise standing
        self._executor.clock.observe(key, standing.now)
        watch = self.watches.streams.get(key.stream_prefix)
        if watch is not None and watch.is_current(standing):
            return watch
        read = self._executor.aggregates.load(key)
        if read.state is None:
            self.watches.streams.pop(key.stream_prefix, None)
            _drop_from_index(self._executor.store, self._executor, key)
            return None
        return self.watches.of(key, read)

    def _advance(self, watch: StreamWatch) -> None:
        """Take the stream's resharding forward; its groups follow at once."""
        before, topology = watch.stream.store_revision, watch.topology
        if self._resharder.advance(watch.stream).store_revision == before:
            return
        known = self._executor.aggregates.cached(watch.key)
        if known is None or known.state is None:
            return  # read again at the next tick
        self.watches.of(watch.key, known)
        if watch.topology is not topology:
            self._looks.follow(list(watch.groups.values()))


@contextmanager
def _guarded(key: StreamKey) -> Iterator[None]:
    """Let trouble with one stream be told, and no more."""
    try:
        yield
    except StoreError as error:
        log.error("stream cannot be ticked", streamPrefix=key.stream_prefix, reason=str(error))
    except Exception:
        log.exception("stream tick failed", streamPrefix=key.stream_prefix)


def _drop_from_index(store: Store, executor: Executor, key: StreamKey) -> None:
    """Take a stream that does not exist out of the index; put it back if it was created meanwhile."""
    store.index_remove(key)
    if stream_of(executor, key) is not None:
        store.index_add(key)
