"""Edge cases of the scripts: wrong types, no memory, no script, long lists, large numbers, calendars."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from threading import Event as Signal
from threading import Thread

import pytest

import coord.rediscommands
from coord.names import GroupKey, StreamKey
from coord.rediscommands.keys import AggregateKeys
from coord.rediscommands.scripts import script
from coord.store.base import (
    EMPTY_HEAD,
    Committed,
    Conflict,
    CorruptAggregate,
    Due,
    LeaseChanges,
    LeaseGuards,
    Standing,
    StoreUnavailable,
    Touch,
)
from coord.store.redis.store import RedisStore
from tests.servers import wait_until
from tests.store.author import KEY, appended, commit_on, committed, deletion, due, request_entry
from tests.store.redis_server import RedisServer

LUA = Path(coord.rediscommands.__file__).parent / "lua"
SCRIPTS = sorted(path.stem for path in LUA.glob("*.lua"))
LONG_MS = 60_000


@pytest.fixture
def store(server: RedisServer) -> Iterator[RedisStore]:
    store = RedisStore(server.commands())
    yield store
    store.close()


def keys_of(store: RedisStore) -> AggregateKeys:
    return store._commands.keys.aggregate(KEY)


def bytes_of(server: RedisServer, store: RedisStore) -> list[object]:
    """Everything that is stored of the aggregate, as it is."""
    keys = keys_of(store)
    return [server.call("DUMP", key) for key in (keys.metadata, keys.events, keys.leases, keys.reports)]


# -- house style of the files


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_says_its_job_keys_and_answer(name: str) -> None:
    lines = (LUA / f"{name}.lua").read_text().splitlines()
    assert lines[0] in {"#!lua", "#!lua flags=no-writes"}
    header = [line for line in lines[1:] if line.startswith("--")]
    assert any(line.startswith("-- KEYS ") for line in header)
    assert any(line.startswith("-- Returns ") for line in header)
    code = [line for line in lines if not line.startswith("--")]
    assert any("ARGV" in line for line in code) == any(line.startswith("-- ARGV ") for line in header)


@pytest.mark.parametrize("name", SCRIPTS)
def test_a_script_unpacks_no_list_and_reads_no_json(name: str) -> None:
    text = script(name).text
    assert not re.search(r"\bunpack\b|\bcjson\b|include:", text)
    assert max(map(len, text.splitlines())) <= 130


# -- logs


def test_e11_a_trimmed_log_still_ends_where_the_aggregate_says(server: RedisServer, store: RedisStore) -> None:
    for _ in range(5):
        committed(store)
    server.call("XTRIM", keys_of(store).events, "MAXLEN", 2)
    assert [entry.entry_id for entry in store.tail(KEY, after=(0, 0), limit=9)] == ["4-0", "5-0"]
    assert committed(store).head.revision == 6


def test_e1_an_emptied_log_is_no_new_beginning(server: RedisServer, store: RedisStore) -> None:
    committed(store)
    server.call("XTRIM", keys_of(store).events, "MAXLEN", 0)
    with pytest.raises(CorruptAggregate, match="missing, or has no entry left"):
        store.load(KEY)
    server.call("DEL", keys_of(store).metadata)
    with pytest.raises(CorruptAggregate, match="which went to 1-0"):
        store.load(KEY)
    fresh = commit_on(store.load(KEY.stream))
    with pytest.raises(CorruptAggregate, match="highest ever 1-0"):
        store.commit(fresh.__class__(**{name: getattr(fresh, name) for name in fresh.__slots__} | {"key": KEY}))


def test_e1_a_tombstone_that_was_deleted_by_hand_is_missed(server: RedisServer, store: RedisStore) -> None:
    committed(store)
    committed(store, (deletion(),), aggregate=None)
    server.call("XDEL", keys_of(store).events, "2-0")
    with pytest.raises(CorruptAggregate, match="once went to 2-0"):
        store.load(KEY)


@pytest.mark.parametrize("field", ["revision", "commitId", "head", "chain", "schemaVersion", "layoutVersion", "aggregate"])
def test_e1_a_hash_without_one_of_its_fields(server: RedisServer, store: RedisStore, field: str) -> None:
    committed(store)
    server.call("HDEL", keys_of(store).metadata, field)
    with pytest.raises(CorruptAggregate, match=f"{field}.* missing|head is unreadable"):
        store.load(KEY)


@pytest.mark.parametrize(
    ("field", "value"),
    [("revision", "1.0"), ("revision", "-1"), ("revision", "1e3"), ("head", "x"), ("chain", "00"), ("head", "1")],
)
def test_e1_a_hash_with_an_unreadable_field(server: RedisServer, store: RedisStore, field: str, value: str) -> None:
    committed(store)
    server.call("HSET", keys_of(store).metadata, field, value)
    with pytest.raises(CorruptAggregate):
        store.load(KEY)


def test_e1_a_log_entry_without_body(server: RedisServer, store: RedisStore) -> None:
    committed(store)
    server.call("XADD", keys_of(store).events, "1-1", "note", "by hand")
    with pytest.raises(CorruptAggregate, match="1-1 lacks"):
        store.load(KEY)
    with pytest.raises(CorruptAggregate, match="1-1 lacks"):
        store.tail(KEY, after=(1, 0), limit=1)


def test_e5_a_kotlin_coordinators_hash_is_named_as_such(server: RedisServer, store: RedisStore) -> None:
    """Its hash has fewer fields than ours, and no log."""
    server.call("HSET", keys_of(store).metadata, "aggregate", "{}", "revision", 3, "schemaVersion", 1, "layoutVersion", 1)
    before = bytes_of(server, store)
    with pytest.raises(CorruptAggregate, match="coord adopt"):
        store.load(KEY)
    assert bytes_of(server, store) == before


# -- wrong types


STEPS: dict[str, Callable[[RedisStore], object]] = {
    "commit": lambda store: store.commit(
        commit_on(
            store.load(KEY.stream),
            key=KEY,
            guards=LeaseGuards(none_running=True),
            leases=LeaseChanges(ttl_ms=1, renew=("m",), reports={"m": b"r"}),
        )
    ),
    "load": lambda store: store.load(KEY),
    "catch_up": lambda store: store.catch_up(KEY, seen=EMPTY_HEAD, limit=1),
    "touch": lambda store: store.touch(
        Touch(key=KEY, revision=1, commit_id="c", identity="i", renew=("m",), ttl_ms=1, reports={"m": b"r"})
    ),
    "due": lambda store: due(store, KEY, lease_ttl_ms=1, grace=False),
    "soft": lambda store: store.soft(KEY),
    "lease": lambda store: store.lease(KEY, "m"),
    "grant": lambda store: store.grant_missing_leases(KEY, ["m"], ttl_ms=1),
    "tail": lambda store: store.tail(KEY, after=(0, 0), limit=1),
}
USED = {
    "commit": {"metadata", "events", "leases", "reports"},
    "load": {"metadata", "events", "leases", "reports"},
    "catch_up": {"metadata", "events", "leases", "reports"},
    "touch": {"metadata", "leases", "reports"},
    "due": {"metadata", "leases"},
    "soft": {"leases", "reports"},
    "lease": {"leases"},
    "grant": {"metadata", "leases"},
    "tail": {"events"},
}


@pytest.mark.parametrize(("step", "kind"), [(step, kind) for step, kinds in USED.items() for kind in sorted(kinds)])
def test_d8_a_key_of_another_type_is_found_before_the_first_write(
    server: RedisServer, store: RedisStore, step: str, kind: str
) -> None:
    server.call("SET", getattr(keys_of(store), kind), "a string")
    before = bytes_of(server, store)
    with pytest.raises(CorruptAggregate, match=r"string|WRONGTYPE"):
        STEPS[step](store)
    assert bytes_of(server, store) == before


@pytest.mark.parametrize("kind", ["metadata", "leases"])
def test_d8_a_group_that_cannot_be_looked_at_spoils_no_others(server: RedisServer, store: RedisStore, kind: str) -> None:
    """In the same script, before it and after it."""
    others = [GroupKey("orders", "before"), GroupKey("orders", "after")]
    committed(store, key=KEY.stream)
    for key in others:
        committed(store, key=key)
    server.call("SET", getattr(keys_of(store), kind), "a string")
    before = bytes_of(server, store)
    first, bad, last = store.due_many([others[0], KEY, others[1]], lease_ttl_ms=LONG_MS, grace=False)
    assert isinstance(bad, CorruptAggregate)
    assert bad.key == KEY
    assert "is of type string" in bad.why
    assert bytes_of(server, store) == before
    for look in (first, last):
        assert isinstance(look, Due)
        assert (look.revision, look.looked_at) == (1, 0)
    stream, standing = store.standings([KEY.stream, KEY])
    assert isinstance(stream, Standing)
    assert stream.revision == 1
    assert isinstance(standing, CorruptAggregate) == (kind == "metadata")


@pytest.mark.parametrize(("field", "value"), [("revision", None), ("commitId", None), ("revision", "1.0")])
def test_e1_a_hash_without_a_guard_is_told_in_a_look(
    server: RedisServer, store: RedisStore, field: str, value: str | None
) -> None:
    committed(store)
    if value is None:
        server.call("HDEL", keys_of(store).metadata, field)
    else:
        server.call("HSET", keys_of(store).metadata, field, value)
    (look,) = store.due_many([KEY], lease_ttl_ms=LONG_MS, grace=False)
    (standing,) = store.standings([KEY])
    assert isinstance(look, CorruptAggregate)
    assert isinstance(standing, CorruptAggregate)
    with pytest.raises(CorruptAggregate, match="revision"):
        due(store, KEY, lease_ttl_ms=LONG_MS, grace=False)


def test_d8_append_finds_a_log_of_another_type(server: RedisServer, store: RedisStore) -> None:
    head = committed(store).head
    server.call("DEL", keys_of(store).events)
    server.call("SET", keys_of(store).events, "a string")
    before = bytes_of(server, store)
    with pytest.raises(CorruptAggregate, match="is of type string, not stream"):
        store.append(KEY, expected=head, entries=appended(head, request_entry()))
    assert bytes_of(server, store) == before


def test_d8_an_index_of_another_type_is_no_aggregates_fault(server: RedisServer, store: RedisStore) -> None:
    server.call("LPUSH", store._commands.keys.index, "a list")
    for step in (store.streams, lambda: store.index_add(StreamKey("s")), lambda: store.index_remove(StreamKey("s"))):
        with pytest.raises(StoreUnavailable, match="WRONGTYPE"):
            step()
    assert committed(store).head.revision == 1


# -- memory


@contextmanager
def no_memory(server: RedisServer) -> Iterator[None]:
    server.call("CONFIG", "SET", "maxmemory", 1, "maxmemory-policy", "noeviction")
    try:
        yield
    finally:
        server.call("CONFIG", "SET", "maxmemory", 0)


def test_d8_a_commit_without_memory_writes_nothing(server: RedisServer, store: RedisStore) -> None:
    leases = LeaseChanges(ttl_ms=LONG_MS, renew=("m",), reports={"m": b"r"})
    head = committed(store, leases=leases).head
    commit = commit_on(store.load(KEY), leases=LeaseChanges(ttl_ms=LONG_MS, remove=("m",), renew=("n",)))
    gone = commit_on(store.load(KEY), (deletion(),), aggregate=None)
    before = bytes_of(server, store)
    touch = Touch(
        key=KEY,
        revision=1,
        commit_id=head.commit_id,
        identity=store.identity(),
        renew=("m",),
        ttl_ms=LONG_MS * 2,
        reports={"m": b"n"},
    )
    with no_memory(server):
        for step in (
            lambda: store.commit(commit),
            lambda: store.commit(gone),
            lambda: store.append(KEY, expected=head, entries=appended(head, request_entry())),
            lambda: store.touch(touch),
            lambda: due(store, KEY, lease_ttl_ms=1, grace=True),
        ):
            with pytest.raises(StoreUnavailable, match="OOM"):
                step()
        assert store.load(KEY).head == head, "reading needs no memory"
        assert bytes_of(server, store) == before
    assert isinstance(store.commit(commit), Committed)


def test_d8_commits_until_memory_ends_are_whole_or_not_at_all(server: RedisServer, store: RedisStore) -> None:
    """Wherever the limit strikes: what is stored is a commit's outcome."""
    server.call("FLUSHALL", "SYNC")
    wait_until(lambda: b"lazyfree_pending_objects:0" in server.call("INFO", "memory"), what="nothing more is freed")
    found = re.search(rb"used_memory:(\d+)", server.call("INFO", "memory"))
    assert found is not None
    used = int(found[1])
    server.call("CONFIG", "SET", "maxmemory", used + 1_000_000, "maxmemory-policy", "noeviction")
    try:
        answers, before = 0, bytes_of(server, store)
        refusal: StoreUnavailable | None = None
        while refusal is None and answers < 5000:
            before = bytes_of(server, store)
            try:
                committed(store, aggregate=b"x" * 1000 * answers, leases=LeaseChanges(ttl_ms=1, renew=(f"m{answers}",)))
                answers += 1
            except StoreUnavailable as error:
                refusal = error
        assert "OOM" in str(refusal)
        assert before == bytes_of(server, store)
        revision = store.load(KEY).head.revision
    finally:
        server.call("CONFIG", "SET", "maxmemory", 0)
    assert committed(store).head.revision == revision + 1


# -- scripts that vanish


def test_d10_a_flushed_script_cache_is_repaired_inside(server: RedisServer, store: RedisStore) -> None:
    """No request fails, and no commit runs twice, while all scripts vanish every few milliseconds."""
    done = Signal()

    def flush() -> None:
        while not done.is_set():
            server.call("SCRIPT", "FLUSH")
            time.sleep(0.005)

    def work(number: int) -> int:
        wins = 0
        while wins < 25:
            wins += isinstance(store.commit(commit_on(store.load(KEY))), Committed)
            due(store, KEY, lease_ttl_ms=LONG_MS, grace=False)
            store.soft(KEY)
        return wins

    flusher = Thread(target=flush)
    flusher.start()
    try:
        with ThreadPoolExecutor(4) as pool:
            wins = sum(pool.map(work, range(4)))
    finally:
        done.set()
        flusher.join()
    assert wins == store.load(KEY).head.revision == len(store.tail(KEY, after=(0, 0), limit=9999)) == 100


# -- long lists, large numbers, dates


def test_a_commit_of_thousands_of_members(store: RedisStore) -> None:
    """Lists as long as a caller likes: 8,000 arguments are too many for one Redis call from Lua."""
    members = tuple(f"member-{number}" for number in range(9000))
    committed(store, leases=LeaseChanges(ttl_ms=1, renew=members, reports=dict.fromkeys(members, b"report")))
    time.sleep(0.01)
    soft = store.soft(KEY)
    assert len(soft.leases) == len(soft.reports) == len(members)
    answer = store.commit(
        commit_on(
            store.load(KEY),
            tuple(request_entry() for _ in range(9000)),
            guards=LeaseGuards(lapsed=members, unchanged=soft.leases),
            leases=LeaseChanges(ttl_ms=LONG_MS, remove=members[:4500], renew_all=True),
        )
    )
    assert isinstance(answer, Committed)
    assert store.soft(KEY).leases == dict.fromkeys(members[4500:], answer.now + LONG_MS)
    store.grant_missing_leases(KEY, members, ttl_ms=LONG_MS)
    assert len(store.soft(KEY).leases) == len(members)


def test_numbers_beyond_1e15_stay_whole(server: RedisServer, store: RedisStore) -> None:
    committed(store)
    big = 2**53 - 3
    server.call("XADD", keys_of(store).events, f"{big}-0", "event", "{}", "chain", "ab" * 32, "commit", "c")
    server.call("HSET", keys_of(store).metadata, "revision", big, "head", f"{big}-0", "chain", "ab" * 32, "commitId", "c")
    ttl = 4_000_000_000_000_123
    answer = committed(store, leases=LeaseChanges(ttl_ms=ttl, renew=("m",)))
    assert answer.head.revision == store.load(KEY).head.revision == big + 1
    deadline, _ = store.lease(KEY, "m")
    assert deadline == answer.now + ttl == store.soft(KEY).leases["m"]
    guards = LeaseGuards(unchanged={"m": deadline}, latest_at_most=deadline)
    assert isinstance(store.commit(commit_on(store.load(KEY), guards=guards)), Committed)
    stale = store.commit(commit_on(store.load(KEY), guards=LeaseGuards(none_running=True)))
    assert isinstance(stale, Conflict)
    assert stale.revision == big + 2


@pytest.mark.parametrize(
    "text",
    [
        "1970-01-01T00:00:00.000Z", "1999-12-31T23:59:59.999Z", "2000-02-29T12:00:00.001Z", "2024-02-29T00:00:00.010Z",
        "2024-03-01T00:00:00.000Z", "2026-11-29T16:27:48.262Z", "2100-02-28T23:59:59.999Z", "2100-03-01T00:00:00.000Z",
        "2400-02-29T01:02:03.004Z",
    ],
)  # fmt: skip
def test_a_time_is_written_as_the_calendar_has_it(server: RedisServer, text: str) -> None:
    since = datetime.fromisoformat(text) - datetime(1970, 1, 1, tzinfo=UTC)
    ms = (since.days * 86400 + since.seconds) * 1000 + since.microseconds // 1000
    iso = (LUA / "shared" / "iso.lua").read_text()
    assert server.call("EVAL", f"{iso}\nreturn iso(tonumber(ARGV[1]))", 0, ms) == text.encode()


def test_the_hash_says_when_it_was_written_by_the_stores_clock(server: RedisServer, store: RedisStore) -> None:
    answer = committed(store)
    written = server.call("HGET", keys_of(store).metadata, "updatedAt")
    assert isinstance(written, bytes)
    assert round(datetime.fromisoformat(written.decode()).timestamp() * 1000) == answer.now


def test_a_commit_whose_lists_do_not_add_up_is_refused(server: RedisServer, store: RedisStore) -> None:
    keys = keys_of(store)
    with pytest.raises(Exception, match="lists end at"):
        store._commands.commit(keys, *[0] * 16, 1, deadline=time.monotonic() + 1)
    assert server.call("EXISTS", keys.metadata, keys.events) == 0
