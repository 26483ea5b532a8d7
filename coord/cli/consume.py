"""`coord consume`: a member that reads its shards and does pretended work, for demos, load and trying things out."""

from __future__ import annotations

import os
import signal
import sys
import time
from types import FrameType

import click

from coord.client import Consumer, CoordinatorHttp, Credentials, Entry, HeartbeatBatcher, LoopSettings, ReaderSettings
from coord.client.trace import Trace

PROGRESS_INTERVAL_S = 5.0
LOOK_INTERVAL_S = 0.25
"""How often the main thread looks whether a member has ended."""
MEMBERS_MAX = 256
CONNECTIONS_MIN = 4
"""Kept open to each coordinator; each member has its own when it asks alone."""


def credentials_of(token: str | None, username: str | None, password: str | None) -> Credentials | None:
    """Build credentials from options; None when nothing was given. Raises a usage error for half of a pair."""
    if token is None and username is None and password is None:
        return None
    try:
        return Credentials(token=token, username=username, password=password)
    except ValueError as error:
        raise click.UsageError(str(error)) from error


@click.command()
@click.option(
    "--url",
    "urls",
    multiple=True,
    required=True,
    envvar="COORD_URL",
    help="Coordinator with its base path: http://host:8080/coord/v1. Repeatable.",
)
@click.option(
    "--redis-url",
    "redis_urls",
    multiple=True,
    required=True,
    envvar="COORD_REDIS_URL",
    help="Redis that holds the shards: redis://host:6379/0, redis-sentinel://host:26379,host:26379/master-name or "
    "redis-cluster://host:6379,host:6379; rediss for TLS. Repeatable for more nodes.",
)
@click.option("--stream", "stream_prefix", required=True, help="Stream prefix.")
@click.option("--group", "consumer_group", required=True, help="Consumer group.")
@click.option("--member-id", required=True, help="Give a restarted process the same id again.")
@click.option(
    "--members",
    type=click.IntRange(min=1, max=MEMBERS_MAX),
    default=1,
    show_default=True,
    help="Members in this process, sharing heartbeat requests; with more than one they are called MEMBER_ID-0, MEMBER_ID-1, …",
)
@click.option(
    "--trace", "trace_directory", type=click.Path(file_okay=False), help="Write what happens to one file in this directory."
)
@click.option("--work-ms", type=click.IntRange(min=0), default=0, show_default=True, help="Pretended work per record.")
@click.option("--concurrency", type=click.IntRange(min=1), default=4, show_default=True, help="Handlers at a time.")
@click.option("--batch", type=click.IntRange(min=1), default=10, show_default=True, help="Records per read.")
@click.option("--block-ms", type=click.IntRange(min=1), default=500, show_default=True, help="Longest wait of a read.")
@click.option("--token", envvar="COORD_TOKEN", help="Bearer token.")
@click.option("--username", envvar="COORD_USERNAME", help="User to log in as.")
@click.option("--password", envvar="COORD_PASSWORD", help="Password of that user; better given by COORD_PASSWORD.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def consume(
    *,
    urls: tuple[str, ...],
    redis_urls: tuple[str, ...],
    stream_prefix: str,
    consumer_group: str,
    member_id: str,
    members: int,
    trace_directory: str | None,
    work_ms: int,
    concurrency: int,
    batch: int,
    block_ms: int,
    token: str | None,
    username: str | None,
    password: str | None,
    quiet: bool,
) -> None:
    """Join a group with one member or several, read their shards, pretend to work, acknowledge.

    SIGTERM or Ctrl-C: drain, acknowledge, leave (a second one ends at once). Exit code 0 after a leave, 1 when the
    coordinator refuses the member.
    """

    def work(entry: Entry) -> None:
        del entry
        if work_ms:
            time.sleep(work_ms / 1000)

    credentials = credentials_of(token, username, password)
    names = [member_id] if members == 1 else [f"{member_id}-{index}" for index in range(members)]
    traces = {name: Trace(trace_directory, role="consumer", member=name) for name in names} if trace_directory else {}
    try:
        http = CoordinatorHttp(urls, credentials=credentials, connections=max(members, CONNECTIONS_MIN))
        batcher = HeartbeatBatcher(http)
        consumers = [
            Consumer(
                batcher,
                redis_urls,
                stream_prefix=stream_prefix,
                consumer_group=consumer_group,
                member_id=name,
                handler=work,
                concurrency=concurrency,
                reader=ReaderSettings(batch_max=batch, block_ms=block_ms),
                loop=LoopSettings(),
                trace=traces.get(name),
            )
            for name in names
        ]
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    _stop_on_signals(consumers)
    for each in consumers:
        each.start()
    try:
        _run(consumers, names, quiet=quiet)
    finally:
        http.close()
        for trace in traces.values():
            trace.close()


def _run(consumers: list[Consumer], names: list[str], *, quiet: bool) -> None:
    """Tell how they do until all have ended. What ends one stops the others too, and the process ends with its reason."""
    faults: list[str] = []
    running = list(zip(consumers, names, strict=True))
    told_at = time.monotonic()
    while running:
        for each, name in list(running):
            try:
                ended = each.wait(LOOK_INTERVAL_S / len(running))
            except Exception as error:  # noqa: BLE001  whatever ended the member ends the process, with a reason
                ended = True
                faults.append(str(error) if len(names) == 1 else f"{name}: {error}")
                for other in consumers:
                    other.stop()
            if ended:
                running.remove((each, name))
        if not quiet and (not running or time.monotonic() - told_at >= PROGRESS_INTERVAL_S):
            told_at = time.monotonic()
            for each, name in zip(consumers, names, strict=True):
                click.echo(progress_line(each) if len(names) == 1 else f"{name}  {progress_line(each)}", err=True)
    for fault in faults:
        click.echo(f"coord consume: {fault}", err=True)
    if faults:
        sys.exit(1)


def progress_line(consumer: Consumer) -> str:
    """One line about a consumer: state, shards, what it has handled, what went wrong last."""
    health = consumer.health()
    handled = sum(s.handled for s in health.shards)
    shards = ",".join(map(str, health.member.assigned)) or "-"
    errors = [error for error in (*(s.last_error for s in health.shards), health.member.last_error) if error]
    trouble = f"  last error: {errors[0]}" if errors else ""
    return f"{health.member.state}  epoch {health.member.member_epoch}  shards {shards}  handled {handled}{trouble}"


def _stop_on_signals(consumers: list[Consumer]) -> None:
    told = False

    def stop(number: int, frame: FrameType | None) -> None:
        nonlocal told
        del frame
        if told:
            os._exit(128 + number)
        told = True
        for each in consumers:
            each.stop()

    signal.signal(signal.SIGTERM, stop)
    signal.signal(signal.SIGINT, stop)
