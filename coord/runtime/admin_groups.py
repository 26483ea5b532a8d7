"""Administrative requests about groups: create, delete, and the Redis consumer groups that go with them."""

from __future__ import annotations

from collections.abc import Mapping

from msgspec import structs

from coord.core.commands import (
    DeleteGroup,
)
from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.refusals import Code, Refused
from coord.runtime import shown
from coord.runtime.admin_base import errand_of
from coord.runtime.admin_streams import StreamAdmin
from coord.runtime.groups import stream_of
from coord.runtime.requests import RequestInfo, Result
from coord.streams.provisioning import Provisioned, ProvisioningFailed
from coord.wire import (
    ConsumerGroupDestroyedResponse,
    GroupResponse,
)


class GroupAdmin(StreamAdmin):
    """A7, A9, A9c of `api.md`."""

    def create_group(
        self, key: GroupKey, *, shard_count: int | None, start_from: str | None, info: RequestInfo
    ) -> Refused | Result[GroupResponse]:
        """A7: the group, and its stream too when there is none."""
        if refused := self._closing():
            return refused
        if self._executor.aggregates.load(key).state is not None:
            return Refused(Code.GROUP_ALREADY_EXISTS, f"group {key} exists already")
        stream = stream_of(self._executor, key.stream)
        makes_stream = stream is None
        if stream is not None and shard_count is not None and shard_count != stream.shard_count:
            return Refused(
                Code.STREAM_SHARD_TOPOLOGY_CONFLICT,
                f"stream {key.stream_prefix} has {stream.shard_count} shards, not {shard_count}",
            )
        if refused := self._in_correction(key.stream):
            return refused
        if makes_stream:
            created = self._create_stream(key.stream, shard_count or self._default_shard_count, start_from, info, audited=False)
            if isinstance(created, Refused):
                return created
        brought_up = self._sagas.bring_up(
            key,
            how="create",
            start_from="0" if makes_stream else start_from or self._new_group_start,
            requested_by=info.requested_by or "",
            reason=info.reason,
            errand=errand_of(info, audited=True),
        )
        if isinstance(brought_up, Refused):
            if makes_stream:
                self._undo_stream(key.stream, Provisioned(), info)
            return brought_up
        assert isinstance(brought_up.after, Group)
        return Result(shown.group(brought_up.after, stream_of(self._executor, key.stream)), brought_up.revision)

    def delete_group(
        self, key: GroupKey, *, force: bool, destroy_consumer_groups: bool, info: RequestInfo
    ) -> Refused | Result[GroupResponse]:
        """A9: delete, then take it out of the stream's list; its Redis consumer groups stay unless asked otherwise."""
        if refused := self._closing():
            return refused
        if destroy_consumer_groups and self._provisioned is None:
            return Refused(Code.REDIS_NOT_CONFIGURED, "destroyConsumerGroups: needs streams.provisioning-enabled and a Redis")
        command = DeleteGroup(requested_by=info.requested_by or "", reason=info.reason or "", force=force)
        deleted = self._execute(key, command, info)
        if isinstance(deleted, Refused):
            return deleted
        group = deleted.before
        assert isinstance(group, Group)
        stream = stream_of(self._executor, key.stream)
        errand = errand_of(info, audited=False)
        failure = ""
        if destroy_consumer_groups and self._provisioned is not None:
            try:
                pending = self._provisioned.destroy_consumer_group(key.stream_prefix, group.read_set, key.consumer_group)
            except ProvisioningFailed as error:
                failure = str(error)
                summary = f"could not destroy Redis consumer group {key.consumer_group}: {failure}"
            else:
                summary = _destroyed(info, pending)
            errand = structs.replace(errand, audit=info.entry(summary=summary))
        if stream is not None:
            self._sagas.take_down(key, group.registration, errand)
        if failure:
            message = f"the group is deleted, but its Redis consumer groups could not all be destroyed: {failure}"
            return Refused(Code.REDIS_STREAM_PROVISIONING_FAILED, message)
        return Result(shown.group(group, stream), deleted.revision)

    def destroy_consumer_group(
        self, key: StreamKey, name: str, *, info: RequestInfo
    ) -> Refused | Result[ConsumerGroupDestroyedResponse]:
        """A9c: destroy a foreign Redis consumer group that blocks a drain."""
        if refused := self._closing() or self._in_correction(key):
            return refused
        seen = self._executor.aggregates.load(key)
        if not isinstance(seen.state, Stream):
            return Refused(Code.STREAM_NOT_FOUND, f"stream {key} does not exist")
        if name in seen.state.groups:
            return Refused(Code.CONSUMER_GROUP_COORDINATED, f"{name} is a coordinated group of stream {key}")
        if self._shards is None:
            return Refused(Code.REDIS_NOT_CONFIGURED, "there is no Redis to destroy a consumer group on")
        shards = sorted({*seen.state.read_set, *map(int, seen.state.retired)})
        try:
            pending = self._shards.destroy_consumer_group(key.stream_prefix, shards, name)
        except ProvisioningFailed as error:
            return Refused(Code.REDIS_STREAM_PROVISIONING_FAILED, str(error))
        if not pending:
            return Refused(Code.NOT_FOUND, f"no shard of stream {key} has a Redis consumer group {name}")
        self._audit.record(key, info, info.entry(summary=_destroyed(info, pending)))
        body = ConsumerGroupDestroyedResponse(
            stream_prefix=key.stream_prefix, consumer_group=name, destroyed=len(pending), pending_counts=pending
        )
        return Result(body, seen.head.revision)


def _destroyed(info: RequestInfo, pending: Mapping[str, int]) -> str:
    """Say in a summary what a destroyed Redis consumer group had pending."""
    return f"{info.request_summary} destroyed on {len(pending)} shards, pending {sum(pending.values())}".strip()
