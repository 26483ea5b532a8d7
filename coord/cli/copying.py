"""`coord store copy`: carry all that one store holds to another one."""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import click

from coord.cli.context import NotReachable
from coord.cli.direct import progress, refused, without_logs
from coord.cli.output import console, no_color_option, note, output_option, print_json, print_table, printable
from coord.config import Configuration, ConfigurationError, load
from coord.config.loading import DEFAULT_ORIGIN, OVERRIDE_ORIGIN
from coord.moving import open_transfer
from coord.names import AggregateKey, GroupKey
from coord.runtime.copying import Carried, End, NotCopied, Outcome, Tell, copy
from coord.store.base import CorruptAggregate, StoreError

EXIT_FOUND: Final = 1
_REDIS_URL: Final = re.compile(r"rediss?://", re.IGNORECASE)
_URL: Final = re.compile(r"jdbc:|[a-z][a-z0-9+.-]*:/", re.IGNORECASE)
_ENDS: Final = ("store.", "redis.")
_SHARED: Final = frozenset({"redis.password", "store.jdbc.password"})
"""Keys that one variable may set for both ends: a wrong one lets nobody in, and so mixes nothing up."""


class NothingCopied(click.ClickException):
    """The copy was refused, or stopped."""

    exit_code = EXIT_FOUND


@click.command("copy")
@click.option("--from", "source", required=True, metavar="STORE", help="Where it is: a URL, or a configuration file.")
@click.option("--to", "target", required=True, metavar="STORE", help="Where it goes: a URL, or a configuration file.")
@output_option
@no_color_option
@click.pass_context
def copy_command(context: click.Context, *, source: str, target: str, output: Literal["table", "json"]) -> None:
    """Copy streams, groups, their logs and chain values to another store, and verify the copy.

    A STORE is `redis://…`, `rediss://…`, a database's URL as in store.url (`jdbc:postgresql://…`), or a coordinator's
    configuration file: that can also name a Redis Cluster, Sentinels, certificates or another key prefix, and keeps a password
    off the command line. The shards themselves are not touched.

    The target must be empty, or hold what an earlier copy brought: one that was ended goes on where it stopped, and one that
    was made while the source was in use brings what is new when it is run again. Nothing is changed on the source.

    Exit code 0: the target is what the source is, and nobody works on the source; 1: refused, or the source was changed
    meanwhile, or something differs; 2: wrong usage; 3: a store cannot be reached.
    """
    ends = _configuration("--from", source), _configuration("--to", target)
    if _place(ends[0]) == _place(ends[1]):
        raise click.UsageError("--from and --to name one and the same store")
    try:
        with ExitStack() as opened, without_logs(), progress("looking") as tell:
            give, take = (_end(opened, config, migrates=config is ends[1]) for config in ends)
            outcome = copy(give, take, tick_ms=ends[0].loop.tick_interval_ms, tell=_telling(tell))
    except (NotCopied, CorruptAggregate) as error:
        raise NothingCopied(printable(str(error))) from None
    except StoreError as error:
        raise NotReachable(f"a store cannot be read or written: {printable(str(error))}") from None
    if output == "json":
        print_json(_as_json(outcome))
    else:
        _print(outcome)
    _advise(outcome, ends[1])
    if not outcome.holds:
        context.exit(EXIT_FOUND)


def _configuration(option: str, place: str) -> Configuration:
    """Give the configuration of a store; raises UsageError for one that is refused, or that both ends would share."""
    try:
        if _REDIS_URL.match(place):
            config = load(os.devnull, overrides={"store.type": "redis", "redis.url": place}, environ={})
        elif _URL.match(place):
            config = load(os.devnull, overrides={"store.type": "jdbc", "store.url": place}, environ={})
        else:
            config = load(Path(place))
    except ConfigurationError as error:
        raise refused(option, error) from None
    if config.store.type == "memory":
        raise click.UsageError(f"{option}: store.type is memory: that store lives inside its coordinator, nobody else can use it")
    for key, origin in config.origins.items():
        if key.startswith(_ENDS) and key not in _SHARED and not _is_own(origin, place):
            raise click.UsageError(f"{option}: {key} comes from {origin}, which would stand for both ends: unset it")
    return config


def _place(config: Configuration) -> tuple[object, ...]:
    """Give where a store is, as far as its configuration tells."""
    store, redis = config.store, config.redis
    if store.type == "jdbc":
        return store.type, store.url.reveal()
    return store.type, store.key_prefix, redis.host, redis.port, redis.database, redis.sentinel.nodes, redis.cluster.nodes


def _is_own(origin: str, place: str) -> bool:
    """Tell whether a value was said by the option itself, or by the file that it names, and not by what both ends share."""
    return origin.removeprefix("redis.url from ").startswith((str(Path(place)), DEFAULT_ORIGIN, OVERRIDE_ORIGIN))


def _end(opened: ExitStack, config: Configuration, *, migrates: bool) -> End:
    store, transfer = open_transfer(config, migrates=migrates and config.store.jdbc.migrate)
    opened.callback(store.close)
    opened.callback(transfer.close)
    return End(store=store, transfer=transfer)


def _telling(tell: Callable[[str], None]) -> Tell:
    """Give what counts the entries of each kind of work, and tells of them."""
    entries: Counter[str] = Counter()

    def add(doing: str, key: AggregateKey, more: int) -> None:
        entries[doing] += more
        tell(f"{doing} {key}: {entries[doing]} entries so far")

    return add


def _as_json(outcome: Outcome) -> dict[str, object]:
    return {
        "holds": outcome.holds,
        "sourceInUse": outcome.moving or None,
        "requests": outcome.requests,
        "aggregates": [
            {
                "streamPrefix": each.key.stream_prefix,
                "consumerGroup": each.key.consumer_group if isinstance(each.key, GroupKey) else None,
                "deleted": not each.exists,
                "entries": each.entries,
                "carried": each.carried,
                "findings": each.findings,
            }
            for each in outcome.aggregates
        ],
    }


def _print(outcome: Outcome) -> None:
    rows = [(str(each.key), _kind(each), each.entries, each.carried, _result(each)) for each in outcome.aggregates]
    print_table(("AGGREGATE", "KIND", "ENTRIES", "CARRIED NOW", "RESULT"), rows, empty="the source holds no streams")
    screen = console()
    for each in outcome.aggregates:
        for finding in each.findings:
            screen.print(f"{each.key}: {printable(finding)}", style="red")


def _kind(carried: Carried) -> str:
    kind = "group" if isinstance(carried.key, GroupKey) else "stream"
    return kind if carried.exists else f"deleted {kind}"


def _result(carried: Carried) -> str:
    return f"{len(carried.findings)} finding(s)" if carried.findings else "same"


def _advise(outcome: Outcome, target: Configuration) -> None:
    """Say on stderr what the operator should know before a coordinator starts on the target."""
    if outcome.moving:
        note(f"the copy is not complete: on the source, {outcome.moving}; stop its coordinators and run this again")
    if target.store.identity == "constant":
        note("store.identity of the target is constant, so no correction round marks the move: start after one member lease")
