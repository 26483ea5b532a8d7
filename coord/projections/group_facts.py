"""What each event does to a group aggregate. The group is a private draft of the caller and is changed in place.

An event that a client could see the effect of raises `metadataVersion` by one (a SYNC_METADATA answer is none, nor are a
plain report, a pruning, or a member's name).
"""

from __future__ import annotations

from typing import assert_never

from msgspec.structs import replace

from coord.events import catalog as fact
from coord.events.catalog import GroupEvent, Shards
from coord.projections.group import Correction, Group, Hold, Member, MemberState


def evolve_group(group: Group | None, event: GroupEvent, *, key: tuple[str, str], revision: int, at: int) -> Group | None:
    """Give the group after the event: the same draft, a new one after a creation, None after a deletion.

    An event about a member that is gone changes nothing: replay must survive the removal of what is already removed.
    """
    if isinstance(event, (fact.GroupCreated, fact.GroupAdopted)):  # a tuple: a union would be made anew for each event
        return _begun(event, key=key, revision=revision, at=at)
    if group is None or isinstance(event, fact.GroupDeleted):
        return None
    group.store_revision = revision
    group.updated_at = at
    _apply(group, event, at)
    return group


def _apply(group: Group, event: GroupEvent, at: int) -> None:  # noqa: C901, PLR0912 one case an event
    """Apply an event to the draft; what is frequent is asked first."""
    match event:
        case fact.OwnershipReported():
            _reported(group, event, at)
        case fact.RevocationRequested():
            _observable(group)
            _issue(group, event.member_id, event.member_epoch)
            group.hold(event.shards, Hold(event.member_id, "REVOKING", event.member_epoch, event.deadline_at))
        case fact.ShardsFreed():
            _freed(group, event)
        case fact.ShardsGranted():
            _observable(group)
            _issue(group, event.member_id, event.member_epoch)
            group.hold(event.shards, Hold(event.member_id, "ASSIGNED", event.member_epoch, 0))
        case fact.TargetComputed():
            _retargeted(group, event)
        case fact.MemberJoined():
            _joined(group, event, at)
        case fact.MemberRejoined():
            _rejoined(group, event, at)
        case fact.MemberLeaving():
            _observable(group)
            _change(group, event.member_id, at, state="LEAVING", foreign=event.foreign, current_assignment=())
        case fact.MemberExpired():
            _gone(group, event.member_id, "EXPIRED", event.member_epoch, (), at)
        case fact.MemberFenced():
            _gone(group, event.member_id, "FENCED", event.member_epoch, event.foreign, at)
        case fact.MemberPruned():
            group.members.pop(event.member_id, None)
        case fact.MemberUpdated():
            _update(group, event)
        case fact.TopologyFollowed():
            _observable(group)
            group.stream_revision = event.stream_revision
            group.shard_count, group.read_set, group.migration = event.shard_count, event.read_set, event.migration
        case fact.CorrectionStarted():
            _correction_started(group, event, at)
        case fact.CorrectionAcknowledged():
            _acknowledged(group, event, at)
        case fact.CorrectionEnded():
            _observable(group)
            group.correction = None
        case fact.GroupCreated() | fact.GroupAdopted() | fact.GroupDeleted():
            message = "creation and deletion are handled by evolve_group"
            raise AssertionError(message)
        case _:
            assert_never(event)


def _observable(group: Group) -> None:
    group.metadata_version += 1


def _issue(group: Group, member_id: str, epoch: int) -> None:
    """Record an epoch issued to a member."""
    group.epoch = max(group.epoch, epoch)
    if member := group.members.get(member_id):
        group.put(replace(member, member_epoch=max(member.member_epoch, epoch)))


def _change(group: Group, member_id: str, at: int, *, state: MemberState, foreign: Shards, current_assignment: Shards) -> None:
    if member := group.members.get(member_id):
        foreign_since = _foreign_since(member, foreign, at)
        group.put(
            replace(
                member,
                state=state,
                state_since=member.state_since if member.state == state else at,
                foreign=foreign,
                foreign_since=foreign_since,
                current_assignment=current_assignment,
            )
        )


def _foreign_since(member: Member, foreign: Shards, at: int) -> int:
    if not foreign:
        return 0
    return member.foreign_since or at


def _joined(group: Group, event: fact.MemberJoined, at: int) -> None:
    _observable(group)
    group.epoch = max(group.epoch, event.member_epoch)
    group.put(
        Member(
            member_id=event.member_id,
            member_name=event.member_name,
            state="ACTIVE",
            member_epoch=event.member_epoch,
            acked_epoch=0,
            join_epoch=event.member_epoch,
            join_request_id=event.request_id,
            joined_metadata_version=group.metadata_version,
            joined_at=at,
            rejoined_at=0,
            elder_until=0,
            runtime_max_concurrency=event.runtime_max_concurrency,
            state_since=at,
            foreign_since=0,
        )
    )


def _rejoined(group: Group, event: fact.MemberRejoined, at: int) -> None:
    _observable(group)
    group.epoch = max(group.epoch, event.member_epoch)
    member = group.members.get(event.member_id)
    if member is None:
        return
    for shard in event.abandoned:
        group.ownership[shard] = group.ownership[shard]._replace(deadline_at=event.revoke_deadline_at)
    group.put(
        replace(
            member,
            member_name=event.member_name,
            state="ACTIVE",
            member_epoch=event.member_epoch,
            acked_epoch=0,
            join_epoch=event.member_epoch,
            join_request_id=event.request_id,
            joined_metadata_version=group.metadata_version,
            rejoined_at=at if event.damped else member.rejoined_at,
            elder_until=event.elder_until,
            elder=event.elder,
            abandoned=event.abandoned,
            runtime_max_concurrency=event.runtime_max_concurrency,
            state_since=member.state_since if member.state == "ACTIVE" else at,
            current_assignment=(),
            foreign=event.foreign,
            foreign_since=at if event.foreign else 0,
        )
    )


def _gone(group: Group, member_id: str, state: MemberState, epoch: int, foreign: Shards, at: int) -> None:
    """Turn a member away: what it echoes from now on is behind the epoch it was issued."""
    _observable(group)
    group.epoch = max(group.epoch, epoch)
    _change(group, member_id, at, state=state, foreign=foreign, current_assignment=())
    if member := group.members.get(member_id):
        member = replace(member, member_epoch=epoch, acked_epoch=epoch)
        if state == "EXPIRED":
            member = replace(member, elder=(), elder_until=0, abandoned=())
        group.put(member)


def _update(group: Group, event: fact.MemberUpdated) -> None:
    if member := group.members.get(event.member_id):
        group.put(replace(member, member_name=event.member_name, runtime_max_concurrency=event.runtime_max_concurrency))


def _retargeted(group: Group, event: fact.TargetComputed) -> None:
    _observable(group)
    group.epoch = max(group.epoch, event.epoch)
    group.group_epoch = group.assignment_epoch = event.epoch
    group.aim_nowhere(event.unassigned)
    for member_id, shards in event.moves.items():
        group.aim(member_id, shards)


def _freed(group: Group, event: fact.ShardsFreed) -> None:
    _observable(group)
    group.free(event.member_id, event.shards)
    member = group.members.get(event.member_id)
    if member is not None and (member.elder or member.abandoned):
        gone = frozenset(event.shards)
        group.put(
            replace(
                member,
                elder=tuple(s for s in member.elder if s not in gone),
                abandoned=tuple(s for s in member.abandoned if s not in gone),
            )
        )


def _reported(group: Group, event: fact.OwnershipReported, at: int) -> None:
    member = group.members.get(event.member_id)
    if member is None:
        return
    if member.foreign != event.foreign:
        _observable(group)  # a quarantine begins or ends: another member's view may change
    group.put(
        replace(
            member,
            acked_epoch=max(member.acked_epoch, event.epoch),
            current_assignment=event.owned,
            foreign=event.foreign,
            foreign_since=_foreign_since(member, event.foreign, at),
        )
    )


def _correction_started(group: Group, event: fact.CorrectionStarted, at: int) -> None:
    group.epoch = event.base
    group.metadata_version = event.metadata_version
    group.identity = event.identity
    group.correction = Correction(base=event.base, until=event.until, reason=event.reason, started_at=at)
    if event.by_report:
        group.report_round_at = at
    for member in group.members.values():
        group.members[member.member_id] = replace(member, joined_metadata_version=event.metadata_version)


def _acknowledged(group: Group, event: fact.CorrectionAcknowledged, at: int) -> None:
    group.epoch = max(group.epoch, event.member_epoch)
    if member := group.members.get(event.member_id):
        group.put(
            replace(
                member,
                member_epoch=event.member_epoch,
                acked_epoch=0,
                join_epoch=event.member_epoch,
                join_request_id="",
                elder=event.elder,
                elder_until=event.elder_until,
                abandoned=(),  # of a life before the one that is told this, which may read them again
                current_assignment=event.owned,
                foreign=event.foreign,
                foreign_since=_foreign_since(member, event.foreign, at),
            )
        )


def _begun(event: fact.GroupCreated | fact.GroupAdopted, *, key: tuple[str, str], revision: int, at: int) -> Group:
    group = Group(
        stream_prefix=key[0],
        consumer_group=key[1],
        store_revision=revision,
        epoch=event.epoch,
        group_epoch=event.epoch,
        assignment_epoch=event.epoch,
        metadata_version=event.metadata_version,
        registration=event.registration,
        stream_revision=event.stream_revision,
        shard_count=event.shard_count,
        read_set=event.read_set,
        migration=event.migration,
        grants_from=event.grants_from if isinstance(event, fact.GroupCreated) else 0,
        identity=event.identity,
        report_round_at=0,
        created_at=at,
        updated_at=at,
    )
    if isinstance(event, fact.GroupAdopted):
        group.group_epoch, group.assignment_epoch = event.group_epoch, event.assignment_epoch
        for member in event.members:
            _adopt(group, member, event.revoke_deadline_at, at)
    return group


def _adopt(group: Group, adopted: fact.AdoptedMember, deadline_at: int, at: int) -> None:
    kept: dict[str, MemberState] = {"EXPIRED": "EXPIRED", "FENCED": "FENCED", "LEAVING": "LEAVING"}
    state: MemberState = kept.get(adopted.state, "ACTIVE")
    group.put(
        Member(
            member_id=adopted.member_id,
            member_name=adopted.member_name,
            state=state,
            member_epoch=adopted.member_epoch,
            acked_epoch=0,
            join_epoch=0,
            join_request_id="",
            joined_metadata_version=0,
            joined_at=at,
            rejoined_at=0,
            elder_until=0,
            runtime_max_concurrency=adopted.runtime_max_concurrency,
            state_since=at,
            foreign_since=0,
            current_assignment=adopted.current_assignment,
        )
    )
    group.aim(adopted.member_id, adopted.target)
    group.hold(adopted.assigned, Hold(adopted.member_id, "ASSIGNED", adopted.member_epoch, 0))
    if adopted.revoking:
        group.hold(adopted.revoking, Hold(adopted.member_id, "REVOKING", adopted.member_epoch, deadline_at))
