"""Takes a stream's resharding forward, one recorded step after another. Anybody may take any step from the record alone.

Memory of this process: only when shards were first seen drained (the second look must be a routing grace later); who takes
over looks again. Source: design page `protocol.md`, "Streams, groups and resharding".
"""

from __future__ import annotations

from typing import Final

import structlog

from coord.core.commands import (
    Activate,
    EndResharding,
    ForgetRetiredShard,
    ObserveIdentity,
    ProveDrain,
    ReopenShards,
    StartDrain,
    StreamCommand,
)
from coord.events.catalog import Shards
from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Resharding, Stream
from coord.refusals import Refused
from coord.runtime.clock import NS_PER_MS
from coord.runtime.executor import Executed, Executor
from coord.runtime.groups import TICKER
from coord.runtime.requests import Errand
from coord.streams.provisioning import NoProof, ProvisioningFailed, ShardStreams

log: Final = structlog.get_logger(__name__)

BY_TICK: Final = Errand(actor=TICKER)
STEPS_MAX: Final = 8
HEAL_EVERY_MS: Final = 10_000
START: Final = "0"
"""Redis consumer groups of added and of healed shards start here, so that no entry is missed."""


class Resharder:
    """Advances streams. `shards` is None without a Redis: then there is nothing to provision, and nothing to prove."""

    def __init__(self, executor: Executor, shards: ShardStreams | None, *, provisioning: bool, delete_retired: bool) -> None:
        self._executor = executor
        self._shards = shards
        self._provisioning = provisioning
        self._delete_retired = delete_retired
        self._first_seen: dict[tuple[str, str], int] = {}
        self._healed_at: dict[str, int] = {}

    def advance(self, stream: Stream) -> Stream:
        """Take every step that can be taken now; gives the stream as it then is.

        Provisioning failures are logged and tried again.
        """
        for _ in range(STEPS_MAX):
            before = stream.store_revision
            try:
                stream = self._step(stream)
            except ProvisioningFailed as error:
                log.warning("provisioning failed; it will be tried again", streamPrefix=stream.stream_prefix, reason=str(error))
                return stream
            if stream.store_revision == before:
                break
        return self._keep_watch(stream)

    def activate(self, stream: Stream, errand: Errand = BY_TICK) -> Stream:
        """From PREPARING: make what is missing, then flip the write set. Raises ProvisioningFailed; the state stays PREPARING."""
        active = stream.resharding
        if active is None or active.state != "PREPARING":
            return stream
        if self._provisioning and self._shards is not None:
            added = range(active.from_shard_count, active.to_shard_count)
            self._shards.provision(stream.stream_prefix, added, dict.fromkeys(stream.groups, START))
        command = Activate(resharding_id=active.resharding_id, provisioned=frozenset(stream.groups))
        return self._execute(stream, command, errand)

    def blockers(self, stream: Stream) -> tuple[str, ...]:
        """Name what keeps the shards that leave from being drained; an answer that cannot be had is a blocker."""
        active = stream.resharding
        if active is None or active.drained or active.state not in ("DRAINING", "ROLLING_BACK") or self._shards is None:
            return ()
        found: list[str] = []
        for shard in active.leaving:
            try:
                proof = self._shards.prove_drained(stream.stream_prefix, shard)
            except NoProof as error:
                found.append(f"{stream.stream_prefix}:{shard}: cannot be read: {error}")
                continue
            found.extend(f"{proof.key}: {blocker}" for blocker in proof.blockers)
        return tuple(found)

    def _step(self, stream: Stream) -> Stream:
        active = stream.resharding
        if active is None:
            return self._observe_identity(stream)
        match active.state:
            case "PREPARING":
                return self.activate(stream)
            case "ACTIVE":
                return self._execute(stream, StartDrain(resharding_id=active.resharding_id))
            case _ if not active.drained:
                return self._prove(stream, active)
            case _:
                return self._end(stream, active)

    def _observe_identity(self, stream: Stream) -> Stream:
        seen = self._executor.aggregates.cached(StreamKey(stream.stream_prefix))
        if seen is None or seen.identity == stream.identity:
            return stream
        return self._execute(stream, ObserveIdentity())

    def _prove(self, stream: Stream, active: Resharding) -> Stream:
        leaving = tuple(active.leaving)
        first_seen_at = self._seen_drained(stream.stream_prefix, active.resharding_id, leaving)
        if first_seen_at is None:
            return stream
        command = ProveDrain(resharding_id=active.resharding_id, shards=leaving, first_seen_at=first_seen_at)
        return self._execute(stream, command)

    def _seen_drained(self, prefix: str, what: str, shards: Shards) -> int | None:
        """Look whether all these shards are drained.

        Gives when they first were, in an unbroken row of looks that is a routing grace long; None when they are not, or not yet
        for so long. Nothing, and nothing to look at, is drained since ever.
        """
        if self._shards is None or not shards:
            return 0
        memory = (prefix, what)
        try:
            drained = all(self._shards.prove_drained(prefix, shard).is_drained for shard in shards)
        except NoProof as error:
            log.warning("no proof of drain", streamPrefix=prefix, reason=str(error))
            drained = False
        if not drained:
            self._first_seen.pop(memory, None)
            return None
        # Measured by this process's own time: a jump of the store's clock must not stand for the time between two looks.
        seen_ns = self._executor.clock.monotonic_ns()
        elapsed_ms = (seen_ns - self._first_seen.setdefault(memory, seen_ns)) // NS_PER_MS
        if elapsed_ms < self._executor.policy.routing_grace_ms:
            return None
        return self._executor.clock.now(StreamKey(prefix)) - elapsed_ms

    def _end(self, stream: Stream, active: Resharding) -> Stream:
        """End it once every group has followed and holds none of the shards that leave."""
        leaving = frozenset(active.leaving)
        for name in stream.groups:
            state = self._executor.aggregates.load(GroupKey(stream.stream_prefix, name)).state
            if state is None:
                continue
            assert isinstance(state, Group)
            if state.stream_revision < stream.topology_revision or leaving & state.ownership.keys():
                return stream
        self._first_seen.pop((stream.stream_prefix, active.resharding_id), None)
        return self._execute(stream, EndResharding(resharding_id=active.resharding_id))

    def _keep_watch(self, stream: Stream) -> Stream:
        """Look after retired, reopened and lost shards."""
        if self._shards is None:
            return stream
        try:
            stream = self._watch_retired(stream, self._shards)
            stream = self._close_reopened(stream)
            self._heal(stream, self._shards)
        except (NoProof, ProvisioningFailed) as error:
            log.warning("could not look after shards", streamPrefix=stream.stream_prefix, reason=str(error))
        return stream

    def _watch_retired(self, stream: Stream, shards: ShardStreams) -> Stream:
        """Records that appear on a retired shard put it back into the read set, so that none is stranded."""
        now = self._executor.clock.now(StreamKey(stream.stream_prefix))
        for name, until in sorted(stream.retired.items()):
            shard = int(name)
            if shard in stream.read_set or now >= until:
                continue
            look = shards.delete_if_drained if self._delete_retired else shards.prove_drained
            proof = look(stream.stream_prefix, shard)
            if proof.is_drained and self._delete_retired:
                stream = self._execute(stream, ForgetRetiredShard(shard=shard))
            elif not proof.is_drained:  # also while no group is registered: the one that comes back finds them
                stream = self._execute(stream, ReopenShards(shards=(shard,), reason="; ".join(proof.blockers)))
        return stream

    def _close_reopened(self, stream: Stream) -> Stream:
        for shard in stream.reopened:
            what = f"reopened {shard}"
            first_seen_at = self._seen_drained(stream.stream_prefix, what, (shard,))
            if first_seen_at is not None:
                stream = self._execute(stream, ProveDrain(resharding_id=None, shards=(shard,), first_seen_at=first_seen_at))
                if shard not in stream.reopened:
                    self._first_seen.pop((stream.stream_prefix, what), None)
        return stream

    def _heal(self, stream: Stream, shards: ShardStreams) -> None:
        """Make again what was lost of the write set: streams and consumer groups, from the beginning."""
        now = self._executor.clock.now(StreamKey(stream.stream_prefix))
        if not self._provisioning or now - self._healed_at.get(stream.stream_prefix, 0) < HEAL_EVERY_MS:
            return
        self._healed_at[stream.stream_prefix] = now
        made = shards.provision(stream.stream_prefix, range(stream.shard_count), dict.fromkeys(stream.groups, START))
        if made.keys or made.groups:
            log.warning("healed lost shards", streamPrefix=stream.stream_prefix, keys=made.keys, groups=made.groups)

    def _execute(self, stream: Stream, command: StreamCommand, errand: Errand = BY_TICK) -> Stream:
        outcome = self._executor.execute(StreamKey(stream.stream_prefix), command, errand)
        if isinstance(outcome, Refused):
            log.info("step refused", streamPrefix=stream.stream_prefix, reason=outcome.message)
            return stream
        assert isinstance(outcome, Executed)
        return outcome.after if isinstance(outcome.after, Stream) else stream
