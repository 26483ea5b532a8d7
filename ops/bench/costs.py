"""What one answer costs whom: processor time of each program that takes part, and how often threads had to wait for each other.

This is the profile behind a ratio: two cores serve all programs, so the sum of their times bounds what can be answered.
"""

from __future__ import annotations

import os
import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_TICKS_A_SECOND: Final = os.sysconf("SC_CLK_TCK")
_USER_FIELD: Final = 11
"""In `/proc/PID/stat`, counted after the name; system time follows it."""
US: Final = 1_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class Programs:
    """Who takes part: `servers` answer HTTP, `stores` are what they ask (nobody: none)."""

    servers: Callable[[], Sequence[int]]
    stores: Sequence[int] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Usage:
    """Processor seconds so far, and the servers' voluntary context switches."""

    server_s: float
    store_s: float
    load_s: float
    switches: int

    @classmethod
    def of(cls, programs: Programs) -> Usage:
        """Look at the programs now; the load generators are the children of this process that have ended."""
        servers = programs.servers()
        load = resource.getrusage(resource.RUSAGE_CHILDREN)
        return cls(
            server_s=_seconds(servers),
            store_s=_seconds(programs.stores),
            load_s=load.ru_utime + load.ru_stime,
            switches=sum(_switches(servers)),
        )

    def since(self, before: Usage, *, answers: int) -> Mapping[str, float]:
        """Give what each of so many answers has cost, µs, and the waits of server threads in it."""
        return {
            "us_server": (self.server_s - before.server_s) / answers * US,
            "us_store": (self.store_s - before.store_s) / answers * US,
            "us_load": (self.load_s - before.load_s) / answers * US,
            "waits": (self.switches - before.switches) / answers,
        }


def _seconds(pids: Iterable[int]) -> float:
    total = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        total += int(fields[_USER_FIELD]) + int(fields[_USER_FIELD + 1])
    return total / _TICKS_A_SECOND


def _switches(pids: Iterable[int]) -> Iterator[int]:
    for pid in pids:
        for status in Path(f"/proc/{pid}/task").glob("*/status"):
            with suppress(OSError):  # a thread may have ended
                lines = status.read_text(encoding="utf-8").splitlines()
                yield from (int(line.split()[1]) for line in lines if line.startswith("voluntary_ctxt_switches"))
