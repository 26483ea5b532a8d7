"""`coord streams`: streams over the REST API."""

from __future__ import annotations

import time
from typing import Final

import click
import msgspec

from coord.cli.context import NAME, RequestRefused, Session, confirm_by_name, decoded, with_reason, with_session
from coord.cli.output import console, note, print_facts, print_json, print_table
from coord.names import SHARDS_MAX
from coord.wire import (
    AdoptStreamRequest,
    CreateStreamRequest,
    Migration,
    MigrationsResponse,
    ProducerRoutingResponse,
    ScaleRequest,
    StartFrom,
    StreamCreateResponse,
    StreamScaleResponse,
    StreamsResponse,
    StreamSummary,
)

POLL_S: Final = 0.2
TIMEOUT_S: Final = 300.0
NO_CHANGE: Final = "noop"
"""The id of a scale to the count that the stream has."""


@click.group()
def streams() -> None:
    """Streams: shard count, read set, resharding."""


@streams.command("list")
@with_session
def list_streams(*, session: Session) -> None:
    """List all streams."""
    body = session.api.get("monitoring", "streams")

    def show() -> None:
        print_table(
            ("STREAM", "SHARDS", "READ", "STATE", "GROUPS", "METADATA", "REVISION"),
            [
                (
                    each.stream_prefix,
                    each.shard_count,
                    each.read_shard_count,
                    each.state,
                    len(each.consumer_groups),
                    each.metadata_version,
                    each.store_revision,
                )
                for each in decoded(body, StreamsResponse).streams
            ],
            empty="no streams yet; `coord streams create STREAM --shards N` makes one",
        )

    session.show(body, show)


@streams.command("describe")
@click.argument("stream", type=NAME)
@with_session
def describe(*, session: Session, stream: str) -> None:
    """Show a stream: its shards, its groups, its reshardings.

    As JSON: an object of the API's bodies `stream`, `routing`, `migrations`.
    """
    bodies = {
        "stream": session.api.get("monitoring", "streams", stream),
        "routing": session.api.get("streams", stream, "producer-routing"),
        "migrations": session.api.get("monitoring", "streams", stream, "migrations"),
    }

    def show() -> None:
        summary = decoded(bodies["stream"], StreamSummary)
        routing = decoded(bodies["routing"], ProducerRoutingResponse)
        print_facts(_facts(summary))
        print_table(
            ("SHARD", "KEY", "SLOT"),
            [(each.shard_index, each.stream_key, each.redis_slot) for each in routing.shards],
            title="Write set",
            empty="no shards: nothing can be produced",
        )
        print_migrations(decoded(bodies["migrations"], MigrationsResponse).migrations)

    session.show(joined(bodies), show)


@streams.command("create")
@click.argument("stream", type=NAME)
@click.option("--shards", type=click.IntRange(1, SHARDS_MAX), help="Shard count; default as the coordinator is configured.")
@click.option("--start-from", type=click.Choice(["0", "$"]), help="Where groups made later begin.")
@with_reason(required=False)
@with_session
def create(
    *,
    session: Session,
    stream: str,
    shards: int | None,
    start_from: StartFrom | None,
    requested_by: str,
    reason: str | None,
) -> None:
    """Create a stream with its shards."""
    request = CreateStreamRequest(requested_by=requested_by, initial_shard_count=shards, reason=reason, start_from=start_from)
    body = session.api.post("streams", stream, body=request)
    session.show(body, lambda: _say_made(body, "created"))


@streams.command("adopt")
@click.argument("stream", type=NAME)
@click.option("--shards", type=click.IntRange(1, SHARDS_MAX), required=True, help="How many of its shard keys exist.")
@with_reason(required=True)
@with_session
def adopt(*, session: Session, stream: str, shards: int, requested_by: str, reason: str) -> None:
    """Take over shard keys STREAM:0 to STREAM:N-1 that exist in Redis already."""
    body = session.api.post(
        "streams", stream, "adopt", body=AdoptStreamRequest(shard_count=shards, requested_by=requested_by, reason=reason)
    )
    session.show(body, lambda: _say_made(body, "adopted"))


@streams.command("scale")
@click.argument("stream", type=NAME)
@click.option("--shards", type=click.IntRange(0, SHARDS_MAX), required=True, help="The new shard count; 0 drains everything.")
@click.option("--wait", is_flag=True, help="Wait until the resharding has ended.")
@click.option(
    "--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), default=TIMEOUT_S, show_default=True, help="Seconds."
)
@click.option("--yes", is_flag=True, help="Do not ask before scaling to 0.")
@with_reason(required=True)
@with_session
def scale(
    *,
    session: Session,
    stream: str,
    shards: int,
    wait: bool,
    timeout_s: float,
    yes: bool,
    requested_by: str,
    reason: str,
) -> None:
    """Change a stream's shard count, for all of its groups.

    With --wait the result is the migration as it ended; exit code 1 when it was rolled back or has not ended in time.
    """
    if shards == 0:
        confirm_by_name(stream, what=f"Scaling {stream} to 0 stops all producing", yes=yes)
    request = ScaleRequest(target_shard_count=shards, requested_by=requested_by, reason=reason)
    body = session.api.post("streams", stream, "scale", body=request)
    scaled = decoded(body, StreamScaleResponse)
    if not wait:

        def show() -> None:
            console().print(f"{stream} is being scaled to {shards} shards")
            print_migrations(scaled.migrations[:1])

        session.show(body, show)
        return
    ended = _await_end(session, stream, scaled, timeout_s)
    if session.as_json:
        print_json(ended)
    else:
        console().print(f"{stream} has {shards} shards")


def _await_end(session: Session, stream: str, scaled: StreamScaleResponse, timeout_s: float) -> bytes:
    """Follow a resharding on stderr until it has ended; gives the migration as JSON. Raises RequestRefused when it has not."""
    if scaled.migrations and scaled.migrations[0].resharding_id == NO_CHANGE:
        return msgspec.json.encode(scaled.migrations[0])
    wanted = scaled.migrations[0].resharding_id if scaled.migrations else None
    deadline, told = time.monotonic() + timeout_s, ""
    while True:
        found = decoded(session.api.get("monitoring", "streams", stream, "migrations"), MigrationsResponse)
        rows = [each for each in found.migrations if wanted is None or each.resharding_id == wanted]
        now = rows[-1] if rows else None
        if now is None and found.active_resharding_id is None:
            # A stream without groups that had this count already: nothing was recorded.
            return msgspec.json.encode(scaled)
        if now is not None:
            text = "; ".join((f"{now.state} {now.from_shard_count} -> {now.to_shard_count}", *now.drain_blockers))
            if text != told:
                note(text)
                told = text
            if now.state == "DEPRECATED":
                return msgspec.json.encode(now)
            if now.state == "ROLLED_BACK":
                raise RequestRefused("ROLLED_BACK", f"{now.resharding_id} was rolled back")
        if time.monotonic() >= deadline:
            raise RequestRefused("TIMEOUT", f"the resharding has not ended within {timeout_s:g} s: {told or 'it has not begun'}")
        time.sleep(POLL_S)


@streams.command("delete")
@click.argument("stream", type=NAME)
@click.option("--yes", is_flag=True, help="Do not ask.")
@with_reason(required=True)
@with_session
def delete(*, session: Session, stream: str, yes: bool, requested_by: str, reason: str) -> None:
    """Delete a stream that has no groups. Its shard keys stay in Redis."""
    confirm_by_name(stream, what=f"Deleting stream {stream}", yes=yes)
    body = session.api.delete("streams", stream, requestedBy=requested_by, reason=reason)
    session.show(body, lambda: console().print(f"{stream} is deleted; its shard keys stay in Redis"))


def print_migrations(migrations: tuple[Migration, ...]) -> None:
    """Print reshardings, and what blocks their drains."""
    print_table(
        ("MIGRATION", "FROM", "TO", "STATE", "CREATED", "UPDATED", "REQUESTED BY", "REASON"),
        [
            (
                each.resharding_id,
                each.from_shard_count,
                each.to_shard_count,
                each.state,
                each.created_at,
                each.updated_at,
                each.requested_by,
                each.reason,
            )
            for each in migrations
        ],
        title="Migrations",
    )
    blockers = [(each.resharding_id, blocker) for each in migrations for blocker in each.drain_blockers]
    if blockers:
        print_table(("MIGRATION", "WAITS FOR"), blockers, title="Drain blockers")


def joined(bodies: dict[str, bytes]) -> bytes:
    """Give one JSON object of several bodies, each as the API gave it."""
    return msgspec.json.encode({name: msgspec.Raw(body) for name, body in bodies.items()})


def _facts(summary: StreamSummary) -> list[tuple[str, object]]:
    return [
        ("stream", summary.stream_prefix),
        ("state", summary.state),
        ("shards", summary.shard_count),
        ("read set", f"{summary.read_shard_count} shards"),
        ("groups", ", ".join(summary.consumer_groups)),
        ("metadata version", summary.metadata_version),
        ("revision", summary.store_revision),
        ("active migration", summary.active_resharding_id),
    ]


def _say_made(body: bytes, how: str) -> None:
    made = decoded(body, StreamCreateResponse)
    console().print(f"{made.stream_prefix} is {how} with {made.shard_count} shards")
