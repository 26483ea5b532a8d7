"""`coord produce`: publish numbered records to a stream, for demos, load and trying things out."""

from __future__ import annotations

import signal
import sys
import time
from dataclasses import dataclass
from types import FrameType

import click

from coord.cli.consume import credentials_of
from coord.client import Producer, PublishError
from coord.client.trace import Trace

PROGRESS_INTERVAL_S = 5.0
RETRY_DELAY_S = 0.1


@dataclass
class _Counts:
    published: int = 0
    failed: int = 0
    retried: int = 0
    last_error: str | None = None

    def line(self) -> str:
        trouble = f"  last error: {self.last_error}" if self.last_error else ""
        return f"published {self.published}  failed {self.failed}  retried {self.retried}{trouble}"


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
@click.option("--rate", type=click.FloatRange(min=0, min_open=True), default=100.0, show_default=True, help="Records per second.")
@click.option("--count", type=click.IntRange(min=1), help="Stop after so many records.")
@click.option("--seconds", type=click.FloatRange(min=0, min_open=True), help="Stop after this time.")
@click.option("--keys", type=click.IntRange(min=1), default=1000, show_default=True, help="Number of different keys.")
@click.option(
    "--refresh-ms", type=click.IntRange(min=1), default=10_000, show_default=True, help="How often the routing is fetched."
)
@click.option(
    "--routing-lease-ms",
    type=click.IntRange(min=2),
    default=60_000,
    show_default=True,
    help="How long a routing may be used without a fetch.",
)
@click.option(
    "--retry",
    "retries_max",
    type=click.IntRange(min=0),
    default=0,
    show_default=True,
    help="Tries more for a record that failed; may double it.",
)
@click.option(
    "--trace", "trace_directory", type=click.Path(file_okay=False), help="Write what happens to one file in this directory."
)
@click.option("--token", envvar="COORD_TOKEN", help="Bearer token.")
@click.option("--username", envvar="COORD_USERNAME", help="User to log in as.")
@click.option("--password", envvar="COORD_PASSWORD", help="Password of that user; better given by COORD_PASSWORD.")
@click.option("--quiet", is_flag=True, help="No progress on stderr.")
def produce(
    *,
    urls: tuple[str, ...],
    redis_urls: tuple[str, ...],
    stream_prefix: str,
    rate: float,
    count: int | None,
    seconds: float | None,
    keys: int,
    refresh_ms: int,
    routing_lease_ms: int,
    retries_max: int,
    trace_directory: str | None,
    token: str | None,
    username: str | None,
    password: str | None,
    quiet: bool,
) -> None:
    """Publish numbered records at a steady rate until --count, --seconds, SIGTERM or Ctrl-C.

    Exit code 0 when every record was published, 1 when some were not.
    """
    trace = Trace(trace_directory, role="producer", member=stream_prefix) if trace_directory else None
    try:
        producer = Producer(
            urls,
            redis_urls,
            stream_prefix=stream_prefix,
            credentials=credentials_of(token, username, password),
            refresh_ms=refresh_ms,
            routing_lease_ms=routing_lease_ms,
            trace=trace,
        )
    except ValueError as error:
        raise click.UsageError(str(error)) from error
    stop = _StopFlag()
    counts = _Counts()
    with producer:
        begin = time.monotonic()
        shown = begin
        number = 0
        while not stop.told and (count is None or number < count) and (seconds is None or time.monotonic() - begin < seconds):
            _publish(producer, number, keys, retries_max, counts, stop)
            number += 1
            if not quiet and time.monotonic() - shown >= PROGRESS_INTERVAL_S:
                shown = time.monotonic()
                click.echo(counts.line(), err=True)
            # The time of each record is counted from the start, so that a slow one does not lower the rate for good.
            stop.sleep(begin + number / rate - time.monotonic())
    if trace is not None:
        trace.close()
    click.echo(counts.line(), err=True)
    sys.exit(1 if counts.failed else 0)


def _publish(producer: Producer, number: int, keys: int, retries_max: int, counts: _Counts, stop: _StopFlag) -> None:
    for attempt in range(retries_max + 1):
        try:
            producer.publish(f"key-{number % keys}", {"number": str(number)})
        except PublishError as error:
            counts.last_error = str(error)
            if attempt == retries_max or stop.told:
                counts.failed += 1
                return
            counts.retried += 1
            stop.sleep(RETRY_DELAY_S)
        else:
            counts.published += 1
            return


class _StopFlag:
    """Set by SIGTERM and SIGINT."""

    def __init__(self) -> None:
        self.told = False
        signal.signal(signal.SIGTERM, self._stop)
        signal.signal(signal.SIGINT, self._stop)

    def sleep(self, seconds: float) -> None:
        """Sleep in short steps, and no longer once told to stop."""
        until = time.monotonic() + seconds
        while not self.told and (left := until - time.monotonic()) > 0:
            time.sleep(min(left, 0.1))

    def _stop(self, number: int, frame: FrameType | None) -> None:
        del number, frame
        self.told = True
