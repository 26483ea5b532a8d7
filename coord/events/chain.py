"""The hash chain over a log's entries.

chain = SHA-256(previous 32 bytes || the stored body exactly as written); the chain before the first entry is 32 zero
bytes. The chain value is stored beside the body, so the body's bytes never contain it. Source: design page
`events-and-stores.md`, "Events".
"""

from __future__ import annotations

from hashlib import sha256

GENESIS = "0" * 64
"""The chain value (hex) before the first entry of a log."""


def link(previous: str, body: bytes) -> str:
    """Give the chain value (hex) of an entry with this body that follows an entry with the chain value `previous`."""
    return sha256(bytes.fromhex(previous) + body).hexdigest()
