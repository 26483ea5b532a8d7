"""A walk over everything that can go wrong between members and one coordinator, one seed a walk.

The real `decide` answers; around it a network that loses, delays, doubles and reorders, processes that crash, restart,
hang, leave, run twice under one id, clients of three styles, a store that falls back to an earlier state, reshardings with
drains. After every step no shard may be touched by processes of two different ids inside their own leases; once the faults
stop, every shard must be read.

    python -m tests.property.walk 200        every variant, 200 seeds each; exit 1 on a violation
"""

from __future__ import annotations

import sys
from collections.abc import Iterable
from dataclasses import dataclass, field
from random import Random
from typing import Final

from coord.core.commands import CreateGroup, Follow, GroupCommand, Heartbeat, Tick, Topology
from coord.core.decision import Accepted, HeartbeatReply, Policy
from coord.names import GroupKey
from coord.projections.group import Group
from tests.property.record import Record

LEASE, BEAT, NET = 15, 3, 6
LATELY = 10
POLICY: Final = Policy(
    heartbeat_interval_ms=BEAT,
    member_lease_ttl_ms=LEASE,
    rebalance_timeout_ms=40,
    stale_member_retention_ms=200,
    failover_grace_ms=2,
    routing_grace_ms=1,
)
"""One millisecond is one step of the walk."""
STARTS_AT = 10_000
SHARD_KEYS = 8
Nothing: Final[frozenset[int]] = frozenset()


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """What may go wrong in a walk.

    `styles`: ours, `drop` (never sends revokingShards), `starter` (leaves with shards both owned and revoked).
    """

    members: tuple[str, ...] = ("m0", "m1", "m2")
    shards: int = 4
    styles: tuple[str, ...] = ("ours",)
    crash: float = 0.006
    fallback: float = 0.0
    reshard: bool = True
    stuck_from: int | None = None
    visitor_every: int = 0


VARIANTS: Final = {
    "plain": Variant(),
    "no revoking reports": Variant(styles=("drop", "ours")),
    "the starter's leave": Variant(styles=("starter", "ours")),
    "the store falls back": Variant(fallback=0.004),
    "the store falls back often": Variant(fallback=0.016),
    "one id in two processes": Variant(members=("m0", "m0", "m1")),
    "one id twice, the store falls back": Variant(members=("m0", "m0", "m1"), fallback=0.004),
    "a drain that never ends": Variant(stuck_from=300, reshard=False, crash=0.002),
    "a visitor that joins for ever": Variant(visitor_every=3, fallback=0.004, reshard=False),
    "five members, seven shards": Variant(members=("m0", "m1", "m2", "m3", "m4"), shards=7),
}


class Coordinator:
    """The real rules around a record; its resharding is the essence of the stream's: both read sets until drained."""

    def __init__(self, shards: int) -> None:
        self.record = Record(GroupKey("orders", "g"), policy=POLICY, quick=True, now=STARTS_AT)
        self.topology = Topology(stream_revision=1, shard_count=shards, read_set=tuple(range(shards)), migration=None)
        self.ends_at: int | None = None
        self._do(CreateGroup(registration=1, topology=self.topology, how="create", requested_by="walk"))

    @property
    def group(self) -> Group:
        assert isinstance(self.record.state, Group)
        return self.record.state

    def _do(self, command: GroupCommand, member_id: str | None = None) -> Accepted:
        decision = self.record.carry_out(command, member_id)
        assert isinstance(decision, Accepted)
        return decision

    def heartbeat(self, command: Heartbeat) -> HeartbeatReply:
        reply = self._do(command, command.member_id).reply
        assert isinstance(reply, HeartbeatReply)
        return reply

    def due(self) -> dict[str, int]:
        return {member: at for member, at in self.record.leases.items() if at < self.record.now}

    def tick(self, lapsed: dict[str, int]) -> None:
        """Follow, then expire. The guard of an expiry: who has renewed since the look is not expired."""
        self._do(Follow(topology=self.topology))
        still = self.due()
        self._do(Tick(lapsed={member: still[member] for member in lapsed if member in still}, grace=False))
        without = (
            m.member_id for m in self.group.members.values() if m.state != "EXPIRED" and m.member_id not in self.record.leases
        )
        for member_id in without:
            self.record.leases[member_id] = self.record.now + LEASE

    def _follow(self, count: int, read_set: Iterable[int]) -> None:
        self.topology = Topology(
            stream_revision=self.topology.stream_revision + 1, shard_count=count, read_set=tuple(sorted(read_set)), migration=None
        )
        self._do(Follow(topology=self.topology))

    def reshard(self, count: int) -> None:
        if self.ends_at is None:
            self.ends_at = count
            self._follow(count, range(max(count, self.topology.shard_count)))

    def drained(self, backlog: dict[int, int]) -> None:
        """Take what is empty out of the read set; end once nobody holds it."""
        if self.ends_at is None:
            return
        leaving = [shard for shard in self.topology.read_set if shard >= self.ends_at]
        if leaving:
            if not any(backlog.get(shard, 0) for shard in leaving):
                self._follow(self.ends_at, range(self.ends_at))
        elif not any(shard >= self.ends_at for shard in self.group.ownership):
            self.ends_at = None


@dataclass(slots=True)
class Process:
    """A client, as it owes to be: its lease runs from the SENDING of its last accepted heartbeat."""

    member_id: str
    style: str
    up: bool = True
    epoch: int = 0
    version: int = 0
    reading: set[int] = field(default_factory=set)
    draining: set[int] = field(default_factory=set)
    revoked: set[int] = field(default_factory=set)
    lease: int = -1
    waiting: int | None = None
    sent: int = 0
    give_up: int = 0
    next_beat: int = 0
    join_request: int | None = None
    leaving: bool = False

    def stop(self) -> None:
        self.reading, self.draining, self.revoked = set(), set(), set()
        self.epoch, self.lease, self.join_request = 0, -1, None

    def touches(self, now: int) -> set[int]:
        return self.reading | self.draining if self.up and now <= self.lease else set()

    def request(self, number: int, now: int) -> Heartbeat:
        """Say what is held. A repeated join keeps its request id."""
        self.waiting, self.sent, self.give_up = number, now, now + NET
        owned = set(self.reading)
        if self.leaving:
            if self.style == "starter":
                self.revoked |= self.reading | self.draining
                self.draining = set()
            elif self.style == "drop":
                owned, self.draining = set(), set()  # it tells of no drain, so it leaves when it has none
            else:
                owned = set()
                self.draining |= self.reading
            self.reading = set()
        epoch = -1 if self.leaving else self.epoch
        if epoch == 0 and self.join_request is None:
            self.join_request = number
        silent = self.style == "drop"
        command = Heartbeat(
            path_member_id=self.member_id, member_id=self.member_id, member_name=None, protocol_version=1,
            request_id=str(self.join_request if epoch == 0 else number), member_epoch=epoch, metadata_version=self.version,
            runtime_max_concurrency=1, owned=frozenset(owned), draining=Nothing if silent else frozenset(self.draining),
            revoked=Nothing if silent else frozenset(self.revoked),
        )  # fmt: skip
        self.revoked = set()
        return command

    def hear(self, reply: HeartbeatReply, now: int, pause: int) -> None:
        self.waiting, self.next_beat = None, now + pause
        if reply.status == "RETRY":
            return
        self.version = reply.metadata_version
        if reply.status in ("UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"):
            self.stop()
            self.next_beat = now
            self.up = not self.leaving
            return
        self.lease = self.sent + LEASE
        if self.leaving:
            self.up = bool(self.draining)
            return
        self.epoch, self.join_request = reply.member_epoch, None
        assigned = set(reply.assigned)
        self.draining |= self.reading - assigned
        if reply.status in ("SYNC_METADATA", "REVOKE_PENDING"):
            self.reading &= assigned
        elif now <= self.lease:
            self.reading = assigned - self.draining


class Walk:
    """One walk: `run` gives what went wrong, None when nothing did."""

    def __init__(self, seed: int, variant: Variant, steps: int = 450) -> None:
        self.random = Random(seed)
        self.variant = variant
        self.coordinator = Coordinator(variant.shards)
        self.processes = [
            Process(member, variant.styles[place % len(variant.styles)], next_beat=STARTS_AT)
            for place, member in enumerate(variant.members)
        ]
        self.calm_at = STARTS_AT + steps
        self.ends_at = self.calm_at + 5 * LEASE + 2 * POLICY.rebalance_timeout_ms + 60
        self.requests: list[tuple[int, int, int, Heartbeat]] = []
        self.answers: list[tuple[int, int, int, HeartbeatReply]] = []
        self.looks: list[tuple[int, dict[str, int]]] = []
        self.saved: list[Record] = []
        self.backlog: dict[int, int] = {}
        self.read_at: dict[int, int] = {}
        self.numbers = 0
        self.now = STARTS_AT

    def run(self) -> str | None:
        while self.now < self.ends_at:
            self.now += 1
            self.coordinator.record.now = self.now
            if not self.is_calm:
                self._disturb()
            self._work()
            self._tick()
            for place, process in enumerate(self.processes):
                self._live(place, process)
            self._deliver()
            if violation := self._double_reader():
                return f"step {self.now - STARTS_AT}: {violation}"
        return self._stuck()

    @property
    def is_calm(self) -> bool:
        return self.now > self.calm_at

    def _chance(self, of_one: float) -> bool:
        return self.random.random() < of_one

    def _disturb(self) -> None:
        variant, coordinator = self.variant, self.coordinator
        if variant.fallback:
            self.saved = [*self.saved, coordinator.record.copy()][-8:]
            if self._chance(variant.fallback):
                identity = f"{coordinator.record.identity}+"
                coordinator.record = self.saved[0].copy()
                coordinator.record.now, coordinator.record.identity = self.now, identity
        if variant.reshard and self._chance(0.01):
            coordinator.reshard(self.random.randint(0, 6))
        if variant.visitor_every and self.now % variant.visitor_every == 0:
            visitor = Process(f"pod{self.now}", "ours")
            coordinator.heartbeat(visitor.request(-self.now, self.now))

    def _work(self) -> None:
        """Records come in; who holds a shard reads all of them."""
        for shard in range(min(self.coordinator.topology.shard_count, SHARD_KEYS)):
            self.backlog[shard] = self.backlog.get(shard, 0) + self._chance(0.3)
        for process in self.processes:
            if process.up and self.now <= process.lease:
                self.backlog.update(dict.fromkeys(process.reading, 0))
                self.read_at.update(dict.fromkeys(process.reading, self.now))
        if self._chance(0.5):
            self.coordinator.drained(self.backlog)

    def _tick(self) -> None:
        """What is due is looked at now and committed a little later."""
        if self._chance(0.8):
            self.looks.append((self.now + self.random.randint(0, 4), self.coordinator.due()))
        for _, lapsed in [look for look in self.looks if look[0] <= self.now]:
            self.coordinator.tick(lapsed)
        self.looks = [look for look in self.looks if look[0] > self.now]

    def _live(self, place: int, process: Process) -> None:
        if not process.up:
            if self.is_calm or self._chance(0.08):
                self.processes[place] = Process(process.member_id, process.style, next_beat=self.now)
            return
        if self.is_calm and process.leaving:
            self.processes[place] = process = Process(process.member_id, process.style, next_beat=self.now)
        elif not self.is_calm and self._chance(self.variant.crash * (10 if process.leaving else 1)):
            process.up = False
            return
        elif not self.is_calm and process.epoch > 0 and self._chance(0.004):
            process.leaving = True
        if self.now > process.lease and process.reading:
            process.stop()
            process.waiting, process.next_beat = None, self.now
        if process.waiting is not None and self.now > process.give_up:
            process.waiting, process.next_beat = None, self.now
        self._drain(place, process)
        if process.waiting is None and self.now >= process.next_beat:
            self._send(place, process)

    def _drain(self, place: int, process: Process) -> None:
        if place == 0 and self.variant.stuck_from is not None and self.now > STARTS_AT + self.variant.stuck_from:
            return
        for shard in sorted(process.draining):
            if process.style == "drop" or self._chance(0.3):
                process.draining.discard(shard)
                process.revoked.add(shard)

    def _send(self, place: int, process: Process) -> None:
        self.numbers += 1
        command = process.request(self.numbers, self.now)
        for _ in range(2 if not self.is_calm and self._chance(0.05) else 1):
            if (arrives := self._arrival()) is not None:
                self.requests.append((arrives, place, self.numbers, command))

    def _arrival(self) -> int | None:
        """When something sent now arrives; None when it is lost."""
        if self.is_calm:
            return self.now + self.random.randint(0, 1)
        if self._chance(0.1):
            return None
        return self.now + self.random.randint(0, NET * 2 if self._chance(0.1) else 2)

    def _deliver(self) -> None:
        arrived = [message for message in self.requests if message[0] <= self.now]
        self.requests = [message for message in self.requests if message[0] > self.now]
        self.random.shuffle(arrived)
        for _, place, number, command in arrived:
            reply = self.coordinator.heartbeat(command)
            if (arrives := self._arrival()) is not None:
                self.answers.append((arrives, place, number, reply))
        heard = [message for message in self.answers if message[0] <= self.now]
        self.answers = [message for message in self.answers if message[0] > self.now]
        for _, place, number, reply in heard:
            process = self.processes[place]
            if process.up and process.waiting == number:
                process.hear(reply, self.now, self.random.randint(1, BEAT))

    def _double_reader(self) -> str | None:
        touched: dict[int, str] = {}
        for process in self.processes:
            for shard in process.touches(self.now):
                other = touched.setdefault(shard, process.member_id)
                if other != process.member_id:
                    return f"shard {shard} is touched by {other} and {process.member_id}"
        return None

    def _stuck(self) -> str | None:
        """Every shard was read lately: of two processes under one id one may just have taken over."""
        unread = [shard for shard in self.coordinator.topology.read_set if self.read_at.get(shard, 0) < self.now - LATELY]
        if unread or self.coordinator.ends_at is not None:
            members = {m.member_id: (m.state, m.foreign) for m in self.coordinator.group.members.values() if m.state != "EXPIRED"}
            return (
                f"stuck: unread {unread}, resharding to {self.coordinator.ends_at}, {members}, {self.coordinator.group.ownership}"
            )
        return None


def main(seeds: int) -> int:
    failed = 0
    for name, variant in VARIANTS.items():
        found = [(seed, violation) for seed in range(seeds) if (violation := Walk(seed, variant).run())]
        failed += len(found)
        print(f"{name}: {seeds} walks, {len(found)} violations", flush=True)
        for seed, violation in found[:3]:
            print(f"  seed {seed}: {violation}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]) if len(sys.argv) > 1 else 100))
