"""Is there any sequence of commands that breaks a stream? Steps come at any time, from anybody, twice, and by stale ids."""

from __future__ import annotations

from hypothesis import Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from coord.core import commands
from coord.core.commands import StreamCommand
from coord.core.decision import Accepted, Decision, Done
from coord.core.invariants import broken
from coord.names import StreamKey
from coord.projections.stream import ENDED_MAX, Stream
from coord.refusals import Refused
from tests.property.record import Record

KEY = StreamKey("orders")
IDS = ("r1", "r2", "r3", "r4", "r5", "r6")
GROUPS = ("g", "h")

ids = st.sampled_from(IDS)
counts = st.integers(0, 6)
AFTER = {
    "PREPARING": {"PREPARING", "ACTIVE", "ROLLED_BACK"},
    "ACTIVE": {"ACTIVE", "DRAINING", "ROLLING_BACK"},
    "DRAINING": {"DRAINING", "DEPRECATED"},
    "ROLLING_BACK": {"ROLLING_BACK", "ROLLED_BACK"},
    "DEPRECATED": {"DEPRECATED"},
    "ROLLED_BACK": {"ROLLED_BACK"},
}
"""The states that a resharding may have after each, one command later."""


class StreamMachine(RuleBasedStateMachine):
    """One stream under any commands."""

    def __init__(self) -> None:
        super().__init__()
        self.record = Record(KEY)
        self.used = 0
        self.version = 0

    @property
    def stream(self) -> Stream | None:
        assert self.record.state is None or isinstance(self.record.state, Stream)
        return self.record.state

    @initialize(count=st.integers(1, 6))
    def begin(self, count: int) -> None:
        self.create(count, adopted=False)

    @precondition(lambda self: self.stream is None)
    @rule(count=st.integers(1, 6), adopted=st.booleans())
    def create(self, count: int, adopted: bool) -> None:
        self._do(commands.CreateStream(shard_count=count, start_from="$", requested_by="ops", adopted=adopted))

    @rule()
    def create_again(self) -> None:
        exists = self.stream is not None
        decision = self.record.decide(commands.CreateStream(shard_count=1, start_from="$", requested_by="ops"))
        assert isinstance(decision, Refused) == exists

    @rule()
    def delete(self) -> None:
        has_groups = self.stream is None or bool(self.stream.groups)
        decision = self._do(commands.DeleteStream(requested_by="ops", reason="test"))
        assert isinstance(decision, Refused) == has_groups

    @rule(group=st.sampled_from(GROUPS), limit=st.integers(1, 3))
    def register(self, group: str, limit: int) -> None:
        self._do(commands.RegisterGroup(consumer_group=group, start_from="0", how="create", limit=limit))

    @rule(group=st.sampled_from(GROUPS), registration=st.integers(1, 40), right=st.booleans())
    def remove(self, group: str, registration: int, right: bool) -> None:
        if right and self.stream is not None and group in self.stream.groups:
            registration = self.stream.groups[group].registered_revision
        self._do(commands.RemoveGroup(consumer_group=group, registration=registration))

    @rule(count=counts)
    def scale(self, count: int) -> None:
        self.used = min(self.used + 1, len(IDS) - 1)
        fresh = IDS[self.used]
        if self.stream is not None and self.stream.migration(fresh) is not None:
            return
        self._do(commands.Scale(resharding_id=fresh, target_shard_count=count, requested_by="ops", reason="test"))

    @rule(found=ids | st.none(), groups=st.frozensets(st.sampled_from(GROUPS)) | st.just(frozenset(GROUPS)))
    def activate(self, found: str | None, groups: frozenset[str]) -> None:
        self._do(commands.Activate(resharding_id=self._id(found), provisioned=groups))

    @rule(found=ids | st.none())
    def start_drain(self, found: str | None) -> None:
        self._do(commands.StartDrain(resharding_id=self._id(found)))

    @rule(found=ids | st.none(), ago=st.integers(0, 9_000), shards=st.frozensets(st.integers(0, 6)))
    def prove(self, found: str | None, ago: int, shards: frozenset[int]) -> None:
        seen = tuple(sorted(shards | (set(range(7)) if ago % 2 else set())))
        before = self.stream
        self._do(commands.ProveDrain(resharding_id=self._id(found), shards=seen, first_seen_at=self.record.now - ago))
        if before is not None and self.stream is not None and ago < self.record.policy.routing_grace_ms:
            assert self.stream.read_set == before.read_set  # once is not twice

    @rule(shards=st.frozensets(st.integers(0, 6)), ago=st.integers(0, 9_000))
    def prove_reopened(self, shards: frozenset[int], ago: int) -> None:
        self._do(commands.ProveDrain(resharding_id=None, shards=tuple(sorted(shards)), first_seen_at=self.record.now - ago))

    @rule(found=ids | st.none())
    def end(self, found: str | None) -> None:
        self._do(commands.EndResharding(resharding_id=self._id(found)))

    @rule(found=ids | st.none())
    def roll_back(self, found: str | None) -> None:
        self._do(commands.Rollback(resharding_id=self._id(found), requested_by="ops", reason="test"))

    @rule(found=ids | st.none(), force=st.booleans(), blockers=st.sampled_from([(), ("orders:3: unread",)]))
    def complete(self, found: str | None, force: bool, blockers: tuple[str, ...]) -> None:
        self._do(
            commands.Complete(resharding_id=self._id(found), blockers=blockers, force=force, requested_by="ops", reason="test")
        )

    @rule(shards=st.frozensets(st.integers(0, 7)))
    def reopen(self, shards: frozenset[int]) -> None:
        self._do(commands.ReopenShards(shards=tuple(sorted(shards)), reason="late records"))

    @rule(shard=st.integers(0, 7))
    def forget(self, shard: int) -> None:
        self._do(commands.ForgetRetiredShard(shard=shard))

    @rule()
    def observe(self) -> None:
        self._do(commands.ObserveIdentity())
        assert self.stream is None or self.stream.identity == self.record.identity

    @rule(name=st.sampled_from(["store-1", "store-2"]))
    def fail_over(self, name: str) -> None:
        self.record.identity = name

    @rule(ms=st.sampled_from([1, 5_000, 60_000]))
    def sleep(self, ms: int) -> None:
        self.record.now += ms

    def _id(self, found: str | None) -> str:
        """An id that somebody remembers, or the active one."""
        if found is None and self.stream is not None and self.stream.resharding is not None:
            return self.stream.resharding.resharding_id
        return found or "nothing"

    def _do(self, command: StreamCommand) -> Decision:
        before = self.stream
        decision = self.record.carry_out(command)
        after = self.stream
        if isinstance(decision, Accepted) and before is not None and after is not None:
            again = self.record.decide(command)
            assert isinstance(again, Accepted | Refused)
            if not isinstance(command, commands.Scale):
                assert isinstance(again, Accepted)
            if isinstance(again, Accepted):
                assert again.events == ()
            self._check_course(before, after)
        if isinstance(decision, Accepted):
            assert isinstance(decision.reply, Done)
        return decision

    def _check_course(self, before: Stream, after: Stream) -> None:
        """A resharding goes forwards; routing changes only with a new version; what is drained by nobody stays readable."""
        if before.resharding is not None:
            then = before.resharding
            now = after.migration(then.resharding_id)
            assert now is not None
            assert now.state in AFTER[then.state]
            if not now.drained and now.state in ("ACTIVE", "DRAINING", "ROLLING_BACK"):
                assert set(now.leaving) <= set(after.read_set)
        if after.shard_count != before.shard_count:
            assert after.metadata_version > before.metadata_version
            assert after.topology_revision > before.topology_revision
        if after.read_set != before.read_set:
            assert after.topology_revision > before.topology_revision

    @invariant()
    def nothing_is_broken(self) -> None:
        assert list(broken(self.record.state)) == []

    @invariant()
    def the_version_never_falls(self) -> None:
        version = self.version
        if self.stream is not None:
            version = self.stream.metadata_version
            assert len(self.stream.ended) <= ENDED_MAX
        elif self.record.past is not None:
            version = self.record.past.metadata_version
        assert version >= self.version
        self.version = version

    def teardown(self) -> None:
        self.record.check_replay()


TestStream = StreamMachine.TestCase
TestStream.settings = settings(phases=[Phase.explicit, Phase.reuse, Phase.generate, Phase.shrink], stateful_step_count=40)
