"""Logs that somebody changed in the store itself: the walk along the chain names the first revision that is not as written.

One table of changes, on every kind of store. Marks stand for what a checkpoint, kept elsewhere, says of the log.
"""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from msgspec import Raw
from sqlalchemy import text

from coord.events import chain, codec
from coord.events.catalog import Snapshot
from coord.events.envelope import Entry
from coord.runtime import chainwalk
from coord.runtime.chainwalk import walk_chain
from coord.store.base import EMPTY_HEAD, Loaded, Store
from coord.store.memory import MemoryStore
from coord.store.memory_state import Logged
from coord.store.redis.store import RedisStore
from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from tests.store.author import CAUSE, KEY, committed, deleted, fact, request_entry
from tests.store.redis_server import RedisServer
from tests.store.sql_servers import MariadbServer, PostgresqlServer

PLACE = {"stream_prefix": KEY.stream_prefix, "consumer_group": KEY.consumer_group}
Log = list[Entry]


class Tampered:
    """A store, and somebody who can write it."""

    store: Store

    def rewrite(self, log: Sequence[Entry]) -> None:
        """Put another log in the place of the one that is there."""

    def point_at(self, last: Entry) -> None:
        """Let the stored head say that the log ends there."""


class InMemory(Tampered):
    def __init__(self) -> None:
        self.store: MemoryStore = MemoryStore(lambda: 1)

    def rewrite(self, log: Sequence[Entry]) -> None:
        self.store.state.records[KEY].log = [Logged(entry, "c") for entry in log]

    def point_at(self, last: Entry) -> None:
        record = self.store.state.records[KEY]
        assert record.metadata is not None
        place = (last.revision, last.index)
        record.metadata = replace(
            record.metadata, head=replace(record.metadata.head, revision=last.revision, last=place, chain=last.chain)
        )


class InRedis(Tampered):
    def __init__(self, server: RedisServer) -> None:
        self.store = RedisStore(server.commands())
        self._server = server
        self._keys = server.commands().keys.aggregate(KEY)

    def rewrite(self, log: Sequence[Entry]) -> None:
        self._server.call("DEL", self._keys.events)
        for entry in log:
            self._server.call("XADD", self._keys.events, entry.entry_id, "event", entry.body, "chain", entry.chain, "commit", "c")

    def point_at(self, last: Entry) -> None:
        fields = ("revision", last.revision, "head", last.entry_id, "chain", last.chain)
        self._server.call("HSET", self._keys.metadata, *fields)


class InSql(Tampered):
    def __init__(self, store: SqlStore) -> None:
        self.store: SqlStore = store

    def rewrite(self, log: Sequence[Entry]) -> None:
        self._run(
            "DELETE FROM coordinator_events WHERE stream_prefix = :stream_prefix AND consumer_group = :consumer_group", [PLACE]
        )
        rows = [
            {**PLACE, "revision": entry.revision, "n": entry.index, "event": entry.body.decode("latin-1"), "chain": entry.chain}
            for entry in log
        ]
        names = "stream_prefix, consumer_group, revision, n, event, chain"
        values = ", ".join(f":{name}" for name in names.split(", "))
        self._run(f"INSERT INTO coordinator_events ({names}, commit_id) VALUES ({values}, 'c')", rows)

    def point_at(self, last: Entry) -> None:
        values = {**PLACE, "revision": last.revision, "head": last.entry_id, "chain": last.chain}
        self._run(
            "UPDATE coordinator_metadata SET store_revision = :revision, head = :head, chain = :chain"
            " WHERE stream_prefix = :stream_prefix AND consumer_group = :consumer_group",
            [values],
        )

    def _run(self, statement: str, rows: list[dict[str, Any]]) -> None:
        if rows:
            self.store._connections.write(lambda connection: connection.execute(text(statement), rows))


@pytest.fixture(params=["memory", "redis", "sqlite", "postgresql", "mariadb"])
def place(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Tampered]:
    match request.param:
        case "memory":
            yield InMemory()
            return
        case "redis":
            found: Tampered = InRedis(request.getfixturevalue("server"))
        case "sqlite":
            settings = SqlSettings(kind="sqlite", database=str(tmp_path / "coord.db"), migrates=True, timeout_ms=10_000)
            found = InSql(SqlStore(dialect_of(settings)))
        case name:
            server: PostgresqlServer | MariadbServer = request.getfixturevalue(f"shared_{name}")
            found = InSql(server.store(request.getfixturevalue(name), timeout_ms=10_000))
    yield found
    found.store.close()


def write(store: Store) -> Log:
    """Seven revisions: 1-0 1-1, 2-0, 3-0 3-1 3-2, 4-0, 5-0 5-1, 6-0, 7-0 7-1."""
    for number, size in enumerate((2, 1, 3, 1, 2, 1), 1):
        committed(store, tuple(fact(f"member-{number}-{index}") for index in range(size)))
    committed(store, (fact("last"), request_entry()))
    return list(store.tail(KEY, after=(0, 0), limit=100))


def at(log: Log, entry_id: str) -> int:
    return next(index for index, entry in enumerate(log) if entry.entry_id == entry_id)


def changed(log: Log, entry_id: str, **fields: Any) -> Log:
    index = at(log, entry_id)
    return [*log[:index], replace(log[index], **fields), *log[index + 1 :]]


def flipped(data: bytes, position: int) -> bytes:
    return data[:position] + bytes([data[position] ^ 1]) + data[position + 1 :]


def resealed(log: Log, since: int, find: bytes, to: bytes) -> Log:
    """Change bodies from an entry on, and chain all of them anew: whoever can write the store can do that."""
    new, last = log[:since], log[since - 1].chain if since else chain.GENESIS
    for entry in log[since:]:
        envelope = codec.decode(replace(entry, body=entry.body.replace(find, to)))
        body = codec.encode(envelope.event, at=envelope.at, cause=envelope.cause, prev=last)
        last = chain.link(last, body)
        new.append(replace(entry, body=body, chain=last))
    return new


def put_in(log: Log, after: str, revision: int, index: int, *, chained: bool) -> Log:
    """Put an entry in, chained to the one before it or not at all."""
    before = log[at(log, after)]
    prev = before.chain if chained else "ab" * 32
    (alien,) = codec.seal((fact("alien"),), revision=revision, first=index, at=1, cause=CAUSE, prev=prev)
    return [*log[: at(log, after) + 1], alien, *log[at(log, after) + 1 :]]


def without(log: Log, *entry_ids: str) -> Log:
    return [entry for entry in log if entry.entry_id not in entry_ids]


def with_replaced_body(log: Log, entry_id: str) -> Log:
    """Another event in the place of one, sealed where it stands; what follows still follows the one that was there."""
    entry, before = log[at(log, entry_id)], log[at(log, entry_id) - 1]
    sealed = codec.seal((fact("forged"),), revision=entry.revision, first=entry.index, at=1, cause=CAUSE, prev=before.chain)
    return [*log[: at(log, entry_id)], *sealed, *log[at(log, entry_id) + 1 :]]


TAMPERINGS: dict[str, tuple[Callable[[Log], Log], int]] = {
    "a byte of the first body": (lambda log: changed(log, "1-0", body=flipped(log[0].body, 30)), 1),
    "a byte of a body": (lambda log: changed(log, "3-1", body=flipped(log[at(log, "3-1")].body, 40)), 3),
    "a byte of the last body": (lambda log: changed(log, "7-1", body=flipped(log[-1].body, 40)), 7),
    "a digit of a chain value": (
        lambda log: changed(log, "4-0", chain=flipped(log[at(log, "4-0")].chain.encode(), 9).decode()),
        4,
    ),
    "the case of a chain value": (lambda log: changed(log, "5-1", chain=log[at(log, "5-1")].chain.upper()), 5),
    "another event, sealed in its place": (lambda log: with_replaced_body(log, "4-0"), 4),
    "another event, sealed inside a revision": (lambda log: with_replaced_body(log, "3-1"), 3),
    "the first entry dropped": (lambda log: without(log, "1-0"), 1),
    "the first revision dropped": (lambda log: without(log, "1-0", "1-1"), 1),
    "an entry dropped": (lambda log: without(log, "3-1"), 3),
    "the last entry of a revision dropped": (lambda log: without(log, "3-2"), 3),
    "a revision dropped": (lambda log: without(log, "4-0"), 4),
    "two revisions dropped": (lambda log: without(log, "4-0", "5-0", "5-1"), 4),
    "an entry put in": (lambda log: put_in(log, "4-0", 4, 1, chained=False), 4),
    "a chained entry put in": (lambda log: put_in(log, "2-0", 2, 1, chained=True), 2),
    "an entry put in at the end": (lambda log: put_in(log, "7-1", 7, 2, chained=True), 7),
    "a revision put in at the end": (lambda log: put_in(log, "7-1", 8, 0, chained=True), 8),
    "the tail cut": (lambda log: without(log, "6-0", "7-0", "7-1"), 6),
    "the tail cut inside a revision": (lambda log: without(log, "7-1"), 7),
    "everything cut": (lambda log: [], 1),
    "bodies exchanged": (
        lambda log: changed(changed(log, "4-0", body=log[at(log, "6-0")].body), "6-0", body=log[at(log, "4-0")].body),
        4,
    ),
    "all of it from an entry on, sealed anew": (lambda log: resealed(log, at(log, "5-0"), b"member-5-0", b"member-x-0"), 7),
}


def test_a_log_as_it_was_written_holds_in_any_pages(place: Tampered, monkeypatch: pytest.MonkeyPatch) -> None:
    log = write(place.store)
    marks = {(entry.revision, entry.index): entry.chain for entry in log}
    seen: list[int] = []
    for page in (1, 2, 1000):
        monkeypatch.setattr(chainwalk, "PAGE", page)
        report = walk_chain(place.store, KEY, marks=marks, progress=seen.append)
        assert (report.holds, report.entries, report.first, report.last) == (True, len(log), (1, 0), (7, 1))
        assert report.chain == log[-1].chain
    assert seen[0] == 1
    assert max(seen) == len(log)


def test_the_first_bad_revision_is_named(place: Tampered) -> None:
    log = write(place.store)
    for how, (tamper, bad) in TAMPERINGS.items():
        place.rewrite(tamper(log))
        report = walk_chain(place.store, KEY)
        assert (report.bad, report.holds, bool(report.why)) == (bad, False, True), f"{how}: {report.why}"
        place.rewrite(log)
        assert walk_chain(place.store, KEY).holds, how


def marks_at(log: Log, *entry_ids: str) -> dict[tuple[int, int], str]:
    return {(entry.revision, entry.index): entry.chain for entry in log if entry.entry_id in entry_ids}


def test_a_tail_that_was_cut_with_its_head_shows_by_a_mark_alone(place: Tampered) -> None:
    """Up to where the mark is; what was cut beyond it nobody can tell."""
    log = write(place.store)
    cut = without(log, "6-0", "7-0", "7-1")
    place.rewrite(cut)
    place.point_at(cut[-1])
    assert walk_chain(place.store, KEY).holds
    assert walk_chain(place.store, KEY, marks=marks_at(log, "5-1")).holds
    report = walk_chain(place.store, KEY, marks=marks_at(log, "3-0", "7-1"))
    assert report.bad == 6
    assert "the tail was cut" in report.why
    cut = without(log, "7-1")
    place.rewrite(cut)
    place.point_at(cut[-1])
    assert walk_chain(place.store, KEY, marks=marks_at(log, "7-1")).bad == 7


def test_a_log_that_was_sealed_anew_with_its_head_shows_by_marks_alone(place: Tampered) -> None:
    """Each mark narrows down where it begins."""
    log = write(place.store)
    forged = resealed(log, at(log, "5-0"), b"member-5-0", b"member-x-0")
    place.rewrite(forged)
    place.point_at(forged[-1])
    assert walk_chain(place.store, KEY).holds
    assert walk_chain(place.store, KEY, marks=marks_at(log, "4-0")).holds
    report = walk_chain(place.store, KEY, marks=marks_at(log, "7-1"))
    assert (report.bad, "from revision 1 to 7" in report.why) == (1, True)
    report = walk_chain(place.store, KEY, marks=marks_at(log, "2-0", "4-0", "5-1", "7-1"))
    assert (report.bad, "from revision 5 to 5" in report.why) == (5, True)


def test_a_log_that_is_gone_shows_by_a_mark(place: Tampered) -> None:
    report = walk_chain(place.store, KEY, marks={(3, 0): "ab" * 32})
    assert (report.bad, "is gone" in report.why) == (1, True)


def test_the_log_of_what_was_deleted_holds_too(place: Tampered) -> None:
    log = write(place.store)
    deleted(place.store)
    assert walk_chain(place.store, KEY, marks=marks_at(log, "7-1")).last == (8, 1)


def test_a_trimmed_log_continues_its_snapshot(place: Tampered) -> None:
    write(place.store)
    committed(place.store, (fact("more"),))
    log = list(place.store.tail(KEY, after=(0, 0), limit=100))
    snapshot = Snapshot(revision=8, chain=log[-1].chain, aggregate=Raw(b'{"storeRevision":8}'))
    entries = codec.seal((snapshot,), revision=8, first=1, at=1, cause=CAUSE, prev=log[-1].chain)
    assert place.store.append(KEY, expected=place.store.load(KEY).head, entries=entries) is not None
    after = committed(place.store, (fact("and more"),))
    whole = list(place.store.tail(KEY, after=(0, 0), limit=100))
    place.rewrite(whole[at(whole, "8-1") :])
    report = walk_chain(place.store, KEY, marks={after.head.last: after.head.chain})
    assert (report.holds, report.first, report.last) == (True, (8, 1), (9, 0)), report.why
    report = walk_chain(place.store, KEY, marks=marks_at(whole, "5-1"))
    assert (report.bad, "cannot be compared any more" in report.why) == (5, True)
    place.rewrite(whole[at(whole, "9-0") :])
    assert walk_chain(place.store, KEY).bad == 8


def test_every_byte_counts() -> None:
    """Whichever byte of whichever entry is changed, its revision is named."""
    place = InMemory()
    log = write(place.store)
    for index, entry in enumerate(log):
        for position in range(len(entry.body)):
            place.rewrite([*log[:index], replace(entry, body=flipped(entry.body, position)), *log[index + 1 :]])
            assert walk_chain(place.store, KEY).bad == entry.revision
        for position in range(len(entry.chain)):
            other = flipped(entry.chain.encode(), position).decode("latin-1")
            place.rewrite([*log[:index], replace(entry, chain=other), *log[index + 1 :]])
            assert walk_chain(place.store, KEY).bad == entry.revision


def test_an_entry_without_its_fields_is_named_though_its_page_holds_others(server: RedisServer) -> None:
    place = InRedis(server)
    log = write(place.store)
    server.call("DEL", place._keys.events)
    for entry in log:
        name = "evenu" if entry.entry_id == "4-0" else "event"
        server.call("XADD", place._keys.events, entry.entry_id, name, entry.body, "chain", entry.chain, "commit", "c")
    report = walk_chain(place.store, KEY)
    assert (report.bad, report.last) == (4, (3, 2))
    place.store.close()


def test_what_is_written_meanwhile_is_walked_too(monkeypatch: pytest.MonkeyPatch) -> None:
    place = InMemory()
    write(place.store)
    load, late = place.store.load, [True]

    def commit_before(key: Any) -> Any:
        if late.pop() if late else False:
            committed(place.store)
        return load(key)

    monkeypatch.setattr(place.store, "load", commit_before)
    report = walk_chain(place.store, KEY)
    assert (report.holds, report.last) == (True, (8, 0))


class Endless:
    """A store whose log is made while it is read, and kept nowhere."""

    def __init__(self, length: int) -> None:
        self.length = length
        self.made, self.chain = 0, chain.GENESIS

    def tail(self, key: Any, *, after: tuple[int, int], limit: int) -> list[Entry]:
        assert after[0] == self.made, "read once, in order"
        page = []
        for revision in range(self.made + 1, min(self.made + limit, self.length) + 1):
            body = b'{"prev":"%s","more":"%s"}' % (self.chain.encode(), b"x" * 400)
            self.chain = chain.link(self.chain, body)
            page.append(Entry(revision=revision, index=0, body=body, chain=self.chain))
        self.made += len(page)
        return page

    def load(self, key: Any) -> Any:
        head = replace(EMPTY_HEAD, last=(self.made, 0), chain=self.chain)
        return Loaded(head=head, aggregate=None, tombstone=None, identity="", now=1)


def test_memory_does_not_grow_with_the_log() -> None:
    """The peak for a log of five times the length is the same, and the progress is told on the way."""
    peaks = []
    for length in (3_000, 15_000):
        seen: list[int] = []
        tracemalloc.start()
        report = walk_chain(Endless(length), KEY, progress=seen.append)  # type: ignore[arg-type]  # what the walk asks of a store
        peaks.append(tracemalloc.get_traced_memory()[1])
        tracemalloc.stop()
        assert (report.holds, report.entries) == (True, length)
        assert seen == list(range(1_000, length + 1, 1_000))
    assert peaks[1] < 1.2 * peaks[0]
