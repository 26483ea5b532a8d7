"""Names and slots of shard keys."""

from __future__ import annotations

from coord.rediscommands.slots import slot_of

__all__ = ["shard_key", "slot_of"]


def shard_key(stream_prefix: str, shard_index: int) -> str:
    """Give the key of a shard: `<streamPrefix>:<shardIndex>`."""
    return f"{stream_prefix}:{shard_index}"
