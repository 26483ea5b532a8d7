"""The member protocol: what a client owes, row by row, and against late, lost and doubled answers."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from coord.client.protocol import NOTHING, Change, MemberProtocol, Outgoing
from coord.wire import Assignment, Capacity, HeartbeatResponse, HeartbeatStatus, Shard

LEASE = 1_000
CAPACITY = Capacity(runtime_max_concurrency=4, available_concurrency=4)


def send(member: MemberProtocol, now: int) -> Outgoing:
    return member.next_request(now, f"r{now}", capacity=CAPACITY)


def reply(
    sent: Outgoing, status: HeartbeatStatus = "OK", *, epoch: int = 5, assigned: tuple[int, ...] = (), **other: Any
) -> HeartbeatResponse:
    values: dict[str, Any] = {
        "response_to": sent.body.request_id,
        "status": status,
        "member_id": sent.body.member_id,
        "member_epoch": epoch,
        "heartbeat_interval_ms": 200,
        "rebalance_timeout_ms": 3_000,
        "group_epoch": 1,
        "assignment_epoch": 1,
        "metadata_version": 7,
        "member_lease_ttl_ms": LEASE,
        "assignment": Assignment(
            assigned_shards=tuple(Shard(shard_index=i) for i in assigned), pending_shards=(), metadata_version=7
        ),
    }
    return HeartbeatResponse(**{**values, **other})


def joined(*shards: int, at: int = 0) -> MemberProtocol:
    """A member that joined at a time and was given shards."""
    member = MemberProtocol("m1")
    sent = send(member, at)
    assert member.answered(at, sent.attempt, reply(sent, assigned=shards)).start == frozenset(shards)
    return member


def told(member: MemberProtocol, now: int, status: HeartbeatStatus = "OK", **fields: Any) -> Change:
    """Send and be answered in the same instant."""
    sent = send(member, now)
    return member.answered(now, sent.attempt, reply(sent, status, **fields))


def indices(sent: Outgoing) -> tuple[list[int], list[tuple[int, str, int]]]:
    """What a heartbeat names: owned shards, and revoking ones with state and count."""
    owned = [s.shard_index for s in sent.body.owned_shards or ()]
    return owned, [(r.shard.shard_index, r.state, r.in_flight) for r in sent.body.revoking_shards or ()]


def test_a_join_says_epoch_0_and_owns_nothing() -> None:
    sent = send(MemberProtocol("m1", "first"), 0)
    assert (sent.body.member_epoch, sent.body.member_name, sent.body.metadata_version) == (0, "first", 0)
    assert indices(sent) == ([], [])


def test_a_join_repeated_after_no_answer_keeps_its_request_id_and_a_later_one_has_its_own() -> None:
    member = MemberProtocol("m1")
    first = send(member, 0)
    member.unanswered(first.attempt)
    second = send(member, 10)
    assert second.body.request_id == first.body.request_id
    assert member.answered(10, second.attempt, reply(second, "RETRY")) == NOTHING
    third = send(member, 15)
    assert third.body.request_id == first.body.request_id, "RETRY is no answer"
    member.answered(20, third.attempt, reply(third))
    member.tick(20 + LEASE)
    assert send(member, 20 + LEASE).body.request_id != first.body.request_id


def test_the_late_answer_to_a_joins_first_sending_does_not_renew_by_the_second() -> None:
    member = MemberProtocol("m1")
    first = send(member, 0)
    member.unanswered(first.attempt)
    second = send(member, 900)
    assert member.answered(950, first.attempt, reply(first, assigned=(1,))) == NOTHING
    assert member.lease_until_ms is None
    assert member.answered(960, second.attempt, reply(second, assigned=(1,))).start == {1}
    assert member.lease_until_ms == 900 + LEASE


def test_one_heartbeat_is_in_flight() -> None:
    member = MemberProtocol("m1")
    send(member, 0)
    with pytest.raises(AssertionError):
        send(member, 1)


def test_a_doubled_answer_changes_nothing() -> None:
    member = MemberProtocol("m1")
    sent = send(member, 0)
    member.answered(1, sent.attempt, reply(sent, assigned=(1,)))
    assert member.answered(2, sent.attempt, reply(sent, "FENCED_MEMBER_EPOCH")) == NOTHING
    assert member.reading == {1}


def test_i3_the_lease_runs_from_the_sending_of_the_last_accepted_heartbeat() -> None:
    """Failed heartbeats drop nothing until the lease ends; a late reply does not stretch it."""
    member = joined(0, at=0)
    sent = send(member, 200)
    assert member.answered(900, sent.attempt, reply(sent, assigned=(0,))) == NOTHING
    lost = send(member, 950)
    assert member.tick(1_100) == NOTHING
    member.unanswered(lost.attempt)
    assert member.tick(200 + LEASE - 1) == NOTHING
    assert member.tick(200 + LEASE).lost == {0}
    assert member.tick(200 + LEASE) == NOTHING


def test_i3_after_a_stall_the_first_act_is_to_stop_and_the_next_a_join() -> None:
    member = joined(0, 1)
    told(member, 100, assigned=(0,))
    waiting = send(member, 200)
    change = member.answered(5_000, waiting.attempt, reply(waiting, assigned=(0,)))
    assert change.lost == {0, 1}, "a drain stops too"
    sent = send(member, 5_000)
    assert (sent.body.member_epoch, indices(sent)) == (0, ([], []))


def test_an_answer_that_comes_after_its_own_lease_starts_nothing() -> None:
    member = MemberProtocol("m1")
    sent = send(member, 0)
    assert member.answered(LEASE, sent.attempt, reply(sent, assigned=(0,))) == NOTHING
    assert not member.reading
    assert member.lease_until_ms is None


@pytest.mark.parametrize("status", ["UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"])
def test_unknown_and_fenced_stop_everything_at_once_and_then_join(status: HeartbeatStatus) -> None:
    member = joined(0, 1, 2)
    told(member, 100, assigned=(0, 1))
    change = told(member, 200, status)
    assert change.lost == {0, 1, 2}
    assert member.lease_until_ms is None
    member.drained(2)
    assert indices(send(member, 201)) == ([], [])


def test_retry_changes_nothing_and_renews_nothing() -> None:
    member = joined(0, 1)
    before = member.lease_until_ms
    assert told(member, 500, "RETRY", epoch=99, assigned=(7,)) == NOTHING
    assert (member.reading, member.lease_until_ms, member.member_epoch) == ({0, 1}, before, 5)


@pytest.mark.parametrize("status", ["UNSUPPORTED_PROTOCOL", "INVALID_REQUEST"])
def test_i7_fatal_statuses_end_the_member(status: HeartbeatStatus) -> None:
    member = joined(0)
    assert told(member, 100, status).lost == {0}
    assert member.ended
    assert member.fatal == status


def test_i6_the_assignment_is_a_full_set() -> None:
    """[0,1,2] -> [0,2,3] with 1 draining: stop 1, start 3 only at OK; 0 and 2 are never touched."""
    member = joined(0, 1, 2)
    assert told(member, 100, "SYNC_METADATA", epoch=6, assigned=(0, 2)) == Change(drain=frozenset({1}))
    assert told(member, 200, "REVOKE_PENDING", epoch=7, assigned=(0, 2)) == NOTHING
    assert told(member, 300, "REVOKE_PENDING", epoch=7, assigned=(0, 2, 3)) == NOTHING, "a round starts nothing"
    assert told(member, 400, epoch=8, assigned=(0, 2, 3)) == Change(start=frozenset({3}))
    assert member.reading == {0, 2, 3}


def test_i6_a_draining_shard_starts_again_only_after_its_drain_and_a_later_ok() -> None:
    member = joined(0, 1)
    assert told(member, 100, "SYNC_METADATA", assigned=(0,)).drain == {1}
    assert told(member, 200, assigned=(0, 1)) == NOTHING
    member.drained(1)
    assert told(member, 300, "REVOKE_PENDING", assigned=(0, 1)) == NOTHING
    assert told(member, 400, assigned=(0, 1)).start == {1}


def test_a_drain_is_named_until_an_answer_acknowledged_its_end() -> None:
    member = joined(0, 1)
    told(member, 100, assigned=(0,))
    sent = member.next_request(200, "x", capacity=CAPACITY, in_flight={1: 3})
    assert indices(sent) == ([0], [(1, "DRAINING", 3)])
    member.drained(1)
    member.answered(201, sent.attempt, reply(sent, assigned=(0,)))
    first = send(member, 300)
    assert indices(first) == ([0], [(1, "REVOKED", 0)])
    member.unanswered(first.attempt)
    second = send(member, 350)
    assert indices(second) == ([0], [(1, "REVOKED", 0)])
    member.answered(351, second.attempt, reply(second, "RETRY"))
    third = send(member, 400)
    assert indices(third) == ([0], [(1, "REVOKED", 0)])
    member.answered(401, third.attempt, reply(third, assigned=(0,)))
    assert indices(send(member, 500)) == ([0], [])


def test_a7_leaving_is_repeated_until_nothing_drains() -> None:
    member = joined(0, 1)
    assert member.leave().drain == {0, 1}
    sent = send(member, 100)
    assert (sent.body.member_epoch, indices(sent)) == (-1, ([], [(0, "DRAINING", 0), (1, "DRAINING", 0)]))
    member.drained(0)
    member.answered(101, sent.attempt, reply(sent, epoch=-1))
    assert not member.left
    member.drained(1)
    sent = send(member, 200)
    assert indices(sent)[1] == [(0, "REVOKED", 0), (1, "REVOKED", 0)]
    member.answered(201, sent.attempt, reply(sent, epoch=-1))
    assert member.left


def test_a7_the_answer_to_an_earlier_heartbeat_starts_nothing_in_a_member_that_leaves() -> None:
    member = joined(0)
    sent = send(member, 100)
    member.leave()
    assert member.answered(150, sent.attempt, reply(sent, epoch=9, assigned=(0, 1))) == NOTHING
    assert not member.left
    assert send(member, 160).body.member_epoch == -1


@pytest.mark.parametrize("status", ["OK", "UNKNOWN_MEMBER_ID", "FENCED_MEMBER_EPOCH"])
def test_every_answer_to_a_goodbye_but_retry_is_taken_as_left(status: HeartbeatStatus) -> None:
    member = joined()
    member.leave()
    told(member, 100, "RETRY")
    assert not member.left
    told(member, 200, status, epoch=-1)
    assert member.left


def test_a_member_that_never_sent_has_left_at_once() -> None:
    member = MemberProtocol("m1")
    member.leave()
    assert member.ended


def test_unknown_times_are_zero_on_the_wire_and_keep_the_last_known() -> None:
    member = joined()
    told(member, 100, "UNKNOWN_MEMBER_ID", heartbeat_interval_ms=0, rebalance_timeout_ms=0, member_lease_ttl_ms=0)
    assert (member.heartbeat_interval_ms, member.rebalance_timeout_ms, member.lease_ttl_ms) == (200, 3_000, LEASE)


STATUSES: list[HeartbeatStatus] = [
    "OK",
    "OK",
    "OK",
    "RETRY",
    "SYNC_METADATA",
    "REVOKE_PENDING",
    "FENCED_MEMBER_EPOCH",
    "UNKNOWN_MEMBER_ID",
]
STEPS = st.lists(
    st.tuples(
        st.sampled_from(["send", "answer", "answer", "old answer", "give up", "drained", "leave", "pass", "pass"]),
        st.integers(0, 400),
        st.sampled_from(STATUSES),
        st.frozensets(st.integers(0, 4)),
    ),
    max_size=60,
)


@settings(max_examples=300, deadline=None)
@given(steps=STEPS)
def test_whatever_the_network_does_the_client_owes_are_kept(
    steps: list[tuple[str, int, HeartbeatStatus, frozenset[int]]],
) -> None:
    """Late, lost and doubled answers: nothing is touched outside a lease, no drain is skipped, every report is true."""
    member, now = MemberProtocol("m1"), 0
    world = _Reader()
    sent: list[Outgoing] = []
    for step, wait, status, assigned in steps:
        now += wait if step != "leave" else 0
        world.take(member.tick(now))
        if step == "send" and member.in_flight is None and not member.ended:
            sent.append(send(member, now))
            owned, revoking = indices(sent[-1])
            assert set(owned) == world.reading
            assert {s for s, state, _ in revoking if state == "DRAINING"} == world.draining
            assert not {s for s, state, _ in revoking if state == "REVOKED"} & (world.reading | world.draining)
        elif step in {"answer", "old answer"} and sent:
            chosen = sent[-1] if step == "answer" else sent[wait % len(sent)]
            fresh = member.in_flight is not None and member.in_flight.attempt == chosen.attempt
            epoch = -1 if chosen.body.member_epoch == -1 else len(sent) + 1
            lease_before = member.lease_until_ms
            change = member.answered(now, chosen.attempt, reply(chosen, status, epoch=epoch, assigned=tuple(sorted(assigned))))
            world.take(change)
            if not fresh:
                assert change == NOTHING
                assert member.lease_until_ms == lease_before
            if change.start:
                assert status == "OK"
                assert now < chosen.sent_ms + LEASE
                assert change.start <= assigned
        elif step == "give up" and member.in_flight is not None:
            member.unanswered(member.in_flight.attempt)
        elif step == "drained" and world.draining:
            shard = min(world.draining)
            world.draining.discard(shard)
            member.drained(shard)
        elif step == "leave" and wait < 20:
            world.take(member.leave())
        assert (member.reading, member.draining) == (world.reading, world.draining)
        if world.reading | world.draining:
            assert member.lease_until_ms is not None
            assert now < member.lease_until_ms <= max(s.sent_ms for s in sent) + LEASE


class _Reader:
    """Does what the changes say, and refuses what a reader could not do."""

    def __init__(self) -> None:
        self.reading: set[int] = set()
        self.draining: set[int] = set()

    def take(self, change: Change) -> None:
        assert change.lost in (frozenset(), frozenset(self.reading | self.draining)), "all or nothing is lost"
        self.reading -= change.lost
        self.draining -= change.lost
        assert change.drain <= self.reading
        self.reading -= change.drain
        self.draining |= change.drain
        assert not change.start & (self.reading | self.draining), "started while it was read or drained"
        self.reading |= change.start
