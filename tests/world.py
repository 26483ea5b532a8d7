"""A World for tests: the real runtime around the memory store, a clock moved by hand, shards of which anything can be told.

Nothing of ours is mocked: `WorldStore` is the memory store with a switch for being away and a place to die at,
`MemoryShards` does in plain Python what the provisioning scripts do in Redis. A process that dies raises `Crashed`;
`restart` starts another on what it left.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TypeVar

from msgspec.structs import replace

from coord.bootstrap import Services, wire
from coord.config import Configuration
from coord.config.schema import Store as StoreSection
from coord.config.schema import Streams
from coord.core.commands import Heartbeat
from coord.core.invariants import broken
from coord.events import codec
from coord.events.envelope import Envelope
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.runtime.clock import StoreClock
from coord.runtime.coordinator import Answered
from coord.runtime.requests import RequestInfo, Result
from coord.runtime.shown import group_state
from coord.runtime.verify import entries_of, verify_aggregate
from coord.store.base import Commit, Committed, Conflict, Head, Loaded, StoreUnavailable, Tail, Touch, Touched
from coord.store.memory import MemoryStore
from coord.streams.provisioning import NoProof, Proof, Provisioned, ProvisioningFailed, ShardStreams
from coord.streams.shards import shard_key

STARTED_AT_MS = 1_000_000
NS_PER_MS = 1_000_000
TICK_MS = 1_000
E = TypeVar("E")
HEARTBEAT_MS = 3_000

CONFIG = Configuration(id="one", store=StoreSection(type="memory"), streams=Streams(provisioning_enabled=True))
"""Published timings: heartbeat 3 s, lease 15 s, rebalance timeout 60 s, routing grace 10 s, watch 1 h, failover grace 10 s."""


class Crashed(BaseException):
    """A process died here. No `except Exception` of the code under test may survive it."""


@dataclass(slots=True)
class WorldClock:
    """The store's clock and a process's monotonic one; `sleep` moves both, a jump only the first."""

    now_ms: int = STARTED_AT_MS
    monotonic_ms: int = STARTED_AT_MS

    def read(self) -> int:
        return self.now_ms

    def monotonic_ns(self) -> int:
        return self.monotonic_ms * NS_PER_MS

    def sleep(self, ms: int) -> None:
        self.now_ms += ms
        self.monotonic_ms += ms


class WorldStore(MemoryStore):
    """The memory store, which can be away, and in which a commit can be the last thing that a process does."""

    def __init__(self, clock: WorldClock) -> None:
        super().__init__(clock.read, identity="store-1")
        self.is_away = False
        self.conflicts_always = False
        self.commits = 0
        self.before_commit: Callable[[Commit], None] = lambda commit: None
        self.after_commit: Callable[[Commit], None] = lambda commit: None

    def load(self, key: AggregateKey) -> Loaded:
        self._reach()
        return super().load(key)

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        self._reach()
        return super().catch_up(key, seen=seen, limit=limit)

    def touch(self, touch: Touch) -> Touched:
        self._reach()
        return super().touch(touch)

    def lease(self, key: GroupKey, member_id: str) -> tuple[int | None, int]:
        self._reach()
        return super().lease(key, member_id)

    def commit(self, commit: Commit) -> Committed | Conflict:
        self._reach()
        if self.conflicts_always:
            return Conflict(what="head", revision=0, identity=self.store_identity, now=self.ping())
        self.before_commit(commit)
        outcome = super().commit(commit)
        if isinstance(outcome, Committed):
            self.commits += 1
            self.after_commit(commit)
        return outcome

    def _reach(self) -> None:
        if self.is_away:
            raise StoreUnavailable("the store is away")


@dataclass(slots=True)
class RedisGroup:
    """One Redis consumer group on one shard: how many records were delivered, and which of them wait for their ack."""

    delivered: int
    pending: int = 0


@dataclass(slots=True)
class ShardKey:
    """One shard's stream: how many records it ever held, and its Redis consumer groups."""

    records: int = 0
    groups: dict[str, RedisGroup] = field(default_factory=dict)


class MemoryShards(ShardStreams):
    """Shards in this process. `failing` names keys that cannot be made; `dark` names keys of which nothing is known."""

    def __init__(self) -> None:
        self.keys: dict[str, ShardKey] = {}
        self.failing: set[str] = set()
        self.dark: set[str] = set()
        self.after_made: Callable[[str], None] = lambda key: None

    # -- what happens on the data plane

    def publish(self, key: str, count: int = 1) -> None:
        self.keys.setdefault(key, ShardKey()).records += count

    def deliver(self, key: str, group: str) -> None:
        """Deliver all that is unread; it is pending until acked."""
        redis_group = self.keys[key].groups[group]
        redis_group.pending += self.keys[key].records - redis_group.delivered
        redis_group.delivered = self.keys[key].records

    def consume(self, key: str, group: str) -> None:
        """Deliver and acknowledge all."""
        self.deliver(key, group)
        self.keys[key].groups[group].pending = 0

    # -- coord.streams.provisioning.ShardStreams

    def provision(self, stream_prefix: str, shards: Iterable[int], groups: Mapping[str, str]) -> Provisioned:
        made_keys: list[str] = []
        made_groups: list[tuple[str, str]] = []
        failures: list[str] = []
        for key in (shard_key(stream_prefix, shard) for shard in shards):
            if key in self.failing:
                failures.append(key)
                continue
            is_new = key not in self.keys
            shard = self.keys.setdefault(key, ShardKey())
            missing = [name for name in groups if name not in shard.groups]
            for name in missing:
                shard.groups[name] = RedisGroup(delivered=0 if groups[name] == "0" else shard.records)
            made_groups.extend((key, name) for name in missing)
            if is_new:
                made_keys.append(key)
            if is_new or missing:
                self.after_made(key)
        made = Provisioned(keys=tuple(made_keys), groups=tuple(made_groups))
        if failures:
            raise ProvisioningFailed(failures[0], "out of memory", made=made)
        return made

    def remove_created(self, created: Provisioned) -> tuple[str, ...]:
        names = {name for _, name in created.groups}
        gone = tuple(key for key in created.keys if not self.keys[key].records and self.keys[key].groups.keys() <= names)
        for key in gone:
            del self.keys[key]
        return gone

    def missing(self, stream_prefix: str, shards: Iterable[int]) -> tuple[str, ...]:
        return tuple(key for key in (shard_key(stream_prefix, shard) for shard in shards) if key not in self.keys)

    def prove_drained(self, stream_prefix: str, shard: int) -> Proof:
        key = shard_key(stream_prefix, shard)
        if key in self.dark:
            raise NoProof(f"{key}: no answer")
        return Proof(key=key, blockers=tuple(self._blockers(key)))

    def delete_if_drained(self, stream_prefix: str, shard: int) -> Proof:
        proof = self.prove_drained(stream_prefix, shard)
        if proof.is_drained:
            self.keys.pop(proof.key, None)
        return proof

    def destroy_consumer_group(self, stream_prefix: str, shards: Iterable[int], name: str) -> dict[str, int]:
        keys = [shard_key(stream_prefix, shard) for shard in shards]
        having = [key for key in keys if key in self.keys and name in self.keys[key].groups]
        return {key: self.keys[key].groups.pop(name).pending for key in having}

    def _blockers(self, key: str) -> Iterator[str]:
        shard = self.keys.get(key, ShardKey())
        if not shard.groups and shard.records:
            yield f"no consumer group: {shard.records} entries that nobody read"
        for name, group in shard.groups.items():
            if group.pending:
                yield f"group {name}: {group.pending} pending"
            if group.delivered < shard.records:
                yield f"group {name}: unread entries after {group.delivered}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """What a member remembers of its last answer: a well-behaved client, as far as one call can be."""

    epoch: int = 0
    metadata_version: int = 0
    owned: tuple[int, ...] = ()
    until: int = 0


class World:
    """One store, its clock, its shards, and the process of a coordinator that runs on them."""

    def __init__(self, config: Configuration = CONFIG, *, with_shards: bool = True) -> None:
        self.clock = WorldClock()
        self.store = WorldStore(self.clock)
        self.shards = MemoryShards()
        self.with_shards = with_shards
        self.config = config
        self.told: dict[tuple[GroupKey, str], Told] = {}
        self.drains: dict[str, tuple[int, ...]] = {}
        self.corrupted: set[AggregateKey] = set()
        self.watches_readers = True
        self._requests = 0
        self._seen: dict[AggregateKey, tuple[int, int]] = {}
        self.services = self.start()

    # -- processes and time

    def start(self, name: str | None = None, *, ahead_ms: int = 0) -> Services:
        """Start another process; its own clock may be ahead of the others'."""
        config = replace(self.config, id=name) if name else self.config
        clock = StoreClock(lambda: self.clock.monotonic_ns() + ahead_ms * NS_PER_MS)
        services = wire(config, self.store, self.shards if self.with_shards else None, clock=clock)
        services.executor.pause = lambda _: None
        return services

    def restart(self, config: Configuration | None = None) -> None:
        """Go on with another process, which knows nothing but what is stored; what was armed to happen happens no more."""
        self.config = config or self.config
        self.store.before_commit = self.store.after_commit = lambda commit: None
        self.shards.after_made = lambda key: None
        self.services = self.start()

    def tick(self) -> bool:
        """Tick once; a new process has to wait until it may take over."""
        return self.services.ticker.tick()

    def sleep(self, ms: int) -> None:
        """Let time pass in which nobody does anything."""
        self.clock.sleep(ms)

    def run(self, ms: int, *beating: str, group: str = "g") -> None:
        """Let time pass with a tick a second, while these members heartbeat as told."""
        for second in range(1, ms // TICK_MS + 1):
            self.clock.sleep(TICK_MS)
            if second % (HEARTBEAT_MS // TICK_MS) == 0:
                for member in beating:
                    self.heartbeat(member, group=group)
            self.tick()
        self.clock.sleep(ms % TICK_MS)

    # -- members

    def heartbeat(
        self,
        member: str,
        *,
        group: str = "g",
        stream: str = "orders",
        epoch: int | None = None,
        mv: int | None = None,
        owned: Iterable[int] | None = None,
        draining: Iterable[int] | None = None,
        revoked: Iterable[int] = (),
        request: str | None = None,
        path_member: str | None = None,
        protocol: int = 1,
        name: str | None = None,
        capacity: int = 4,
        services: Services | None = None,
    ) -> Answered:
        """Send one heartbeat; what is left out is as the member was last told."""
        key = GroupKey(stream, group)
        told = self.told.get((key, member), Told())
        if told.epoch > 0 and self.clock.monotonic_ms > told.until:
            told = Told(metadata_version=told.metadata_version)  # its lease is over: it has stopped, and joins again
        self._requests += 1
        command = Heartbeat(
            path_member_id=path_member or member,
            member_id=member,
            member_name=name,
            request_id=request or f"q{self._requests}",
            protocol_version=protocol,
            member_epoch=told.epoch if epoch is None else epoch,
            metadata_version=told.metadata_version if mv is None else mv,
            runtime_max_concurrency=capacity,
            owned=frozenset(told.owned if owned is None else owned),
            draining=frozenset(self.drains.get(member, ()) if draining is None else draining),
            revoked=frozenset(revoked),
        )
        answered = (services or self.services).coordinator.heartbeat(key, command)
        self._remember(key, member, command, answered)
        return answered

    def _remember(self, key: GroupKey, member: str, command: Heartbeat, answered: Answered) -> None:
        reply = answered.reply
        match reply.status:
            case "RETRY" | "INVALID_REQUEST" | "UNSUPPORTED_PROTOCOL":
                return
            case "UNKNOWN_MEMBER_ID" | "FENCED_MEMBER_EPOCH":
                self.told[key, member] = Told(metadata_version=reply.metadata_version)
            case _ if command.member_epoch < 0:
                self.told[key, member] = Told(metadata_version=reply.metadata_version)
            case _:
                self.told[key, member] = Told(
                    epoch=reply.member_epoch,
                    metadata_version=reply.metadata_version,
                    owned=reply.assigned,
                    until=self.clock.monotonic_ms + self.services.policy.member_lease_ttl_ms,
                )
        if self.watches_readers:
            self.check_readers()

    def check_readers(self) -> None:
        """No shard in two live members' assignedShards at once, judged from the answers and the members' own leases."""
        readers: dict[tuple[GroupKey, int], str] = {}
        for (key, member), told in self.told.items():
            for shard in told.owned if self.clock.monotonic_ms <= told.until else ():
                other = readers.setdefault((key, shard), member)
                assert other == member, f"shard {shard} is read by {other} and by {member}"

    # -- administration

    def request(self, action: str, *, requested_by: str = "ops", reason: str | None = "because") -> RequestInfo:
        """An administrative request as the HTTP face would describe it."""
        self._requests += 1
        return RequestInfo(
            action=action, success_status=200, principal="admin", roles=("WRITE",), requested_by=requested_by, reason=reason,
            request_id=f"q{self._requests}", client_address="127.0.0.1", user_agent="test", method="POST", route="/", path="/",
            query_string="", request_summary="", request_body_sha256="", started_ns=time.monotonic_ns(),
        )  # fmt: skip

    def create(self, shards: int = 4, group: str = "g", stream: str = "orders") -> None:
        """A group with its stream, whose first look has been."""
        info = self.request("createGroup")
        made = self.services.admin.create_group(GroupKey(stream, group), shard_count=shards, start_from=None, info=info)
        assert isinstance(made, Result), made
        self.tick()

    def settle(self, *members: str, group: str = "g") -> None:
        """Let these members heartbeat until everything is where it should be."""
        for _ in range(12):
            for member in members:
                self.heartbeat(member, group=group)
            self.tick()
        state = self.group(group)
        assert group_state(state) == "STABLE", group_state(state)

    # -- looking

    def owners(self, group: str = "g") -> dict[int, str]:
        """Who each shard is on record for."""
        return {shard: hold.member_id for shard, hold in sorted(self.group(group).ownership.items())}

    def events(self, kind: type[E], group: str | None = "g", stream: str = "orders") -> list[E]:
        """All events of a type in the group's log, or the stream's."""
        key: AggregateKey = GroupKey(stream, group) if group else StreamKey(stream)
        return [entry.event for entry in self.log(key) if isinstance(entry.event, kind)]

    def group(self, group: str = "g", stream: str = "orders") -> Group:
        """The group as stored."""
        state = self.start().executor.aggregates.load(GroupKey(stream, group)).state
        assert isinstance(state, Group)
        return state

    def stream(self, stream: str = "orders") -> Stream:
        """The stream as stored."""
        state = self.start().executor.aggregates.load(StreamKey(stream)).state
        assert isinstance(state, Stream)
        return state

    def exists(self, key: AggregateKey) -> bool:
        return self.store.load(key).aggregate is not None

    def log(self, key: AggregateKey, after: tuple[int, int] = (0, 0)) -> list[Envelope]:
        """An aggregate's log, oldest first."""
        return [codec.decode(entry) for entry in entries_of(self.store, key, after)]

    def recorded(self) -> list[tuple[AggregateKey, Envelope]]:
        """What was recorded since this was last asked: streams first, then groups, in the order of each log."""
        found: list[tuple[AggregateKey, Envelope]] = []
        for key in sorted(self.store.state.records, key=lambda key: (isinstance(key, GroupKey), str(key))):
            entries = self.log(key, self._seen.get(key, (0, 0)))
            found.extend((key, entry) for entry in entries)
            if entries:
                self._seen[key] = (entries[-1].revision, entries[-1].index)
        return found

    def verify(self) -> None:
        """The logs explain what is stored, nothing is broken, and no shard has two readers."""
        for key in self.store.state.records.keys() - self.corrupted:
            report = verify_aggregate(self.store, key)
            assert report.holds, f"{key}: {report.findings}"
            state = self.start().executor.aggregates.load(key).state
            assert list(broken(state)) == []
