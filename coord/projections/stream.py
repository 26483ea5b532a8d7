"""The stream aggregate: write set, read set, registered groups, resharding, retired shards.

Small and seldom changed, so it is one immutable struct, stored as it is. Source: design page `protocol.md`, "Streams, groups
and resharding".
"""

from __future__ import annotations

from typing import Final, Literal, TypeAlias

from msgspec import Struct

from coord.events.catalog import FollowedMigration, Shards

ENDED_MAX: Final = 100
"""How many ended reshardings an aggregate remembers; older ones are in the log."""

ReshardingState: TypeAlias = Literal["PREPARING", "ACTIVE", "DRAINING", "DEPRECATED", "ROLLING_BACK", "ROLLED_BACK"]


class Resharding(Struct, frozen=True, rename="camel", kw_only=True):
    """A change of the shard count. Times in ms, 0 for not yet.

    `drained`: the shards that go are proved empty, or `forcedBy` said so; `blockersPassed`: although something was in the way.
    """

    resharding_id: str
    from_shard_count: int
    to_shard_count: int
    state: ReshardingState
    created_at: int
    updated_at: int
    activated_at: int
    drained: bool
    forced_by: str | None
    blockers_passed: bool
    requested_by: str
    reason: str | None

    @property
    def leaving(self) -> range:
        """The shards that this resharding takes away, or, rolling back, had added."""
        if self.state in ("ROLLING_BACK", "ROLLED_BACK"):
            return range(self.from_shard_count, self.to_shard_count)
        return range(self.to_shard_count, self.from_shard_count)

    def followed(self) -> FollowedMigration:
        """Give it as a group follows it."""
        return FollowedMigration(
            resharding_id=self.resharding_id,
            from_shard_count=self.from_shard_count,
            to_shard_count=self.to_shard_count,
            state=self.state,
        )


class RegisteredGroup(Struct, frozen=True, rename="camel", kw_only=True):
    """A group in the stream's list; `registeredRevision` is the stream revision that put it there, at `registeredAt` (ms)."""

    start_from: str
    registered_revision: int
    registered_at: int
    how: str


class Stream(Struct, frozen=True, rename="camel", kw_only=True):
    """A stream's folded state, as stored.

    `shardCount`: the write set 0 .. n-1; `readSet`: what members are assigned; `topologyRevision`: the revision of the last
    change of either, or of a resharding's state, which groups follow; `identityChangedAt`: when
    the store was last found to be another one (0: never); `retired`: shard -> end of its watch (ms); `reopened`:
    retired shards that are read again.
    """

    stream_prefix: str
    store_revision: int
    topology_revision: int
    shard_count: int
    read_set: Shards
    metadata_version: int
    start_from: str
    groups: dict[str, RegisteredGroup]
    resharding: Resharding | None
    ended: tuple[Resharding, ...]
    retired: dict[str, int]
    reopened: Shards
    identity: str
    identity_changed_at: int
    created_at: int
    updated_at: int

    def followed(self) -> FollowedMigration | None:
        """Give the active resharding as groups follow it."""
        return self.resharding.followed() if self.resharding is not None else None

    def migration(self, resharding_id: str) -> Resharding | None:
        """Find a resharding by its id, active or ended."""
        candidates = (*self.ended, self.resharding) if self.resharding else self.ended
        return next((r for r in candidates if r.resharding_id == resharding_id), None)
