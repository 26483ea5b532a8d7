"""Sagas over a stream and its groups: the stream's log owns the list.

A group is first registered on the stream, then created; first deleted, then removed. Whoever crashes in between leaves a
record from which the tick completes either: a registered group without an aggregate was never created, unless its tombstone
ended that very registration. Source: design page `protocol.md`, "Streams, groups and resharding".
"""

from __future__ import annotations

from typing import Final

import structlog

from coord.core.commands import CreateGroup, Follow, RegisterGroup, RemoveGroup, ReopenShards, Topology
from coord.core.lifecycle import follows
from coord.events.envelope import Actor
from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import RegisteredGroup, Stream
from coord.refusals import Code, Refused
from coord.runtime.cache import Cached
from coord.runtime.executor import Executed, Executor
from coord.runtime.requests import Errand
from coord.streams.provisioning import Provisioned, ProvisioningFailed, ShardStreams

log: Final = structlog.get_logger(__name__)

TICKER: Final = Actor("ticker")


def topology_of(stream: Stream) -> Topology:
    """Give the stream's topology as groups follow it."""
    return Topology(
        stream_revision=stream.topology_revision,
        shard_count=stream.shard_count,
        read_set=stream.read_set,
        migration=stream.followed(),
    )


class GroupSagas:
    """Brings groups up and takes them down. `shards` is None when no consumer groups are to be provisioned."""

    def __init__(self, executor: Executor, shards: ShardStreams | None) -> None:
        self._executor = executor
        self._shards = shards

    def bring_up(
        self, key: GroupKey, *, how: str, start_from: str, requested_by: str, reason: str | None, errand: Errand
    ) -> Executed | Refused:
        """Register, provision, create. On a failed provisioning nothing stays behind."""
        registered = self._register(key, how=how, start_from=start_from, errand=errand)
        if isinstance(registered, Refused):
            return registered
        stream, registration = registered
        made: Provisioned | None = None
        if self._shards is not None:
            try:
                made = self._shards.provision(key.stream_prefix, stream.read_set, {key.consumer_group: start_from})
            except ProvisioningFailed as error:
                self._give_up(key, registration, error.made, errand)
                return Refused(Code.REDIS_STREAM_PROVISIONING_FAILED, str(error))
        created = self._create(key, stream, registration, how=how, requested_by=requested_by, reason=reason, errand=errand)
        if isinstance(created, Refused):
            existing = self._executor.aggregates.load(key).state
            if not (isinstance(existing, Group) and existing.registration == registration.registered_revision):
                self._give_up(key, registration, made, errand)
            return created
        return created

    def take_down(self, key: GroupKey, registration: int, errand: Errand) -> None:
        """Remove a deleted group from the stream's list; the tick does it, should this fail."""
        command = RemoveGroup(consumer_group=key.consumer_group, registration=registration)
        self._executor.execute(key.stream, command, errand)

    def complete(self, stream: Stream, consumer_group: str, seen: Cached | None = None) -> Group | None:
        """Bring a registered group to where its record says it was going, and up to the stream's topology; give it.

        `seen`: the group as it was just read, else what this process knows of it is taken.
        """
        key = GroupKey(stream.stream_prefix, consumer_group)
        registration = stream.groups[consumer_group]
        seen = seen or self._executor.aggregates.cached(key) or self._executor.aggregates.load(key)
        if isinstance(seen.state, Group):
            return self._follow(key, seen.state, stream)
        errand = Errand(actor=TICKER)
        if seen.past is not None and seen.past.registration == registration.registered_revision:
            self.take_down(key, registration.registered_revision, errand)
            return None
        age_ms = self._executor.clock.now(key) - registration.registered_at
        if age_ms < self._executor.policy.member_lease_ttl_ms:
            return None  # whoever registered it is still at work
        log.warning("completing a registered group", streamPrefix=stream.stream_prefix, consumerGroup=consumer_group)
        if self._shards is not None:
            start = {consumer_group: registration.start_from}
            self._shards.provision(stream.stream_prefix, stream.read_set, start)
        created = self._create(key, stream, registration, how=registration.how, requested_by="ticker", reason=None, errand=errand)
        return created.after if isinstance(created, Executed) and isinstance(created.after, Group) else None

    def _follow(self, key: GroupKey, group: Group, stream: Stream) -> Group:
        """Let a group that is behind follow; one that is ahead of the stream follows a stream that lost its latest commits."""
        topology = topology_of(stream)
        if group.stream_revision >= stream.topology_revision and not follows(group, topology):
            # A stream that was read before it moved on looks as if it had lost what the group follows.
            stream = stream_of(self._executor, key.stream) or stream
            topology = topology_of(stream)
        if follows(group, topology):
            return group
        lost = group.stream_revision >= stream.topology_revision
        if lost and (stray := tuple(sorted(set(group.read_set) - set(stream.read_set)))):
            reason = f"group {key.consumer_group} had followed a topology that the stream lost"
            reopened = self._executor.execute(key.stream, ReopenShards(shards=stray, reason=reason), Errand(actor=TICKER))
            if isinstance(reopened, Executed) and isinstance(reopened.after, Stream):
                topology = topology_of(reopened.after)
        followed = self._executor.execute(key, Follow(topology=topology, lost=lost), Errand(actor=TICKER))
        return followed.after if isinstance(followed, Executed) and isinstance(followed.after, Group) else group

    def _register(self, key: GroupKey, *, how: str, start_from: str, errand: Errand) -> tuple[Stream, RegisteredGroup] | Refused:
        command = RegisterGroup(
            consumer_group=key.consumer_group,
            start_from=start_from,
            how=how,
            limit=self._executor.policy.groups_per_stream,
        )
        plain = errand.without_audit()
        past = self._executor.aggregates.load(key).past
        for _ in range(2):
            registered = self._executor.execute(key.stream, command, plain)
            if isinstance(registered, Refused):
                return registered
            assert isinstance(registered.after, Stream)
            registration = registered.after.groups[key.consumer_group]
            if past is None or past.registration != registration.registered_revision:
                return registered.after, registration
            self.take_down(key, registration.registered_revision, plain)  # a deletion had stopped half-way
        return Refused(Code.STATE_VERSION_CONFLICT, f"group {key} is being deleted; try again")

    def _create(
        self,
        key: GroupKey,
        stream: Stream,
        registration: RegisteredGroup,
        *,
        how: str,
        requested_by: str,
        reason: str | None,
        errand: Errand,
    ) -> Executed | Refused:
        """Create a group. Where it was registered long ago, the store may have lost an earlier creation of it [R]."""
        now = self._executor.clock.now(key)
        is_fresh = now - registration.registered_at < self._executor.policy.member_lease_ttl_ms
        lost_at = stream.identity_changed_at if is_fresh else now
        command = CreateGroup(
            registration=registration.registered_revision,
            store_changed_at=lost_at,
            topology=topology_of(stream),
            how=how,
            requested_by=requested_by,
            reason=reason,
        )
        return self._executor.execute(key, command, errand)

    def _give_up(self, key: GroupKey, registration: RegisteredGroup, made: Provisioned | None, errand: Errand) -> None:
        """Undo a registration; what was made and is still unused goes too."""
        if self._shards is not None and made is not None:
            try:
                self._shards.remove_created(made)
            except ProvisioningFailed as error:
                log.warning("could not remove what was provisioned", streamPrefix=key.stream_prefix, reason=str(error))
        self.take_down(key, registration.registered_revision, errand.without_audit())


def stream_of(executor: Executor, key: StreamKey) -> Stream | None:
    """Read a stream afresh; None when there is none."""
    state = executor.aggregates.load(key).state
    return state if isinstance(state, Stream) else None
