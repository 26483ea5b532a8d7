"""The data plane in memory: shards with entries, Redis consumer groups with pending entries; a double of `ShardStreams`."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field

from coord.streams.provisioning import NoProof, Proof, Provisioned, ProvisioningFailed
from coord.streams.shards import shard_key


@dataclass(slots=True)
class ConsumerGroup:
    """What a Redis consumer group knows of a shard: how far it was delivered, and what is pending with whom."""

    delivered: int = 0
    pending: dict[int, str] = field(default_factory=dict)
    acked: set[int] = field(default_factory=set)


@dataclass(slots=True)
class Stream:
    """A shard: entries are numbered from 1."""

    last: int = 0
    groups: dict[str, ConsumerGroup] = field(default_factory=dict)


class SimulatedShards:
    """Same methods as `coord.streams.provisioning.ShardStreams`; a call fails by chance, having done nothing."""

    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self.fault = 0.0
        self.streams: dict[str, Stream] = {}
        self.seen_drained: Callable[[str], None] = lambda _key: None

    # -- producers and consumers

    def add(self, key: str) -> bool:
        """XADD NOMKSTREAM."""
        stream = self.streams.get(key)
        if stream is None:
            return False
        stream.last += 1
        return True

    def read(self, key: str, group: str, consumer: str, count: int) -> bool:
        """Take over what is pending with others, then read new entries, as a consumer that owns the shard does."""
        found = self.streams.get(key)
        reader = found.groups.get(group) if found is not None else None
        if found is None or reader is None:
            return False
        for entry in reader.pending:
            reader.pending[entry] = consumer
        fresh = range(reader.delivered + 1, min(found.last, reader.delivered + count) + 1)
        reader.pending.update(dict.fromkeys(fresh, consumer))
        reader.delivered = max(reader.delivered, fresh.stop - 1)
        return bool(reader.pending)

    def acknowledge(self, key: str, group: str, consumer: str) -> None:
        """XACK all that is pending with this consumer."""
        found = self.streams.get(key)
        reader = found.groups.get(group) if found is not None else None
        if reader is not None:
            done = [entry for entry, owner in reader.pending.items() if owner == consumer]
            for entry in done:
                del reader.pending[entry]
            reader.acked.update(done)

    def unread(self, key: str, group: str) -> int:
        """Count what a group has not acknowledged; all of it, where the group is not there."""
        found = self.streams.get(key)
        if found is None:
            return 0
        reader = found.groups.get(group)
        return found.last if reader is None else found.last - reader.delivered + len(reader.pending)

    # -- the coordinator's side

    def provision(self, stream_prefix: str, shards: Iterable[int], groups: Mapping[str, str]) -> Provisioned:
        """Make shards and consumer groups where missing; may fail half-way."""
        keys: list[str] = []
        made: list[tuple[str, str]] = []
        for shard in shards:
            key = shard_key(stream_prefix, shard)
            if self._chance.random() < self.fault:
                raise ProvisioningFailed(key, "fault", made=Provisioned(keys=tuple(keys), groups=tuple(made)))
            if key not in self.streams:
                self.streams[key] = Stream()
                keys.append(key)
            stream = self.streams[key]
            for name, start in groups.items():
                if name not in stream.groups:
                    stream.groups[name] = ConsumerGroup(delivered=stream.last if start == "$" else 0)
                    made.append((key, name))
        return Provisioned(keys=tuple(keys), groups=tuple(made))

    def remove_created(self, created: Provisioned) -> tuple[str, ...]:
        """Remove keys that were made and are still empty."""
        gone = tuple(key for key in created.keys if self.streams.get(key, Stream(last=1)).last == 0)
        for key in gone:
            del self.streams[key]
        return gone

    def missing(self, stream_prefix: str, shards: Iterable[int]) -> tuple[str, ...]:
        """Name the keys that are no stream."""
        keys = [shard_key(stream_prefix, shard) for shard in shards]
        return tuple(key for key in keys if key not in self.streams)

    def prove_drained(self, stream_prefix: str, shard: int) -> Proof:
        """Tell what is in the way; an error is no proof."""
        proof = self._look(stream_prefix, shard)
        if proof.is_drained:
            self.seen_drained(proof.key)
        return proof

    def _look(self, stream_prefix: str, shard: int) -> Proof:
        key = shard_key(stream_prefix, shard)
        if self._chance.random() < self.fault:
            raise NoProof(f"{key}: fault")
        stream = self.streams.get(key)
        if stream is None:
            return Proof(key=key, blockers=())
        if not stream.groups:
            return Proof(key=key, blockers=("no consumer group",) if stream.last else ())
        blockers = [f"group {name}: {self.unread(key, name)}" for name in sorted(stream.groups) if self.unread(key, name)]
        return Proof(key=key, blockers=tuple(blockers))

    def delete_if_drained(self, stream_prefix: str, shard: int) -> Proof:
        """Remove a shard that is proved drained."""
        proof = self.prove_drained(stream_prefix, shard)
        if proof.is_drained:
            self.streams.pop(proof.key, None)
        return proof

    def destroy_consumer_group(self, stream_prefix: str, shards: Iterable[int], name: str) -> dict[str, int]:
        """Destroy a consumer group; give what was pending."""
        pending: dict[str, int] = {}
        for shard in shards:
            key = shard_key(stream_prefix, shard)
            stream = self.streams.get(key)
            if stream is not None and name in stream.groups:
                pending[key] = len(stream.groups.pop(name).pending)
        return pending
