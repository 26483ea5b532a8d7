"""A port beside the store: what was answered to the latest mutations that came with an idempotency key.

An answer is opaque bytes under a name, in the place of one aggregate. Source: design page `api.md`, "Idempotency".
"""

from __future__ import annotations

from dataclasses import dataclass
from hashlib import sha256
from typing import Final, Protocol

from coord.names import AggregateKey

ANSWERS_MAX: Final = 32
"""Answers kept for an aggregate; the one that was put longest ago goes first."""
ANSWERS_TTL_MS: Final = 24 * 60 * 60 * 1000
"""How long after the last change all answers of an aggregate go."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Swapped:
    """`done`: what was seen was there, and its place is taken. `there`: what was there, None for nothing. `now`: ms."""

    done: bool
    there: bytes | None
    now: int


def digest_of(name: str) -> bytes:
    """Give what an answer is found by: every store keeps this in the place of its name, so that it can be carried to any."""
    return sha256(name.encode("utf-8", "surrogatepass")).digest()


class Answers(Protocol):
    """Answers by aggregate and name. Safe for threads, bounded in time and memory."""

    def swap(self, key: AggregateKey, name: str, *, seen: bytes | None, put: bytes | None, alone: bool = False) -> Swapped:
        """Put `put` (None: nothing) where `seen` (None: nothing) is, in one atomic step, or leave all as it is.

        `alone`: when done, every other answer of this aggregate goes. `now` is the store's clock. May raise StoreUnavailable;
        then it may have been done. No value is empty.
        """
