"""`coord adopt`: take over what a Kotlin coordinator left in Redis, or put it back."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Final, Literal

import click

from coord.bootstrap import open_store, wire
from coord.cli.context import NAME, TEXT, NotReachable, os_user
from coord.cli.direct import config_option, configuration, without_logs
from coord.cli.output import console, no_color_option, note, output_option, print_json, print_table, printable
from coord.config import Configuration
from coord.moving import open_adoption
from coord.names import GroupKey
from coord.projections.group import Group
from coord.runtime.adoptable import GroupPlan, NotAdopted, Plan, StreamPlan, plan
from coord.runtime.adopting import adopt, outlook
from coord.runtime.executor import Executor
from coord.runtime.kotlin import MalformedForeign
from coord.runtime.undoing import Undoing, undo, undoing
from coord.runtime.verify import verify_aggregate
from coord.store.adoption import Adoption, Changed
from coord.store.base import CorruptAggregate, StoreError

EXIT_FOUND: Final = 1


class Stopped(click.ClickException):
    """It cannot be taken over, or put back, as things stand."""

    exit_code = EXIT_FOUND


@click.command("adopt")
@click.argument("stream", type=NAME, required=False)
@click.option("--dry-run", is_flag=True, help="Change nothing, tell what would be done.")
@click.option("--undo", "undoes", is_flag=True, help="Put back what was there, and take ours away.")
@click.option("--force", is_flag=True, help="With --undo: even though members were given or told something here since.")
@config_option
@click.option("--redis-url", help="Redis that holds the state; wins over the configuration.")
@click.option("--requested-by", type=TEXT, default=os_user, help="Who asks for it; default the user of this system.")
@output_option
@no_color_option
@click.pass_context
def adopt_command(
    context: click.Context,
    *,
    stream: str | None,
    dry_run: bool,
    undoes: bool,
    force: bool,
    file: Path | None,
    redis_url: str | None,
    requested_by: str,
    output: Literal["table", "json"],
) -> None:
    """Take over the streams and groups of a Kotlin coordinator (0.1 to 0.3), whose keys are in this Redis.

    Stop the Kotlin coordinator first; its members go on with their epochs and shards, as soon as a coordinator of ours answers
    them. STREAM: only this one. Each old key is copied to `<key>:kotlin` before it is replaced. Nothing is written unless all
    of it can be read.

    --undo puts the old keys back, and keeps our logs under `…:events:undone`. It is refused while a coordinator works here,
    and once members were given, told or denied something here, of which the old state knows nothing.

    Exit code 0: done, or nothing to do; 1: something cannot be taken over, or put back: it is told which key and field;
    2: wrong usage; 3: Redis cannot be reached.
    """
    if force and not undoes:
        raise click.UsageError("--force goes with --undo")
    config = configuration(file, redis_url)
    if config.store.type != "redis":
        raise click.UsageError(
            f"store.type is {config.store.type}: adopt in the Kotlin coordinator's Redis; `coord store copy` moves it on"
        )
    try:
        with ExitStack() as opened, without_logs():
            executor, adoption = _opened(opened, config)
            if undoes:
                found = undoing(adoption, executor.store, stream=stream)
                if not dry_run:
                    undo(found, adoption, executor.store, force=force, tick_ms=config.loop.tick_interval_ms)
                _tell_undone(found, output=output, dry_run=dry_run)
                return
            planned = plan(adoption, executor.store, stream=stream)
            findings: list[str] = []
            if not dry_run:
                begun = adopt(planned, adoption, executor, requested_by=requested_by)
                findings = [f"{key}: {each}" for key in begun for each in verify_aggregate(executor.store, key).findings]
    except (MalformedForeign, NotAdopted, Changed, CorruptAggregate) as error:
        raise Stopped(printable(str(error))) from None
    except StoreError as error:
        raise NotReachable(f"the store cannot be read or written: {printable(str(error))}") from None
    groups = {key: group for each in planned.streams for key, group in outlook(each, executor.policy).items()}
    if output == "json":
        print_json(_as_json(planned, groups, findings, dry_run=dry_run))
    else:
        _print(planned, groups, findings, dry_run=dry_run)
    if findings:
        context.exit(EXIT_FOUND)


def _opened(opened: ExitStack, config: Configuration) -> tuple[Executor, Adoption]:
    adoption = open_adoption(config)
    opened.callback(adoption.close)
    store, _ = open_store(config)
    services = wire(config, store, None)
    opened.callback(services.store.close)
    return services.executor, adoption


def _print(planned: Plan, groups: Mapping[GroupKey, Group], findings: Sequence[str], *, dry_run: bool) -> None:
    """Print what is taken over, and what becomes of each member."""
    rows = [row for stream in planned.streams for row in _rows(stream)]
    print_table(("AGGREGATE", "FROM", "SHARDS", "STATE"), rows, empty="no Kotlin coordinator's state is left to be adopted")
    screen = console()
    members = [row for stream in planned.streams for group in stream.groups for row in _member_rows(group, groups[group.key])]
    if members:
        screen.print()
        print_table(("GROUP", "MEMBER", "STATE", "EPOCH", "READS", "GIVES UP", "WAITS FOR"), members)
        screen.print()
    for stream in planned.streams:
        for key, told in ((stream.key, stream.told), *((group.key, group.told) for group in stream.groups)):
            for line in () if told is None else (*told.notes, *(f"unknown field dropped: {name}" for name in told.dropped)):
                screen.print(f"{key}: {printable(line)}")
    for line in planned.notes:
        screen.print(printable(line))
    for line in findings:
        screen.print(printable(line), style="red")
    if planned.streams:
        note("nothing was changed" if dry_run else "adopted; start a coordinator, and do not start the other one again")


def _rows(stream: StreamPlan) -> Iterator[tuple[object, ...]]:
    resharding, state = stream.resharding, "at rest"
    if resharding is not None:
        state = f"{resharding.from_shard_count} to {resharding.to_shard_count} shards, {resharding.phase}"
    yield str(stream.key), stream.foreign.key if stream.foreign else None, stream.shard_count, state
    for group in stream.groups:
        state = "adopted before" if group.is_done else f"epoch {group.told.group_epoch}, {len(group.told.members)} member(s)"
        yield str(group.key), group.foreign.key, None, state


def _member_rows(plan: GroupPlan, group: Group) -> Iterator[tuple[object, ...]]:
    for told in plan.told.members:
        reads, waits = group.view(told.member_id)
        gives_up = sorted(group.in_phase(told.member_id, "REVOKING"))
        member = group.members[told.member_id]
        listed = (",".join(map(str, shards)) for shards in (reads, gives_up, waits))
        yield str(plan.key), told.member_id, member.state, member.member_epoch, *listed


def _as_json(planned: Plan, groups: Mapping[GroupKey, Group], findings: Sequence[str], *, dry_run: bool) -> dict[str, object]:
    return {
        "dryRun": dry_run,
        "streams": [_stream_as_json(each, groups) for each in planned.streams],
        "notes": list(planned.notes),
        "findings": list(findings),
    }


def _stream_as_json(stream: StreamPlan, groups: Mapping[GroupKey, Group]) -> dict[str, object]:
    resharding = stream.resharding
    return {
        "streamPrefix": stream.key.stream_prefix,
        "from": stream.foreign.key if stream.foreign else None,
        "shardCount": stream.shard_count,
        "resharding": None
        if resharding is None
        else {
            "reshardingId": resharding.resharding_id,
            "fromShardCount": resharding.from_shard_count,
            "toShardCount": resharding.to_shard_count,
            "state": resharding.phase,
        },
        "unknownFields": list(stream.told.dropped) if stream.told else [],
        "notes": list(stream.told.notes) if stream.told else [],
        "groups": [_group_as_json(group, groups[group.key]) for group in stream.groups],
    }


def _group_as_json(group: GroupPlan, begun: Group) -> dict[str, object]:
    return {
        "consumerGroup": group.key.consumer_group,
        "from": group.foreign.key,
        "superseded": [each.key for each in group.superseded],
        "adoptedBefore": group.is_done,
        "groupEpoch": group.told.group_epoch,
        "metadataVersion": group.told.metadata_version,
        "members": [
            {
                "memberId": member.member_id,
                "state": begun.members[member.member_id].state,
                "memberEpoch": begun.members[member.member_id].member_epoch,
                "reads": list(begun.view(member.member_id)[0]),
                "givesUp": sorted(begun.in_phase(member.member_id, "REVOKING")),
                "waitsFor": list(begun.view(member.member_id)[1]),
                "leaseUntil": member.lease_until or None,
            }
            for member in group.told.members
        ],
        "unknownFields": list(group.told.dropped),
        "notes": list(group.told.notes),
    }


def _tell_undone(found: Undoing, *, output: Literal["table", "json"], dry_run: bool) -> None:
    places = [each.key.removesuffix(":kotlin") for each in found.kept]
    if output == "json":
        print_json(
            {
                "dryRun": dry_run,
                "restored": places,
                "removed": [
                    {
                        "streamPrefix": key.stream_prefix,
                        "consumerGroup": key.consumer_group if isinstance(key, GroupKey) else None,
                    }
                    for key in found.ours
                ],
                "movedOn": list(found.moved_on),
            }
        )
        return
    print_table(("KEY",), [(place,) for place in places], empty="nothing is kept aside: there is nothing to undo")
    for line in found.moved_on:
        note(f"moved on: {line}")
    if places:
        note("nothing was changed" if dry_run else "put back; our logs are kept under …:events:undone")
