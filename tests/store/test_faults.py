"""The way to Redis breaks: every call ends in time with a clear error, nothing is half-done, and it heals by itself."""

from __future__ import annotations

import os
import random
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Event as Signal
from threading import Thread

import pytest

from coord.names import GroupKey
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import Unreachable
from coord.rediscommands.keys import Keys
from coord.rediscommands.link import Link, pack
from coord.rediscommands.links import Links, deadline_after
from coord.rediscommands.settings import RedisSettings
from coord.store.base import (
    EMPTY_HEAD,
    Committed,
    CorruptAggregate,
    LeaseChanges,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    Touch,
    Touched,
)
from coord.store.redis.store import RedisStore
from tests.store.author import KEY, appended, commit_on, committed, due, request_entry
from tests.store.redis_server import RedisServer
from tests.tap import Tap

TIMEOUT_MS = 1_000
PATIENT_MS = 10_000
"""A bound that no call takes which is told at once what is wrong."""
SLACK_S = 3.0
"""What a loaded test machine may add to a bound."""
MEMBERS = tuple(f"member-{number}" for number in range(16))


def store_at(port: int, *, timeout_ms: int = TIMEOUT_MS, max_connections: int = 4) -> RedisStore:
    settings = RedisSettings(host="127.0.0.1", port=port, timeout_ms=timeout_ms, max_connections=max_connections)
    return RedisStore(RedisCommands(settings, keys=Keys("test:coord")))


@pytest.fixture
def direct(server: RedisServer) -> Iterator[RedisStore]:
    """A store without a tap in between, to look at what really is there."""
    store = RedisStore(server.commands())
    yield store
    store.close()


@pytest.fixture
def tap(server: RedisServer) -> Iterator[Tap]:
    with Tap(server.port) as tap:
        yield tap


@pytest.fixture
def tapped(tap: Tap) -> Iterator[RedisStore]:
    store = store_at(tap.port)
    yield store
    store.close()


STEPS: dict[str, Callable[[RedisStore], object]] = {
    "load": lambda store: store.load(KEY),
    "catch_up": lambda store: store.catch_up(KEY, seen=EMPTY_HEAD, limit=1),
    "tail": lambda store: store.tail(KEY, after=(0, 0), limit=1),
    "latest": lambda store: store.latest(KEY, before=None, limit=1),
    "touch": lambda store: store.touch(Touch(key=KEY, revision=1, commit_id="", identity="", renew=("m",), ttl_ms=1)),
    "touch_many": lambda store: store.touch_many([Touch(key=KEY, revision=1, commit_id="", identity="", renew=(), ttl_ms=1)]),
    "lease": lambda store: store.lease(KEY, "m"),
    "soft": lambda store: store.soft(KEY),
    "due": lambda store: due(store, KEY, lease_ttl_ms=1, grace=False),
    "grant": lambda store: store.grant_missing_leases(KEY, ["m"], ttl_ms=1),
    "streams": lambda store: store.streams(),
    "index_add": lambda store: store.index_add(KEY.stream),
    "index_remove": lambda store: store.index_remove(KEY.stream),
    "take_turn": lambda store: store.take_turn("one", takeover_ms=1),
    "last_tick": lambda store: store.last_tick(),
    "append_request": lambda store: store.append_request(b"{}"),
    "requests": lambda store: store.requests(before=None, limit=1),
    "identity": lambda store: store.identity(),
    "ping": lambda store: store.ping(),
}


def ends_in(step: Callable[[], object], *, within_s: float) -> StoreError:
    """Run a step that must fail, and in time."""
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        step()
    assert time.monotonic() - begun < within_s
    return caught.value


# -- outages


def test_f5_a_stopped_server_is_told_at_once_and_the_first_call_after_it_works(own_server: RedisServer) -> None:
    store = store_at(own_server.port, timeout_ms=PATIENT_MS)
    commit = commit_on(store.load(KEY))
    own_server.stop()
    for step in STEPS.values():
        ends_in(lambda step=step: step(store), within_s=SLACK_S)  # type: ignore[misc]  # bound at once
    error = ends_in(lambda: store.commit(commit), within_s=SLACK_S)
    assert not isinstance(error, OutcomeUnknown), "nothing was sent: nothing is unknown"
    own_server.start()
    assert store.load(KEY).head.revision == 0
    store.close()


def test_a_group_that_cannot_be_touched_is_told_by_itself(server: RedisServer, direct: RedisStore) -> None:
    """C3: of several in one pipeline, what is wrong with one is the answer of that one."""
    keys = [GroupKey("orders", f"g{number}") for number in range(3)]
    touches = [
        Touch(key=key, revision=head.revision, commit_id=head.commit_id, identity=direct.identity(), renew=("m",), ttl_ms=60_000)
        for key, head in ((key, committed(direct, key=key).head) for key in keys)
    ]
    leases = direct._commands.keys.aggregate(keys[1]).leases
    server.call("SET", leases, "no set")
    first, broken, last = direct.touch_many(touches)
    assert isinstance(broken, CorruptAggregate)
    assert broken.key == keys[1]
    for answer in (first, last):
        assert isinstance(answer, Touched)
        assert answer.current


def test_f5_looks_at_many_are_told_of_a_stopped_server_once(own_server: RedisServer) -> None:
    """Each group has the error for its answer, and the server is not asked again for each few hundred of them."""
    store = store_at(own_server.port)
    keys = [GroupKey("orders", f"g{number}") for number in range(1_000)]
    own_server.freeze()
    begun = time.monotonic()
    for answers in (store.due_many(keys, lease_ttl_ms=1, grace=False), store.standings(keys)):
        assert [type(answer) for answer in answers] == [StoreUnavailable] * len(keys)
    assert time.monotonic() - begun < 2 * (TIMEOUT_MS / 1000 + SLACK_S)
    own_server.thaw()
    store.close()


def test_a_restarted_server_is_another_store(own_server: RedisServer) -> None:
    store = store_at(own_server.port)
    before = store.identity()
    assert store.load(KEY).identity == before == store.identity()
    own_server.stop()
    own_server.start()
    assert store.identity() != before
    store.close()


def test_f5_a_silent_server_holds_no_call_longer_than_its_bound(own_server: RedisServer) -> None:
    store = store_at(own_server.port)
    commit = commit_on(store.load(KEY))
    own_server.freeze()
    begun = time.monotonic()
    error = ends_in(lambda: store.commit(commit), within_s=TIMEOUT_MS / 1000 + SLACK_S)
    assert isinstance(error, OutcomeUnknown)
    for name in ("load", "touch", "ping"):
        ends_in(lambda name=name: STEPS[name](store), within_s=TIMEOUT_MS / 1000 + SLACK_S)  # type: ignore[misc]  # bound at once
    with ThreadPoolExecutor(20) as pool:  # five times as many as there are connections
        errors = list(pool.map(lambda _: ends_in(lambda: store.load(KEY), within_s=TIMEOUT_MS / 1000 + SLACK_S), range(20)))
    assert len(errors) == 20
    assert time.monotonic() - begun < 6 * (TIMEOUT_MS / 1000 + SLACK_S)
    own_server.thaw()
    assert store.load(KEY).head.revision <= 1, "the commit that was sent may have taken place, once"
    answer = store.commit(commit)
    assert isinstance(answer, Committed)
    assert store.load(KEY).head.revision == 1
    clients = own_server.call("CLIENT", "LIST")
    assert isinstance(clients, bytes)
    assert len(clients.splitlines()) <= 4 + 1
    store.close()


def test_f5_a_host_that_takes_no_connection_costs_one_bound() -> None:
    """A full backlog: connecting itself hangs."""
    with socket.create_server(("127.0.0.1", 0), backlog=0) as listener:
        port = listener.getsockname()[1]
        fillers = [socket.socket() for _ in range(4)]
        for filler in fillers:
            filler.setblocking(False)
            filler.connect_ex(("127.0.0.1", port))
        store = store_at(port)
        ends_in(lambda: store.load(KEY), within_s=TIMEOUT_MS / 1000 + SLACK_S)
        for filler in fillers:
            filler.close()


def test_f5_a_blackholed_line_heals_without_help(tap: Tap, tapped: RedisStore, direct: RedisStore) -> None:
    committed(tapped)
    tap.blackhole()
    for _ in range(2):
        ends_in(lambda: tapped.load(KEY), within_s=TIMEOUT_MS / 1000 + SLACK_S)
    tap.pass_through()
    assert tapped.load(KEY).head.revision == 1
    tap.cut()
    ends_in(lambda: tapped.load(KEY), within_s=SLACK_S)
    tap.pass_through()
    assert tapped.load(KEY).head == direct.load(KEY).head


def test_f5_a_name_that_does_not_resolve_is_an_outage() -> None:
    store = RedisStore(RedisCommands(RedisSettings(host="no-such-host.invalid", timeout_ms=TIMEOUT_MS)))
    with pytest.raises(StoreUnavailable, match="cannot connect"):
        store.load(KEY)


def test_a_loading_or_read_only_server_is_unavailable(own_server: RedisServer) -> None:
    """A replica of a server that is not there: it reads, refuses to write, and says so."""
    store = store_at(own_server.port, timeout_ms=PATIENT_MS)
    commit = commit_on(store.load(KEY))
    own_server.call("REPLICAOF", "127.0.0.1", 1)
    error = ends_in(lambda: store.commit(commit), within_s=SLACK_S)
    assert "READONLY" in str(error)
    own_server.call("REPLICAOF", "NO", "ONE")
    own_server.call("CONFIG", "SET", "min-replicas-to-write", 1)
    error = ends_in(lambda: store.commit(commit_on(store.load(KEY))), within_s=SLACK_S)
    assert "NOREPLICAS" in str(error)
    own_server.call("CONFIG", "SET", "min-replicas-to-write", 0)
    assert committed(store).head.revision == 1
    store.close()


# -- answers that are lost


@pytest.mark.parametrize("then_cut", [False, True])
def test_d1_a_commit_whose_answer_was_lost_is_found_to_have_taken_place(
    tap: Tap, tapped: RedisStore, direct: RedisStore, then_cut: bool
) -> None:
    commit = commit_on(tapped.load(KEY), commit_id="the-lost-one", leases=LeaseChanges(ttl_ms=60_000, renew=("m",)))
    tap.drop_replies(containing=b"the-lost-one", times=1, then_cut=then_cut)
    begun = time.monotonic()
    answer = tapped.commit(commit)
    assert time.monotonic() - begun < TIMEOUT_MS / 1000 + SLACK_S
    assert isinstance(answer, Committed)
    assert (answer.already, answer.head, tap.dropped) == (True, commit.head_after, 1)
    assert direct.load(KEY).head == commit.head_after
    assert len(direct.tail(KEY, after=(0, 0), limit=9)) == 1


def test_d1_the_first_commit_counts_though_another_came_before_it_was_sent_again(
    tap: Tap, tapped: RedisStore, direct: RedisStore
) -> None:
    commit = commit_on(tapped.load(KEY), commit_id="the-lost-one")
    tap.drop_replies(containing=b"the-lost-one", times=1)

    def follow() -> Committed:
        while direct.load(KEY).head.revision == 0:
            time.sleep(0.005)
        return committed(direct)

    with ThreadPoolExecutor(1) as pool:
        other = pool.submit(follow)
        answer = tapped.commit(commit)
        assert isinstance(answer, Committed)
        assert answer.already
        assert direct.load(KEY).head == other.result().head
    assert [entry.revision for entry in direct.tail(KEY, after=(0, 0), limit=9)] == [1, 2]


def test_d1_an_answer_lost_twice_leaves_the_outcome_unknown_until_it_is_asked_again(
    tap: Tap, tapped: RedisStore, direct: RedisStore
) -> None:
    commit = commit_on(tapped.load(KEY), commit_id="the-lost-one")
    tap.drop_replies(containing=b"the-lost-one", times=2)
    error = ends_in(lambda: tapped.commit(commit), within_s=TIMEOUT_MS / 1000 + SLACK_S)
    assert isinstance(error, OutcomeUnknown)
    assert tap.dropped == 2
    assert direct.load(KEY).head.revision == 1
    tap.pass_through()
    answer = tapped.commit(commit)
    assert isinstance(answer, Committed)
    assert answer.already


def test_d1_a_pause_longer_than_the_bound_repeats_nothing(own_server: RedisServer) -> None:
    store = store_at(own_server.port)
    commit = commit_on(store.load(KEY))
    own_server.call("CLIENT", "PAUSE", int(TIMEOUT_MS * 0.7), "ALL")
    answer = store.commit(commit)
    assert isinstance(answer, Committed)
    assert len(store.tail(KEY, after=(0, 0), limit=9)) == 1
    assert store.load(KEY).head == answer.head
    store.close()


def test_an_append_whose_answer_was_lost_is_found_to_have_taken_place(tap: Tap, tapped: RedisStore, direct: RedisStore) -> None:
    head = committed(tapped).head
    entries = appended(head, request_entry())
    tap.drop_replies(containing=entries[0].chain.encode(), times=1)
    after = tapped.append(KEY, expected=head, entries=entries)
    assert after is not None
    assert direct.load(KEY).head == after
    assert [entry.entry_id for entry in direct.tail(KEY, after=(0, 0), limit=9)] == ["1-0", "1-1"]


def test_no_library_sends_a_command_a_second_time(server: RedisServer, tap: Tap, tapped: RedisStore) -> None:
    """What is not recognised as a repeat is sent once, whether its answer is lost in silence or by a reset."""
    requests = tapped._commands.keys.requests
    for number, then_cut in enumerate((False, True), 1):
        tapped.last_tick()
        tap.drop_replies(containing=b"the audit entry", then_cut=then_cut)
        ends_in(lambda: tapped.append_request(b"the audit entry"), within_s=TIMEOUT_MS / 1000 + SLACK_S)
        tap.pass_through()
        assert server.call("XLEN", requests) == number


# -- replies and their askers


def test_f6_replies_never_cross_however_many_come_too_late(server: RedisServer, tap: Tap, direct: RedisStore) -> None:
    """Each thread asks for its own member's lease; lines stall and are given up again and again."""
    committed(direct, leases=LeaseChanges(ttl_ms=1, renew=MEMBERS))
    for place, member in enumerate(MEMBERS):
        server.call("ZADD", direct._commands.keys.aggregate(KEY).leases, 1_000_000 + place, member)
    store = store_at(tap.port, timeout_ms=60, max_connections=6)
    done = Signal()

    def stall() -> None:
        chance = random.Random(6)
        while not done.is_set():
            tap.delay(chance.choice((0.0, 0.0, 0.05, 0.07)))
            time.sleep(0.02)

    def ask(place: int) -> tuple[int, int, int]:
        right = wrong = late = 0
        end = time.monotonic() + 3
        while time.monotonic() < end:
            try:
                deadline, _ = store.lease(KEY, MEMBERS[place])
            except StoreUnavailable:
                late += 1
            else:
                right, wrong = right + (deadline == 1_000_000 + place), wrong + (deadline != 1_000_000 + place)
        return right, wrong, late

    staller = Thread(target=stall)
    staller.start()
    try:
        with ThreadPoolExecutor(len(MEMBERS)) as pool:
            right, wrong, late = (sum(column) for column in zip(*pool.map(ask, range(len(MEMBERS))), strict=True))
    finally:
        done.set()
        staller.join()
    assert wrong == 0
    assert right > 100
    assert late > 10
    store.close()


def test_f6_a_connection_with_a_reply_that_nobody_asked_for_is_not_used_again(server: RedisServer) -> None:
    links = Links(server.settings())
    with links.lend(deadline=deadline_after(1000)) as link:
        link.exchange(pack("PING"), replies=1, deadline=deadline_after(1000))
        link._socket.sendall(pack("ECHO", "left behind"))
        first = link
    time.sleep(0.05)
    with links.lend(deadline=deadline_after(1000)) as link:
        assert link is not first
        assert link.exchange(pack("ECHO", "mine"), replies=1, deadline=deadline_after(1000)) == [b"mine"]
    assert not first.is_open
    links.drop()


def test_a_failed_exchange_closes_its_connection(server: RedisServer, tap: Tap) -> None:
    link = Link(server.settings(port=tap.port), deadline=deadline_after(1000))
    tap.blackhole()
    with pytest.raises(Unreachable) as caught:
        link.exchange(pack("PING"), replies=1, deadline=deadline_after(50))
    assert caught.value.sent
    assert not link.is_open
    assert not link.is_quiet()


@pytest.mark.parametrize("left_ms", [0, 1, 4])
def test_f5_a_new_connection_with_hardly_any_time_left_ends_in_time_too(server: RedisServer, tap: Tap, left_ms: int) -> None:
    """A socket has no bound to begin with: whatever is left of the call's, however little, must be set."""
    link = Link(server.settings(port=tap.port), deadline=deadline_after(5000))
    tap.blackhole()
    with pytest.raises(Unreachable, match="no answer in time"):
        link.exchange(pack("PING"), replies=1, deadline=deadline_after(left_ms))


def test_a_connection_is_used_again_after_an_error_reply(server: RedisServer) -> None:
    store = RedisStore(server.commands())
    server.call("SET", store._commands.keys.index, "a string")
    ids = set()
    for _ in range(5):
        with pytest.raises(StoreUnavailable):
            store.streams()
        ids.add(store._commands._template.call("", "CLIENT", "ID"))
    assert len(ids) == 1
    store.close()


@pytest.mark.parametrize("parent_is_busy", [True, False])
def test_f6_a_child_process_uses_no_connection_of_its_parent(direct: RedisStore, parent_is_busy: bool) -> None:
    committed(direct, leases=LeaseChanges(ttl_ms=60_000, renew=MEMBERS))
    mine = direct._commands._template.call("", "CLIENT", "ID")
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = b"failed"
        try:
            theirs = direct._commands._template.call("", "CLIENT", "ID")
            sound = all(direct.lease(KEY, "nobody")[0] is None for _ in range(300))
            outcome = b"fine" if sound and theirs != mine else b"crossed"
        finally:
            os.write(writer, outcome)
            os._exit(0)
    for _ in range(300 if parent_is_busy else 0):
        assert direct.lease(KEY, MEMBERS[0])[0] is not None
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 99) == b"fine"
    assert direct._commands._template.call("", "CLIENT", "ID") == mine, "the child closed nothing of its parent's"
    os.close(reader)
    os.close(writer)


def test_f5_one_failure_drops_every_idle_connection(server: RedisServer, tap: Tap) -> None:
    """Behind a dead line each of them would cost its next user the whole bound."""
    links = Links(server.settings(port=tap.port))
    deadline = deadline_after(2000)
    with links.lend(deadline=deadline) as one, links.lend(deadline=deadline) as two, links.lend(deadline=deadline) as three:
        opened = (one, two, three)
    tap.blackhole()
    with pytest.raises(Unreachable), links.lend(deadline=deadline) as link:
        link.exchange(pack("PING"), replies=1, deadline=deadline_after(50))
    assert not any(link.is_open for link in opened)


# -- health, settings


def test_a_crowd_of_health_checks_asks_redis_once_a_second(server: RedisServer, direct: RedisStore) -> None:
    direct.load(KEY)
    server.call("CONFIG", "RESETSTAT")
    begun = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        clocks = list(pool.map(lambda _: direct.ping(), range(100)))
    stats = server.call("INFO", "commandstats")
    assert isinstance(stats, bytes)
    if time.monotonic() - begun < 1:
        assert b"cmdstat_time:calls=1," in stats
    assert abs(max(clocks) - time.time() * 1000) < 5_000


def test_too_many_callers_wait_for_a_connection(server: RedisServer) -> None:
    store = RedisStore(RedisCommands(server.settings(max_connections=2)))
    with ThreadPoolExecutor(16) as pool:
        heads = list(pool.map(lambda _: store.load(KEY).head.revision, range(400)))
    assert heads == [0] * 400
    store.close()


def test_the_password_opens_the_server_and_is_shown_nowhere(own_server: RedisServer) -> None:
    secret = "p%40ss-w0rd"
    own_server.call("CONFIG", "SET", "requirepass", secret)
    right = RedisStore(RedisCommands(RedisSettings(host="127.0.0.1", port=own_server.port, password=secret, db=3)))
    assert right.load(KEY).head.revision == 0
    right.index_add(KEY.stream)
    right.close()
    for password in (None, f"not {secret}"):
        settings = RedisSettings(host="127.0.0.1", port=own_server.port, password=password)
        assert secret not in repr(settings)
        with pytest.raises(StoreUnavailable, match=r"NOAUTH|invalid username-password") as caught:
            RedisStore(RedisCommands(settings)).load(KEY)
        assert secret not in str(caught.value)
