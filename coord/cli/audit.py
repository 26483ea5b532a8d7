"""`coord audit`: what was asked of the coordinator, from the store itself: exported, verified, and signed against cut tails."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib.util import find_spec
from pathlib import Path
from typing import IO, Any, Final

import click

from coord.bootstrap import open_store
from coord.cli.auditprogress import Progress, progress
from coord.cli.auditverify import ChainRun, read_checkpoints
from coord.cli.context import NAME, NotReachable
from coord.cli.direct import config_option, configuration, without_logs
from coord.cli.output import note, output_option, printable
from coord.runtime.auditformats import csv_lines, ndjson
from coord.runtime.auditparquet import write_parquet
from coord.runtime.auditreading import AuditReader, Wanted, every_log
from coord.runtime.chainwalk import walk_chain
from coord.runtime.checkpoints import BadKey, checkpoint_of, new_key, private_key
from coord.runtime.moments import moment_of
from coord.runtime.shown import iso
from coord.store.base import CorruptAggregate, Store, StoreError
from coord.wire import AuditEntry

EXIT_FOUND: Final = 1
_PRIVATE: Final = 0o600


@click.group("audit")
def audit_commands() -> None:
    """Export audit entries, verify the chain of every log, sign checkpoints."""


def with_store(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which the store is reached, and the `store` itself while it runs."""

    @config_option
    @click.option("--redis-url", help="Redis that holds the store; wins over the configuration.")
    @wraps(function)
    def command(*, file: Path | None, redis_url: str | None, **options: Any) -> None:
        store, _ = open_store(configuration(file, redis_url))
        try:
            with without_logs():
                function(store=store, **options)
        except CorruptAggregate as error:
            raise click.ClickException(printable(str(error))) from None
        except StoreError as error:
            raise NotReachable(f"the store cannot be read: {printable(str(error))}") from None
        finally:
            store.close()

    return command


def moment(value: str) -> int:
    """Give a point in time, ms; raises BadParameter."""
    try:
        return moment_of(value)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


# -- export


@audit_commands.command("export")
@click.argument("stream", type=NAME, required=False)
@click.argument("group", type=NAME, required=False)
@click.option("--format", "form", type=click.Choice(["jsonl", "csv", "parquet"]), default="jsonl", show_default=True)
@click.option("--since", type=moment, help="No earlier entries: an ISO-8601 time, or ms since 1970.")
@click.option("--until", type=moment, help="Only entries before this time.")
@click.option("--action", help="Only this action, such as SCALE_STREAM.")
@click.option("--outcome", type=click.Choice(["SUCCESS", "FAILED", "FORBIDDEN", "UNAUTHORIZED", "ERROR"]))
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default standard output.")
@with_store
def export(
    *,
    store: Store,
    stream: str | None,
    group: str | None,
    form: str,
    since: int | None,
    until: int | None,
    action: str | None,
    outcome: str | None,
    out: Path | None,
) -> None:
    """Write audit entries as JSON lines, CSV or Parquet, log by log and within each oldest first.

    STREAM: only this stream and its groups, deleted ones too; GROUP: only this group of it. Without either also what is on no
    log: requests of strangers, and about what does not exist. A deleted stream must be named. It reads the store directly.
    Exit code 0: written; 1: a log cannot be read; 3: the store cannot be reached.
    """
    if form == "parquet" and find_spec("pyarrow") is None:
        raise click.UsageError("--format parquet needs pyarrow: pip install 'redis-stream-coordinator[parquet]'")
    wanted = Wanted(since=since, until=until, action=action, outcome=outcome)
    with progress("exporting", "entries") as tell, _output(out, binary=form == "parquet") as file:
        entries = _counted(_entries(store, stream, group, wanted), tell)
        if form == "parquet":
            write_parquet(entries, file)
        else:
            file.writelines(csv_lines(entries) if form == "csv" else ndjson(entries))
        note(f"{tell.count} entries exported")


def _entries(store: Store, stream: str | None, group: str | None, wanted: Wanted) -> Iterator[AuditEntry]:
    reader = AuditReader(store)
    for key in every_log(store, stream, group):
        yield from reader.all_of(key, wanted)
    if stream is None:
        yield from reader.strays(wanted)


def _counted(entries: Iterator[AuditEntry], tell: Progress) -> Iterator[AuditEntry]:
    for entry in entries:
        tell.add(1)
        yield entry


@contextmanager
def _output(out: Path | None, *, binary: bool) -> Iterator[IO[bytes]]:
    """Give what is written to: standard output, or a file that takes its name once it is whole."""
    if out is None:
        if binary and sys.stdout.isatty():
            raise click.UsageError("Parquet is no text for a terminal: give --out FILE")
        yield sys.stdout.buffer
        return
    part = out.with_name(f".{out.name}.{os.getpid()}")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(out)
    except OSError as error:
        raise click.UsageError(f"--out: {error.strerror or error}") from None
    finally:
        part.unlink(missing_ok=True)


# -- verify


@audit_commands.command("verify")
@click.argument("stream", type=NAME, required=False)
@click.argument("group", type=NAME, required=False)
@click.option(
    "--checkpoint",
    "checkpoints",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="A checkpoint that was kept elsewhere; may be given several times, which narrows down what was rewritten.",
)
@click.option(
    "--public-key",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    help="The public key (PEM) that checkpoints must be signed by; needed with --checkpoint.",
)
@output_option
@with_store
@click.pass_context
def verify(
    context: click.Context,
    *,
    store: Store,
    stream: str | None,
    group: str | None,
    checkpoints: tuple[Path, ...],
    key_file: Path | None,
    output: str,
) -> None:
    """Walk the hash chain of every log and say which revision is the first that is not as it was written.

    STREAM: only this stream and its groups, deleted ones too; GROUP: only this group of it. A chain alone cannot show that its
    tail was cut, nor that all of it was written anew; a signed checkpoint that was kept elsewhere can. Exit code 0: all holds;
    1: something was found; 3: the store cannot be reached.
    """
    if checkpoints and key_file is None:
        raise click.UsageError("--checkpoint needs --public-key: a signature proves something only by a key that you bring")
    run = ChainRun(read_checkpoints(checkpoints, key_file))
    with progress("verifying", "entries") as tell:
        for key in run.keys(store, stream, group):
            run.add(walk_chain(store, key, marks=run.marks(key), progress=tell.reached))
            tell.done(str(key))
    if stream is not None and not run.reports:
        raise click.ClickException(f"there is no {'stream' if group is None else 'group'} of this name, and never was")
    run.show(as_json=output == "json")
    if not run.holds:
        context.exit(EXIT_FOUND)


# -- checkpoints


@audit_commands.command("key")
@click.option("--out", required=True, type=click.Path(dir_okay=False, path_type=Path), help="File of the private key.")
def key(*, out: Path) -> None:
    """Make a key pair for checkpoints: the private key in a new file, the public one beside it as FILE.pub.

    Any Ed25519 key in PEM will do as well, such as one of `openssl genpkey -algorithm ed25519`.
    """
    _needs_cryptography()
    private, public = new_key()
    try:
        with os.fdopen(os.open(out, os.O_WRONLY | os.O_CREAT | os.O_EXCL, _PRIVATE), "wb") as file:
            file.write(private)
        out.with_name(f"{out.name}.pub").write_bytes(public)
    except OSError as error:
        raise click.UsageError(f"--out: {error.strerror or error}") from None
    note(f"private key {out}, which signs checkpoints; public key {out}.pub, which verifies them")


@audit_commands.command("checkpoint")
@click.option(
    "--key",
    "key_file",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    required=True,
    envvar="COORD_AUDIT_KEY",
    show_envvar=True,
    help="File of the private Ed25519 key (PEM) that signs.",
)
@click.option("--out", type=click.Path(dir_okay=False, path_type=Path), help="File to write; default standard output.")
@with_store
@click.pass_context
def checkpoint(context: click.Context, *, store: Store, key_file: Path, out: Path | None) -> None:
    """Sign where every log ends now, after its chain has been walked; keep it where who writes the store cannot.

    Exit code 0: signed; 1: a chain does not hold, and nothing was signed; 3: the store cannot be reached.
    """
    _needs_cryptography()
    try:
        signing = private_key(key_file.read_bytes())
    except BadKey as error:
        raise click.UsageError(f"--key: {key_file} {error}") from None
    at = iso(store.ping())
    run = ChainRun(())
    with progress("verifying", "entries") as tell:
        for each in run.keys(store, None, None):
            run.add(walk_chain(store, each, progress=tell.reached))
            tell.done(str(each))
    if not run.holds:
        run.show(as_json=False, err=True)
        context.exit(EXIT_FOUND)
    with _output(out, binary=False) as file:
        file.write(checkpoint_of(run.reports, at=at, key=signing))
    note(f"signed: {len(run.reports)} logs as of {at}")


def _needs_cryptography() -> None:
    if find_spec("cryptography") is None:
        raise click.UsageError("checkpoints need cryptography: pip install 'redis-stream-coordinator[audit]'")
