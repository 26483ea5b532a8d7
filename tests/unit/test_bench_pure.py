"""The measurements of the pure parts measure what they say: sound logs, settled groups. No test judges a time."""

from __future__ import annotations

from coord.core.invariants import broken
from coord.events import codec
from coord.projections.aggregate import decode, encode, fold
from coord.runtime.verify import verify_aggregate
from ops.bench import pure


def test_a_measured_log_is_sound() -> None:
    log = pure.sealed_log(5, shards_each=2, events=80)
    assert len(log.entries) >= 80
    folded = fold(None, map(codec.decode, log.entries), key=pure.KEY)
    assert folded == log.group
    report = verify_aggregate(pure.store_of(log), pure.KEY)
    assert report.holds, report.findings
    assert report.entries == len(log.entries)


def test_a_measured_group_is_at_rest() -> None:
    group = pure.settled_group(5, 20)
    assert list(broken(group)) == []
    assert group.strays() == group.lacks() == {}
    assert all(member.acked_epoch == member.member_epoch for member in group.members.values())
    assert decode(pure.KEY, encode(group)) == group


def test_every_measurement_gives_its_figures() -> None:
    times = pure.assignor_times(10, 100, repeats=1)
    assert (times.members, times.shards) == (10, 100)
    assert pure.replay_rates(4, events=60, repeats=1).events >= 60
    assert pure.storage_cost(4, 16, repeats=1).bytes == len(encode(pure.settled_group(4, 16)))
    assert pure.history_time(events=90, members=3, snapshot_every=20).events >= 90
