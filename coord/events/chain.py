"""The hash chain over a log's entries.

chain = SHA-256(previous 32 bytes || the stored body exactly as written); the chain before the first entry is 32 zero
bytes. The chain value is stored beside the body, so the body's bytes never contain it. Source: design page
`events-and-stores.md`, "Events".
"""

from __future__ import annotations

from hashlib import sha256
from typing import TypeAlias

Place: TypeAlias = tuple[int, int]
"""Where an entry stands in its log: revision, and index within the commit."""

GENESIS = "0" * 64
"""The chain value (hex) before the first entry of a log."""


def link(previous: str, body: bytes) -> str:
    """Give the chain value (hex) of an entry with this body that follows an entry with the chain value `previous`."""
    return sha256(bytes.fromhex(previous) + body).hexdigest()


def continues(last: Place, place: Place) -> bool:
    """Tell whether an entry at `place` may follow one at `last`: the next of its commit, or the first of the next commit."""
    return place in ((last[0], last[1] + 1), (last[0] + 1, 0))
