"""Is there any sequence of commands that breaks a group? Members are arbitrary: stale, of the future, lying, lapsed."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from msgspec import structs

from coord.core.commands import CreateGroup, DeleteGroup, Follow, GroupCommand, Heartbeat, Tick, Topology
from coord.core.deadlines import next_deadline
from coord.core.decide import decide
from coord.core.decision import Accepted, Decision, HeartbeatReply
from coord.core.heartbeat import STATUS
from coord.core.invariants import broken
from coord.events.catalog import Event, MemberExpired, ShardsFreed
from coord.names import GroupKey
from coord.projections.group import Group
from coord.projections.stream import Resharding
from coord.refusals import Refused
from tests.property.record import Record, bytes_of
from tests.strategies import SHARDS_MAX, heartbeats, member_ids, shard_sets

KEY = GroupKey("orders", "g")
NEVER_AGAIN = frozenset({5, 14})
"""SYNC_METADATA gives a fresh epoch each time that it is asked for."""

topologies = st.builds(
    lambda count, extra: (count, tuple(sorted({*range(count), *extra}))), st.integers(0, SHARDS_MAX), shard_sets
)


class GroupMachine(RuleBasedStateMachine):
    """One group under any commands."""

    def __init__(self) -> None:
        super().__init__()
        self.record = Record(KEY)
        self.topology = Topology(stream_revision=1, shard_count=4, read_set=(0, 1, 2, 3), migration=None)
        self.registration = 1
        self.counters = (0, 0)

    @property
    def group(self) -> Group | None:
        assert self.record.state is None or isinstance(self.record.state, Group)
        return self.record.state

    # -- what happens

    @initialize()
    def begin(self) -> None:
        self.create()

    @precondition(lambda self: self.group is None)
    @rule()
    def create(self) -> None:
        self.registration += 1
        self._do(CreateGroup(registration=self.registration, topology=self.topology, how="create", requested_by="ops"))

    @precondition(lambda self: self.group is not None)
    @rule(force=st.booleans())
    def delete(self, force: bool) -> None:
        live = self.group is not None and (self.group.held or max(self.record.leases.values(), default=0) >= self.record.now)
        in_round = self.group is not None and (self.group.correction or self.group.identity != self.record.identity)
        decision = self._do(DeleteGroup(requested_by="ops", reason="test", force=force))
        assert isinstance(decision, Refused) == bool(in_round or (live and not force))

    @rule(data=st.data(), honest=st.integers(0, 9), member_id=member_ids)
    def heartbeat(self, data: st.DataObject, honest: int, member_id: str) -> None:
        """Mostly near what the member was told, sometimes anything."""
        member = self.group.members.get(member_id) if self.group else None
        if self.group is None or member is None or honest == 0:
            wild = st.integers(-3, 40) | st.sampled_from([10**9 + 1, 10**12])
            self._do(data.draw(heartbeats(epochs=wild, versions=wild)))
            return
        near = [
            0,
            0,
            -1,
            member.member_epoch,
            member.member_epoch,
            member.acked_epoch,
            member.join_epoch,
            member.member_epoch - 1,
        ]
        held = self.group.shards_of(member_id)
        assigned, revoking = self.group.in_phase(member_id, "ASSIGNED"), self.group.in_phase(member_id, "REVOKING")
        owned = data.draw(st.sampled_from([assigned, assigned, held, frozenset(member.current_assignment), frozenset()]))
        draining = data.draw(st.sampled_from([frozenset(), frozenset(), revoking, frozenset(sorted(revoking)[:1])]))
        if honest == 1:
            owned, draining = owned | data.draw(shard_sets), draining | data.draw(shard_sets)
        command = data.draw(heartbeats(epochs=st.sampled_from(near), versions=st.just(self.group.metadata_version)))
        self._do(
            structs.replace(
                command, path_member_id=member_id, member_id=member_id, owned=owned, draining=draining,
                revoked=data.draw(st.sampled_from([frozenset(), held])) - draining,
            )
        )  # fmt: skip

    @rule(ms=st.sampled_from([1, 3_000, 3_000, 8_000, 15_001, 41_000, 101_000]))
    def sleep(self, ms: int) -> None:
        self.record.now += ms

    @precondition(lambda self: self.group is not None)
    @rule(grace=st.booleans())
    def tick(self, grace: bool) -> None:
        lapsed = {} if grace else {member: at for member, at in self.record.leases.items() if at < self.record.now}
        self._do(Tick(lapsed=lapsed, grace=grace))

    @precondition(lambda self: self.group is not None)
    @rule(topology=topologies, fell_back=st.integers(0, 5))
    def follow(self, topology: tuple[int, tuple[int, ...]], fell_back: int) -> None:
        revision = max(self.topology.stream_revision + (-1 if fell_back == 0 else 1), 1)
        migration = Resharding(
            resharding_id="r", from_shard_count=4, to_shard_count=topology[0], state="ACTIVE", created_at=1, updated_at=1,
            activated_at=1, drained=False, forced_by=None, blockers_passed=False, requested_by="ops", reason=None,
        ).followed()  # fmt: skip
        self.topology = Topology(
            stream_revision=revision, shard_count=topology[0], read_set=topology[1], migration=migration if revision % 2 else None
        )
        lost = self.group is not None and self.group.stream_revision > revision
        self._do(Follow(topology=self.topology, lost=lost))
        if not lost and self.group is not None:
            assert (self.group.read_set, self.group.shard_count) == (self.topology.read_set, self.topology.shard_count)

    @rule(name=st.sampled_from(["store-1", "store-2"]))
    def fail_over(self, name: str) -> None:
        self.record.identity = name

    # -- what must hold of every decision

    def _do(self, command: GroupCommand) -> Decision:
        before, revision = self.group, self.record.revision
        sender = command.member_id if isinstance(command, Heartbeat) else None
        lapsed = {member for member, at in self.record.leases.items() if at < self.record.now}
        decision = self.record.carry_out(command, sender)
        if isinstance(decision, Refused):
            assert self.record.revision == revision
            return decision
        if isinstance(before, Group) and isinstance(self.group, Group):
            self._check_freed(before, self.group, decision, sender, lapsed)
        if isinstance(decision.reply, HeartbeatReply):
            self._check_reply(decision.reply)
        self._repeat(command, decision, sender)
        return decision

    def _check_freed(self, before: Group, after: Group, decision: Accepted, sender: str | None, lapsed: set[str]) -> None:
        """Nothing but two things frees a shard: its holder's own report, or the lapse of its holder's lease."""
        freed = {s: e for e in decision.events if isinstance(e, ShardsFreed) for s in e.shards}
        expired = {e.member_id for e in decision.events if isinstance(e, MemberExpired)}
        assert expired <= lapsed
        for shard, hold in before.ownership.items():
            now_holder = after.ownership[shard].member_id if shard in after.ownership else None
            if now_holder == hold.member_id and shard not in freed:
                continue
            assert freed[shard].member_id == hold.member_id
            assert hold.member_id in ({sender} if freed[shard].reason in ("REPORTED", "LEFT") else expired)
            elder = before.members[hold.member_id]
            if hold.member_id == sender:
                assert not (shard in elder.elder and self.record.now <= elder.elder_until)
        assert freed.keys() <= before.ownership.keys()

    def _check_reply(self, reply: HeartbeatReply) -> None:
        assert reply.status == STATUS[reply.row] or (reply.status == "REVOKE_PENDING" and reply.row in {6, 8, 17})
        if self.group is not None and self.group.correction is not None:
            assert reply.pending == ()
            assert reply.status != "OK" or reply.row == 12

    def _repeat(self, command: GroupCommand, decision: Accepted, sender: str | None) -> None:
        """The same request again, on what it made, records nothing and is given the same answer."""
        if self.record.state is None or isinstance(command, CreateGroup | DeleteGroup):
            return
        reply = decision.reply
        if isinstance(command, Tick):  # the guard of an expiry: whose lease was renewed is not expired
            still = {member: at for member, at in command.lapsed.items() if self.record.leases.get(member) == at}
            command = replace(command, lapsed=still)
        synced = reply.member_epoch if isinstance(reply, HeartbeatReply) and reply.row in NEVER_AGAIN else None
        if isinstance(command, Heartbeat) and command.member_epoch == synced:
            return  # it had guessed the epoch that it is given, and is no longer the same request
        again = self.record.decide(command, sender)
        assert isinstance(again, Accepted)
        if synced is not None:
            assert isinstance(again.after, Group)
            assert isinstance(self.group, Group)
            assert again.after.ownership == self.group.ownership
            return
        assert again.events == ()
        if isinstance(reply, HeartbeatReply):
            assert isinstance(again.reply, HeartbeatReply)
            assert again.reply.status == reply.status
            assert (again.reply.member_epoch, again.reply.assigned) == (reply.member_epoch, reply.assigned)
            assert (again.reply.pending, again.reply.metadata_version) == (reply.pending, reply.metadata_version)

    # -- what must hold at any time

    @invariant()
    def nothing_is_broken(self) -> None:
        assert list(broken(self.record.state)) == []

    @invariant()
    def counters_never_fall(self) -> None:
        """Not by a deletion either."""
        counters = self.counters
        if self.group is not None:
            counters = (self.group.epoch, self.group.metadata_version)
        elif self.record.past is not None:
            counters = (self.record.past.epoch, self.record.past.metadata_version)
        assert counters >= self.counters
        assert all(now >= then for now, then in zip(counters, self.counters, strict=True))
        self.counters = counters

    @invariant()
    def time_alone_changes_nothing_before_the_next_deadline(self) -> None:
        """And something at it, unless what is free is in quarantine by then."""
        group = self.group
        if group is None or group.identity != self.record.identity:
            return
        deadline = next_deadline(group, self.record.policy)
        last_quiet = deadline - 1 if deadline is not None else self.record.now + 10**9
        for now in {self.record.now, last_quiet}:
            if self.record.now <= now <= last_quiet:
                assert self._ticked_at(group, now) == ()
        if deadline is not None and deadline >= self.record.now:
            assert self._ticked_at(group, deadline) or deadline == group.grants_from + 1

    def _ticked_at(self, group: Group, now: int) -> tuple[Event, ...]:
        decision = decide(group, Tick(lapsed={}, grace=False), replace(self.record.moment(), now=now), key=KEY)
        assert isinstance(decision, Accepted)
        return decision.events

    def teardown(self) -> None:
        self.record.check_replay()
        assert bytes_of(self.record.state) is not None or self.record.past is not None or not self.record.log


TestGroup = GroupMachine.TestCase
TestGroup.settings = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink], stateful_step_count=30)
