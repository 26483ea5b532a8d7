"""`coord groups`: groups over the REST API."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime

import click
import msgspec

from coord.cli.context import NAME, Session, confirm_by_name, decoded, with_reason, with_session
from coord.cli.output import console, print_facts, print_table
from coord.cli.streams import joined, print_migrations
from coord.names import SHARDS_MAX
from coord.wire import (
    AssignmentsResponse,
    CreateGroupRequest,
    GroupResponse,
    GroupsResponse,
    GroupState,
    MemberMetadata,
    MembersResponse,
    MigrationsResponse,
    Shard,
    StartFrom,
)


@click.group()
def groups() -> None:
    """Groups: members, target assignment, ownership."""


@groups.command("list")
@click.option("--stream", type=NAME, help="Only groups of this stream.")
@click.option("--state", type=click.Choice(["EMPTY", "RECONCILING", "ASSIGNING", "STABLE"]), help="Only groups in this state.")
@with_session
def list_groups(*, session: Session, stream: str | None, state: GroupState | None) -> None:
    """List all groups."""
    body = session.api.get("monitoring", "groups")
    if stream is not None or state is not None:
        body = _only(body, stream, state)

    def show() -> None:
        print_table(
            ("STREAM", "GROUP", "STATE", "SHARDS", "ACTIVE", "EXPIRED", "REVOKING", "EPOCH", "ASSIGNED", "MIGRATION"),
            [
                (
                    each.stream_prefix,
                    each.consumer_group,
                    each.state,
                    each.shard_count,
                    each.active_members,
                    each.expired_members,
                    each.revoking_shards,
                    each.group_epoch,
                    f"{sum(each.current_assignment_summary.values())} / {each.read_shard_count}",
                    each.active_migration.state if each.active_migration else None,
                )
                for each in decoded(body, GroupsResponse).groups
            ],
            empty="no groups; a first `coord consume --stream STREAM --group GROUP …` makes one",
        )

    session.show(body, show)


@groups.command("describe")
@click.argument("stream", type=NAME)
@click.argument("group", type=NAME)
@with_session
def describe(*, session: Session, stream: str, group: str) -> None:
    """Show a group: members, leases, who owns what, what each shard waits for, its reshardings.

    As JSON: an object of the API's bodies `group`, `members`, `assignments`, `migrations`.
    """
    base = ("monitoring", "streams", stream, "groups", group)
    bodies = {
        "group": session.api.get(*base),
        "members": session.api.get(*base, "members"),
        "assignments": session.api.get(*base, "assignments"),
        "migrations": session.api.get(*base, "migrations"),
    }

    def show() -> None:
        members = decoded(bodies["members"], MembersResponse).members
        assignments = decoded(bodies["assignments"], AssignmentsResponse)
        now = datetime.now(UTC)
        print_facts(_facts(decoded(bodies["group"], GroupResponse)))
        _print_members(members, now)
        print_table(("SHARD", "TARGET", "ON RECORD", "WAITS FOR"), shard_rows(assignments, members, now), title="Shards")
        print_migrations(decoded(bodies["migrations"], MigrationsResponse).migrations)
        for violation in assignments.invariant_violations:
            console().print(f"BROKEN INVARIANT: {violation}", style="red")

    session.show(joined(bodies), show)


@groups.command("create")
@click.argument("stream", type=NAME)
@click.argument("group", type=NAME)
@click.option(
    "--shards",
    type=click.IntRange(1, SHARDS_MAX),
    help="Shard count of the stream, which is made too when it does not exist; of an existing stream it must be its count.",
)
@click.option("--start-from", type=click.Choice(["0", "$"]), help="Where its reading begins: first entry, or end.")
@with_reason(required=False)
@with_session
def create(
    *,
    session: Session,
    stream: str,
    group: str,
    shards: int | None,
    start_from: StartFrom | None,
    requested_by: str,
    reason: str | None,
) -> None:
    """Create a group, and its stream when that does not exist."""
    request = CreateGroupRequest(requested_by=requested_by, initial_shard_count=shards, reason=reason, start_from=start_from)
    body = session.api.post("streams", stream, "groups", group, body=request)
    session.show(
        body,
        lambda: console().print(f"{stream}/{group} is created on {decoded(body, GroupResponse).shard_count} shards"),
    )


@groups.command("delete")
@click.argument("stream", type=NAME)
@click.argument("group", type=NAME)
@click.option("--force", is_flag=True, help="Even with live members: they may go on reading until their leases lapse.")
@click.option("--destroy-consumer-groups", is_flag=True, help="Its Redis consumer groups too, with what is pending in them.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_reason(required=True)
@with_session
def delete(
    *,
    session: Session,
    stream: str,
    group: str,
    force: bool,
    destroy_consumer_groups: bool,
    yes: bool,
    requested_by: str,
    reason: str,
) -> None:
    """Delete a group. Its Redis consumer groups stay unless told otherwise."""
    confirm_by_name(group, what=f"Deleting group {stream}/{group}", yes=yes)
    body = session.api.delete(
        "streams",
        stream,
        "groups",
        group,
        requestedBy=requested_by,
        reason=reason,
        force="true" if force else None,
        destroyConsumerGroups="true" if destroy_consumer_groups else None,
    )
    session.show(body, lambda: console().print(f"{stream}/{group} is deleted"))


def shard_rows(
    assignments: AssignmentsResponse, members: tuple[MemberMetadata, ...], now: datetime
) -> Iterator[tuple[int, str | None, str | None, str | None]]:
    """Give (shard, member it should be with, member it is on record for, what it waits for), by shard."""
    target = {shard.shard_index: member for member, owned in assignments.target_assignment.items() for shard in owned}
    holder = {shard.shard_index: member for member, owned in assignments.current_assignments.items() for shard in owned}
    revoking = {row.shard.shard_index: row for row in assignments.revoke_progress}
    reported = {each.member_id: indices(each.current_assignment) for each in members}
    for shard in sorted(target.keys() | holder.keys()):
        held_by, wanted_by = holder.get(shard), target.get(shard)
        waits_for = None
        if shard in revoking:
            waits_for = f"{held_by} to let it go, {_left(revoking[shard].deadline_at, now)} left"
        elif held_by is None:
            others = [name for name, owned in reported.items() if shard in owned]
            waits_for = f"{', '.join(others)} to stop naming it" if others else f"being granted to {wanted_by}"
        elif shard not in reported.get(held_by, frozenset()):
            waits_for = f"{held_by} to report that it reads it"
        yield shard, wanted_by, held_by, waits_for


def indices(shards: tuple[Shard, ...]) -> frozenset[int]:
    """Give shard indices."""
    return frozenset(shard.shard_index for shard in shards)


def shards_text(shards: tuple[Shard, ...]) -> str:
    """Write shards as `0,3,4`."""
    return ",".join(str(shard.shard_index) for shard in shards)


def lease_text(member: MemberMetadata, now: datetime) -> str:
    """Write what is left of a member's lease, by this machine's clock."""
    if member.member_lease_expires_at is None:
        return "-"
    return _left(member.member_lease_expires_at, now)


def _left(until: str, now: datetime) -> str:
    left_s = (datetime.fromisoformat(until) - now).total_seconds()
    return f"{left_s:.1f} s" if left_s > 0 else "lapsed"


def _busy(member: MemberMetadata) -> str | None:
    if member.active_consumer_workers is None:
        return None
    return f"{member.active_consumer_workers}/{member.runtime_max_concurrency}"


def _print_members(members: tuple[MemberMetadata, ...], now: datetime) -> None:
    print_table(
        ("MEMBER", "STATE", "EPOCH", "LEASE LEFT", "ASSIGNED", "REVOKING", "BUSY", "LAST HEARTBEAT"),
        [
            (
                each.member_id,
                each.state,
                each.member_epoch,
                lease_text(each, now),
                shards_text(each.granted_assignment),
                shards_text(each.revoking),
                _busy(each),
                each.last_heartbeat_at,
            )
            for each in members
        ],
        title="Members",
        empty="none; nobody reads this group",
    )


def _facts(group: GroupResponse) -> list[tuple[str, object]]:
    migration = group.active_migration
    return [
        ("group", f"{group.stream_prefix}/{group.consumer_group}"),
        ("state", group.state),
        ("shards", group.shard_count),
        ("read set", f"{group.read_shard_count} shards"),
        ("members", f"{group.active_members} active, {group.expired_members} expired"),
        ("group epoch", group.group_epoch),
        ("assignment epoch", group.assignment_epoch),
        ("metadata version", group.metadata_version),
        ("revision", group.store_revision),
        (
            "active migration",
            f"{migration.state} {migration.from_shard_count} -> {migration.to_shard_count}" if migration else None,
        ),
    ]


def _only(body: bytes, stream: str | None, state: str | None) -> bytes:
    """Leave out groups that were not asked for; the rest stays as the API gave it."""
    answer = msgspec.json.decode(body)
    answer["groups"] = [
        each
        for each in answer["groups"]
        if (stream is None or each["streamPrefix"] == stream) and (state is None or each["state"] == state)
    ]
    return msgspec.json.encode(answer)
