"""Requests to change something: imperative, immutable, stamped once at the edge."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TypeAlias

from msgspec import Struct

from coord.events.catalog import FollowedMigration, Shards


class Heartbeat(Struct, frozen=True, kw_only=True):
    """A member says that it is alive and what it holds. Rows 1 to 17 of the table in design page `protocol.md`.

    `owned`: O; `draining`: D, shards it is still giving up; `revoked`: shards it has given up (REVOKED, nothing in flight).
    """

    path_member_id: str
    member_id: str
    member_name: str | None
    request_id: str
    protocol_version: int
    member_epoch: int
    metadata_version: int
    runtime_max_concurrency: int
    owned: frozenset[int]
    draining: frozenset[int]
    revoked: frozenset[int]

    def is_like(self, other: Heartbeat) -> bool:
        """Tell whether another heartbeat of the same member says the same, its request id aside."""
        return (
            self.member_epoch == other.member_epoch
            and self.metadata_version == other.metadata_version
            and self.owned == other.owned
            and self.draining == other.draining
            and self.revoked == other.revoked
            and self.runtime_max_concurrency == other.runtime_max_concurrency
            and self.member_name == other.member_name
            and self.path_member_id == other.path_member_id
            and self.protocol_version == other.protocol_version
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Tick:
    """What the clock brings: `lapsed` leases (member -> deadline), deadlines, the end of a round, pruning.

    `grace`: the coordinator doubts its own watch, so nobody is fenced (and `lapsed` is empty).
    """

    lapsed: Mapping[str, int]
    grace: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """A stream's topology as a group follows it; `stream_revision` is that of its last change."""

    stream_revision: int
    shard_count: int
    read_set: Shards
    migration: FollowedMigration | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Take over the stream's topology. `lost`: the stream no longer has the revision that the group followed."""

    topology: Topology
    lost: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateGroup:
    """Bring a group into being, on a stream where it is registered. `how`: `create` or `heartbeat`.

    `store_changed_at`: when the store may last have lost an earlier life of this group (ms; 0 never): the stream noticed then
    that its store is another one, or the group is registered for long and not there.
    """

    registration: int
    topology: Topology
    how: str
    requested_by: str
    store_changed_at: int = 0
    reason: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteGroup:
    """Delete a group; `force` steps over members that are live."""

    requested_by: str
    reason: str
    force: bool


GroupCommand: TypeAlias = Heartbeat | Tick | Follow | CreateGroup | DeleteGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class CreateStream:
    """Bring a stream into being; `adopted`: its shard keys exist already. `metadata_version_floor`: it starts above this."""

    shard_count: int
    start_from: str
    requested_by: str
    reason: str | None = None
    adopted: bool = False
    metadata_version_floor: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeleteStream:
    """Delete a stream that has no groups."""

    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RegisterGroup:
    """Put a group into the stream's list; `limit` bounds how many there may be."""

    consumer_group: str
    start_from: str
    how: str
    limit: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoveGroup:
    """Take a group out of the stream's list, if it is still there by the registration of that revision."""

    consumer_group: str
    registration: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Scale:
    """Change the shard count; `resharding_id` is fresh."""

    resharding_id: str
    target_shard_count: int
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Activate:
    """Flip the write set: every new shard, and these groups' Redis consumer groups on it, exist."""

    resharding_id: str
    provisioned: frozenset[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StartDrain:
    """Begin to drain, once the routing grace has passed."""

    resharding_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ProveDrain:
    """Shards were seen drained at `first_seen_at`, and now. `resharding_id` None: reopened shards."""

    resharding_id: str | None
    shards: Shards
    first_seen_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class EndResharding:
    """No shard that leaves is on record in any group, and every group has followed."""

    resharding_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollback:
    """Turn a resharding back."""

    resharding_id: str
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Complete:
    """End a drain that cannot be proved; `force` steps past `blockers`."""

    resharding_id: str
    blockers: tuple[str, ...]
    force: bool
    requested_by: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ReopenShards:
    """Read shards again that left the read set: `reason` says what was found on them."""

    shards: Shards
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ForgetRetiredShard:
    """A retired shard's key was removed."""

    shard: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ObserveIdentity:
    """Compare the store's identity with the stream's, and nothing else."""


StreamCommand: TypeAlias = (
    CreateStream
    | DeleteStream
    | RegisterGroup
    | RemoveGroup
    | Scale
    | Activate
    | StartDrain
    | ProveDrain
    | EndResharding
    | Rollback
    | Complete
    | ReopenShards
    | ForgetRetiredShard
    | ObserveIdentity
)
Command: TypeAlias = GroupCommand | StreamCommand
