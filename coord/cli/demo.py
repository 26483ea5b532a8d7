"""`coord demo`: real members on real shards, in real processes, judged at the end by two programs of their own."""

from __future__ import annotations

import contextlib
import secrets
import shutil
import signal
import socket
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from types import FrameType
from typing import Final

import click

from coord.cli.context import Api
from coord.cli.demo_counts import Counts
from coord.cli.demo_play import Play
from coord.cli.demo_processes import Programs, ended_with, environment
from coord.cli.demo_redis import DemoRedis, private_redis, users_cluster
from coord.cli.demo_report import Report, as_json, as_text, judge
from coord.cli.demo_story import SECONDS_DEFAULT, SECONDS_MIN, TIMINGS, configuration, timeline
from coord.cli.demo_table import Stage
from coord.cli.output import note
from coord.runtime.embedded import free_port

HOST: Final = "127.0.0.1"
USERNAME: Final = "admin"
API_TIMEOUT_MS: Final = 3_000


@click.command()
@click.option(
    "--seconds", type=int, default=SECONDS_DEFAULT, show_default=True, help=f"How long it plays; at least {SECONDS_MIN}."
)
@click.option("--json", "json_wanted", is_flag=True, help="The result as one JSON object, the last line on stdout.")
@click.option("--port", type=click.IntRange(1, 65535), help="Port of the coordinator; default a free one.")
@click.option("--trace", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Keep traces and logs in DIR.")
@click.option("--rate", type=click.FloatRange(1, 10_000), default=100.0, show_default=True, help="Records a second.")
@click.option(
    "--redis-cluster",
    metavar="NODES",
    help="Play on this Redis Cluster (host:port,host:port or redis-cluster://user:password@host:port), under names of its own "
    "that are removed at the end; default a private Redis.",
)
@click.option("--work-ms", type=click.IntRange(0, 1_000), default=5, show_default=True, help="Pretended work a record.")
def demo(
    *, seconds: int, json_wanted: bool, port: int | None, trace: Path | None, rate: float, redis_cluster: str | None, work_ms: int
) -> None:
    """Watch members share the shards of a stream, lose one, and carry on.

    A private Redis, a coordinator, a producer and four consumers, each a process of its own. One consumer is killed, two more
    start, the stream is scaled from 8 to 12 and back to 6 shards. Then `coord.cli.verdict` judges the traces (every record
    consumed, no shard read by two) and `coord verify` the log. Exit code 0: both say yes; 1: one says no, or the story did not go
    as told; 2: wrong usage; 3: Redis or the coordinator did not start. Everything it started ends with it.
    """
    if seconds < SECONDS_MIN:
        raise click.BadParameter(
            f"{seconds} is too short: a lease must lapse and two reshardings must end, that takes {SECONDS_MIN} seconds",
            param_hint="--seconds",
        )
    _refuse_used(trace)
    chosen = _checked_port(port)
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, _end)
    with contextlib.ExitStack() as stack:
        played = stack.enter_context(private_redis() if redis_cluster is None else users_cluster(redis_cluster))
        report = _play(stack, played, seconds=seconds, port=chosen, trace=trace, rate=rate, work_ms=work_ms)
    if json_wanted:
        note_lines(as_text(report))
        click.echo(as_json(report))
    else:
        click.echo(as_text(report))
    sys.exit(0 if report.ok else 1)


def _play(
    stack: contextlib.ExitStack, played: DemoRedis, *, seconds: int, port: int, trace: Path | None, rate: float, work_ms: int
) -> Report:
    """Set the stage, play, judge."""
    folder = stack.enter_context(_temporary_folder())
    traces = folder / "trace" if trace is None else trace
    logs = traces / "logs"
    logs.mkdir(parents=True, exist_ok=True)
    password, url = secrets.token_urlsafe(24), f"http://{HOST}:{port}/coord/v1"
    config = folder / "coordinator.yaml"
    config.touch(mode=0o600)
    settings = configuration(
        port=port,
        redis=played.section,
        password=password,
        token_secret=secrets.token_urlsafe(48),
        key_prefix=played.key_prefix,
    )
    config.write_text(settings, encoding="utf-8")
    environ = environment(
        {"COORD_URL": url, "COORD_REDIS_URL": played.url, "COORD_USERNAME": USERNAME, "COORD_PASSWORD": password}
    )
    programs = stack.enter_context(ended_with(Programs(logs, environ)))
    api = Api(url, username=USERNAME, password=password, timeout_ms=API_TIMEOUT_MS)
    stack.callback(api.close)
    report = Report(seconds=seconds, url=url, stream=played.stream, timings=TIMINGS, trace=str(traces) if trace else None)
    note(f"redis {played.shown}  coordinator {url}  user {USERNAME}")
    note("  ".join(f"{name} {value}" for name, value in TIMINGS.items()))
    with Stage(live=sys.stdout.isatty(), seconds=seconds) as stage:
        play = Play(api, programs, stage, report, Counts(traces), traces, played.stream, rate=rate, work_ms=work_ms)
        play.open(config)
        play.run(timeline(seconds))
        play.close()
    note("judging the traces and the log …")
    judge(report, traces=traces, config=config, environ=environ)
    return report


def note_lines(text: str) -> None:
    """Say several lines on stderr."""
    for line in text.splitlines():
        note(line)


def _refuse_used(trace: Path | None) -> None:
    """Refuse a directory that holds another run's traces: the verdict judges all there is."""
    if trace is not None and any(trace.glob("*.jsonl")):
        raise click.BadParameter(f"{str(trace)!r} holds traces already; give a new or empty directory", param_hint="--trace")


def _checked_port(port: int | None) -> int:
    """Give the port to listen on; raises BadParameter for one that is taken."""
    if port is None:
        return free_port()
    with socket.socket() as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError as error:
            raise click.BadParameter(f"{port} cannot be had: {error.strerror}", param_hint="--port") from None
    return port


@contextlib.contextmanager
def _temporary_folder() -> Iterator[Path]:
    folder = Path(tempfile.mkdtemp(prefix="coord-demo-"))
    try:
        yield folder
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _end(number: int, frame: FrameType | None) -> None:
    """End by a signal, through all the blocks that clean up."""
    del frame
    raise SystemExit(128 + number)
