"""Administrative requests about streams: create, adopt, delete. Claimed on record first, provisioned next."""

from __future__ import annotations

from contextlib import suppress

from coord.core.commands import (
    CreateStream,
    DeleteStream,
)
from coord.names import StreamKey
from coord.projections.stream import Stream
from coord.refusals import Code, Refused
from coord.runtime import shown
from coord.runtime.admin_base import AdminBase
from coord.runtime.requests import RequestInfo, Result
from coord.streams.provisioning import Provisioned, ProvisioningFailed
from coord.wire import (
    StreamCreateResponse,
    StreamSummary,
)


class StreamAdmin(AdminBase):
    """A2, A3, A9b, A9c of `api.md`."""

    def create_stream(
        self, key: StreamKey, *, shard_count: int | None, start_from: str | None, info: RequestInfo
    ) -> Refused | Result[StreamCreateResponse]:
        """A2: claim the prefix, then make its shards; a failed provisioning leaves nothing behind."""
        if refused := self._closing():
            return refused
        created = self._create_stream(key, shard_count or self._default_shard_count, start_from, info, audited=True)
        return created if isinstance(created, Refused) else Result(shown.created(created[0]), created[1])

    def adopt_stream(self, key: StreamKey, *, shard_count: int, info: RequestInfo) -> Refused | Result[StreamCreateResponse]:
        """A3: take over shard keys that exist; each missing one is named and nothing is written."""
        if refused := self._closing():
            return refused
        if self._shards is None:
            return Refused(Code.REDIS_NOT_CONFIGURED, "adopting a stream needs a Redis with its shards")
        if self._executor.aggregates.load(key).state is None:
            try:
                missing = self._shards.missing(key.stream_prefix, range(shard_count))
            except ProvisioningFailed as error:
                return Refused(Code.REDIS_STREAM_PROVISIONING_FAILED, str(error))
            if missing:
                details = tuple(f"{name} is no stream" for name in missing)
                return Refused(Code.INVALID_REQUEST, f"shardCount: {'; '.join(details[:10])}", details)
        command = CreateStream(
            shard_count=shard_count,
            start_from="$",
            requested_by=info.requested_by or "",
            reason=info.reason,
            adopted=True,
        )
        self._executor.store.index_add(key)
        made = self._execute(key, command, info)
        if isinstance(made, Refused):
            return made
        self._executor.store.index_add(key)
        assert isinstance(made.after, Stream)
        return Result(shown.created(made.after), made.revision)

    def delete_stream(self, key: StreamKey, *, info: RequestInfo) -> Refused | Result[StreamSummary]:
        """A9b: never deletes shard keys."""
        if refused := self._closing() or self._in_correction(key):
            return refused
        command = DeleteStream(requested_by=info.requested_by or "", reason=info.reason or "")
        deleted = self._execute(key, command, info)
        if isinstance(deleted, Refused):
            return deleted
        self._executor.store.index_remove(key)
        assert isinstance(deleted.before, Stream)
        return Result(shown.stream(deleted.before), deleted.revision)

    def _create_stream(
        self, key: StreamKey, shard_count: int, start_from: str | None, info: RequestInfo, *, audited: bool
    ) -> Refused | tuple[Stream, int]:
        command = CreateStream(
            shard_count=shard_count,
            start_from=start_from or self._new_group_start,
            requested_by=info.requested_by or "",
            reason=info.reason,
        )
        self._executor.store.index_add(key)
        claims_only = self._provisioned is not None
        made = self._execute(key, command, info, audited=audited and not claims_only)
        if isinstance(made, Refused):
            return made
        self._executor.store.index_add(key)  # the tick may have taken it out before the stream was there
        assert isinstance(made.after, Stream)
        if self._provisioned is not None:
            try:
                self._provisioned.provision(key.stream_prefix, range(shard_count), {})
            except ProvisioningFailed as error:
                self._undo_stream(key, error.made, info)
                return Refused(Code.REDIS_STREAM_PROVISIONING_FAILED, str(error))
            if audited:
                self._audit.record(key, info, info.entry())
        return made.after, made.revision

    def _undo_stream(self, key: StreamKey, made: Provisioned, info: RequestInfo) -> None:
        if self._provisioned is not None:
            with suppress(ProvisioningFailed):  # the keys that are left are empty; the next create finds and uses them
                self._provisioned.remove_created(made)
        command = DeleteStream(requested_by=info.requested_by or "", reason="provisioning failed")
        self._execute(key, command, info, audited=False)
        self._executor.store.index_remove(key)
