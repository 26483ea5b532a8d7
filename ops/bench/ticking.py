"""The tick by itself, in a process of its own: `python -m ops.bench.ticking REDIS_URL KEY_PREFIX GROUPS TICKS IDLE_S`.

Ticks by hand until the caches are full, then as often as asked for; then the ticker's own thread runs at its interval while
nothing else does, and the processor time that it takes is what an idle coordinator costs. Prints a `Told` as JSON.
"""

from __future__ import annotations

import statistics
import sys
import time
from typing import Final

import msgspec

from coord import bootstrap
from coord.observability.logging import configure
from ops.bench.planting import configuration

GROUPS_A_TICK: Final = 200
"""A tick that reads the groups by and by reads at least so many."""
WARM_S_MAX: Final = 20.0
"""A tick that takes so long that this is reached has read them all at once."""


class Told(msgspec.Struct, kw_only=True):
    """Milliseconds a tick, the first of all and the median of the later ones; share of a core that an idle process takes."""

    first_ms: float
    tick_ms: float
    idle_share: float
    interval_ms: int


def main() -> None:
    """Measure and print."""
    redis_url, key_prefix, *numbers = sys.argv[1:]
    groups, ticks, idle_s = map(int, numbers)
    config = configuration(redis_url, key_prefix)
    configure("json", "error", coordinator_id=config.id)
    services = bootstrap.build(config)
    services.store.after_fork()
    first_ms = _timed_ms(services)
    began = time.monotonic()
    for _ in range(groups // GROUPS_A_TICK + 1):
        if time.monotonic() - began < WARM_S_MAX:
            _timed_ms(services)
    tick_ms = statistics.median(_timed_ms(services) for _ in range(ticks))
    services.start()
    time.sleep(config.loop.tick_interval_ms / 1000)
    began, spent = time.monotonic(), time.process_time()
    time.sleep(idle_s)
    share = (time.process_time() - spent) / (time.monotonic() - began)
    services.stop()
    told = Told(first_ms=first_ms, tick_ms=tick_ms, idle_share=share, interval_ms=config.loop.tick_interval_ms)
    sys.stdout.buffer.write(msgspec.json.encode(told))


def _timed_ms(services: bootstrap.Services) -> float:
    began = time.perf_counter()
    if not services.ticker.tick():
        raise RuntimeError("it was not this process's turn to tick")
    return (time.perf_counter() - began) * 1000


if __name__ == "__main__":
    main()
