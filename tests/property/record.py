"""What a store would keep of one aggregate, for properties of decide and evolve: the sealed log, the leases, the clock.

`carry_out` decides a command, holds the decision to what every decision must be, and records it. A `quick` record keeps no
log and checks no bytes, for long walks.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from coord.core.commands import Command
from coord.core.decide import decide
from coord.core.decision import Accepted, Decision, Moment, Past, Policy
from coord.core.invariants import backwards, broken
from coord.events import chain, codec
from coord.events.catalog import Event, GroupDeleted, StreamDeleted
from coord.events.envelope import Actor, Cause, Entry
from coord.names import AggregateKey
from coord.projections.aggregate import Aggregate, decode, encode, evolve, fold

POLICY = Policy(
    heartbeat_interval_ms=3_000,
    member_lease_ttl_ms=15_000,
    rebalance_timeout_ms=40_000,
    stale_member_retention_ms=100_000,
    failover_grace_ms=2_000,
    routing_grace_ms=5_000,
    watch_retired_ms=50_000,
)
CAUSE = Cause(command_id="c", actor=Actor("test"), request_id=None, coordinator_id="test")


def bytes_of(state: Aggregate | None) -> bytes | None:
    return None if state is None else encode(state)


@dataclass(slots=True)
class Record:
    """One aggregate, its log and its leases."""

    key: AggregateKey
    policy: Policy = POLICY
    quick: bool = False
    now: int = 1_000_000
    identity: str = "store-1"
    state: Aggregate | None = None
    past: Past | None = None
    revision: int = 0
    log: list[Entry] = field(default_factory=list)
    leases: dict[str, int] = field(default_factory=dict)

    def moment(self, member_id: str | None = None) -> Moment:
        return Moment(
            now=self.now,
            identity=self.identity,
            revision=self.revision + 1,
            policy=self.policy,
            leases={member_id: self.leases.get(member_id)} if member_id else {},
            latest_lease=max(self.leases.values(), default=0),
            past=self.past,
        )

    def decide(self, command: Command, member_id: str | None = None) -> Decision:
        """Decide; the state that was decided on is as it was, and the same is decided again."""
        if self.quick:
            return decide(self.state, command, self.moment(member_id), key=self.key)
        before = bytes_of(self.state)
        decision = decide(self.state, command, self.moment(member_id), key=self.key)
        assert bytes_of(self.state) == before
        again = decide(self.state, command, self.moment(member_id), key=self.key)
        assert again == decision or isinstance(decision, Accepted)
        if isinstance(decision, Accepted):
            assert isinstance(again, Accepted)
            assert (again.events, again.reply, again.leases) == (decision.events, decision.reply, decision.leases)
        return decision

    def carry_out(self, command: Command, member_id: str | None = None) -> Decision:
        """Decide and record; a refusal records nothing."""
        decision = self.decide(command, member_id)
        if isinstance(decision, Accepted):
            self._check_leases(decision)
            if decision.events:
                self._commit(decision)
            self._change_leases(decision)
        return decision

    def _commit(self, decision: Accepted) -> None:
        """Write, and read back: what was written folds into what was decided."""
        if self.quick:
            assert list(broken(decision.after)) == []
            self.revision += 1
            self.state = decision.after
            return
        prev = self.log[-1].chain if self.log else chain.GENESIS
        self.revision += 1
        entries = codec.seal(decision.events, revision=self.revision, first=0, at=self.now, cause=CAUSE, prev=prev)
        envelopes = [codec.decode(entry) for entry in entries]
        assert tuple(envelope.event for envelope in envelopes) == decision.events
        after = fold(self.state, envelopes, key=self.key)
        assert bytes_of(after) == bytes_of(decision.after)
        assert list(broken(after)) == []
        assert list(backwards(self.state, after)) == []
        self.log += entries
        self.past = past_of(decision.events) or (None if after is not None else self.past)
        self.state = after if after is None else decode(self.key, encode(after))
        assert bytes_of(self.state) == bytes_of(after)
        if after is None:
            self.leases.clear()

    def _check_leases(self, decision: Accepted) -> None:
        """What the store would check of the leases holds for a decision made on them."""
        leases = decision.leases
        assert all(self.leases[member] < self.now for member in leases.lapsed)
        assert all(self.leases.get(member) == deadline for member, deadline in leases.unchanged.items())
        assert not leases.none_running or all(deadline < self.now for deadline in self.leases.values())
        assert leases.latest_at_most is None or max(self.leases.values(), default=0) <= leases.latest_at_most

    def _change_leases(self, decision: Accepted) -> None:
        if self.state is None:
            return
        deadline = self.now + self.policy.member_lease_ttl_ms
        for member in decision.leases.remove:
            self.leases.pop(member, None)
        for member in decision.leases.renew:
            self.leases[member] = max(deadline, self.leases.get(member, 0))
        if decision.leases.renew_all:
            self.leases = {member: max(deadline, at) for member, at in self.leases.items()}

    def copy(self) -> Record:
        """Give a copy that goes its own way; states and entries are never changed, only replaced."""
        return replace(self, log=list(self.log), leases=dict(self.leases))

    def check_replay(self) -> None:
        """The whole log gives the live state, byte for byte; so does a snapshot at any revision and what follows it."""
        envelopes = [codec.decode(entry) for entry in self.log]
        assert bytes_of(fold(None, envelopes, key=self.key)) == bytes_of(self.state)
        state: Aggregate | None = None
        for place, envelope in enumerate(envelopes, 1):
            state = evolve(state, envelope.event, key=self.key, revision=envelope.revision, at=envelope.at)
            ends_revision = place == len(envelopes) or envelopes[place].revision != envelope.revision
            if ends_revision and place % 5 == 0:
                snapshot = None if state is None else decode(self.key, encode(state))
                assert bytes_of(fold(snapshot, envelopes[place:], key=self.key)) == bytes_of(self.state)


def past_of(events: tuple[Event, ...]) -> Past | None:
    """The tombstone's counters, if these events end with one."""
    match events[-1]:
        case GroupDeleted(epoch=epoch, metadata_version=version, latest_lease=lease, registration=registration):
            return Past(epoch=epoch, metadata_version=version, latest_lease=lease, registration=registration)
        case StreamDeleted(metadata_version=version):
            return Past(epoch=0, metadata_version=version)
        case _:
            return None
