"""Redis replies and the port's values: what the scripts take and give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from coord.events.chain import GENESIS
from coord.events.envelope import Entry
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.rediscommands.errors import RedisFault
from coord.rediscommands.link import Argument
from coord.store.base import (
    LAYOUT_VERSION,
    SCHEMA_VERSION,
    Commit,
    CorruptAggregate,
    Due,
    Head,
    Loaded,
    Standing,
    StoreError,
    Tail,
    Touch,
    Touched,
)
from coord.store.reading import check_head, check_versions, tombstone
from coord.store.redis.faults import error_of

Key = TypeVar("Key", StreamKey, GroupKey, AggregateKey)
Answer = TypeVar("Answer")


def entry_id(place: tuple[int, int]) -> str:
    """Give the id of a log entry: `<revision>-<index>`."""
    return f"{place[0]}-{place[1]}"


def place_of(identifier: bytes) -> tuple[int, int]:
    """Give (revision, index) of a log entry's id."""
    revision, index = identifier.split(b"-")
    return int(revision), int(index)


def pairs(flat: Sequence[Any]) -> Iterator[tuple[Any, Any]]:
    """Give the pairs of a flat list: (0, 1), (2, 3), ..."""
    return zip(flat[::2], flat[1::2], strict=True)


def entry_of(key: AggregateKey, item: Sequence[Any]) -> tuple[Entry, str]:
    """Give a log entry and the id of the commit that wrote it ("" for an appended one)."""
    identifier, flat = item
    fields = dict(pairs(flat))
    try:
        body, chain = fields[b"event"], fields[b"chain"].decode("ascii")
        commit_id = fields.get(b"commit", b"").decode()
    except (KeyError, UnicodeDecodeError) as error:
        raise CorruptAggregate(key, f"log entry {identifier.decode()} lacks a readable event or chain") from error
    revision, index = place_of(identifier)
    return Entry(revision=revision, index=index, body=body, chain=chain), commit_id


def seen(head: Head) -> tuple[Argument, ...]:
    """Give a head as the scripts compare it."""
    return int(head.exists), head.revision, head.commit_id, entry_id(head.last), head.chain


def written(entries: Iterable[Entry]) -> Iterator[Argument]:
    """Give entries as the scripts take them: id, event, chain."""
    for entry in entries:
        yield entry.entry_id
        yield entry.body
        yield entry.chain


def touch_arguments(touch: Touch) -> list[Argument]:
    """Give the arguments of `touch.lua` after the identity source."""
    reports = (part for report in touch.reports.items() for part in report)
    return [touch.identity, touch.revision, touch.commit_id, touch.ttl_ms, len(touch.renew), *touch.renew, *reports]


def touched_of(touch: Touch, reply: Any) -> Touched:
    """Give what `touch.lua` said. Raises the StoreError that a reply is, CorruptAggregate for what the script could not read."""
    if isinstance(reply, RedisFault):
        raise error_of(reply, touch.key)
    _, current, revision, identity, now = sound(touch.key, reply)
    return Touched(current=current == 1, revision=int(revision), identity=identity.decode(), now=now)


def sound(key: AggregateKey, reply: Any) -> Any:
    """Give a script's reply. Raises CorruptAggregate for one that says so."""
    if reply[0] == b"corrupt":
        raise CorruptAggregate(key, reply[1].decode(errors="replace"))
    return reply


def commit_arguments(commit: Commit) -> list[Argument]:
    """Give the arguments of `commit.lua` after the identity source."""
    guards, leases = commit.guards, commit.leases
    arguments: list[Argument] = [
        commit.identity,
        *seen(commit.expected),
        commit.commit_id,
        int(commit.aggregate is not None),
        commit.aggregate or b"",
        SCHEMA_VERSION,
        LAYOUT_VERSION,
        leases.ttl_ms,
        int(guards.none_running),
        "" if guards.latest_at_most is None else guards.latest_at_most,
        int(leases.renew_all),
        len(commit.entries),
        *written(commit.entries),
        len(guards.lapsed),
        *guards.lapsed,
        len(guards.unchanged),
    ]
    for member, deadline in guards.unchanged.items():
        arguments += (member, "" if deadline is None else deadline)
    arguments += (len(leases.remove), *leases.remove, len(leases.renew), *leases.renew, len(leases.reports))
    for member, report in leases.reports.items():
        arguments += (member, report)
    return arguments


def loaded_of(key: AggregateKey, reply: Sequence[Any]) -> Loaded | Tail:
    """Give what `load.lua` read; CorruptAggregate for any contradiction."""
    _, now, identity, fields, exists, last_item, highest, committed_items, tail_items = reply
    last = None if last_item is None else entry_of(key, last_item)[0]
    committed = [entry_of(key, item) for item in committed_items]
    if exists:
        head = _stored_head(key, fields, with_aggregate=tail_items is None)
        check_head(key, head, last=last, highest=place_of(highest))
        if tail_items is not None:
            entries = tuple(entry_of(key, item)[0] for item in tail_items)
            return Tail(head=head, entries=entries, identity=identity.decode(), now=now)
        aggregate, deletion = fields[6], None
    else:
        head, deletion = _head_of_none(key, last, committed, highest=place_of(highest))
        aggregate = None
    return Loaded(head=head, aggregate=aggregate, tombstone=deletion, identity=identity.decode(), now=now)


def answers_of(
    keys: Sequence[Key], replies: Iterable[tuple[range, Any]], read: Callable[[Key, Sequence[Any], str, int], Answer]
) -> list[Answer | StoreError]:
    """Give one answer a key of replies (now, identity, answers), each for a range of the keys; the errors stand in their places.

    `read` takes a key, its answer, identity and now.
    """
    found: list[Answer | StoreError] = []
    for places, reply in replies:
        if isinstance(reply, RedisFault):
            found.extend(error_of(reply, keys[place]) for place in places)
            continue
        now, identity, answers = reply[0], reply[1].decode(), reply[2]
        for place, answer in zip(places, answers, strict=True):
            key = keys[place]
            if answer[0] == b"corrupt":
                found.append(CorruptAggregate(key, answer[1].decode(errors="replace")))
                continue
            try:
                found.append(read(key, answer, identity, now))
            except CorruptAggregate as error:
                found.append(error)
    return found


def due_of(key: GroupKey, answer: Sequence[Any], identity: str, now: int) -> Due:
    """Give what `due.lua` says of a group."""
    lapsed, grace_until, entries, earliest, looked_at, revision, commit_id = answer
    return Due(
        lapsed={member.decode(): deadline for member, deadline in pairs(lapsed)} if lapsed else {},
        grace_until=grace_until,
        entries=entries,
        earliest=earliest,
        looked_at=looked_at,
        revision=0 if revision is None else _number(key, "revision", revision),
        commit_id="" if commit_id is None else commit_id.decode(errors="replace"),
        identity=identity,
        now=now,
    )


def standing_of(key: AggregateKey, answer: Sequence[Any], identity: str, now: int) -> Standing:
    """Give what `standings.lua` says of an aggregate."""
    revision, commit_id = answer
    if revision is None or commit_id is None:
        return Standing(revision=0, commit_id="", identity=identity, now=now)
    stored = _number(key, "revision", revision)
    return Standing(revision=stored, commit_id=commit_id.decode(errors="replace"), identity=identity, now=now)


def _stored_head(key: AggregateKey, fields: Sequence[bytes | None], *, with_aggregate: bool) -> Head:
    revision, commit_id, head, chain, schema, layout, aggregate = fields
    check_versions(key, _number(key, "schemaVersion", schema), _number(key, "layoutVersion", layout))
    if commit_id is None or chain is None or (with_aggregate and aggregate is None):
        raise CorruptAggregate(key, "commitId, chain or aggregate is missing")
    try:
        last = place_of(head or b"")
    except ValueError as error:
        raise CorruptAggregate(key, "head is unreadable") from error
    return Head(
        exists=True,
        revision=_number(key, "revision", revision),
        commit_id=commit_id.decode(errors="replace"),
        last=last,
        chain=chain.decode(errors="replace"),
    )


def _number(key: AggregateKey, name: str, value: bytes | None) -> int:
    if value is None or not value.isdigit() or value.startswith(b"0"):
        raise CorruptAggregate(key, f"{name} is unreadable" if value is not None else f"{name} is missing")
    return int(value)


def _head_of_none(
    key: AggregateKey, last: Entry | None, committed: Sequence[tuple[Entry, str]], *, highest: tuple[int, int]
) -> tuple[Head, Entry | None]:
    """Give head and tombstone where there is no aggregate."""
    if last is None:
        if highest != (0, 0):
            raise CorruptAggregate(
                key, f"it is missing, and so are all entries of its log, which went to {entry_id(highest)}", says=highest
            )
        return Head(exists=False, revision=0, commit_id="", last=(0, 0), chain=GENESIS), None
    if highest != (last.revision, last.index):
        raise CorruptAggregate(key, f"its log ends at {last.entry_id}, but once went to {entry_id(highest)}", says=highest)
    deletion = tombstone(key, [entry for entry, _ in committed], last=last)
    head = Head(
        exists=False,
        revision=deletion.revision,
        commit_id=committed[0][1],
        last=(last.revision, last.index),
        chain=last.chain,
    )
    return head, deletion
