"""Routing, version 1: from a key to a shard, from a stream key to a Redis slot.

Every client of a stream must agree on these two functions; `tests/client/routing_vectors.json` holds published vectors.
Source: design page `api.md`, "Routing, version 1".
"""

from __future__ import annotations

import binascii

import mmh3

REDIS_SLOTS = 16384
_HASHES = 2**32


def shard_for(key: str | bytes, shard_count: int) -> int:
    """Return the shard index in `[0, shard_count)` for a key (text counts as its UTF-8 bytes).

    Hashes at the top end that would make the low shards likelier are rejected, and the key is hashed again with the next
    seed. Raises ValueError for a shard count below 1.
    """
    if shard_count < 1:
        message = f"shard_count must be at least 1, got {shard_count}"
        raise ValueError(message)
    data = key.encode() if isinstance(key, str) else key
    limit = _HASHES - _HASHES % shard_count
    seed, attempt = 0, 0
    while (value := mmh3.hash(data, seed, signed=False)) >= limit:
        attempt += 1
        seed = mmh3.hash(attempt.to_bytes(4, "little"), 0, signed=False)
    return value % shard_count


def redis_slot(stream_key: str | bytes) -> int:
    """Return the Redis Cluster slot of a key: CRC16/XMODEM of its hash tag, or of the whole key when it has none."""
    data = stream_key.encode() if isinstance(stream_key, str) else stream_key
    start = data.find(b"{")
    if start >= 0:
        end = data.find(b"}", start + 1)
        if end > start + 1:
            data = data[start + 1 : end]
    return binascii.crc_hqx(data, 0) % REDIS_SLOTS
