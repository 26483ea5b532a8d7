"""The local lease, as the member loop writes it and the readers see it."""

from __future__ import annotations

from dataclasses import dataclass

from coord.client.trace import now_ns


@dataclass(slots=True)
class Lease:
    """The local lease. Written by the member loop alone, read by every reader without a lock: one int is one reference."""

    until_ns: int = 0
    ttl_ns: int = 0

    def left_ns(self) -> int:
        """What is left of it; below zero when it is over."""
        return self.until_ns - now_ns()
