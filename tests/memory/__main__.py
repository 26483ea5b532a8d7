"""See the package: `python -m tests.memory --requests 1000000`."""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from tests.fuzz.sockets import memory_kib
from tests.http.served import Served, serving
from tests.memory.flood import send

STEPS: Final = 20
SENDERS: Final = 4
WARM: Final = 0.25
"""After this share of the requests every bounded table of the worker is full."""
MORE_KIB_MAX: Final = 8 * 1024
CONFIG: Final = """coordinator:
  api:
    rate-limit: {enabled: true, admin-mutations-per-minute: 60}
"""


def flood(served: Served, *, first: int, count: int) -> Counter[int]:
    """Send a stretch of requests by several senders."""
    share = -(-count // SENDERS)
    with ThreadPoolExecutor(SENDERS) as pool:
        parts = pool.map(
            lambda index: send(served.port, first=first + index * share, count=min(share, count - index * share)), range(SENDERS)
        )
        return sum(parts, Counter())


def main() -> None:
    """Flood one worker; exit code 1 when its memory rose."""
    parser = argparse.ArgumentParser(prog="python -m tests.memory")
    parser.add_argument("--requests", type=int, default=1_000_000)
    chosen = parser.parse_args()
    statuses: Counter[int] = Counter()
    seen: list[tuple[int, int]] = []
    with (
        tempfile.TemporaryDirectory() as name,
        serving(Path(name), "--embedded-redis", "--workers", "1", "--log-level", "error", config=CONFIG) as served,
    ):
        step = -(-chosen.requests // STEPS)
        began_s = time.monotonic()
        for first in range(0, chosen.requests, step):
            statuses += flood(served, first=first, count=min(step, chosen.requests - first))
            seen.append((statuses.total(), memory_kib(served)))
            print(f"{seen[-1][0]:>9} requests {time.monotonic() - began_s:6.0f} s {seen[-1][1]:>8} KiB", flush=True)
    warm = [kib for sent, kib in seen if sent >= WARM * chosen.requests]
    rise_kib = max(warm[len(warm) // 2 :]) - max(warm[: len(warm) // 2])
    print(f"statuses {dict(sorted(statuses.items()))}")
    print(f"highest in the first half after the start {max(warm[: len(warm) // 2])} KiB, in the second {rise_kib:+} KiB")
    if statuses[500] or rise_kib > MORE_KIB_MAX:
        sys.exit(1)


if __name__ == "__main__":
    main()
