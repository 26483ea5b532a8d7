"""What must hold, judged from what processes do and from what the log says; none of the rules are used here.

* one live reader: no shard is touched by processes of two different ids inside their leases
* two ways only: a shard leaves its holder's record by the holder's own report, by its expiry, or by an operator's force
* replay: folding each commit's entries gives the committed aggregate, byte for byte, and breaks no invariant
* numbers never fall; a fallen-back store never issues a number of its lost future again
* drained means drained: unless an operator forced it, a shard leaves the read set only when all on it is acknowledged
* nothing acknowledged is lost: the head is at or past every revision that was answered
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from coord.core.invariants import backwards, broken
from coord.events import codec
from coord.events.catalog import (
    CorrectionEnded,
    DrainProved,
    Event,
    GroupDeleted,
    MemberExpired,
    ReshardingRequested,
    ShardsFreed,
    TargetComputed,
    TopologyActivated,
)
from coord.names import AggregateKey
from coord.projections.aggregate import Aggregate, draft_of, encode, evolve
from coord.projections.stream import Stream
from coord.store.base import Commit
from coord.streams.shards import shard_key
from tests.simulation.processes import Process

CHECKERS = {
    "one reader": "no shard is touched by processes of two ids inside their leases",
    "two ways": "a shard is freed by its holder's report, or by the expiry of its holder",
    "due": "a member expires after its lease, as its coordinator read it",
    "replay": "a commit's entries fold to the aggregate that it wrote",
    "invariants": "the committed aggregate does not contradict itself",
    "numbers": "revisions, epochs and versions never fall",
    "epochs": "no epoch is issued twice, also over the head of a lost future",
    "recorded": "an answer is a view of what is recorded when it is given",
    "acknowledged": "what was answered is in the store",
    "repeated": "a commit that is sent again, its answer lost, is known by its id, and took place once",
    "caches": "what a coordinator holds at the store's head is what the store holds",
    "provisioned": "when routing names a shard, its stream and every group's consumer group exist",
    "drained": "a shard leaves the read set when all on it is acknowledged, and not at the first look",
    "stranded": "no record is left where nobody will read it",
    "convergence": "once the faults stop, every shard is read, every round and resharding ends, every record is consumed",
    "surprise": "no coordinator meets an exception that it does not expect",
    "verify": "the stored log and aggregates pass `coord verify`",
}


REMEMBERED_MAX = 30
"""How many states a store may fall back to."""


class Violation(BaseException):
    """Something that must never happen has; `checker` is the one of `CHECKERS` that saw it.

    No `except Exception` may hold it up: the ticker goes on after any, and a commit is checked inside of it.
    """

    def __init__(self, checker: str, what: str) -> None:
        super().__init__(what)
        self.checker = checker


@dataclass(slots=True)
class LogChecker:
    """Follows every commit of a simulation."""

    states: dict[AggregateKey, Aggregate | None] = field(default_factory=dict)
    past: list[dict[AggregateKey, Aggregate | None]] = field(default_factory=list)
    issued: dict[int, str] = field(default_factory=dict)
    unread: Callable[[str, int], int] = lambda _stream, _shard: 0
    missing: Callable[[str, int, str], bool] = lambda _stream, _shard, _group: False
    first_looks: dict[str, int] = field(default_factory=dict)
    """Shard -> when a look at it first found it drained, since the latest resharding was asked for."""
    looks: dict[str, int] = field(default_factory=dict)
    """The same since the beginning; after a fall back a resharding of before, and the looks at it, count again."""
    two_looks_ms: int = 0
    now_ms: Callable[[], int] = lambda: 0
    """True time: what lies between two looks is no matter of the store's clock."""
    """How far apart the two looks at a drained shard are, at least."""
    commits: int = 0
    events: int = 0

    def remember(self) -> None:
        """Keep the present as one to fall back to, in step with the store."""
        self.past = [*self.past[1 - REMEMBERED_MAX :], dict(self.states)]

    def fall_back(self, which: int | None) -> None:
        """The store fell back to this one of its remembered states; None, it remembered none."""
        if which is not None:
            self.past = self.past[: which + 1]
            self.states = dict(self.past[which])
            self.first_looks = dict(self.looks)

    def looked(self, key: str) -> None:
        """A shard was seen drained."""
        for looks in (self.looks, self.first_looks):
            looks.setdefault(key, self.now_ms())

    def committed(self, commit: Commit) -> None:
        """Check one commit that took place."""
        before = self.states.get(commit.key)
        state = draft_of(before)
        self.commits += 1
        expired: set[str] = set()
        deleted = False
        for entry in commit.entries:
            envelope = codec.decode(entry)
            event = envelope.event
            self.events += 1
            deleted |= isinstance(event, GroupDeleted)
            if isinstance(event, MemberExpired):
                expired.add(event.member_id)
                if envelope.at <= event.lease_deadline_at:
                    raise Violation(
                        "due", f"{commit.key}: {event.member_id} expired at {envelope.at}, due {event.lease_deadline_at}"
                    )
            if isinstance(event, ShardsFreed):
                self._check_freed(commit, event, expired, envelope.cause.actor.principal)
            if isinstance(event, ReshardingRequested):
                self.first_looks.clear()
            if isinstance(event, TopologyActivated):
                self._check_provisioned(commit, event, state)
            if isinstance(event, DrainProved) and event.forced_by is None:
                self._check_drained(commit, event)
            self._check_issued(commit, event)
            state = evolve(state, event, key=commit.key, revision=entry.revision, at=envelope.at)
        folded = encode(state) if state is not None else None
        if folded != commit.aggregate:
            raise Violation(
                "replay", f"{commit.key}: the fold differs from the aggregate at revision {commit.head_after.revision}"
            )
        where = f"{commit.key} at revision {commit.head_after.revision}"
        if found := list(broken(state)):
            raise Violation("invariants", f"{where}: {found}")
        if not deleted and (found := list(backwards(before, state))):
            raise Violation("numbers", f"{where}: {found}")
        self.states[commit.key] = state

    def _check_provisioned(self, commit: Commit, event: TopologyActivated, stream: Aggregate | None) -> None:
        """Before the flip: every shard that producers are sent to can be written, and every group reads it from the beginning."""
        assert isinstance(stream, Stream)
        prefix, added = commit.key.stream_prefix, range(stream.shard_count, event.shard_count)
        if lost := [(shard, group) for shard in added for group in stream.groups if self.missing(prefix, shard, group)]:
            raise Violation("provisioned", f"{commit.key}: routing names what is not there: {lost}")

    def _check_drained(self, commit: Commit, event: DrainProved) -> None:
        now_ms = self.now_ms()
        if event.resharding_id is not None:
            keys = [shard_key(commit.key.stream_prefix, shard) for shard in event.shards]
            if early := [key for key in keys if now_ms - self.first_looks.get(key, now_ms) < self.two_looks_ms]:
                raise Violation("drained", f"{commit.key}: held for drained at the first look: {early}")
        left = {shard: n for shard in event.shards if (n := self.unread(commit.key.stream_prefix, shard))}
        if left:
            raise Violation("drained", f"{commit.key}: shards are held for drained with records left: {left}")

    def _check_issued(self, commit: Commit, event: Event) -> None:
        """An epoch is issued once, also over the head of a lost future."""
        epochs = [epoch for name in ("member_epoch", "base") if (epoch := getattr(event, name, None)) is not None]
        if isinstance(event, TargetComputed):
            epochs.append(event.epoch)
        for epoch in epochs:
            if self.issued.setdefault(epoch, commit.commit_id) != commit.commit_id and not isinstance(event, CorrectionEnded):
                raise Violation("epochs", f"{commit.key}: epoch {epoch} is issued again")

    @staticmethod
    def _check_freed(commit: Commit, event: ShardsFreed, expired: set[str], principal: str) -> None:
        by_report = event.reason in ("REPORTED", "LEFT") and principal == event.member_id
        by_lapse = event.reason == "EXPIRED" and event.member_id in expired
        if not (by_report or by_lapse):
            raise Violation(
                "two ways", f"{commit.key}: shards {event.shards} of {event.member_id} freed by {principal}, {event.reason}"
            )


def check_readers(processes: Iterable[Process], now_ms: int) -> None:
    """No shard is touched by processes of two ids inside their leases."""
    touching: dict[int, str] = {}
    for process in processes:
        for shard in process.touching(now_ms):
            other = touching.setdefault(shard, process.member_id)
            if other != process.member_id:
                raise Violation("one reader", f"shard {shard} is touched by {other} and by {process.member_id}")
