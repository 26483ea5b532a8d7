"""Whether a coordinator works on a store: its ticker is seen, whoever it is."""

from __future__ import annotations

import time
from typing import Final

from coord.store.base import Store

TICKS_WAITED: Final = 3
"""For how many intervals of a ticker a store is watched before it counts as left alone."""
POLL_S: Final = 0.1


def at_work(store: Store, *, tick_ms: int) -> str:
    """Say that somebody ticks on a store, "" when nobody does; it is watched for a few intervals where somebody did lately."""
    ticked_at, now = store.last_tick()
    watched_ms = TICKS_WAITED * tick_ms
    if not ticked_at or abs(now - ticked_at) > watched_ms:
        return ""
    until_s = time.monotonic() + watched_ms / 1000
    while time.monotonic() < until_s:
        time.sleep(min(POLL_S, watched_ms / 1000))
        again, now = store.last_tick()
        if again != ticked_at:
            return f"a coordinator works on it: it ticked {max(now - again, 0)} ms ago"
    return ""
