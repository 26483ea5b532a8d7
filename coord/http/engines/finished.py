"""How the threads of a gunicorn worker hand what they have done to its main loop."""

from __future__ import annotations

import contextlib
import os
import queue
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from gunicorn.workers.gthread import PollableMethodQueue

AT_ONCE_MAX: Final = 256
"""So many answers are followed up before the main loop looks for other events."""


class Finished(PollableMethodQueue):  # type: ignore[misc]  # gunicorn ships no types
    """What threads have done, for the main loop; of many that finish at once, one wakes it.

    Each write to the pipe would let another thread run first, and its writer wait for its turn.
    """

    def __init__(self) -> None:
        super().__init__()
        self._is_told = False

    def defer(self, callback: Callable[..., None], *args: Any) -> None:
        """Have something called by the main loop."""
        self._queue.put(partial(callback, *args))
        if not self._is_told:
            self._is_told = True
            with contextlib.suppress(OSError):  # full: it will be read; closed: the worker ends, and nobody waits for it
                os.write(self._write_fd, b"\0")

    def run_callbacks(self, _fileobj: Any, max_callbacks: int = AT_ONCE_MAX) -> None:
        """Call what waits: what is put after the flag is down wakes the loop anew."""
        with contextlib.suppress(OSError):
            os.read(self._read_fd, max_callbacks)
        self._is_told = False
        with contextlib.suppress(queue.Empty):
            for _ in range(max_callbacks):
                self._queue.get_nowait()()
            self.defer(_nothing)  # there may be more: other events have their turn first


def _nothing() -> None:
    """Only wakes the main loop."""
