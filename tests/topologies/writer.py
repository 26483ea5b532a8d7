"""A writer that never stops: what a coordinator does to a group while topologies change, and what must come of it."""

from __future__ import annotations

import time
from threading import Event as Signal
from threading import Thread
from typing import Self

from coord.names import GroupKey
from coord.store.base import Committed, StoreError, StoreUnavailable
from coord.store.redis.store import RedisStore
from tests.servers import wait_until
from tests.store.author import KEY, commit_on

SLACK_S = 3.0
"""What a loaded test machine may add to a bound."""
HEALED_S_MAX = 60.0


class Writer:
    """Commits to a group without pause, as a coordinator would, and counts; conflicts are decided again."""

    def __init__(self, store: RedisStore, key: GroupKey = KEY) -> None:
        self._timeout_s = store._commands._template.settings.timeout_ms / 1000
        self._store = store
        self._key = key
        self._done = Signal()
        self.acknowledged: list[tuple[int, str]] = []
        self.longest_s = 0.0
        self.surprises: list[Exception] = []
        self._thread = Thread(target=self._run)

    def _run(self) -> None:
        while not self._done.is_set():
            begun = time.monotonic()
            try:
                commit = commit_on(self._store.load(self._key), key=self._key)
                answer = self._store.commit(commit)
                if isinstance(answer, Committed):
                    self.acknowledged.append((answer.head.revision, answer.head.chain))
            except StoreUnavailable:
                pass
            except (StoreError, AssertionError, ValueError) as error:
                self.surprises.append(error)
                return
            self.longest_s = max(self.longest_s, time.monotonic() - begun)
            time.sleep(0.002)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def wait_for_more(self) -> float:
        """Wait until it writes again; gives how long that took, s."""
        begun, count = time.monotonic(), len(self.acknowledged)
        wait_until(lambda: len(self.acknowledged) > count + 3, timeout_s=HEALED_S_MAX, what="commits go on")
        return time.monotonic() - begun

    def judge(self, store: RedisStore, *, lost_at_most: int) -> None:
        """Nothing was written twice, the log has no gap, and what was acknowledged is in it but for what Redis itself lost."""
        assert self.surprises == []
        assert self.longest_s < 2 * self._timeout_s + SLACK_S
        log = store.tail(self._key, after=(0, 0), limit=100_000)
        assert [entry.entry_id for entry in log] == [f"{number}-0" for number in range(1, len(log) + 1)]
        assert store.load(self._key).head.last == (len(log), 0)
        there = {(entry.revision, entry.chain) for entry in log}
        assert len([one for one in self.acknowledged if one not in there]) <= lost_at_most
