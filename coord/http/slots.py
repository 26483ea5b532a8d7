"""Permits that all workers of an instance share, whoever of them dies: one a core for what keeps a core busy."""

from __future__ import annotations

import fcntl
import os
import tempfile
import threading
from collections.abc import Iterator
from contextlib import contextmanager


class Slots:
    """So many permits for this process and all that are forked from it later. Shared by all threads.

    A permit is a lock on a byte of a file that has no name: the system takes it back from a process that ends, however it ends.
    It is the process's own, so that within one a lock of ours stands before it.
    """

    def __init__(self, count: int) -> None:
        self._file = _nameless_file()
        self._own = [threading.Lock() for _ in range(count)]

    @contextmanager
    def one(self) -> Iterator[bool]:
        """Hold a permit for the block, if there is one now; gives whether there was. Never waits."""
        slot = self._take()
        try:
            yield slot is not None
        finally:
            if slot is not None:
                fcntl.lockf(self._file, fcntl.LOCK_UN, 1, slot)
                self._own[slot].release()

    def _take(self) -> int | None:
        for slot, own in enumerate(self._own):
            if own.acquire(blocking=False):
                if self._is_free_elsewhere(slot):
                    return slot
                own.release()
        return None

    def _is_free_elsewhere(self, slot: int) -> bool:
        try:
            fcntl.lockf(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, slot)
        except OSError:
            return False
        return True


def _nameless_file() -> int:
    """Give the descriptor of a file that forks inherit; in memory where the system can, for a container may write nowhere."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create("coord-slots")
    with tempfile.TemporaryFile() as file:
        return os.dup(file.fileno())
