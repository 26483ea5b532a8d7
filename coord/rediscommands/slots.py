"""Redis Cluster slots of keys."""

from __future__ import annotations

from binascii import crc_hqx
from typing import Final

SLOTS: Final = 16384


def slot_of(key: str) -> int:
    """Give the Redis Cluster slot of a key: CRC16 (XMODEM) of its hash tag, else of all of it.

    The hash tag is what stands between the first `{` and the first `}` after it, unless nothing does.
    """
    raw = key.encode()
    opened = raw.find(b"{")
    closed = raw.find(b"}", opened + 1) if opened >= 0 else -1
    if closed > opened + 1:
        raw = raw[opened + 1 : closed]
    return crc_hqx(raw, 0) % SLOTS
