"""Carries all that a store holds to another one: every log, entry by entry, then the aggregate that it makes.

    plan     what is on the target must be the beginning of what is on the source, or nothing is written
    carry    aggregate by aggregate, streams before their groups; a run that was ended goes on where it stopped
    catch up until a look at the whole source finds it as it was carried
    compare  every entry and aggregate, byte for byte, and the target verified for itself

An aggregate keeps the identity of the store that it was written under. On the target that is another one, which opens the
metadata correction round as after a failover: no lease and no promise of the old store is trusted blindly. What is left of
leases, and the latest reports, go along, so that a quick move expires nobody. Source: design pages `events-and-stores.md` and
`protocol.md`, "Metadata correction".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from typing import Final

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.atwork import at_work
from coord.runtime.verify import verify_aggregate
from coord.store.base import CorruptAggregate, Head, Loaded, Store, StoreError, Touch
from coord.store.transfer import Guard, Record, Transfer, before

PAGE: Final = 500
"""Entries that are read, and written, at once."""
PASSES_MAX: Final = 10
"""How often a source that keeps changing is gone through."""
READS_MAX: Final = 20
"""How often an aggregate that keeps changing is read."""
FINDINGS_MAX: Final = 5

Tell = Callable[[str, AggregateKey, int], None]
"""Told now and then what is being done to which aggregate, and how many more entries that has come to."""


class NotCopied(Exception):
    """Nothing more is written: what is on the target, or became of it, is not of the source."""


@dataclass(frozen=True, slots=True, kw_only=True)
class End:
    """One end of a copy."""

    store: Store
    transfer: Transfer


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """An aggregate as it was carried: its head, and a digest of its bytes; None where there is none."""

    head: Head
    digest: bytes | None


@dataclass(slots=True, kw_only=True)
class Carried:
    """What became of one aggregate. `entries`: in its log; `carried`: in this run; `latest_lease`: the last deadline, ms."""

    key: AggregateKey
    entries: int = 0
    carried: int = 0
    exists: bool = True
    latest_lease: int = 0
    findings: list[str] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Outcome:
    """What became of a copy. `moving`: why the source is not at rest, "" when it is."""

    aggregates: list[Carried]
    requests: int = 0
    moving: str = ""

    @property
    def holds(self) -> bool:
        """Whether the target is what the source is, and the source was at rest."""
        return not self.moving and not any(each.findings for each in self.aggregates)


def copy(source: End, target: End, *, tick_ms: int, tell: Tell) -> Outcome:
    """Copy everything; `tick_ms`: how often a coordinator of the source ticks.

    Raises NotCopied, StoreUnavailable, and CorruptAggregate for a source that contradicts itself.
    """
    target.store.identity()  # a SQL store makes its tables
    keys = source.transfer.aggregates()
    _refuse_strangers(source, target, keys)
    if running := at_work(target.store, tick_ms=tick_ms):
        raise NotCopied(f"on the target, {running}; stop it first")
    ticked_at, _ = source.store.last_tick()
    carried: dict[AggregateKey, Carried] = {}
    seen: dict[AggregateKey, Seen] = {}
    moving = ""
    for _ in range(PASSES_MAX):
        moving = ""
        for key in source.transfer.aggregates():
            if key in seen and source.store.load(key).head == seen[key].head:
                continue
            moving = f"{key} was changed while it was copied"
            done = carried.setdefault(key, Carried(key=key))
            seen[key] = _carry(source, target, done, tell)
        if not moving:
            break
    requests = _carry_requests(source, target)
    for done in carried.values():
        _carry_beside(source, target, done)
    _carry_index(source, target)
    for done in carried.values():
        _compare(source, target, done, seen[done.key], tell)
    moving = moving or _changed(source, seen) or at_work(source.store, tick_ms=tick_ms) or _heard(source, carried, ticked_at)
    return Outcome(aggregates=list(carried.values()), requests=requests, moving=moving)


# -- plan


def _refuse_strangers(source: End, target: End, keys: Sequence[AggregateKey]) -> None:
    """Make sure that all that is on the target is a beginning of what is on the source."""
    known = set(keys)
    for key in target.transfer.aggregates():
        if key not in known:
            raise NotCopied(f"the target holds {_what(key)}, which the source does not: it is another coordinator's")
        end = target.transfer.end(key)
        if end is None or not _is_at(source, key, end):
            raise NotCopied(f"the target holds {_what(key)} otherwise than the source: its log has gone another way")


def _is_at(source: End, key: AggregateKey, end: Record) -> bool:
    return list(source.transfer.records(key, after=before(end.place), limit=1)) == [end]


def _what(key: AggregateKey) -> str:
    return f"{'group' if isinstance(key, GroupKey) else 'stream'} {key}"


# -- carry


def _carry(source: End, target: End, done: Carried, tell: Tell) -> Seen:
    """Carry one aggregate as it stands at this moment; gives what was carried."""
    key = done.key
    for _ in range(READS_MAX):
        loaded, guard = source.store.load(key), source.transfer.guard(key)
        if (guard.last if guard else None) == (loaded.head.last if loaded.aggregate is not None else None):
            break
    else:
        raise NotCopied(f"{_what(key)} changes too quickly to be read: stop the coordinators of the source")
    done.exists = loaded.aggregate is not None
    end = target.transfer.end(key)
    while end is None or end.place < loaded.head.last:
        page = source.transfer.records(key, after=end.place if end else (0, 0), limit=PAGE)
        page = [record for record in page if record.place <= loaded.head.last]
        if not page:
            raise NotCopied(f"the log of {_what(key)} ends before {loaded.head.last} on the source: it was trimmed or lost")
        if not target.transfer.put_records(key, page, after=end):
            raise NotCopied(f"the log of {_what(key)} grows on the target by itself: a coordinator works on it")
        end = page[-1]
        done.carried += len(page)
        tell("copying", key, len(page))
    _seal(target, key, loaded, guard)
    return _seen(loaded)


def _seen(loaded: Loaded) -> Seen:
    return Seen(head=loaded.head, digest=None if loaded.aggregate is None else sha256(loaded.aggregate).digest())


def _seal(target: End, key: AggregateKey, loaded: Loaded, guard: Guard | None) -> None:
    """Put the aggregate beside its log, if it is not there yet."""
    head = loaded.head
    if guard is not None and target.transfer.guard(key) == guard:
        return
    guard = guard or Guard(
        revision=head.revision, commit_id=head.commit_id, last=head.last, identity=loaded.identity, updated_at=loaded.now
    )
    if not target.transfer.put_aggregate(key, head, loaded.aggregate, guard):
        raise NotCopied(f"the log of {_what(key)} grows on the target by itself: a coordinator works on it")


def _carry_requests(source: End, target: End) -> int:
    there = target.transfer.requests()
    last = max(there) if there else None
    missing = [each for each in source.transfer.requests() if last is None or (each.at, each.n) > (last.at, last.n)]
    target.transfer.put_requests(missing)
    return len(missing)


def _carry_beside(source: End, target: End, done: Carried) -> None:
    """Carry leases, reports and answers of an aggregate."""
    key = done.key
    if isinstance(key, GroupKey) and done.exists:
        done.latest_lease = _carry_soft(source, target, key)
    answers = source.transfer.answers(key)
    if answers or target.transfer.answers(key):
        target.transfer.put_answers(key, answers)


def _carry_soft(source: End, target: End, key: GroupKey) -> int:
    """Give each lease at least what it had left, by either store's own clock: the longest that any has, for all [R].

    A deadline that comes too late costs patience; one that comes too early would free what is still read. Gives the latest.
    """
    soft, there = source.store.soft(key), target.store.load(key)
    running = {member for member, deadline in soft.leases.items() if deadline >= soft.now}
    ttl_ms = max((soft.leases[member] - soft.now for member in running), default=0)
    if running or soft.reports:
        target.store.touch(
            Touch(
                key=key,
                revision=there.head.revision,
                commit_id=there.head.commit_id,
                identity=there.identity,
                ttl_ms=ttl_ms,
                renew=tuple(sorted(running)),
                reports=soft.reports,
            )
        )
    return max(soft.leases.values(), default=0)


def _carry_index(source: End, target: End) -> None:
    wanted = source.store.streams()
    for prefix in wanted:
        target.store.index_add(StreamKey(prefix))
    for prefix in set(target.store.streams()) - set(wanted):
        target.store.index_remove(StreamKey(prefix))


# -- compare


def _compare(source: End, target: End, done: Carried, seen: Seen, tell: Tell) -> None:
    """Hold the target to the source up to what was carried, byte for byte, and verify it for itself."""
    key = done.key
    tell("comparing", key, 0)
    theirs = _records(target, key)
    for record in _records(source, key):
        if record.place > seen.head.last:
            break
        twin = next(theirs, None)
        while twin is not None and twin.place < record.place and not done.entries:
            twin = next(theirs, None)  # the source's log was trimmed since an earlier run carried more of it
        if twin != record:
            done.findings.append(f"entry {record.entry.entry_id} is not on the target as it is on the source")
            break
        done.entries += 1
        if done.entries % PAGE == 0:
            tell("comparing", key, PAGE)
    try:
        there = target.store.load(key)
    except CorruptAggregate as error:
        done.findings.append(error.why)
        return
    if _seen(there) != seen:
        done.findings.append("the aggregate on the target is not the source's")
    done.findings += verify_aggregate(target.store, key).findings[:FINDINGS_MAX]


def _records(end: End, key: AggregateKey) -> Iterator[Record]:
    after = (0, 0)
    while page := end.transfer.records(key, after=after, limit=PAGE):
        yield from page
        after = page[-1].place


# -- whether anybody is at work


def _changed(source: End, seen: dict[AggregateKey, Seen]) -> str:
    """Say what has changed on the source since it was carried."""
    keys = source.transfer.aggregates()
    for key, standing in zip(keys, source.store.standings(keys), strict=True):
        if isinstance(standing, StoreError):
            raise standing
        head = seen[key].head if key in seen else None
        expected = (head.revision, head.commit_id) if head is not None and head.exists else (0, "")
        if key not in seen or (standing.revision, standing.commit_id) != expected:
            return f"{_what(key)} was changed after it was copied"
    return ""


def _heard(source: End, carried: Mapping[AggregateKey, Carried], ticked_at: int) -> str:
    """Say that somebody worked on the source meanwhile without changing an aggregate: ticked, or heard a member."""
    if source.store.last_tick()[0] != ticked_at:
        return "a coordinator works on it: it ticked meanwhile"
    groups = [(key, done) for key, done in carried.items() if isinstance(key, GroupKey) and done.exists]
    for key, done in groups:
        if max(source.store.soft(key).leases.values(), default=0) > done.latest_lease:
            return f"a coordinator works on it: it heard a member of {key} meanwhile"
    return ""
