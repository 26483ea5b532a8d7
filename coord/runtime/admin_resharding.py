"""Administrative requests about reshardings: scale, roll back, complete."""

from __future__ import annotations

import uuid
from collections.abc import Callable
from typing import TypeVar

from msgspec import structs

from coord.core.commands import (
    Complete,
    Rollback,
    Scale,
    StreamCommand,
)
from coord.core.decision import Done
from coord.core.resharding import NOOP_ID
from coord.names import GroupKey, StreamKey
from coord.projections.stream import Resharding, Stream
from coord.refusals import Code, Refused
from coord.runtime import shown
from coord.runtime.admin_base import AdminBase, errand_of
from coord.runtime.executor import Executed
from coord.runtime.groups import stream_of
from coord.runtime.requests import RequestInfo, Result
from coord.streams.provisioning import ProvisioningFailed
from coord.wire import (
    Migration,
    StreamScaleResponse,
)

T = TypeVar("T")


class ReshardingAdmin(AdminBase):
    """A6, A10, A12, A12b of `api.md`."""

    def scale_stream(
        self, key: StreamKey, *, target_shard_count: int, info: RequestInfo
    ) -> Refused | Result[StreamScaleResponse]:
        """A6: the stream is scaled, its groups follow."""
        return self._scaled(key, target_shard_count, info, shown.scaled)

    def scale_group(self, key: GroupKey, *, target_shard_count: int, info: RequestInfo) -> Refused | Result[Migration]:
        """A10: scales the stream, answers with this group's migration."""
        if self._executor.aggregates.load(key).state is None:
            return Refused(Code.GROUP_NOT_FOUND, f"group {key} does not exist")
        return self._scaled(key.stream, target_shard_count, info, lambda _, migration: shown.migration(migration))

    def rollback(self, key: GroupKey, resharding_id: str, *, info: RequestInfo) -> Refused | Result[Migration]:
        """A12: rolls the stream back."""
        command = Rollback(resharding_id=resharding_id, requested_by=info.requested_by or "", reason=info.reason or "")
        return self._migrate(key, command, info)

    def complete(self, key: GroupKey, resharding_id: str, *, force: bool, info: RequestInfo) -> Refused | Result[Migration]:
        """A12b: end a drain that cannot be proved."""
        stream = stream_of(self._executor, key.stream)
        command = Complete(
            resharding_id=resharding_id,
            blockers=self._resharder.blockers(stream) if stream is not None else (),
            force=force,
            requested_by=info.requested_by or "",
            reason=info.reason or "",
        )
        return self._migrate(key, command, info)

    def _scaled(
        self, key: StreamKey, target: int, info: RequestInfo, show: Callable[[Stream, Resharding], T]
    ) -> Refused | Result[T]:
        if refused := self._closing() or self._in_correction(key):
            return refused
        command = Scale(
            resharding_id=f"reshard-{uuid.uuid4()}",
            target_shard_count=target,
            requested_by=info.requested_by or "",
            reason=info.reason or "",
        )
        scaled = self._execute(key, command, info, audited=False)
        if isinstance(scaled, Refused):
            return scaled
        stream, migration = stream_and_migration(scaled)
        entry = info.entry(resharding_id=migration.resharding_id)
        if migration.resharding_id == NOOP_ID or migration.state != "PREPARING":
            self._audit.record(key, info, entry)
            return Result(show(stream, migration), stream.store_revision)
        try:
            stream = self._resharder.activate(stream, structs.replace(errand_of(info, audited=False), audit=entry))
        except ProvisioningFailed as error:
            return Refused(Code.REDIS_STREAM_PROVISIONING_FAILED, str(error))
        migration = stream.migration(migration.resharding_id) or migration
        return Result(show(stream, migration), stream.store_revision)

    def _migrate(self, key: GroupKey, command: StreamCommand, info: RequestInfo) -> Refused | Result[Migration]:
        if refused := self._closing():
            return refused
        if self._executor.aggregates.load(key).state is None:
            return Refused(Code.GROUP_NOT_FOUND, f"group {key} does not exist")
        if refused := self._in_correction(key.stream):
            return refused
        outcome = self._execute(key.stream, command, info)
        if isinstance(outcome, Refused):
            return outcome
        _, migration = stream_and_migration(outcome)
        return Result(shown.migration(migration), outcome.revision)


def stream_and_migration(executed: Executed) -> tuple[Stream, Resharding]:
    """Give what a resharding command left behind."""
    assert isinstance(executed.after, Stream)
    assert isinstance(executed.reply, Done)
    assert executed.reply.migration is not None
    return executed.after, executed.reply.migration
