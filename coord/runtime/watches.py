"""What a ticker knows of streams and groups, and when to look at each group again: an aggregate that is as it was is not read.

A group is looked at when something can be due by what is known of it (a lease ends, a deadline of the record passes, a grace
is over), and in any case so often that the store never takes the ticker's rest for an outage. Times here are ms of this
process's own monotonic clock, since a store's clock may jump. Source: design page `protocol.md`, "Time".
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from coord.core.commands import Topology
from coord.core.deadlines import next_deadline
from coord.core.decision import Policy
from coord.core.lifecycle import follows
from coord.core.membership import UNDER_LEASE
from coord.names import GroupKey, StreamKey
from coord.projections.group import Group
from coord.projections.stream import Stream
from coord.runtime.cache import Cached
from coord.runtime.clock import JUMP_TOLERANCE_MS, NS_PER_MS, JumpDetector
from coord.runtime.groups import topology_of
from coord.store.base import Due, Standing

NEVER, NOW = math.inf, -math.inf
"""When there is no time to wait for, and when there is none to lose."""
LOOK_WITHIN_MS_MAX = 2_000


def look_within_ms(policy: Policy) -> int:
    """Give the longest time between two looks at a group, half a tick aside.

    What another process commits after a look, and what it makes due, is known no later than that. An eighth of a lease at most:
    with the quarter after which another instance takes over, and a tick, it stays below the half that starts a grace.
    """
    return min(policy.member_lease_ttl_ms // 8, LOOK_WITHIN_MS_MAX)


@dataclass(slots=True, eq=False)
class StreamWatch:
    """A stream as last read, and the watches of its groups. `topology` is the same object for as long as it is the same."""

    key: StreamKey
    stream: Stream
    commit_id: str
    topology: Topology
    groups: dict[str, GroupWatch] = field(default_factory=dict)

    def is_current(self, standing: Standing) -> bool:
        """Tell whether the stream is as it was read, in the store that it was last written under."""
        return (standing.revision, standing.commit_id, standing.identity) == (
            self.stream.store_revision,
            self.commit_id,
            self.stream.identity,
        )

    def take(self, seen: Cached) -> None:
        """Take note of a stream that was just read or written; groups that are behind it now are looked at next."""
        assert isinstance(seen.state, Stream)
        self.stream, self.commit_id = seen.state, seen.head.commit_id
        topology = topology_of(seen.state)
        if topology != self.topology:
            self.topology = topology
            for watch in self.groups.values():
                watch.due_ms = NOW


@dataclass(slots=True, eq=False)
class GroupWatch:
    """What is known of one group. `turn`: in which of the ticks that take turns it is looked at.

    `commit_id` None: it was not read yet, or is to be read again. `topology`: the one that it is known to follow. `deadline`:
    from when on (ms, store clock) a tick may change it. `under_lease`: how many members must have a lease. Until `doubt_until_ms`
    a lease counts as lapsed only `doubt_ms` after its deadline.
    """

    key: GroupKey
    of: StreamWatch
    turn: int
    jumps: JumpDetector
    looked_ms: float = NOW
    due_ms: float = NEVER
    tried_ms: float = NOW
    revision: int = 0
    commit_id: str | None = None
    identity: str = ""
    topology: Topology | None = None
    deadline: float = NEVER
    under_lease: int = 0
    doubt_ms: int = 0
    doubt_until_ms: float = NOW

    def takes_over(self, due: Due, at_ms: float, *, lease_ttl_ms: int) -> None:
        """Take note of the first look at a group that another ticker has looked at before [R].

        What the store's clock did between the two looks nobody has watched: it may have jumped over all of that time. So leases
        that may have been renewed before it are given that much more, until all of those are over.
        """
        unwatched_ms = due.now - due.looked_at
        if due.looked_at and unwatched_ms > JUMP_TOLERANCE_MS:
            self.doubt_ms, self.doubt_until_ms = unwatched_ms, at_ms + lease_ttl_ms + unwatched_ms

    def lapsed(self, due: Due, at_ms: float) -> dict[str, int]:
        """Give the leases that have lapsed for certain: member -> deadline."""
        if at_ms > self.doubt_until_ms:
            return dict(due.lapsed)
        return {member: deadline for member, deadline in due.lapsed.items() if deadline + self.doubt_ms < due.now}

    def is_settled(self, due: Due) -> bool:
        """Tell whether nothing is to be done: it is as it was read, follows its stream, and nothing is due."""
        return (
            due.commit_id == self.commit_id
            and due.revision == self.revision
            and not due.lapsed
            and due.now < self.deadline
            and due.identity == self.identity
            and due.entries >= self.under_lease
            and self.topology is self.of.topology
        )

    def take(self, seen: Cached, policy: Policy) -> None:
        """Take note of a group that was just read or written."""
        group = seen.state
        assert isinstance(group, Group)
        self.revision, self.commit_id, self.identity = seen.head.revision, seen.head.commit_id, group.identity
        self.topology = self.of.topology if follows(group, self.of.topology) else None
        deadline = next_deadline(group, policy)
        self.deadline = NEVER if deadline is None else deadline
        self.under_lease = sum(member.state in UNDER_LEASE for member in group.members.values())

    def forget(self) -> None:
        """Read it again at the next look."""
        self.commit_id = None

    def looked(self, due: Due, at_ms: float) -> None:
        """Take note of a look: from what it and the record say follows when the next one is due."""
        self.looked_ms = at_ms
        ahead = min(
            due.earliest + 1 - due.now if due.earliest >= due.now else NEVER,
            self.deadline - due.now if self.deadline > due.now else NEVER,
            due.grace_until - due.now if due.grace_until > due.now else NEVER,
        )
        self.due_ms = at_ms + ahead


class Watches:
    """The watches of all streams, by prefix, and whose turn it is. Groups take turns over `turns` ticks.

    While there are at most `each_tick_max` groups, each of them is looked at in every tick: that costs little, and what others
    commit is known a tick later.
    """

    def __init__(self, policy: Policy, *, interval_ms: int, monotonic_ns: Callable[[], int], each_tick_max: int) -> None:
        self.streams: dict[str, StreamWatch] = {}
        self.each_tick_max = each_tick_max
        self._within_ms = look_within_ms(policy)
        self._turns = max(math.ceil(self._within_ms / interval_ms - 0.5), 1)
        self._monotonic_ns = monotonic_ns
        self._ticks = 0
        self._made = 0

    def of(self, key: StreamKey, seen: Cached) -> StreamWatch:
        """Give the watch of a stream that was just read, and of each of its groups; those that are gone are dropped."""
        assert isinstance(seen.state, Stream)
        watch = self.streams.get(key.stream_prefix)
        if watch is None:
            topology = topology_of(seen.state)
            watch = StreamWatch(key=key, stream=seen.state, commit_id=seen.head.commit_id, topology=topology)
            self.streams[key.stream_prefix] = watch
        watch.take(seen)
        groups = watch.groups
        watch.groups = {name: groups.get(name) or self._watch(watch, name) for name in sorted(seen.state.groups)}
        return watch

    def _watch(self, of: StreamWatch, name: str) -> GroupWatch:
        self._made += 1
        key = GroupKey(of.key.stream_prefix, name)
        return GroupWatch(key=key, of=of, turn=self._made % self._turns, jumps=JumpDetector(self._monotonic_ns), due_ms=NOW)

    def to_look_at(self, streams: Sequence[StreamWatch], *, everything: bool) -> list[GroupWatch]:
        """Give the groups of these streams that are looked at in this tick, and let the next ones have their turn."""
        self._ticks += 1
        now_ms = self._monotonic_ns() / NS_PER_MS
        turn, late_ms = self._ticks % self._turns, now_ms - self._within_ms
        groups = [watch for stream in streams for watch in stream.groups.values()]
        if everything or len(groups) <= self.each_tick_max:
            return groups
        return [watch for watch in groups if watch.turn == turn or watch.due_ms <= now_ms or watch.looked_ms <= late_ms]
