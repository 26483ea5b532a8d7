"""A holder gets its whole time to let a shard go, from when it may be freed at all."""

from __future__ import annotations

from coord.core.commands import CreateGroup, Heartbeat, Tick, Topology
from coord.core.decide import decide
from coord.core.decision import Accepted, Moment, Policy
from coord.events.catalog import MemberFenced
from coord.names import GroupKey
from coord.projections.aggregate import Aggregate

KEY = GroupKey("orders", "workers")
POLICY = Policy(member_lease_ttl_ms=6_000, rebalance_timeout_ms=4_000)
"""A rebalance timeout below the lease, which the configuration allows."""


def at(state: Aggregate | None, command: CreateGroup | Heartbeat | Tick, now: int, lease: int | None = None) -> Accepted:
    """Decide at a time."""
    revision = state.store_revision + 1 if state is not None else 1
    decision = decide(
        state, command, Moment(now=now, identity="i", revision=revision, policy=POLICY, leases={"a": lease}), key=KEY
    )
    assert isinstance(decision, Accepted)
    return decision


def beat(member: str, request: str, epoch: int, *owned: int) -> Heartbeat:
    """Give a heartbeat."""
    return Heartbeat(
        path_member_id=member,
        member_id=member,
        member_name=None,
        request_id=request,
        protocol_version=1,
        member_epoch=epoch,
        metadata_version=0,
        runtime_max_concurrency=1,
        owned=frozenset(owned),
        draining=frozenset(),
        revoked=frozenset(),
    )


def test_an_elders_lease_does_not_eat_the_time_to_let_go() -> None:
    """A member that joined again is not fenced for a shard that cannot be freed yet; later it is, a whole timeout after."""
    topology = Topology(stream_revision=1, shard_count=2, read_set=(0, 1), migration=None)
    state = at(None, CreateGroup(registration=1, topology=topology, how="create", requested_by="test"), 0).after
    state = at(state, beat("a", "a1", 0), 1_000).after
    state = at(state, beat("b", "b1", 0), 1_500).after  # one of a's shards is to go to b
    state = at(state, beat("a", "a2", 0), 2_000, lease=7_000).after  # an elder process may read until 7000
    tick = Tick(lapsed={}, grace=False)
    for now in (6_000, 7_000, 10_999):
        assert not any(isinstance(event, MemberFenced) for event in at(state, tick, now).events), now
    assert any(isinstance(event, MemberFenced) for event in at(state, tick, 11_000).events)
