"""What all administrative requests share: the audit entry with the change, and what makes a mutation wait."""

from __future__ import annotations

from coord.core.commands import (
    DeleteGroup,
    StreamCommand,
)
from coord.core.decision import Done
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.group import Group
from coord.refusals import Code, Refused
from coord.runtime.audit import AuditTrail
from coord.runtime.executor import Executed, Executor
from coord.runtime.groups import GroupSagas, stream_of
from coord.runtime.requests import Errand, RequestInfo
from coord.runtime.resharder import Resharder
from coord.streams.provisioning import ShardStreams


class AdminBase:
    """The parts that every mutation uses.

    `provisioned_shards` is None unless provisioning is on; `shards` is None without a Redis.
    """

    def __init__(
        self,
        *,
        executor: Executor,
        sagas: GroupSagas,
        resharder: Resharder,
        audit: AuditTrail,
        shards: ShardStreams | None,
        provisioned_shards: ShardStreams | None,
        default_shard_count: int,
        new_group_start: str,
    ) -> None:
        self._executor = executor
        self._sagas = sagas
        self._resharder = resharder
        self._audit = audit
        self._shards = shards
        self._provisioned = provisioned_shards
        self._default_shard_count = default_shard_count
        self._new_group_start = new_group_start
        self.terminating = False

    def record_refused(self, key: AggregateKey | None, info: RequestInfo, *, outcome: str, status: int, error_code: str) -> None:
        """Keep the audit entry of a request that was refused; never raises."""
        self._audit.record(key, info, info.entry(outcome=outcome, status=status, error_code=error_code))

    def record_replayed(self, key: AggregateKey | None, info: RequestInfo, *, status: int, revision: int) -> None:
        """Keep the audit entry of a request that came again and was answered as before; never raises."""
        summary = f"retried, answered as at revision {revision}: {info.request_summary}"
        self._audit.record(key, info, info.entry(status=status, summary=summary))

    def _execute(
        self, key: AggregateKey, command: StreamCommand | DeleteGroup, info: RequestInfo, *, audited: bool = True
    ) -> Executed | Refused:
        """Execute a command with its audit entry; one that changed nothing leaves its entry by itself."""
        executed = self._executor.execute(key, command, errand_of(info, audited=audited))
        if audited and isinstance(executed, Executed) and not executed.changed:
            reply = executed.reply
            resharding = reply.migration.resharding_id if isinstance(reply, Done) and reply.migration else None
            self._audit.record(key, info, info.entry(resharding_id=resharding))
        return executed

    def _closing(self) -> Refused | None:
        if self.terminating:
            return Refused(Code.COORDINATOR_TERMINATING, "this coordinator is stopping; try another, or again")
        return None

    def _in_correction(self, key: StreamKey) -> Refused | None:
        """While a correction round is open on any group of a stream, its mutations wait."""
        stream = stream_of(self._executor, key)
        for name in stream.groups if stream is not None else ():
            seen = self._executor.aggregates.load(GroupKey(key.stream_prefix, name))
            if isinstance(seen.state, Group) and (seen.state.correction is not None or seen.identity != seen.state.identity):
                return Refused(
                    Code.METADATA_SYNC_IN_PROGRESS, f"group {key}/{name} is in a metadata correction round; try again after it"
                )
        return None


def errand_of(info: RequestInfo, *, audited: bool) -> Errand:
    """Give the errand of a request, with its audit entry to commit if asked."""
    audit = info.entry() if audited else None
    return Errand(actor=info.actor, request_id=info.request_id, audit=audit, replication=info.replication)
