"""The plain design, kept to compare with: a mutex in Redis around reading and writing the whole aggregate, each heartbeat.

What one builds first, and what the Kotlin coordinator has: one hash holds the group as JSON, in the fields and with the instants
in which that coordinator keeps it (see `coord adopt`); everybody takes the lock, reads all of it, notes the heartbeat, writes
all of it back. The mutex is asked for anew every 100 ms, as the document that the project began with has it
(`retry-interval-ms`); structs, encoder and decoder are msgspec's, as ours.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Iterable
from datetime import UTC, datetime, timedelta
from typing import Any, Final, cast

import falcon
import msgspec
import redis
from msgspec import Struct

from coord import wire
from coord.http.inputs import read
from coord.http.request import ApiRequest
from coord.http.resources.base import REVISION_HEADER, answer
from coord.http.together import FORESEEING, Declined
from ops.bench.standins import HEADER

MUTEX: Final = "bench-plain:mutex"
MUTEX_TTL_MS: Final = 30_000
RETRY_S: Final = 0.1
REST_S: Final = 0.3
"""When nobody has held the mutex for so long, nobody waits for it any more."""
REST_TIMEOUT_S: Final = 60.0
POLL_S: Final = 0.01
LEASE_MS: Final = 15_000
REBALANCE_TIMEOUT_MS: Final = 60_000
RELEASE: Final = "if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end return 0"


class PlainMember(Struct, rename="camel", kw_only=True):
    """One member."""

    member_id: str
    member_name: str
    state: str
    member_epoch: int
    metadata_version: int
    runtime_max_concurrency: int
    active_consumer_workers: int
    current_assignment: tuple[wire.Shard, ...]
    granted_assignment: tuple[wire.Shard, ...]
    revoking: tuple[wire.RevokingShard, ...]
    last_heartbeat_at: datetime
    member_lease_expires_at: datetime
    rebalance_timeout_ms: int
    rebalance_deadline_at: datetime | None
    shard_progress: tuple[wire.ShardProgress, ...]


class PlainGroup(Struct, rename="camel", kw_only=True):
    """The whole aggregate, as it stands in one field."""

    stream_prefix: str
    consumer_group: str
    schema_version: int
    store_revision: int
    group_epoch: int
    metadata_version: int
    assignment_epoch: int
    state: str
    shard_count: int
    members: dict[str, PlainMember]
    target_assignments: dict[str, tuple[wire.Shard, ...]]
    migrations: dict[str, None]
    active_resharding_id: str | None
    metadata_correction: None
    created_at: datetime
    updated_at: datetime


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(PlainGroup).decode


def key_of(stream_prefix: str, consumer_group: str) -> str:
    """Give the key of a group."""
    return f"bench-plain:{stream_prefix}:{consumer_group}"


def store_group(redis_url: str, stream_prefix: str, consumer_group: str, beats: Iterable[wire.HeartbeatRequest]) -> None:
    """Put a group into Redis whose members are in the state that these heartbeats tell of."""
    members = {beat.member_id: _member_of(beat) for beat in beats}
    epoch = max(member.member_epoch for member in members.values())
    now = datetime.now(UTC)
    group = PlainGroup(
        stream_prefix=stream_prefix,
        consumer_group=consumer_group,
        schema_version=1,
        store_revision=1,
        group_epoch=epoch,
        metadata_version=max(member.metadata_version for member in members.values()),
        assignment_epoch=epoch,
        state="STABLE",
        shard_count=sum(len(member.current_assignment) for member in members.values()),
        members=members,
        target_assignments={member_id: member.current_assignment for member_id, member in members.items()},
        migrations={},
        active_resharding_id=None,
        metadata_correction=None,
        created_at=now,
        updated_at=now,
    )
    with redis.Redis.from_url(redis_url) as client:
        client.hset(key_of(stream_prefix, consumer_group), mapping=_fields(group))


def _fields(group: PlainGroup) -> Any:  # of a type that redis-py takes no other mapping for
    return {"aggregate": _encode(group), "revision": group.store_revision, "updatedAt": group.updated_at.isoformat()}


def await_rest(redis_url: str) -> None:
    """Wait until the heartbeats that a load generator left behind are answered: they would slow down what is measured next."""
    deadline = time.monotonic() + REST_TIMEOUT_S
    with redis.Redis.from_url(redis_url) as client:
        held_at = time.monotonic()
        while time.monotonic() - held_at < REST_S and time.monotonic() < deadline:
            if client.exists(MUTEX):
                held_at = time.monotonic()
            time.sleep(POLL_S)


def _member_of(beat: wire.HeartbeatRequest) -> PlainMember:
    owned, now = beat.owned_shards or (), datetime.now(UTC)
    return PlainMember(
        member_id=beat.member_id,
        member_name=beat.member_name or beat.member_id,
        state="ACTIVE",
        member_epoch=beat.member_epoch,
        metadata_version=beat.metadata_version,
        runtime_max_concurrency=beat.runtime_consumer_capacity.runtime_max_concurrency,
        active_consumer_workers=1,
        current_assignment=owned,
        granted_assignment=owned,
        revoking=(),
        last_heartbeat_at=now,
        member_lease_expires_at=now,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        rebalance_deadline_at=None,
        shard_progress=beat.shard_progress or (),
    )


class PlainResource:
    """Takes the place of `coord.http.resources.heartbeat.HeartbeatResource`, whatever that is made from."""

    def __init__(self, *_parts: object, max_body_bytes: int, **_more: object) -> None:
        self._max_body_bytes = max_body_bytes
        self._redis = redis.Redis.from_url(os.environ["REDIS_URL"])  # connects on first use, hence after a fork
        self._release = self._redis.register_script(RELEASE)

    def on_post(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str, member_id: str) -> None:
        """Lock, read, note, write, unlock."""
        if req.env.get(FORESEEING) is not None:
            raise Declined  # it waits: one thread for each
        request = read(req, wire.HeartbeatRequest, max_body_bytes=self._max_body_bytes)
        key, token = key_of(stream_prefix, consumer_group), secrets.token_hex(16)
        while not self._redis.set(MUTEX, token, nx=True, px=MUTEX_TTL_MS):
            time.sleep(RETRY_S)
        try:
            group = _decode(cast("bytes", self._redis.hget(key, "aggregate")))
            member = group.members[member_id]
            if request.member_epoch != member.member_epoch:
                raise falcon.HTTPBadRequest(title="the load generator and the group in Redis do not fit")
            now = datetime.now(UTC)
            member.last_heartbeat_at = group.updated_at = now
            member.member_lease_expires_at = now + timedelta(milliseconds=LEASE_MS)
            member.current_assignment = request.owned_shards or ()
            member.shard_progress = request.shard_progress or ()
            group.store_revision += 1
            self._redis.hset(key, mapping=_fields(group))
        finally:
            self._release(keys=[MUTEX], args=[token])
        resp.set_header(REVISION_HEADER, str(group.store_revision))
        resp.set_header(HEADER, "baseline")
        answer(resp, _response(request, group, member))


def _response(request: wire.HeartbeatRequest, group: PlainGroup, member: PlainMember) -> wire.HeartbeatResponse:
    return wire.HeartbeatResponse(
        response_to=request.request_id,
        status="OK",
        member_id=request.member_id,
        member_epoch=member.member_epoch,
        heartbeat_interval_ms=3_000,
        rebalance_timeout_ms=REBALANCE_TIMEOUT_MS,
        group_epoch=group.group_epoch,
        assignment_epoch=group.assignment_epoch,
        metadata_version=group.metadata_version,
        assignment=wire.Assignment(
            assigned_shards=member.granted_assignment, pending_shards=(), metadata_version=group.metadata_version
        ),
        member_lease_ttl_ms=LEASE_MS,
    )
