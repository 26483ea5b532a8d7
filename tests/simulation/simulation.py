"""One seeded run: some coordinators, some member processes, one stream with one group, a network, and time.

Safety is checked after every tick, and at every commit. Then the faults stop: within `CALM_TICKS` ticks every shard of the
read set must be read by a live process, no resharding may be under way, and every record must be acknowledged.
"""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cache

from msgspec.structs import replace

from coord.bootstrap import Services, wire
from coord.client.routing import shard_for
from coord.config import Configuration
from coord.core.commands import Heartbeat
from coord.core.decision import HeartbeatReply
from coord.http.resources.heartbeat import command_of, response_of
from coord.names import LEAVE, GroupKey, StreamKey
from coord.projections.aggregate import encode
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.refusals import Refused
from coord.runtime.clock import StoreClock
from coord.runtime.coordinator import Answered
from coord.runtime.requests import RequestInfo
from coord.runtime.verify import verify_all
from coord.store.base import StoreError
from coord.store.memory import MemoryStore
from coord.streams.shards import shard_key
from coord.wire import HeartbeatRequest, HeartbeatResponse
from tests.simulation.answering import AnswersOf, foreseen_answers, plain_answers
from tests.simulation.checkers import LogChecker, Violation, check_readers
from tests.simulation.faults import VARIANTS, Faults
from tests.simulation.processes import Process, Style
from tests.simulation.shards import SimulatedShards
from tests.simulation.store import NodeCrash, NodeStore, RealStore, SharedStore

TICK_MS = 1_000
LEASE_MS = 15_000
REBALANCE_MS = 40_000
CALM_TICKS = 260
"""Two rebalance timeouts, a correction round, three leases, two routing graces and the ticks between: everything that can
still run off."""
EPOCH_MS = 1_700_000_000_000
KEY = GroupKey("orders", "workers")
STREAM = StreamKey("orders")
SHARDS_AT_START = 4
SHARDS_MAX = 7
UNREAD_MAX = 60
"""Records that a shard may still have in the end: what is written until a twin that was turned away has heard of it."""
REMEMBERED_EVERY = 4
"""Ticks between two states that the store may fall back to."""
STALE_ROUTE = 25
"""Ticks between two looks of the lazy producer at its route; the other one looks every third tick."""
TOGETHER = 0.4
"""How often the heartbeats that arrive at one moment come as one batch."""
FORESEEN = 0.5
"""How often heartbeats are answered as by a server thread that confirms several in one go."""
CACHES_CHECKED_EVERY = 5
"""Ticks between two looks into the coordinators' caches."""
DELETES, CREATES = 0.85, 0.9
"""From which throw of the dice on an operator deletes the group, and from which he makes it again."""


@cache
def configuration() -> Configuration:
    """Give the configuration of every simulated coordinator."""
    plain = Configuration()
    return replace(
        plain,
        id="simulated",
        heartbeat_interval_ms=3_000,
        member_lease_ttl_ms=LEASE_MS,
        rebalance_timeout_ms=REBALANCE_MS,
        stale_member_retention_ms=120_000,
        streams=replace(plain.streams, provisioning_enabled=True),
        store=replace(plain.store, failover_grace_ms=3_000),
        resharding=replace(plain.resharding, routing_grace_ms=5_000, watch_retired_ms=60_000),
        events=replace(plain.events, snapshot_every=25),
    )


@dataclass(slots=True)
class Node:
    """One coordinator process; `services` is None while it is down."""

    name: str
    services: Services | None = None


@dataclass(slots=True)
class Message:
    """A request or an answer on its way to a process's coordinator, or back."""

    at_ms: int
    process: Process
    life: int
    attempt: int
    request: HeartbeatRequest
    answer: HeartbeatResponse | None = None


@dataclass(slots=True)
class Outcome:
    """What a run showed."""

    seed: int
    variant: str
    ticks: int
    violation: str | None = None
    checker: str | None = None
    heartbeats: int = 0
    commits: int = 0
    events: int = 0
    produced: int = 0
    rows: dict[int, int] = field(default_factory=dict)
    trace: list[str] = field(default_factory=list)


class Simulation:
    """A world of one seed."""

    def __init__(self, seed: int, *, variant: str | None = None, real: RealStore | None = None) -> None:
        names = list(VARIANTS)
        self.variant = variant or names[seed % len(names)]
        self.faults: Faults = VARIANTS[self.variant]
        self.chance = random.Random(seed)
        self.true_ms = EPOCH_MS
        self.skew_ms = 0
        self.shards = SimulatedShards(random.Random(seed + 1))
        self._real = real
        self._push_clock()
        memory = real or MemoryStore(self._store_clock, identity="store-0")
        self.shared = SharedStore(memory, random.Random(seed + 2), self.faults)
        self.log = LogChecker()
        self.log.unread = self._unread
        self.log.missing = self._missing
        self.log.now_ms = lambda: self.true_ms
        self.log.two_looks_ms = configuration().resharding.routing_grace_ms
        self.shards.seen_drained = self._seen_drained
        self.shared.committed = self.log.committed
        self.shared.interleave = self._interleave
        self.nodes = [Node(f"node-{i}") for i in range(2)]
        self.processes = self._cast()
        self.network: list[Message] = []
        self.outcome = Outcome(seed=seed, variant=self.variant, ticks=0)
        self.stuck: Process | None = self.chance.choice([None, None, self.processes[0]])
        self._routes = [0, 0]
        self._busy: list[Node] = []
        self._operations = 0

    def _cast(self) -> list[Process]:
        """Two to four members, of mixed styles, and by chance a twin of each: a second process under its id."""
        styles: list[Style] = ["ours", "ours", "silent", "loud", "naming"]
        ids = [f"m{i}" for i in range(self.chance.randint(2, 4))]
        ids += [member_id for member_id in ids if self.chance.random() < self.faults.twins]
        return [
            Process(n, m, self.chance.choice(styles), self.chance, slow_drains=self.faults.slow_drains) for n, m in enumerate(ids)
        ]

    # -- running

    def run(self, ticks: int) -> Outcome:
        """Run with faults for so many ticks, then calm; the outcome names the first violation."""
        try:
            self._begin()
            for _ in range(ticks):
                self._tick(calm=False)
            self._heal()
            for _ in range(CALM_TICKS):
                self._tick(calm=True)
            self._check_converged()
        except Violation as violation:
            self.outcome.violation, self.outcome.checker = str(violation), violation.checker
        self.outcome.commits, self.outcome.events = self.log.commits, self.log.events
        return self.outcome

    def _begin(self) -> None:
        self.shared.calm = True
        for node in self.nodes:
            self._start_node(node)
        services = self.nodes[0].services
        assert services is not None
        made = services.admin.create_group(KEY, shard_count=SHARDS_AT_START, start_from=None, info=self._info("CREATE_GROUP"))
        assert not isinstance(made, Refused), made
        self.shared.calm = False

    def _tick(self, *, calm: bool) -> None:
        self.true_ms += TICK_MS
        self.outcome.ticks += 1
        if not calm:
            self._disturb()
        self._push_clock()
        self._produce()
        for node in self.nodes:
            if node.services is not None and (calm or self.chance.random() < 0.5):
                self._guarded(node, node.services.ticker.tick)
        for process in self.processes:
            self._live(process, calm=calm)
        self._deliver(calm=calm)
        if self.outcome.ticks % CACHES_CHECKED_EVERY == 0:
            self._check_caches()
        check_readers(self.processes, self.true_ms)

    def _heal(self) -> None:
        self.shared.calm, self.shared.away, self.shards.fault = True, False, 0.0
        for node in self.nodes:
            if node.services is None:
                self._start_node(node)
        for process in self.processes:
            process.hung_until_ms = 0
            if not process.up or process.protocol.leaving:
                process.start(self.true_ms)
        self.stuck = None
        if self.log.states.get(KEY) is None:
            services = self.nodes[0].services
            assert services is not None
            services.admin.create_group(KEY, shard_count=None, start_from="0", info=self._info("CREATE_GROUP"))

    # -- time, coordinators, faults

    def _store_clock(self) -> int:
        return self.true_ms + self.skew_ms

    def _push_clock(self) -> None:
        """A real Redis reads the simulated time from a key."""
        if self._real is not None:
            self._real.set_clock(self._store_clock())

    def _start_node(self, node: Node) -> None:
        clock = StoreClock(lambda: self.true_ms * 1_000_000)
        node.services = wire(configuration(), NodeStore(self.shared), self.shards, clock=clock)  # type: ignore[arg-type]  # a double of the same shape
        node.services.executor.pause = _no_pause
        node.services.ticker.watches.each_tick_max = 0  # its one group takes its turn, as one of thousands would

    def _guarded(self, node: Node, act: Callable[[], object]) -> object:
        """Run code of one coordinator; it may die on the way, and the store may be away."""
        self._busy.append(node)
        try:
            return act()
        except NodeCrash:
            node.services = None
            self._note(f"{node.name} dies")
        except StoreError:
            pass
        finally:
            self._busy.pop()
        return None

    def _disturb(self) -> None:
        chance, faults = self.chance, self.faults
        self.shards.fault = faults.shard_fault
        if faults.fall_back and self.outcome.ticks % REMEMBERED_EVERY == 0:
            self.shared.remember()
            self.log.remember()
        if chance.random() < faults.store_away:
            self.shared.away = True
        elif self.shared.away and chance.random() < 0.1:
            self.shared.away = False
        if chance.random() < faults.fall_back:
            self.log.fall_back(self.shared.fall_back())
            self._note("the store falls back")
        if chance.random() < faults.clock_jump and not self._round_open():
            self.skew_ms += chance.choice([-60_000, -9_000, -5_000, 5_000, 9_000, 60_000])
            self._note(f"the store's clock is off by {self.skew_ms} ms")
        for node in self.nodes:
            if node.services is None and chance.random() < faults.start_node:
                self._start_node(node)
            elif node.services is not None and chance.random() < faults.crash_node:
                node.services = None
                self._note(f"{node.name} is killed")
        if chance.random() < faults.admin:
            self._operate(chance.random())
        if chance.random() < faults.delete:
            self._operate(DELETES if chance.random() < 0.3 else CREATES)

    def _round_open(self) -> bool:
        state = self.log.states.get(KEY)
        return isinstance(state, Group) and (state.correction is not None or state.identity != self.shared.memory.store_identity)

    def _operate(self, dice: float) -> None:
        """An operator scales, rolls back, completes, deletes or creates."""
        node = self._some_node()
        if node is None or node.services is None:
            return
        admin = node.services.admin
        stream = self.log.states.get(STREAM)
        active = stream.resharding if isinstance(stream, Stream) else None
        info = self._info("SCALE_STREAM")
        if active is not None and dice < 0.3:
            self._guarded(node, lambda: admin.rollback(KEY, active.resharding_id, info=info))
        elif active is not None and dice < 0.4:
            self._guarded(node, lambda: admin.complete(KEY, active.resharding_id, force=False, info=info))
        elif dice < DELETES:
            target = self.chance.randint(0, SHARDS_MAX)
            self._note(f"scale to {target}")
            self._guarded(node, lambda: admin.scale_stream(STREAM, target_shard_count=target, info=info))
        elif dice < CREATES:
            self._note("delete the group by force")
            gone = self._info("DELETE_GROUP")
            self._guarded(node, lambda: admin.delete_group(KEY, force=True, destroy_consumer_groups=False, info=gone))
        else:
            self._guarded(
                node, lambda: admin.create_group(KEY, shard_count=None, start_from="0", info=self._info("CREATE_GROUP"))
            )

    def _info(self, action: str) -> RequestInfo:
        self._operations += 1
        return RequestInfo(
            action=action,
            success_status=202,
            principal="operator",
            roles=("WRITE",),
            requested_by="operator",
            reason="simulation",
            request_id=f"op-{self._operations}",
            client_address=None,
            user_agent=None,
            method="POST",
            route="",
            path="",
            query_string="",
            request_summary="",
            request_body_sha256="",
            started_ns=time.monotonic_ns(),
        )

    # -- data

    def _produce(self) -> None:
        """Two producers write a few records; one seldom looks whether its route is still the right one."""
        stream = self.log.states.get(STREAM)
        for number, every in enumerate((3, STALE_ROUTE)):
            if isinstance(stream, Stream) and (self.outcome.ticks % every == 0 or self._routes[number] == 0):
                self._routes[number] = stream.shard_count
            count = self._routes[number]
            for _ in range(2 - number if count else 0):
                shard = shard_for(f"key-{self.chance.randrange(50)}", count)
                if self.shards.add(shard_key(KEY.stream_prefix, shard)):
                    self.outcome.produced += 1

    # -- members

    def _live(self, process: Process, *, calm: bool) -> None:
        now, chance, faults = self.true_ms, self.chance, self.faults
        if not process.up:
            if calm or chance.random() < faults.start_process:
                process.start(now)
            return
        if not process.runs(now):
            return
        if not calm:
            dice = chance.random()
            crash = faults.crash_process * (10 if process.protocol.leaving else 1)
            if dice < crash:
                process.up = False
                self._note(f"{process.member_id} crashes")
                return
            if dice < crash + faults.hang_process:
                process.hung_until_ms = now + chance.randint(2, 45) * TICK_MS
                return
            if dice < crash + faults.hang_process + faults.leave and process.protocol.member_epoch > 0:
                process.leave()
        process.work(now, self.shards, KEY.stream_prefix, KEY.consumer_group, stuck=process is self.stuck)
        if process.protocol.ended:
            process.up = False
            return
        outgoing = process.heartbeat(now)
        if outgoing is not None:
            self._send(Message(0, process, process.lives, outgoing.attempt, process.said(outgoing.body)), calm=calm)
            if not calm and chance.random() < faults.double:
                self._send(Message(0, process, process.lives, outgoing.attempt, process.said(outgoing.body)), calm=calm)

    def _send(self, message: Message, *, calm: bool) -> None:
        """Put a message on the network: it is lost, late, or soon there."""
        chance, faults = self.chance, self.faults
        if not calm and chance.random() < faults.lose:
            return
        delay = chance.randint(0, 1) if calm else chance.randint(0, 2)
        if not calm and chance.random() < faults.late:
            delay = chance.randint(0, faults.delay_max)
        message.at_ms = self.true_ms + delay * TICK_MS
        self.network.append(message)

    def _deliver(self, *, calm: bool) -> None:
        arrived = [m for m in self.network if m.at_ms <= self.true_ms]
        self.network = [m for m in self.network if m.at_ms > self.true_ms]
        self.chance.shuffle(arrived)
        requests: list[Message] = []
        for message in arrived:
            if message.answer is None:
                requests.append(message)
            elif message.process.runs(self.true_ms) and message.process.lives == message.life:
                message.process.take(self.true_ms, message.attempt, message.answer)
        while requests:
            self._serve(self._some_together(requests), calm=calm)

    def _some_together(self, requests: list[Message]) -> list[Message]:
        """Take the next request, or by chance several of different members, as one batch of heartbeats brings them."""
        taken = [requests.pop(0)]
        if self.chance.random() < TOGETHER:
            for message in list(requests):
                if message.request.member_id not in {each.request.member_id for each in taken}:
                    requests.remove(message)
                    taken.append(message)
        return taken

    def _serve(self, messages: list[Message], *, calm: bool) -> None:
        node = self._some_node()
        if node is None or node.services is None:
            return
        if self.chance.random() < FORESEEN:
            for message in self._answered(node, messages, foreseen_answers, calm=calm):
                self._answered(node, [message], plain_answers, calm=calm)
        else:
            self._answered(node, messages, plain_answers, calm=calm)

    def _answered(self, node: Node, messages: list[Message], answers_of: AnswersOf, *, calm: bool) -> list[Message]:
        """Answer what can be answered so; gives the others. Nobody is answered by a coordinator that has crashed, or does."""
        services = node.services
        if services is None:
            return []
        commands = [command_of(message.request, message.request.member_id) for message in messages]
        answers = self._guarded(node, lambda: answers_of(services.coordinator, KEY, commands))
        if answers is None:
            return []
        assert isinstance(answers, list)
        revision_now = self.shared.memory.load(KEY).head.revision
        for message, command, answered in zip(messages, commands, answers, strict=True):
            if answered is not None:
                self._answer(node, services, message, command, answered, revision_now, calm=calm)
        return [message for message, answered in zip(messages, answers, strict=True) if answered is None]

    def _answer(
        self,
        node: Node,
        services: Services,
        message: Message,
        command: Heartbeat,
        answered: Answered,
        revision_now: int,
        *,
        calm: bool,
    ) -> None:
        """Judge an answer, and put it on the network."""
        reply = answered.reply
        self.outcome.heartbeats += 1
        self.outcome.rows[reply.row] = self.outcome.rows.get(reply.row, 0) + 1
        if answered.revision > revision_now:
            raise Violation("acknowledged", f"revision {answered.revision} was acknowledged and is not there")
        self._check_recorded(command, reply)
        self._note(
            f"{node.name} {message.process.member_id}#{message.process.number} e={command.member_epoch} "
            f"O={sorted(command.owned)} D={sorted(command.draining)} R={sorted(command.revoked)} -> "
            f"row {reply.row} {reply.status} e={reply.member_epoch} A={list(reply.assigned)} P={list(reply.pending)}"
        )
        response = response_of(message.request, reply, services.policy)
        self._send(Message(0, message.process, message.life, message.attempt, message.request, response), calm=calm)

    def _check_caches(self) -> None:
        """What a coordinator holds at the head that the store is at is what the store holds, however it was caught up."""
        for key in (KEY, STREAM):
            stored = self.shared.memory.load(key)
            for node in self.nodes:
                cached = node.services.executor.aggregates.cached(key) if node.services is not None else None
                if cached is None or cached.head != stored.head or cached.state is None:
                    continue
                if encode(cached.state) != stored.aggregate:
                    raise Violation(
                        "caches", f"{node.name} holds another {key} at revision {stored.head.revision} than the store"
                    )

    def _check_recorded(self, command: Heartbeat, reply: HeartbeatReply) -> None:
        """An answer that renews is a view of what is recorded at this moment."""
        group = self.log.states.get(KEY)
        if not reply.renews or reply.member_epoch == LEAVE:
            return
        if not isinstance(group, Group) or command.member_id not in group.members:
            raise Violation("recorded", f"{command.member_id} is answered {reply}, and is not on record")
        epoch, held = group.members[command.member_id].member_epoch, group.shards_of(command.member_id)
        if reply.member_epoch != epoch or not held.issuperset(reply.assigned):
            raise Violation("recorded", f"{command.member_id} is at {epoch} with {sorted(held)}, and is answered {reply}")

    def _some_node(self) -> Node | None:
        up = [node for node in self.nodes if node.services is not None and node not in self._busy]
        return self.chance.choice(up) if up else None

    def _interleave(self) -> None:
        """Between another coordinator's decision and its commit, serve a request that has arrived."""
        if len(self._busy) > 1:
            return
        waiting = [m for m in self.network if m.answer is None]
        if waiting:
            message = self.shared.chance.choice(waiting)
            self.network.remove(message)
            self._serve([message], calm=False)

    # -- the end

    def _check_converged(self) -> None:
        for report in verify_all(self.shared.memory):
            if not report.holds:
                raise Violation("verify", f"verify {report.key}: {report.findings}")
        stream, group = self.log.states.get(STREAM), self.log.states.get(KEY)
        if not isinstance(stream, Stream) or not isinstance(group, Group):
            raise Violation("convergence", "the stream or its group is gone")
        if stream.resharding is not None:
            raise Violation("convergence", f"resharding is stuck: {stream.resharding}")
        if group.correction is not None:
            raise Violation("convergence", "the correction round is stuck")
        reading = {shard for process in self.processes if process.up for shard in process.protocol.reading}
        missing = set(stream.read_set) - reading
        if missing:
            raise Violation("convergence", f"shards {sorted(missing)} have no reader")
        keys = [shard_key(KEY.stream_prefix, shard) for shard in stream.read_set]
        if unread := {key: n for key in keys if (n := self.shards.unread(key, KEY.consumer_group)) > UNREAD_MAX}:
            raise Violation("convergence", f"records are not consumed: {unread}")

        stray = {
            key: n
            for key in sorted(self.shards.streams)
            if key not in keys and (n := self.shards.unread(key, KEY.consumer_group))
        }
        if stray and not self.shared.fell_back:
            raise Violation("stranded", f"records are stranded on shards out of the read set: {stray}")

    def _unread(self, stream_prefix: str, shard: int) -> int:
        return self.shards.unread(shard_key(stream_prefix, shard), KEY.consumer_group)

    def _missing(self, stream_prefix: str, shard: int, group: str) -> bool:
        found = self.shards.streams.get(shard_key(stream_prefix, shard))
        return found is None or group not in found.groups

    def _seen_drained(self, key: str) -> None:
        self.log.looked(key)

    def _note(self, text: str) -> None:
        self.outcome.trace.append(f"{(self.true_ms - EPOCH_MS) // TICK_MS:5} {text}")
        if len(self.outcome.trace) > 400:
            del self.outcome.trace[:200]


def _no_pause(_seconds: float) -> None:
    """Simulated coordinators do not wait between attempts."""
