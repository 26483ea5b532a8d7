"""Walks the hash chain of a log from its first entry and says where it breaks; memory does not grow with the log.

It looks at bytes, ids and chain values alone, so it needs to know no event. Someone who rewrites a log from some entry on, with
all chain values after it, and the stored head with them, leaves nothing to be seen in the log itself; nor does somebody who cuts
its tail so. Against that there are marks: chain values that were noted elsewhere (`coord.runtime.checkpoints`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from coord.events import chain, codec
from coord.events.catalog import Snapshot
from coord.events.chain import Place
from coord.events.envelope import Entry
from coord.names import AggregateKey
from coord.store.base import CorruptAggregate, Store

PAGE: Final = 1_000
REMEMBERED: Final = 1_000
"""Entries back to which one that follows an earlier one can be traced: between them something was put in."""
START: Final[Place] = (0, 0)


@dataclass(slots=True, kw_only=True)
class ChainReport:
    """What became of a walk. `bad`: the first revision that is not as it was written, None when all holds; `why` says more."""

    key: AggregateKey
    entries: int = 0
    first: Place = START
    last: Place = START
    chain: str = chain.GENESIS
    bad: int | None = None
    why: str = ""

    @property
    def holds(self) -> bool:
        """Whether the chain holds up to the stored head, and at every mark."""
        return self.bad is None


class _Broken(Exception):
    """The chain ends here."""

    def __init__(self, bad: int, why: str) -> None:
        super().__init__(why)
        self.bad = bad
        self.why = why


class _Prev(msgspec.Struct):
    """The one field of an entry's body that the walk needs."""

    prev: str


@dataclass(slots=True)
class _Walk:
    report: ChainReport
    marks: Mapping[Place, str]
    progress: Callable[[int], None] | None
    met: set[Place] = field(default_factory=set)
    trail: deque[tuple[Place, str]] = field(default_factory=lambda: deque(((START, chain.GENESIS),), maxlen=REMEMBERED))


def walk_chain(
    store: Store,
    key: AggregateKey,
    *,
    marks: Mapping[Place, str] | None = None,
    progress: Callable[[int], None] | None = None,
) -> ChainReport:
    """Walk one log. `marks`: place -> chain value after it, as noted earlier; `progress` is told how many entries were read.

    Raises StoreUnavailable.
    """
    walk = _Walk(ChainReport(key=key), marks or {}, progress)
    try:
        _walk_on(store, walk)
        _reach_the_head(store, walk)
        _look_at_marks(walk)
    except _Broken as broken:
        walk.report.bad, walk.report.why = broken.bad, broken.why
    return walk.report


def _walk_on(store: Store, walk: _Walk) -> None:
    for page in _pages(store, walk.report.key, walk.report.last):
        for entry in page:
            _step(walk, entry)
        if walk.progress is not None:
            walk.progress(walk.report.entries)


def _pages(store: Store, key: AggregateKey, after: Place) -> Iterator[list[Entry]]:
    """Read on; where a page holds an entry that cannot be read, what is before it comes first, one by one."""
    limit = PAGE
    while True:
        try:
            page = list(store.tail(key, after=after, limit=limit))
        except CorruptAggregate as error:
            if limit > 1:
                limit = 1
                continue
            bad = after[0] + 1 if after == START else after[0]
            raise _Broken(_revision_in(error.why, bad), f"after {_told(after)}: {error.why}") from error
        if not page:
            return
        yield page
        after = (page[-1].revision, page[-1].index)


def _revision_in(why: str, default: int) -> int:
    """Give the revision of the entry id that a store's complaint begins with (`log entry 5-0 lacks …`)."""
    for word in why.split():
        revision, dash, index = word.partition("-")
        if dash and revision.isdecimal() and index.isdecimal():
            return int(revision)
    return default


def _step(walk: _Walk, entry: Entry) -> None:
    """Judge one entry by the one before it. Raises _Broken."""
    report, place = walk.report, (entry.revision, entry.index)
    if report.last == START:
        _begin(walk, entry)
    elif not chain.continues(report.last, place):
        raise _Broken(_first_between(report.last, place), f"entries are missing between {_told(report.last)} and {_told(place)}")
    previous = _prev_of(entry)
    intact = previous is not None and chain.link(previous, entry.body) == entry.chain
    if not intact:
        raise _Broken(entry.revision, f"entry {_told(place)} was changed: body and chain value do not belong together")
    if previous != report.chain:
        raise _Broken(*_gap(walk, place, previous or ""))
    report.entries += 1
    report.last, report.chain = place, entry.chain
    walk.trail.append((place, entry.chain))
    if place in walk.marks:
        walk.met.add(place)
        if walk.marks[place] != entry.chain:
            raise _Broken(_after_the_last_match(walk, place), _rewritten(walk, place))


def _begin(walk: _Walk, entry: Entry) -> None:
    """A whole log begins at 1-0; a trimmed one with a snapshot, whose chain value it continues."""
    walk.report.first = (entry.revision, entry.index)
    if walk.report.first == (1, 0):
        return
    try:
        event = codec.decode(entry).event
    except codec.MalformedEntry:
        event = None
    if not isinstance(event, Snapshot):
        missing = entry.revision if entry.index else entry.revision - 1
        raise _Broken(max(missing, 1), f"the log begins at {entry.entry_id}, which is no snapshot: what is before it is missing")
    walk.report.chain = event.chain
    before = [place for place in walk.marks if place < walk.report.first]
    if before:
        raise _Broken(
            max(before)[0],
            f"the log begins at {entry.entry_id}: the checkpoint's {_told(max(before))} cannot be compared any more",
        )


def _prev_of(entry: Entry) -> str | None:
    try:
        previous = msgspec.json.decode(entry.body, type=_Prev).prev
        return previous if len(bytes.fromhex(previous)) == len(bytes.fromhex(chain.GENESIS)) else None
    except (msgspec.MsgspecError, UnicodeDecodeError, ValueError, RecursionError):
        return None


def _gap(walk: _Walk, place: Place, previous: str) -> tuple[int, str]:
    """An entry is as it was written, but it followed another one than it follows now: tell what is wrong between them."""
    trail = list(walk.trail)
    for at, (_, value) in enumerate(trail[:-1]):
        if value == previous:
            alien = trail[at + 1][0]
            return alien[0], f"entry {_told(alien)} was put in: entry {_told(place)} follows the one before it"
    last = walk.report.last
    bad = max(last[0], 1) if place[1] or place[0] == last[0] + 1 else last[0] + 1
    return bad, f"entry {_told(place)} does not follow {_told(last)}: that one was changed, or one between them is missing"


def _first_between(last: Place, place: Place) -> int:
    """The revision of the first entry that must have been between these."""
    return last[0] if place[0] == last[0] else last[0] + 1


def _reach_the_head(store: Store, walk: _Walk) -> None:
    """Read what has been written meanwhile, until the walk is where the stored aggregate says that its log ends."""
    report = walk.report
    while True:
        try:
            head = store.load(report.key).head
        except CorruptAggregate as error:
            raise _Broken(_beyond(report.last, error.says), error.why) from error
        if head.last == report.last:
            if head.chain != report.chain:
                raise _Broken(max(report.last[0], 1), "the stored chain value is not that of the log")
            return
        before = report.last
        _walk_on(store, walk)
        if report.last == before:
            raise _Broken(_beyond(before, head.last), f"the log ends at {_told(before)}, the aggregate says {_told(head.last)}")


def _beyond(last: Place, says: Place | None) -> int:
    """The first revision that differs between a log that ends at `last` and an aggregate that says otherwise."""
    if says is None or says == last:
        return max(last[0], 1)
    lower, higher = sorted((last, says))
    return lower[0] if lower[0] == higher[0] else lower[0] + 1


def _look_at_marks(walk: _Walk) -> None:
    for place in sorted(walk.marks.keys() - walk.met):
        last = walk.report.last
        if place > last:
            where = f"ends at {_told(last)}" if last != START else "is gone"
            raise _Broken(_beyond(last, place), f"the tail was cut: the log {where}, by the checkpoint it reached {_told(place)}")
        raise _Broken(_after_the_last_match(walk, place), _rewritten(walk, place))


def _after_the_last_match(walk: _Walk, place: Place) -> int:
    """The first revision that may have been changed: the one after the latest mark that was met and held."""
    held = [met for met in walk.met if met < place]
    return min(max(held)[0] + 1, place[0]) if held else max(walk.report.first[0], 1)


def _rewritten(walk: _Walk, place: Place) -> str:
    return (
        f"the log was rewritten, chain values and all, somewhere from revision {_after_the_last_match(walk, place)}"
        f" to {place[0]}: at {_told(place)} it is not what the checkpoint noted"
    )


def _told(place: Place) -> str:
    return f"{place[0]}-{place[1]}"
