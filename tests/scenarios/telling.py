"""One short line for anything that a story shows: events, answers, members, streams. Times are told relative to now, in ms."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec

from coord.core.decision import HeartbeatReply
from coord.core.invariants import broken
from coord.events.catalog import AdminRequest, CorrectionStarted, FollowedMigration, Snapshot, StreamIdentityChanged
from coord.events.envelope import Envelope
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.group import Group, Member
from coord.projections.stream import Resharding, Stream
from coord.runtime.shown import group_state
from coord.store.base import Soft
from coord.wire import GroupResponse, Migration, StreamCreateResponse, StreamScaleResponse, StreamSummary

UNTOLD: Final = frozenset({"requested_by", "runtime_max_concurrency", "member_name", "first_seen_at", "last_heartbeat_at"})
"""Fields that no story turns on."""
SUBJECTS: Final = frozenset({"member_id", "consumer_group", "resharding_id", "shard"})
MOMENTS: Final = frozenset({
    "deadline_at", "revoke_deadline_at", "lease_deadline_at", "until", "watch_until", "elder_until", "grants_from",
    "latest_lease",
})  # fmt: skip
TELLS_IDENTITY: Final = (CorrectionStarted, StreamIdentityChanged)


def shards(indices: object) -> str:
    return ",".join(map(str, sorted(indices))) if isinstance(indices, tuple | frozenset | range) and len(indices) else "-"


def moment(at: int, now: int) -> str:
    return f"{at - now:+d}" if at else "none"


def event_line(key: AggregateKey, entry: Envelope) -> str:
    """`orders/g@5 ShardsFreed a shards=2,3 reason=REPORTED`."""
    event = entry.event
    head = f"{key}@{entry.revision} {type(event).__name__}"
    if isinstance(event, AdminRequest):
        return f"{head} {event.action} {event.outcome} {event.status}"
    if isinstance(event, Snapshot):
        return f"{head} of revision {event.revision}"
    told = [head]
    for name in event.__struct_fields__:
        value = getattr(event, name)
        untold = name in UNTOLD or (name == "identity" and not isinstance(event, TELLS_IDENTITY))
        if not untold and value is not None and value is not False:
            told.append(_field(name, value, entry.at))
    return " ".join(told)


def _field(name: str, value: Any, at: int) -> str:
    label = name.replace("_", "-")
    if name in SUBJECTS:
        return str(value)
    if name in MOMENTS:
        return f"{label}={moment(value, at)}"
    if isinstance(value, FollowedMigration):
        return f"migration={value.resharding_id}:{value.state}"
    if isinstance(value, Mapping):
        return f"{label}=[{' '.join(f'{member}:{shards(owned)}' for member, owned in sorted(value.items()))}]"
    if name == "blockers":
        return f"blockers=[{'; '.join(value)}]" if value else "blockers=-"
    if isinstance(value, tuple):
        return f"{label}={shards(value)}"
    if isinstance(value, str) and " " in value:
        return f"{label}='{value}'"
    return label if value is True else f"{label}={value}"


def answer_line(reply: HeartbeatReply) -> str:
    """The row that fired, and what the member is told."""
    return (
        f"row {reply.row} {reply.status} epoch={reply.member_epoch} group-epoch={reply.group_epoch} mv={reply.metadata_version} "
        f"assigned={shards(reply.assigned)} pending={shards(reply.pending)}"
    )


def outcome_line(value: object) -> str:
    """What an administrative request gave."""
    match value:
        case StreamCreateResponse():
            return f"stream {value.stream_prefix} shards={value.shard_count} version={value.metadata_version}"
        case StreamSummary():
            return f"stream {value.stream_prefix} shards={value.shard_count} was {value.state}"
        case GroupResponse():
            return f"group {value.consumer_group} {value.state} shards={value.shard_count} read={value.read_shard_count}"
        case Migration():
            return f"migration {value.resharding_id} {value.from_shard_count}->{value.to_shard_count} {value.state}"
        case StreamScaleResponse():
            told = [outcome_line(migration) for migration in value.migrations] or ["no group to follow"]
            return f"{'; '.join(told)}"
        case _:
            return msgspec.json.encode(value).decode()


def group_lines(group: Group, soft: Soft) -> Iterator[str]:
    yield (
        f"{group.consumer_group} {group_state(group)} epoch={group.epoch} group-epoch={group.group_epoch} "
        f"mv={group.metadata_version} revision={group.store_revision} shards={group.shard_count} read={shards(group.read_set)}"
        + (f" migration={group.migration.resharding_id}:{group.migration.state}" if group.migration else "")
        + (f" round until={moment(group.correction.until, soft.now)}" if group.correction else "")
    )
    for member in sorted(group.members.values(), key=lambda member: member.member_id):
        yield "  " + _member_line(group, member, soft)
    yield from (f"  BROKEN {what}" for what in broken(group))


def _member_line(group: Group, member: Member, soft: Soft) -> str:
    who = member.member_id
    told = [
        f"{who} {member.state} E={member.member_epoch} A={member.acked_epoch} J={member.join_epoch}",
        f"lease={moment(soft.leases[who], soft.now)}" if who in soft.leases else "lease=none",
        f"holds={shards(group.in_phase(who, 'ASSIGNED'))}",
    ]
    if revoking := group.in_phase(who, "REVOKING"):
        told.append("revoking=" + ",".join(f"{s}({moment(group.ownership[s].deadline_at, soft.now)})" for s in sorted(revoking)))
    if target := tuple(shard for shard, owner in group.target.items() if owner == who):
        told.append(f"target={shards(target)}")
    if member.current_assignment:
        told.append(f"reported={shards(member.current_assignment)}")
    if member.foreign:
        told.append(f"foreign={shards(member.foreign)}")
    if member.elder:
        told.append(f"elder={shards(member.elder)}({moment(member.elder_until, soft.now)})")
    if member.abandoned:
        told.append(f"abandoned={shards(member.abandoned)}")
    return " ".join(told)


def stream_lines(stream: Stream, now: int) -> Iterator[str]:
    yield (
        f"{stream.stream_prefix} {stream.resharding.state if stream.resharding else 'STABLE'} shards={stream.shard_count} "
        f"read={shards(stream.read_set)} version={stream.metadata_version} revision={stream.store_revision} "
        f"groups={','.join(sorted(stream.groups)) or '-'}"
    )
    if stream.retired:
        watched = sorted((int(shard), until) for shard, until in stream.retired.items())
        yield "  retired " + " ".join(f"{shard}({moment(until, now)})" for shard, until in watched)
    if stream.reopened:
        yield f"  reopened {shards(stream.reopened)}"
    for migration in (*stream.ended, *([stream.resharding] if stream.resharding else [])):
        yield "  " + _migration_line(migration)
    yield from (f"  BROKEN {what}" for what in broken(stream))


def _migration_line(migration: Resharding) -> str:
    forced = f" forced by {migration.forced_by}" if migration.forced_by else ""
    drained = " drained" if migration.drained else ""
    counts = f"{migration.from_shard_count}->{migration.to_shard_count}"
    return f"{migration.resharding_id} {counts} {migration.state}{drained}{forced}"


def key_of(text: str) -> AggregateKey:
    """`orders` is a stream, `orders/g` a group."""
    prefix, _, group = text.partition("/")
    return GroupKey(prefix, group) if group else StreamKey(prefix)
