"""What each event does to a stream aggregate."""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from coord.events import catalog as fact
from coord.events.catalog import StreamEvent
from coord.projections.stream import ENDED_MAX, RegisteredGroup, Resharding, ReshardingState, Stream


def evolve_stream(stream: Stream | None, event: StreamEvent, *, prefix: str, revision: int, at: int) -> Stream | None:
    """Give the stream after the event; None after a deletion, and before a creation."""
    if isinstance(event, fact.StreamCreated | fact.StreamAdopted):
        return _created(event, prefix=prefix, revision=revision, at=at)
    if stream is None:
        return None
    stream = replace(stream, store_revision=revision, updated_at=at)
    match event:
        case fact.StreamDeleted():
            return None
        case fact.GroupRegistered():
            group = RegisteredGroup(start_from=event.start_from, registered_revision=revision, registered_at=at, how=event.how)
            return replace(stream, groups=stream.groups | {event.consumer_group: group})
        case fact.GroupRemoved():
            return replace(stream, groups={g: r for g, r in stream.groups.items() if g != event.consumer_group})
        case fact.StreamIdentityChanged():
            return replace(stream, identity=event.identity, identity_changed_at=at, metadata_version=event.metadata_version)
        case fact.RetiredShardDeleted():
            return replace(stream, retired={s: until for s, until in stream.retired.items() if s != str(event.shard)})
        case fact.ShardReopened():
            reopened = tuple(sorted({*stream.reopened, *event.shards}))
            return replace(stream, read_set=event.read_set, reopened=reopened, topology_revision=revision)
        case _:
            return _resharding(replace(stream, topology_revision=revision), event, at)


def _created(event: fact.StreamCreated | fact.StreamAdopted, *, prefix: str, revision: int, at: int) -> Stream:
    return Stream(
        stream_prefix=prefix,
        store_revision=revision,
        topology_revision=revision,
        shard_count=event.shard_count,
        read_set=tuple(range(event.shard_count)),
        metadata_version=event.metadata_version,
        start_from=event.start_from if isinstance(event, fact.StreamCreated) else "$",
        groups={},
        resharding=None,
        ended=(),
        retired={},
        reopened=(),
        identity=event.identity,
        identity_changed_at=0,
        created_at=at,
        updated_at=at,
    )


def _resharding(
    stream: Stream,
    event: fact.ReshardingRequested
    | fact.TopologyActivated
    | fact.DrainStarted
    | fact.DrainProved
    | fact.RollbackRequested
    | fact.ReshardingEnded,
    at: int,
) -> Stream:
    match event:
        case fact.ReshardingRequested():
            begun = Resharding(
                resharding_id=event.resharding_id,
                from_shard_count=event.from_shard_count,
                to_shard_count=event.to_shard_count,
                state="PREPARING",
                created_at=at,
                updated_at=at,
                activated_at=0,
                drained=False,
                forced_by=None,
                blockers_passed=False,
                requested_by=event.requested_by,
                reason=event.reason,
            )
            return replace(stream, resharding=begun)
        case fact.TopologyActivated():
            active = replace(_active(stream), state="ACTIVE", updated_at=at, activated_at=at)
            return replace(_with_write_set(stream, event.shard_count, event.read_set), resharding=active)
        case fact.DrainStarted():
            return replace(stream, resharding=replace(_active(stream), state="DRAINING", updated_at=at))
        case fact.DrainProved():
            return _drained(stream, event, at)
        case fact.RollbackRequested():
            if event.state == "ROLLED_BACK":
                return _ended(stream, "ROLLED_BACK", at)
            turned = replace(_active(stream), state="ROLLING_BACK", updated_at=at, drained=False)
            return replace(_with_write_set(stream, event.shard_count, event.read_set), resharding=turned)
        case fact.ReshardingEnded():
            retired = stream.retired | {str(s): event.watch_until for s in event.retired}
            state: ReshardingState = "ROLLED_BACK" if event.state == "ROLLED_BACK" else "DEPRECATED"
            return _ended(replace(stream, retired=retired), state, at)
        case _:
            assert_never(event)


def _active(stream: Stream) -> Resharding:
    if stream.resharding is None:
        message = f"stream {stream.stream_prefix}: a resharding's event without a resharding"
        raise ValueError(message)
    return stream.resharding


def _with_write_set(stream: Stream, shard_count: int, read_set: tuple[int, ...]) -> Stream:
    """Flip routing: producers see a new version; an index that is written again is watched no more."""
    return replace(
        stream,
        shard_count=shard_count,
        read_set=read_set,
        metadata_version=stream.metadata_version + 1,
        retired={s: until for s, until in stream.retired.items() if int(s) >= shard_count},
        reopened=tuple(s for s in stream.reopened if s >= shard_count),
    )


def _drained(stream: Stream, event: fact.DrainProved, at: int) -> Stream:
    reopened = tuple(s for s in stream.reopened if s not in event.shards)
    stream = replace(stream, read_set=event.read_set, reopened=reopened)
    if event.resharding_id is None:
        return stream
    return replace(
        stream,
        resharding=replace(
            _active(stream), drained=True, forced_by=event.forced_by, blockers_passed=bool(event.blockers), updated_at=at
        ),
    )


def _ended(stream: Stream, state: ReshardingState, at: int) -> Stream:
    ended = replace(_active(stream), state=state, updated_at=at)
    return replace(stream, resharding=None, ended=(*stream.ended, ended)[-ENDED_MAX:])
