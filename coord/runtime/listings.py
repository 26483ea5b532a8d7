"""Lists of streams and groups, in pages; an aggregate that cannot be read is a row of state CORRUPT, and hides no others."""

from __future__ import annotations

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Iterator
from typing import Final

import msgspec
import structlog

from coord.core.decision import Policy
from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.refusals import Code, Refused
from coord.runtime import shown
from coord.runtime.cache import Aggregates
from coord.runtime.requests import Result
from coord.runtime.resharder import Resharder
from coord.store.base import CorruptAggregate, Store
from coord.wire import (
    GroupResponse,
    GroupsResponse,
    StreamsResponse,
    StreamSummary,
)

log: Final = structlog.get_logger(__name__)

CORRUPT: Final = "CORRUPT"
"""The state shown for an aggregate whose metadata cannot be read, in lists only; everything else in its row is empty."""


class Listings:
    """Reads over many aggregates, and the reading of one that they share."""

    def __init__(self, *, store: Store, aggregates: Aggregates, resharder: Resharder, policy: Policy) -> None:
        self._store = store
        self._aggregates = aggregates
        self._resharder = resharder
        self._policy = policy

    def streams(self, limit: int | None, cursor: str | None) -> Refused | Result[StreamsResponse]:
        """List streams by prefix; without a limit, all."""
        after = cursor_parts(cursor)
        if isinstance(after, Refused):
            return after
        rows: list[StreamSummary] = []
        for prefix in self._store.streams():
            if after is not None and (prefix,) <= after:
                continue
            if limit is not None and len(rows) >= limit:
                return Result(StreamsResponse(streams=tuple(rows), next_cursor=cursor_of(rows[-1].stream_prefix)), 0)
            row = self._summary(StreamKey(prefix))
            if row is not None:
                rows.append(row)
        return Result(StreamsResponse(streams=tuple(rows), next_cursor=None), 0)

    def groups(self, limit: int | None, cursor: str | None) -> Refused | Result[GroupsResponse]:
        """List groups by stream and name; without a limit, all."""
        after = cursor_parts(cursor)
        if isinstance(after, Refused):
            return after
        rows: list[GroupResponse] = []
        for key, stream in self.all_groups():
            if after is not None and (key.stream_prefix, key.consumer_group) <= after:
                continue
            if limit is not None and len(rows) >= limit:
                last = rows[-1]
                return Result(
                    GroupsResponse(groups=tuple(rows), next_cursor=cursor_of(last.stream_prefix, last.consumer_group)), 0
                )
            row = self._group_row(key, stream)
            if row is not None:
                rows.append(row)
        return Result(GroupsResponse(groups=tuple(rows), next_cursor=None), 0)

    def all_groups(self) -> Iterator[tuple[GroupKey, Stream]]:
        """Give every registered group with its stream, by name; streams that cannot be read are left out."""
        for prefix in self._store.streams():
            try:
                stream = self._stream(StreamKey(prefix))
            except CorruptAggregate as error:
                log.error("stream cannot be read", streamPrefix=prefix, reason=error.why)
                continue
            for name in sorted(stream.groups) if stream is not None else ():
                assert stream is not None
                yield GroupKey(prefix, name), stream

    def _group(self, key: GroupKey) -> Group | Refused:
        state = self._aggregates.load(key).state
        if not isinstance(state, Group):
            return Refused(Code.GROUP_NOT_FOUND, f"group {key} does not exist")
        return state

    def _stream(self, key: StreamKey) -> Stream | None:
        state = self._aggregates.load(key).state
        return state if isinstance(state, Stream) else None

    def _summary(self, key: StreamKey) -> StreamSummary | None:
        try:
            stream = self._stream(key)
        except CorruptAggregate:
            return _corrupt_stream(key)
        return shown.stream(stream) if stream is not None else None

    def _group_row(self, key: GroupKey, stream: Stream) -> GroupResponse | None:
        try:
            state = self._group(key)
        except CorruptAggregate:
            return _corrupt_group(key)
        return None if isinstance(state, Refused) else shown.group(state, stream)


def cursor_of(*parts: str) -> str:
    """Give these texts as a cursor."""
    return urlsafe_b64encode(msgspec.json.encode(parts)).decode()


def cursor_parts(cursor: str | None) -> tuple[str, ...] | Refused | None:
    """Give the texts of a cursor, or the refusal of one that is none."""
    if cursor is None:
        return None
    try:
        return msgspec.json.decode(urlsafe_b64decode(cursor.encode()), type=tuple[str, ...])
    except (binascii.Error, ValueError, msgspec.MsgspecError):
        return Refused(Code.INVALID_REQUEST, "cursor: is not one that this API gave")


def _corrupt_stream(key: StreamKey) -> StreamSummary:
    return StreamSummary(
        stream_prefix=key.stream_prefix,
        shard_count=0,
        read_shard_count=0,
        metadata_version=0,
        store_revision=0,
        state=CORRUPT,
        active_resharding_id=None,
        consumer_groups=(),
    )


def _corrupt_group(key: GroupKey) -> GroupResponse:
    return GroupResponse(
        stream_prefix=key.stream_prefix,
        consumer_group=key.consumer_group,
        state=CORRUPT,
        group_epoch=0,
        assignment_epoch=0,
        metadata_version=0,
        shard_count=0,
        active_migration=None,
        target_assignment_summary={},
        current_assignment_summary={},
        read_shard_count=0,
        store_revision=0,
        active_members=0,
        expired_members=0,
        revoking_shards=0,
    )
