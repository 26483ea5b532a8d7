"""The language of the stories: one method a command, run on a World. What a command prints is what the story expects.

After each command all logs are verified: chain, fold, invariants, numbers that never fall.
"""

from __future__ import annotations

import base64
import re
import shlex
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from dataclasses import replace as replaced
from pathlib import Path
from typing import Any, Final, TypeVar

from falcon import testing
from msgspec.structs import replace

from coord.config import Configuration
from coord.config.schema import Api, User
from coord.config.secret import Secret
from coord.events import codec
from coord.events.catalog import AdminRequest, DrainProved, ReshardingEnded, RollbackRequested, TopologyFollowed
from coord.http.app import create_app
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.refusals import Refused
from coord.runtime.mutex import MutexPolicy, StateMutex
from coord.runtime.requests import Result
from coord.store.base import Commit, CorruptAggregate, StoreUnavailable, Touch
from coord.store.memory_state import State
from tests.scenarios.telling import answer_line, event_line, group_lines, key_of, outcome_line, stream_lines
from tests.world import CONFIG, Crashed, World

T = TypeVar("T")
PREFIX: Final = "orders"
GROUP: Final = "g"
USERS: Final = (
    User(username="admin", password=Secret("secret-of-admin"), roles=("ADMIN",)),
    User(username="reader", password=Secret("secret-of-reader"), roles=("READ",)),
)


@dataclass(frozen=True, slots=True)
class ElsewhereMutexes:
    """Mutexes that another instance holds, or that are there for the taking."""

    free: bool

    def take(self, key: AggregateKey, token: str, *, ttl_ms: int) -> bool:
        return self.free

    def keep(self, key: AggregateKey, token: str, *, ttl_ms: int) -> bool:
        return self.free

    def release(self, key: AggregateKey, token: str) -> bool:
        return self.free


@dataclass(slots=True)
class Block:
    """Commands of a story, with the comments before them, and what they are expected to print."""

    comments: list[str]
    commands: list[str]
    expected: list[str]


def parse(text: str) -> list[Block]:
    """Read a story: comments and commands, `----`, the expected output up to a blank line."""
    blocks: list[Block] = []
    comments: list[str] = []
    commands: list[str] = []
    lines = iter([*text.splitlines(), ""])
    for line in lines:
        if line == "----":
            expected = []
            for shown in lines:
                if not shown:
                    break
                expected.append(shown)
            blocks.append(Block(comments, commands, expected))
            comments, commands = [], []
        elif line.startswith("#") or not line:
            comments.append(line)
        else:
            commands.append(line)
    assert not commands, f"commands without ----: {commands}"
    return blocks


def written(blocks: list[Block], outputs: list[list[str]]) -> str:
    """Give the story with what was printed as what is expected."""
    told: list[str] = []
    for block, output in zip(blocks, outputs, strict=True):
        told += [*block.comments, *block.commands, "----", *output, ""]
    return "\n".join(told).rstrip("\n") + "\n"


def play(path: Path, *, rewrite: bool) -> None:
    """Run a story and compare, or write down what it prints."""
    blocks = parse(path.read_text())
    script = Script()
    outputs = [script.run(block.commands) for block in blocks]
    if rewrite:
        path.write_text(written(blocks, outputs))
        return
    for block, output in zip(blocks, outputs, strict=True):
        assert output == block.expected, f"{path.name}: {block.commands}"


class Script:
    """One story being told."""

    def __init__(self) -> None:
        self.world = World(_with_users(CONFIG))
        self._names: dict[str, str] = {}
        self._dumps: dict[str, State] = {}
        self._shows_audit = False

    def run(self, commands: list[str]) -> list[str]:
        """Run the commands of a block; gives what they print."""
        printed: list[str] = []
        for command in commands:
            word, *arguments = shlex.split(command)
            positional = [argument for argument in arguments if not re.match(r"[\w-]+=", argument)]
            named = {name: value for name, _, value in (a.partition("=") for a in arguments if a not in positional)}
            method: Callable[..., Iterator[str]] = getattr(self, f"on_{word.replace('-', '_')}")
            try:
                printed += list(method(*positional, **{name.replace("-", "_"): value for name, value in named.items()}))
            except Crashed as crashed:
                printed.append(f"crashed {crashed}")
            printed += self._recorded()
            printed = [self._named(line) for line in printed]
            if not self.world.store.is_away:
                self.world.verify()
        return printed or ["ok"]

    def _recorded(self) -> Iterator[str]:
        for key, entry in self.world.recorded():
            if not isinstance(entry.event, AdminRequest) or self._shows_audit:
                yield f"  {event_line(key, entry)}"

    def _named(self, line: str) -> str:
        """Fresh ids differ from run to run: the first resharding is r1, the next r2."""
        for found in re.findall(r"reshard-[0-9a-f-]{36}", line):
            self._names.setdefault(found, f"r{len(self._names) + 1}")
        for found, name in self._names.items():
            line = line.replace(found, name)
        return line

    def _id_of(self, name: str) -> str:
        return next((found for found, known in self._names.items() if known == name), name)

    def _told(self, outcome: Refused | Result[Any]) -> Iterator[str]:
        if isinstance(outcome, Refused):
            yield f"refused {outcome.code}: {outcome.message}"
        else:
            yield outcome_line(outcome.value)

    def _asked(self, ask: Callable[[], Refused | Result[Any]]) -> Iterator[str]:
        try:
            yield from self._told(ask())
        except StoreUnavailable as error:
            yield f"refused STORE_UNAVAILABLE: {error}"
        except CorruptAggregate as error:
            yield f"refused COORDINATOR_METADATA_CORRUPT: {error}"

    # -- members

    def on_heartbeat(self, member: str, **given: str) -> Iterator[str]:
        group, stream = given.pop("group", GROUP), given.pop("stream", PREFIX)
        known: dict[str, Any] = {}
        for name in ("owned", "draining", "revoked"):
            if name in given:
                known[name] = _indices(given.pop(name))
        for name in ("epoch", "mv", "protocol", "capacity"):
            if name in given:
                known[name] = int(given.pop(name))
        known |= {{"as": "path_member"}.get(name, name): value for name, value in given.items()}
        answered = self.world.heartbeat(member, group=group, stream=stream, **known)
        yield answer_line(answered.reply)

    def on_drains(self, member: str, shards: str) -> Iterator[str]:
        """From now on every heartbeat of this member says that it is still draining these."""
        self.world.drains[member] = tuple(_indices(shards))
        return iter(())

    # -- administration

    def on_stream(self, verb: str, prefix: str = PREFIX, *, shards: str = "4", start: str | None = None) -> Iterator[str]:
        admin, key, info = self.world.services.admin, StreamKey(prefix), self.world.request(f"{verb}Stream")
        match verb:
            case "create":
                yield from self._asked(lambda: admin.create_stream(key, shard_count=int(shards), start_from=start, info=info))
            case "adopt":
                yield from self._asked(lambda: admin.adopt_stream(key, shard_count=int(shards), info=info))
            case "delete":
                yield from self._asked(lambda: admin.delete_stream(key, info=info))

    def on_group(
        self,
        verb: str,
        group: str = GROUP,
        *flags: str,
        stream: str = PREFIX,
        shards: str | None = None,
        start: str | None = None,
    ) -> Iterator[str]:
        admin, key, info = self.world.services.admin, GroupKey(stream, group), self.world.request(f"{verb}Group")
        count = int(shards) if shards else None
        if verb == "create":
            yield from self._asked(lambda: admin.create_group(key, shard_count=count, start_from=start, info=info))
        else:
            force, destroy = "force" in flags, "destroy" in flags
            yield from self._asked(lambda: admin.delete_group(key, force=force, destroy_consumer_groups=destroy, info=info))

    def on_scale(self, count: str, *, stream: str = PREFIX, group: str | None = None) -> Iterator[str]:
        admin, info, target = self.world.services.admin, self.world.request("scale"), int(count)
        if group is None:
            yield from self._asked(lambda: admin.scale_stream(StreamKey(stream), target_shard_count=target, info=info))
        else:
            key = GroupKey(stream, group)
            yield from self._asked(lambda: admin.scale_group(key, target_shard_count=target, info=info))

    def on_rollback(self, name: str, *, group: str = GROUP) -> Iterator[str]:
        admin, info, found = self.world.services.admin, self.world.request("rollback"), self._id_of(name)
        yield from self._asked(lambda: admin.rollback(GroupKey(PREFIX, group), found, info=info))

    def on_complete(self, name: str, *flags: str, group: str = GROUP) -> Iterator[str]:
        admin, info, found = self.world.services.admin, self.world.request("complete"), self._id_of(name)
        yield from self._asked(lambda: admin.complete(GroupKey(PREFIX, group), found, force="force" in flags, info=info))

    def on_destroy_consumer_group(self, name: str) -> Iterator[str]:
        admin, info = self.world.services.admin, self.world.request("destroy")
        yield from self._asked(lambda: admin.destroy_consumer_group(StreamKey(PREFIX), name, info=info))

    # -- time and processes

    def on_sleep(self, ms: str) -> Iterator[str]:
        self.world.sleep(int(ms))
        return iter(())

    def on_jump(self, ms: str) -> Iterator[str]:
        """The store's clock jumps."""
        self.world.clock.now_ms += int(ms)
        return iter(())

    def on_run(self, ms: str, *beating: str, group: str = GROUP) -> Iterator[str]:
        self.world.run(int(ms), *beating, group=group)
        return iter(())

    def on_tick(self) -> Iterator[str]:
        if not self.world.tick():
            yield "not our turn"

    def on_config(self, **given: str) -> Iterator[str]:
        """Go on with another configuration."""
        config = self.world.config
        for name, value in given.items():
            match name:
                case "auto_register":
                    config = replace(config, members=replace(config.members, auto_register=value == "on"))
                case "groups_per_stream":
                    config = replace(config, limits=replace(config.limits, groups_per_stream=int(value)))
                case "provisioning":
                    config = replace(config, streams=replace(config.streams, provisioning_enabled=value == "on"))
                case "retired":
                    config = replace(config, resharding=replace(config.resharding, retired_shards=value))
                case "redis":
                    self.world.with_shards = value == "on"
                case "snapshot_every":
                    config = replace(config, events=replace(config.events, snapshot_every=int(value)))
                case _:
                    raise AssertionError(name)
        self.world.restart(config)
        return iter(())

    def on_crash(self, after: str, *point: str) -> Iterator[str]:
        """`crash after TopologyFollowed ACTIVE`: the process dies when that is committed; `crash after made orders:5`."""
        assert after == "after"
        name = " ".join(point)

        def on_commit(commit: Commit) -> None:
            if name in points_of(self.world, commit):
                raise Crashed(f"after {name}")

        def on_made(key: str) -> None:
            if name == f"made {key}":
                raise Crashed(f"after {name}")

        self.world.store.after_commit = on_commit
        self.world.shards.after_made = on_made
        return iter(())

    def on_restart(self) -> Iterator[str]:
        self.world.restart()
        return iter(())

    def on_terminate(self) -> Iterator[str]:
        self.world.services.terminating = True
        return iter(())

    def on_mutex(self, what: str) -> Iterator[str]:
        """With `strategy: always`, another instance holds every mutex (`held`), or none (`free`)."""
        policy = MutexPolicy(strategy="always", acquire_timeout_ms=1, retry_interval_ms=1)
        self.world.services.executor.mutex = StateMutex(ElsewhereMutexes(free=what == "free"), policy)
        return iter(())

    # -- the store

    def on_store(self, what: str) -> Iterator[str]:
        store = self.world.store
        store.is_away = what == "away"
        store.conflicts_always = what == "contended"
        return iter(())

    def on_identity(self, name: str) -> Iterator[str]:
        """Another server answers under the same address."""
        self.world.store.store_identity = name
        return iter(())

    def on_dump(self, name: str = "dump") -> Iterator[str]:
        self._dumps[name] = self.world.store.dump()
        return iter(())

    def on_restore(self, name: str = "dump", identity: str | None = None) -> Iterator[str]:
        """The store falls back to an earlier state, acknowledged writes are lost."""
        self.world.store.restore(self._dumps[name])
        self.world._seen.clear()
        self.world.recorded()
        if identity:
            self.world.store.store_identity = identity
        else:
            self.world.watches_readers = False  # an unnoticed loss is a loss: nothing can be promised until somebody notices
        return iter(())

    def on_corrupt(self, name: str) -> Iterator[str]:
        """Cut the stored aggregate short."""
        record = self.world.store.state.records[key_of(name)]
        assert record.metadata is not None
        record.metadata = replaced(record.metadata, aggregate=record.metadata.aggregate[:-20])
        self.world.corrupted.add(key_of(name))
        return iter(())

    def on_race(self, member: str, *, group: str = GROUP) -> Iterator[str]:
        """Just before the next commit the lease of a member is renewed by somebody else."""

        def renew(commit: Commit) -> None:
            store = self.world.store
            store.before_commit = lambda commit: None
            head = store.load(commit.key)
            key = GroupKey(PREFIX, group)
            store.touch(
                Touch(
                    key=key, revision=head.head.revision, commit_id=head.head.commit_id, identity=head.identity,
                    renew=(member,), ttl_ms=15_000,
                )
            )  # fmt: skip

        self.world.store.before_commit = renew
        return iter(())

    # -- shards

    def on_publish(self, shard: str, count: str = "1") -> Iterator[str]:
        self.world.shards.publish(f"{PREFIX}:{shard}", int(count))
        return iter(())

    def on_deliver(self, shard: str, group: str = GROUP) -> Iterator[str]:
        self.world.shards.deliver(f"{PREFIX}:{shard}", group)
        return iter(())

    def on_consume(self, shard: str, group: str = GROUP) -> Iterator[str]:
        self.world.shards.consume(f"{PREFIX}:{shard}", group)
        return iter(())

    def on_foreign(self, shard: str, group: str) -> Iterator[str]:
        """A Redis consumer group that no coordinator knows."""
        self.world.shards.provision(PREFIX, [int(shard)], {group: "0"})
        return iter(())

    def on_shard(self, shard: str, what: str) -> Iterator[str]:
        key, shards = f"{PREFIX}:{shard}", self.world.shards
        changes: dict[str, Callable[[], object]] = {
            "fails": lambda: shards.failing.add(key),
            "works": lambda: shards.failing.discard(key),
            "dark": lambda: shards.dark.add(key),
            "lit": lambda: shards.dark.discard(key),
            "lost": lambda: shards.keys.pop(key),
        }
        changes[what]()
        return iter(())

    # -- looking

    def on_audit(self, what: str) -> Iterator[str]:
        self._shows_audit = what == "on"
        return iter(())

    def on_show(self, what: str, name: str | None = None) -> Iterator[str]:
        world = self.world
        match what:
            case "group":
                key = GroupKey(PREFIX, name or GROUP)
                yield from group_lines(world.group(key.consumer_group), world.store.soft(key))
            case "stream":
                yield from stream_lines(world.stream(name or PREFIX), world.clock.now_ms)
            case "shards":
                for key_name, shard in sorted(world.shards.keys.items()):
                    groups = " ".join(f"{g}:{r.delivered}/{r.pending}" for g, r in sorted(shard.groups.items()))
                    yield f"{key_name} records={shard.records} {groups or 'no groups'}"
            case "routing":
                yield from self._asked(lambda: world.services.views.routing(StreamKey(name or PREFIX), None))
            case "migrations":
                listed = world.services.views.migrations(StreamKey(name or PREFIX))
                assert isinstance(listed, Result)
                for row in listed.value.migrations:
                    yield f"{outcome_line(row)} blockers=[{'; '.join(row.drain_blockers)}]"
            case "log":
                for entry in world.log(key_of(name or f"{PREFIX}/{GROUP}")):
                    yield event_line(key_of(name or f"{PREFIX}/{GROUP}"), entry)
            case "index":
                yield ",".join(world.store.streams()) or "-"
            case "health":
                yield ",".join(world.services.health().unhealthy_groups) or "healthy"

    def on_migration(self, name: str, *, group: str = GROUP) -> Iterator[str]:
        found = self._id_of(name)
        yield from self._asked(lambda: self.world.services.views.migration(GroupKey(PREFIX, group), found))

    # -- HTTP

    def on_http(self, method: str, path: str, body: str | None = None, **given: str) -> Iterator[str]:
        """`http POST /streams/orders '{...}' as=admin type=text/plain`: status and errorCode, through the whole HTTP face."""
        user = given.get("as", "admin")
        headers = {"Content-Type": given.get("type", "application/json"), "X-Correlation-Id": "told"}
        if user != "nobody":
            headers["Authorization"] = _basic(user)
        if "size" in given:
            body = "x" * int(given["size"])
        client = testing.TestClient(create_app(self.world.services))
        base = "" if path.startswith("/livez") else "/coord/v1"
        response = client.simulate_request(method, f"{base}{path}", body=body, headers=headers)
        told = response.json if response.text else {}
        code = told.get("errorCode") if isinstance(told, dict) else None
        yield f"{response.status_code} {code}: {told['message']}" if code else f"{response.status_code}"

    def on_break(self, what: str) -> Iterator[str]:
        """Plant a bug of our own."""
        assert what == "views"

        def bug(*_: object) -> object:
            raise ZeroDivisionError

        self.world.services.views.group = bug  # type: ignore[method-assign,assignment]  # a stand-in
        return iter(())


def points_of(world: World, commit: Commit) -> set[str]:
    """Name the place in a saga that this commit is: the events in it, with the state where the same event comes up in several."""
    names: set[str] = set()
    for entry in commit.entries:
        event = codec.decode(entry).event
        name = type(event).__name__
        names.add(name)
        match event:
            case TopologyFollowed():
                names.add(f"{name} {event.migration.state if event.migration else 'at rest'}")
            case DrainProved():
                active = world.stream(commit.key.stream_prefix).resharding
                kind = "forced" if event.forced_by else active.state if active else "reopened"
                names.add(f"{name} {kind if event.resharding_id else 'reopened'}")
            case RollbackRequested() | ReshardingEnded():
                names.add(f"{name} {event.state}")
            case _:
                pass
    return names


def _indices(text: str) -> frozenset[int]:
    return frozenset() if text == "-" else frozenset(map(int, text.split(",")))


def _basic(user: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:secret-of-{user}".encode()).decode()


def _with_users(config: Configuration) -> Configuration:
    return replace(config, api=Api(users=USERS, token_secret=Secret("0123456789abcdef0123456789abcdef"), max_body_bytes=2048))
