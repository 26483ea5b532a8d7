"""`coord migrations`: reshardings as a group sees them, over the REST API."""

from __future__ import annotations

import click

from coord.cli.context import NAME, Session, confirm_by_name, decoded, with_reason, with_session
from coord.cli.output import console
from coord.cli.streams import print_migrations
from coord.wire import CompleteMigrationRequest, Migration, MigrationsResponse, RollbackMigrationRequest


@click.group()
def migrations() -> None:
    """Reshardings of a stream, as one of its groups sees them."""


@migrations.command("list")
@click.argument("stream", type=NAME)
@click.argument("group", type=NAME)
@with_session
def list_migrations(*, session: Session, stream: str, group: str) -> None:
    """List a group's reshardings, oldest first, and what blocks their drains."""
    body = session.api.get("monitoring", "streams", stream, "groups", group, "migrations")
    session.show(body, lambda: print_migrations(decoded(body, MigrationsResponse).migrations))


@migrations.command("rollback")
@click.argument("stream", type=NAME)
@click.argument("group", type=NAME)
@click.argument("migration", type=NAME)
@with_reason(required=True)
@with_session
def rollback(*, session: Session, stream: str, group: str, migration: str, requested_by: str, reason: str) -> None:
    """Turn a resharding of the stream back, while it is PREPARING or ACTIVE."""
    body = session.api.post(
        *_path(stream, group, migration), "rollback", body=RollbackMigrationRequest(requested_by=requested_by, reason=reason)
    )
    session.show(body, lambda: _say(body))


@migrations.command("complete")
@click.argument("stream", type=NAME)
@click.argument("group", type=NAME)
@click.argument("migration", type=NAME)
@click.option("--force", is_flag=True, help="Past named blockers: what is left on the removed shards is read by nobody.")
@click.option("--yes", is_flag=True, help="Do not ask before --force.")
@with_reason(required=True)
@with_session
def complete(
    *, session: Session, stream: str, group: str, migration: str, force: bool, yes: bool, requested_by: str, reason: str
) -> None:
    """End a drain that cannot be proved."""
    if force:
        confirm_by_name(stream, what=f"Ending the drain of {stream} past its blockers may strand records", yes=yes)
    request = CompleteMigrationRequest(requested_by=requested_by, reason=reason, force=force)
    body = session.api.post(*_path(stream, group, migration), "complete", body=request)
    session.show(body, lambda: _say(body))


def _path(stream: str, group: str, migration: str) -> tuple[str, ...]:
    return ("streams", stream, "groups", group, "migrations", migration)


def _say(body: bytes) -> None:
    now = decoded(body, Migration)
    console().print(f"{now.resharding_id} is {now.state}: {now.from_shard_count} -> {now.to_shard_count} shards")
