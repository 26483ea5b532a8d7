"""Every event that a log can hold: one frozen struct a type, and the closed union of them.

An event says what happened, with every number that the decision produced, so that a fold never computes one from
configuration or time. Times are milliseconds of the store's clock; shard sets are ascending tuples of indices; a
deadline is a point in time, a `ttl` a duration. Unknown fields are ignored on reading; a type or version that this
release does not know is an error (`coord.events.codec`).

Source: design page `events-and-stores.md`, "Events"; `protocol.md` for what each of them means.
"""

from __future__ import annotations

from typing import TypeAlias

from msgspec import Raw, Struct

Shards: TypeAlias = tuple[int, ...]


class Fact(Struct, frozen=True, rename="camel", kw_only=True, omit_defaults=False):
    """What every event shares: immutable, camelCase in the log."""


# -- stream


class StreamCreated(Fact, frozen=True, kw_only=True):
    """A stream came into being. `metadataVersion` continues past a tombstone's."""

    shard_count: int
    metadata_version: int
    identity: str
    start_from: str
    requested_by: str
    reason: str | None = None


class StreamAdopted(Fact, frozen=True, kw_only=True):
    """Existing shard keys were taken over; no key was made or moved."""

    shard_count: int
    metadata_version: int
    identity: str
    requested_by: str
    reason: str | None = None


class StreamDeleted(Fact, frozen=True, kw_only=True):
    """The stream's tombstone; its shard keys stay."""

    metadata_version: int
    requested_by: str
    reason: str | None = None


class GroupRegistered(Fact, frozen=True, kw_only=True):
    """A group is named in the stream's list, before it is created. `how`: `create`, `heartbeat` or `adopt`."""

    consumer_group: str
    start_from: str
    how: str


class GroupRemoved(Fact, frozen=True, kw_only=True):
    """A group is out of the stream's list, after it was deleted."""

    consumer_group: str


class ReshardingRequested(Fact, frozen=True, kw_only=True):
    """A resharding begins, in state PREPARING."""

    resharding_id: str
    from_shard_count: int
    to_shard_count: int
    requested_by: str
    reason: str | None = None


class TopologyActivated(Fact, frozen=True, kw_only=True):
    """Every new shard exists: the write set flips (state ACTIVE)."""

    resharding_id: str
    shard_count: int
    read_set: Shards


class DrainStarted(Fact, frozen=True, kw_only=True):
    """The routing grace has passed: removed shards are to be emptied (state DRAINING)."""

    resharding_id: str


class DrainProved(Fact, frozen=True, kw_only=True):
    """Shards were seen empty twice (`firstSeenAt`, and at this event), or an operator said so; they leave the read set.

    `reshardingId` is None for reopened shards. `blockers` names what a forced completion stepped past.
    """

    resharding_id: str | None
    shards: Shards
    read_set: Shards
    first_seen_at: int
    forced_by: str | None = None
    blockers: tuple[str, ...] = ()


class RollbackRequested(Fact, frozen=True, kw_only=True):
    """A resharding turns back: `state` is ROLLED_BACK from PREPARING, ROLLING_BACK from ACTIVE."""

    resharding_id: str
    state: str
    shard_count: int
    read_set: Shards
    requested_by: str
    reason: str | None = None


class ReshardingEnded(Fact, frozen=True, kw_only=True):
    """`state` DEPRECATED or ROLLED_BACK; `retired` shards are watched until `watchUntil`.

    After a completion past blockers nothing is watched: what the operator stepped past would only come back.
    """

    resharding_id: str
    state: str
    retired: Shards
    watch_until: int
    forced_by: str | None = None


class ShardReopened(Fact, frozen=True, kw_only=True):
    """Shards out of the read set hold unread entries: they are read again until drained. `reason` says how they were found."""

    shards: Shards
    read_set: Shards
    reason: str


class RetiredShardDeleted(Fact, frozen=True, kw_only=True):
    """A retired shard's key was removed by the script that proved it empty."""

    shard: int


class StreamIdentityChanged(Fact, frozen=True, kw_only=True):
    """The store is another one than the stream was last written under."""

    identity: str
    metadata_version: int


# -- group


class FollowedMigration(Fact, frozen=True, kw_only=True):
    """The stream's resharding as a group follows it."""

    resharding_id: str
    from_shard_count: int
    to_shard_count: int
    state: str


class GroupCreated(Fact, frozen=True, kw_only=True):
    """A group came into being (`how`: `create` or `heartbeat`), for the stream's `registration` of that revision.

    `epoch` and `metadataVersion` continue past a tombstone's; nothing is granted before `grantsFrom`, when the leases of
    the deleted group have lapsed.
    """

    registration: int
    stream_revision: int
    shard_count: int
    read_set: Shards
    epoch: int
    metadata_version: int
    grants_from: int
    identity: str
    how: str
    requested_by: str
    migration: FollowedMigration | None = None
    reason: str | None = None


class AdoptedMember(Fact, frozen=True, kw_only=True):
    """A member as another coordinator had it."""

    member_id: str
    member_name: str
    state: str
    member_epoch: int
    runtime_max_concurrency: int
    current_assignment: Shards
    target: Shards
    assigned: Shards
    revoking: Shards


class GroupAdopted(Fact, frozen=True, kw_only=True):
    """A Kotlin coordinator's group was taken over, members, epochs and ownership included."""

    source_key: str
    registration: int
    stream_revision: int
    shard_count: int
    read_set: Shards
    epoch: int
    group_epoch: int
    assignment_epoch: int
    metadata_version: int
    revoke_deadline_at: int
    identity: str
    members: tuple[AdoptedMember, ...]
    migration: FollowedMigration | None = None


class GroupDeleted(Fact, frozen=True, kw_only=True):
    """The group's tombstone: where its counters stood, when the last of its leases lapses, which registration has ended."""

    registration: int
    epoch: int
    metadata_version: int
    latest_lease: int
    requested_by: str
    reason: str | None = None
    forced: bool = False


# -- membership


class MemberJoined(Fact, frozen=True, kw_only=True):
    """A member that the group did not know."""

    member_id: str
    member_name: str
    member_epoch: int
    request_id: str
    runtime_max_concurrency: int


class MemberRejoined(Fact, frozen=True, kw_only=True):
    """A known member began again with epoch 0.

    Shards on record stay on record. `elder`: those that an earlier life, whose lease runs until `elderUntil`, may read: on
    record for it, or named by it (`foreign`, which stay in quarantine); `abandoned`: those that were REVOKING, which epoch 0
    declares stopped; they get `revokeDeadlineAt`. `damped`: it was ACTIVE under a running lease, so that the next rejoin
    waits.
    """

    member_id: str
    member_name: str
    member_epoch: int
    request_id: str
    runtime_max_concurrency: int
    elder_until: int
    elder: Shards
    foreign: Shards
    abandoned: Shards
    revoke_deadline_at: int
    damped: bool


class MemberLeaving(Fact, frozen=True, kw_only=True):
    """A member says that it goes; what it still drains stays on record until it reports or lapses."""

    member_id: str
    foreign: Shards


class MemberExpired(Fact, frozen=True, kw_only=True):
    """A lease lapsed, judged by `lastHeartbeatAt` and the deadline that followed from it."""

    member_id: str
    member_epoch: int
    lease_deadline_at: int
    last_heartbeat_at: int


class MemberFenced(Fact, frozen=True, kw_only=True):
    """A member was turned away; its shards stay on record, REVOKING. `reason` is a closed word (see `core.membership`)."""

    member_id: str
    member_epoch: int
    reason: str
    foreign: Shards


class MemberPruned(Fact, frozen=True, kw_only=True):
    """An EXPIRED member that held nothing was forgotten."""

    member_id: str


class MemberUpdated(Fact, frozen=True, kw_only=True):
    """Name or capacity changed."""

    member_id: str
    member_name: str
    runtime_max_concurrency: int


# -- ownership


class TargetComputed(Fact, frozen=True, kw_only=True):
    """A new target assignment: only the moves. `unassigned` shards have no target any more."""

    epoch: int
    reason: str
    moves: dict[str, Shards]
    unassigned: Shards


class RevocationRequested(Fact, frozen=True, kw_only=True):
    """A holder must give shards up by `deadlineAt`."""

    member_id: str
    member_epoch: int
    shards: Shards
    deadline_at: int


class ShardsFreed(Fact, frozen=True, kw_only=True):
    """Shards are on record for nobody. `reason`: REPORTED, LEFT, EXPIRED or FORCED."""

    member_id: str
    shards: Shards
    reason: str


class ShardsGranted(Fact, frozen=True, kw_only=True):
    """Free shards went on record for their target."""

    member_id: str
    member_epoch: int
    shards: Shards


class OwnershipReported(Fact, frozen=True, kw_only=True):
    """A member's report changed what is known of it: the epoch it echoed, what it owns, what it names without holding."""

    member_id: str
    epoch: int
    owned: Shards
    foreign: Shards


class TopologyFollowed(Fact, frozen=True, kw_only=True):
    """The group took over the stream's topology of that stream revision."""

    stream_revision: int
    shard_count: int
    read_set: Shards
    migration: FollowedMigration | None


# -- correction


class CorrectionStarted(Fact, frozen=True, kw_only=True):
    """A metadata correction round opened; `byReport` when a member knew more than the store."""

    base: int
    metadata_version: int
    until: int
    reason: str
    identity: str
    by_report: bool


class CorrectionAcknowledged(Fact, frozen=True, kw_only=True):
    """A member was told SYNC_METADATA: a fresh epoch, and what it said it owns.

    Another process under the same id may have been on record before: as after a rejoin, `elder` shards are not freed, and what is
    foreign stays in quarantine, until `elderUntil`.
    """

    member_id: str
    member_epoch: int
    owned: Shards
    foreign: Shards
    elder: Shards
    elder_until: int


class CorrectionEnded(Fact, frozen=True, kw_only=True):
    """The round is over."""

    base: int


# -- audit and log


class AdminRequest(Fact, frozen=True, kw_only=True):
    """One administrative request and what became of it. The body itself is never kept, only its SHA-256."""

    action: str
    outcome: str
    status: int
    principal: str | None
    roles: tuple[str, ...]
    requested_by: str | None
    reason: str | None
    request_id: str
    client_address: str | None
    user_agent: str | None
    method: str
    route: str
    path: str
    query_string: str
    duration_ms: int
    request_summary: str
    request_body_sha256: str
    error_code: str | None = None
    resharding_id: str | None = None


class AdminRequestsSuppressed(Fact, frozen=True, kw_only=True):
    """More refused requests than a log takes in a minute."""

    count: int
    since: int


class Snapshot(Fact, frozen=True, kw_only=True):
    """The stored aggregate at this revision; `chain` is the chain value before this entry."""

    revision: int
    chain: str
    aggregate: Raw


StreamEvent: TypeAlias = (
    StreamCreated
    | StreamAdopted
    | StreamDeleted
    | GroupRegistered
    | GroupRemoved
    | ReshardingRequested
    | TopologyActivated
    | DrainStarted
    | DrainProved
    | RollbackRequested
    | ReshardingEnded
    | ShardReopened
    | RetiredShardDeleted
    | StreamIdentityChanged
)
GroupEvent: TypeAlias = (
    GroupCreated
    | GroupAdopted
    | GroupDeleted
    | MemberJoined
    | MemberRejoined
    | MemberLeaving
    | MemberExpired
    | MemberFenced
    | MemberPruned
    | MemberUpdated
    | TargetComputed
    | RevocationRequested
    | ShardsFreed
    | ShardsGranted
    | OwnershipReported
    | TopologyFollowed
    | CorrectionStarted
    | CorrectionAcknowledged
    | CorrectionEnded
)
LogEvent: TypeAlias = AdminRequest | AdminRequestsSuppressed | Snapshot
Event: TypeAlias = StreamEvent | GroupEvent | LogEvent
