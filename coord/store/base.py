"""The store port: what the shell asks of a store, and what can go wrong.

    StoreError
    ├── StoreUnavailable    cannot be reached or refuses to write: 503, nothing half-written
    │   └── OutcomeUnknown  a commit was sent (again), and no answer says what became of it
    └── CorruptAggregate    what is stored contradicts itself, or is from a newer release: 409, never overwritten

A conflict is no error: it is an answer (`Conflict`), because the shell decides again.

Every aggregate has: a log of entries `<revision>-<n>`, the canonical JSON of its fold, and a head, i.e. what the next
writer must have seen (`Head`). Groups also have soft state: leases (deadlines on the store's clock) and reports.
Times are ms of the STORE's clock, which the store alone reads; ttl and duration are ms. All implementations pass one
contract suite (`tests/store/contract.py`). Source: design page `events-and-stores.md`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol

from msgspec import Struct

from coord.events.chain import GENESIS
from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey

SCHEMA_VERSION = 2
LAYOUT_VERSION = 2


class StoreError(Exception):
    """A broken world, as opposed to a refusal."""


class StoreUnavailable(StoreError):
    """The store cannot be reached in time, or refuses to write (read-only, out of memory)."""


class OutcomeUnknown(StoreUnavailable):
    """A commit was sent, and sent again, and nothing says whether it took place."""


class CorruptAggregate(StoreError):
    """What is stored under a key contradicts itself, or needs a newer release. Nothing may be written over it.

    `says`: where the log should end, (revision, index), when it ends elsewhere.
    """

    def __init__(self, key: AggregateKey, why: str, *, says: tuple[int, int] | None = None) -> None:
        super().__init__(f"{key}: {why}")
        self.key = key
        self.why = why
        self.says = says


@dataclass(frozen=True, slots=True, kw_only=True)
class Head:
    """What a writer has seen: the guard of a commit.

    `exists`: there is an aggregate (else the log is empty, or ends with a tombstone). `revision`, `commit_id`: of the last
    commit; 0 and "" where there never was one (after a tombstone: the tombstone's). `last`: (revision, index) of the log's last
    entry, (0, 0) for an empty log. `chain`: the chain value after it.
    """

    exists: bool
    revision: int
    commit_id: str
    last: tuple[int, int]
    chain: str


EMPTY_HEAD = Head(exists=False, revision=0, commit_id="", last=(0, 0), chain=GENESIS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Loaded:
    """An aggregate as stored, None when there is none.

    `tombstone`: then the entry of its deletion, if there was one (audit entries may follow it in the log). `identity` is the
    store's own at this moment, `now` its clock.
    """

    head: Head
    aggregate: bytes | None
    tombstone: Entry | None
    identity: str
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseGuards:
    """Soft state that a decision rested on; checked in the same atomic step as the head.

    `lapsed`: each of these members has an entry whose deadline is before the store's clock. `unchanged`: each of these members'
    deadline is still the one read (None: no entry). `none_running`: no lease at all runs. `latest_at_most`: no
    deadline is after this.
    """

    lapsed: tuple[str, ...] = ()
    unchanged: Mapping[str, int | None] = field(default_factory=dict)
    none_running: bool = False
    latest_at_most: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LeaseChanges:
    """What a commit does to soft state. A deadline is the store's clock + `ttl_ms`, and never moves back.

    `renew`: these members' leases. `renew_all`: every entry there is. `remove`: lease and report of these members.
    `reports`: member -> latest soft report (opaque bytes).
    """

    ttl_ms: int = 0
    renew: tuple[str, ...] = ()
    renew_all: bool = False
    remove: tuple[str, ...] = ()
    reports: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Commit:
    """Events and the aggregate that they fold into, to be written in one atomic step, or not at all.

    `expected`: the head that the decision was made on; its revision + 1 is that of the first entry. `identity`: the store
    identity that it was made under; another one is a conflict. `commit_id`: unique; a repeat of a commit that took place is
    answered `Committed(already=True)`. `aggregate`: canonical JSON at the last entry's revision, None for a deletion
    (metadata, leases and reports go; the log stays). Snapshot entries, if any, come last. `waits`: the answer comes once as many
    replicas have it as the store was set up with, or the time for that is over; a store without replicas of its own ignores it.
    """

    key: AggregateKey
    expected: Head
    identity: str
    commit_id: str
    entries: tuple[Entry, ...]
    aggregate: bytes | None
    guards: LeaseGuards = LeaseGuards()
    leases: LeaseChanges = LeaseChanges()
    waits: bool = False

    @property
    def head_after(self) -> Head:
        """The head once this commit has taken place."""
        last = self.entries[-1]
        return Head(
            exists=self.aggregate is not None,
            revision=last.revision,
            commit_id=self.commit_id,
            last=(last.revision, last.index),
            chain=last.chain,
        )


class Replicas(NamedTuple):
    """How many replicas confirmed a commit in time, of how many that were asked for."""

    confirmed: int
    wanted: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Committed:
    """The commit took place, now or (`already`) when it was sent before; `replicas` says who has it, where it was waited for."""

    head: Head
    now: int
    already: bool = False
    replicas: Replicas | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Conflict:
    """Nothing was written: `what` differs from what the commit was decided on.

    `what`: `head`, `identity`, or `lease`. `identity` is the store's at that moment.
    """

    what: str
    revision: int
    identity: str
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Touch:
    """Heartbeats that change nothing on record: checks that the cached aggregate is current, renews leases.

    `renew`: the members whose lease is renewed for `ttl_ms`, none to check only (a refusal is judged on current state too);
    `reports`: member -> latest soft report (opaque bytes).
    """

    key: GroupKey
    revision: int
    commit_id: str
    identity: str
    ttl_ms: int = 0
    renew: tuple[str, ...] = ()
    reports: Mapping[str, bytes] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Touched:
    """`current`: revision, commit id and identity were as cached (and leases are renewed, where asked)."""

    current: bool
    revision: int
    identity: str
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Tail:
    """What a log went on with since a head: its entries, oldest first, and the head that they lead to; the aggregate exists."""

    head: Head
    entries: tuple[Entry, ...]
    identity: str
    now: int


class Standing(Struct, frozen=True, kw_only=True):
    """Where an aggregate stands; one that was read at this `revision` and `commit_id` (0 and "": there is none) is current."""

    revision: int
    commit_id: str
    identity: str
    now: int


class Due(Standing, frozen=True, kw_only=True):
    """Where a group stands, and what the clock says of its leases; a Struct, since thousands are made in a tick.

    `lapsed`: member -> deadline, empty while a grace runs. `grace_until`: 0 when none runs. `entries`: how many leases there
    are, `earliest`: the first deadline (0: none). `looked_at`: when somebody looked before this, 0 if never.
    """

    lapsed: Mapping[str, int]
    grace_until: int
    entries: int
    earliest: int
    looked_at: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Soft:
    """Leases (member -> deadline) and latest reports (member -> bytes) of a group, at `now`."""

    leases: Mapping[str, int]
    reports: Mapping[str, bytes]
    now: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Whether this instance ticks now: `mine`, and when (ms, store clock; 0 never) anybody ticked last."""

    mine: bool
    ticked_at: int
    now: int


class Store(Protocol):
    """The port. Every method is bounded in time.

    Each may raise `StoreUnavailable`; those that read an aggregate, and `commit`, may raise `CorruptAggregate`. Safe
    for concurrent use by threads; after a fork each process starts afresh (`after_fork`).
    """

    def load(self, key: AggregateKey) -> Loaded:
        """Read aggregate, head, clock and identity in one atomic step; fail closed on any contradiction."""

    def tail(self, key: AggregateKey, *, after: tuple[int, int], limit: int) -> Sequence[Entry]:
        """Read up to `limit` log entries after that id, oldest first; (0, 0) reads from the first there is."""

    def latest(self, key: AggregateKey, *, before: tuple[int, int] | None, limit: int) -> Sequence[Entry]:
        """Read up to `limit` log entries before that id, newest first; None reads from the last there is."""

    def catch_up(self, key: AggregateKey, *, seen: Head, limit: int) -> Tail | Loaded:
        """Read, in one atomic step, what an aggregate seen at that head has gone through since.

        The whole aggregate comes instead when the log does not hold that head any more, when there are more than `limit` entries
        since, or when they are larger than the aggregate (by more than a few KB). The entries' chain is the caller's to verify.
        Fails closed as `load`.
        """

    def commit(self, commit: Commit) -> Committed | Conflict:
        """Write, or not, atomically. A lost answer is followed by sending the same bytes again, once, on a new connection."""

    def append(self, key: AggregateKey, *, expected: Head, entries: tuple[Entry, ...]) -> Head | None:
        """Write entries that raise no revision (ids `<revision>-<next n>`); None when the head moved.

        Sets only head and chain.
        """

    def touch(self, touch: Touch) -> Touched:
        """Check a cached aggregate and renew leases in one round trip."""

    def touch_many(self, touches: Sequence[Touch]) -> list[Touched | StoreError]:
        """Touch several groups, each as by `touch`; in order, in one round trip where the store can.

        What one of them met is its own answer. Raises StoreError when that is not known of each.
        """

    def lease(self, key: GroupKey, member_id: str) -> tuple[int | None, int]:
        """Give a member's lease deadline (None: no entry) and the store's clock."""

    def soft(self, key: GroupKey) -> Soft:
        """Read all leases and reports of a group."""

    def due_many(self, keys: Sequence[GroupKey], *, lease_ttl_ms: int, grace: bool) -> list[Due | StoreError]:
        """Stamp a look at each of these groups and give lapsed leases; in order, in few round trips.

        A gap of over half a lease since the last look, a first look, or `grace` starts a grace of one lease, during which none is
        given as lapsed. What does not exist is not stamped; what cannot be looked at has its error for an answer.
        """

    def standings(self, keys: Sequence[AggregateKey]) -> list[Standing | StoreError]:
        """Tell where many aggregates stand; answers as of `due_many`."""

    def grant_missing_leases(self, key: GroupKey, members: Sequence[str], *, ttl_ms: int) -> None:
        """Give each of these members that has no lease entry a whole lease; others are left as they are."""

    def streams(self) -> Sequence[str]:
        """Give the prefixes in the index of streams, sorted."""

    def index_add(self, key: StreamKey) -> None:
        """Put a stream into the index (idempotent)."""

    def index_remove(self, key: StreamKey) -> None:
        """Take a stream out of the index (idempotent)."""

    def take_turn(self, instance: str, *, takeover_ms: int) -> Turn:
        """Ask to tick as `instance`: granted to who ticked last, or to anybody once that is `takeover_ms` ago.

        Stamps the tick when granted.
        """

    def announce(self, instance: str, *, reads: int, within_ms: int) -> int:
        """Note that a live instance reads events up to level `reads`.

        Gives the lowest level that any instance announced within the last `within_ms`; older notes are dropped.
        """

    def last_tick(self) -> tuple[int, int]:
        """Give (when anybody ticked last, the store's clock) without asking for the turn."""

    def append_request(self, entry: bytes) -> None:
        """Keep an audit entry that belongs to no existing aggregate, in a bounded place."""

    def requests(self, *, before: str | None, limit: int) -> Sequence[tuple[str, bytes]]:
        """Read up to `limit` of those entries, newest first, each after its place; `before`: only those older than this place."""

    def identity(self) -> str:
        """Give the store's identity at this moment."""

    def ping(self) -> int:
        """Give the store's clock, or raise `StoreUnavailable` within the time bound."""

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""

    def close(self) -> None:
        """Give up all connections."""
