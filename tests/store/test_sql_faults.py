"""The way to the database breaks, or others are in it: every call ends in time, nothing is half-done, nothing is done twice."""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, replace
from typing import Any, Self

import pytest
from sqlalchemy import event, text

from coord.names import GroupKey, StreamKey
from coord.store.base import (
    Committed,
    Conflict,
    Head,
    LeaseChanges,
    LeaseGuards,
    OutcomeUnknown,
    StoreError,
    StoreUnavailable,
    Touch,
)
from coord.store.sql import aggregates
from coord.store.sql.choice import dialect_of
from coord.store.sql.settings import SqlSettings
from coord.store.sql.store import SqlStore
from tests.servers import wait_until
from tests.store.author import KEY, appended, commit_on, committed, due, fact, request_entry
from tests.store.sql_servers import PASSWORD, MariadbServer, PostgresqlServer, SqlServer
from tests.tap import Tap

TIMEOUT_MS = 1_200
BOUND_S = 12.0
"""What no call may exceed on a machine that others load too; a call without a bound hangs for minutes."""
LONG_MS = 60_000


@dataclass
class Place:
    """An empty database on a server, and stores on it."""

    server: SqlServer
    database: str

    def store(self, **changes: object) -> SqlStore:
        return self.server.store(self.database, **{"timeout_ms": TIMEOUT_MS, **changes})  # type: ignore[arg-type]  # any setting

    def execute(self, statement: str) -> list[tuple[object, ...]]:
        return self.server.execute(self.database, statement)

    @property
    def end(self) -> bytes:
        """How COMMIT looks on the line; PostgreSQL's BEGIN says READ COMMITTED."""
        return b"COMMIT\0" if self.is_postgresql else b"COMMIT"

    @property
    def is_postgresql(self) -> bool:
        return isinstance(self.server, PostgresqlServer)


@pytest.fixture(params=["postgresql", "mariadb"])
def place(request: pytest.FixtureRequest) -> Place:
    return place_on(request.getfixturevalue(f"shared_{request.param}"))


@pytest.fixture(params=[PostgresqlServer, MariadbServer], ids=["postgresql", "mariadb"])
def own(request: pytest.FixtureRequest) -> Iterator[Place]:
    """A server that the test may kill and freeze."""
    if not request.param.is_there():
        pytest.skip(f"{request.param.folder} is not there: ops/setup/{request.param.folder}.sh")
    server = request.param(durable=True)
    yield place_on(server)
    server.close()


def place_on(server: SqlServer) -> Place:
    """Give a new database with its tables: making them may take a busy disk longer than a call of these tests."""
    place = Place(server, server.new_database())
    with closing(place.store(timeout_ms=60_000)) as store:
        store.ping()
    return place


@pytest.fixture
def direct(place: Place) -> Iterator[SqlStore]:
    """A store without a tap in between, to look at what really is there."""
    store = place.store(timeout_ms=10_000)
    yield store
    store.close()


@pytest.fixture
def tap(place: Place) -> Iterator[Tap]:
    with Tap(place.server.port) as tap:
        yield tap


@pytest.fixture
def tapped(place: Place, tap: Tap, direct: SqlStore) -> Iterator[SqlStore]:
    store = place.store(port=tap.port, max_connections=4)
    store.ping()
    yield store
    store.close()


STEPS: dict[str, Callable[[SqlStore], object]] = {
    "load": lambda store: store.load(KEY),
    "tail": lambda store: store.tail(KEY, after=(0, 0), limit=1),
    "latest": lambda store: store.latest(KEY, before=None, limit=1),
    "touch": lambda store: store.touch(Touch(key=KEY, revision=1, commit_id="", identity="", renew=("m",), ttl_ms=1)),
    "lease": lambda store: store.lease(KEY, "m"),
    "soft": lambda store: store.soft(KEY),
    "due": lambda store: due(store, KEY, lease_ttl_ms=1, grace=False),
    "grant": lambda store: store.grant_missing_leases(KEY, ["m"], ttl_ms=1),
    "streams": lambda store: store.streams(),
    "index_add": lambda store: store.index_add(KEY.stream),
    "index_remove": lambda store: store.index_remove(KEY.stream),
    "take_turn": lambda store: store.take_turn("one", takeover_ms=1),
    "announce": lambda store: store.announce("one", reads=1, within_ms=1),
    "last_tick": lambda store: store.last_tick(),
    "append_request": lambda store: store.append_request(b"{}"),
    "requests": lambda store: store.requests(before=None, limit=1),
    "identity": lambda store: store.identity(),
    "ping": lambda store: store.ping(),
}


def ends(step: Callable[[], object]) -> StoreError:
    """Run a step that must fail, and in time; what it says gives nothing away."""
    begun = time.monotonic()
    with pytest.raises(StoreUnavailable) as caught:
        step()
    assert time.monotonic() - begun < BOUND_S
    assert PASSWORD not in repr(caught.value)
    return caught.value


# -- outages


def test_f5_a_killed_server_is_told_and_the_first_call_after_it_works(own: Place) -> None:
    store = own.store()
    commit = commit_on(store.load(KEY))
    before = store.identity()
    own.server.kill()
    for step in STEPS.values():
        ends(lambda step=step: step(store))  # type: ignore[misc]  # mypy does not see through the default
    error = ends(lambda: store.commit(commit))
    assert not isinstance(error, OutcomeUnknown), "nothing was sent: nothing is unknown"
    own.server.start()
    assert store.load(KEY).head.revision == 0
    assert store.identity() == before, "what it acknowledged is on disk: it is the same store"
    assert isinstance(store.commit(commit), Committed)
    store.close()


def test_f5_a_silent_server_holds_no_call(own: Place) -> None:
    store = own.store(max_connections=2)
    commit = commit_on(store.load(KEY))
    own.server.freeze()
    error = ends(lambda: store.commit(commit))
    assert not isinstance(error, OutcomeUnknown), "no COMMIT was sent"
    ends(lambda: store.load(KEY))
    with ThreadPoolExecutor(8) as pool:  # four times as many as there are connections
        errors = list(pool.map(lambda _: ends(lambda: store.load(KEY)), range(8)))
    assert len(errors) == 8
    own.server.thaw()
    wait_until(lambda: _works(store), timeout_s=60, what="the store works again")
    assert store.load(KEY).head.revision == 0
    answer = store.commit(commit)
    assert isinstance(answer, Committed)
    assert not answer.already
    store.close()


def _works(store: SqlStore) -> bool:
    try:
        store.ping()
    except StoreUnavailable:
        return False
    return True


def test_f5_a_blackholed_line_heals_without_help(tap: Tap, tapped: SqlStore, direct: SqlStore) -> None:
    committed(tapped)
    tap.blackhole()
    for _ in range(2):
        ends(lambda: tapped.load(KEY))
    tap.pass_through()
    assert tapped.load(KEY).head.revision == 1
    tap.cut()
    ends(lambda: tapped.load(KEY))
    tap.pass_through()
    assert tapped.load(KEY).head == direct.load(KEY).head


def test_f5_connections_that_died_in_the_pool_cost_no_call(tap: Tap, tapped: SqlStore) -> None:
    """As after a restart of the database, or a firewall that forgot them."""
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda _: tapped.ping(), range(16)))
    tap.cut()
    tap.pass_through()
    assert committed(tapped).head.revision == 1


def test_f5_a_server_that_is_not_there(own: Place) -> None:
    """A name that does not resolve, a port that nobody listens on, a database and a password that are wrong."""
    settings = own.server.settings(own.database, timeout_ms=TIMEOUT_MS)
    wrong: list[SqlSettings] = [
        replace(settings, hosts=(("no-such-host.invalid", None),)),
        replace(settings, hosts=(("127.0.0.1", 1),)),
        replace(settings, database="nowhere"),
        replace(settings, password=f"not {PASSWORD}"),
    ]
    for each in wrong:
        assert PASSWORD not in repr(each)
        store = SqlStore(dialect_of(each))
        ends(lambda store=store: store.load(KEY))  # type: ignore[misc]  # mypy does not see through the default
        store.close()


def test_k8_the_password_is_in_no_log(own: Place, caplog: pytest.LogCaptureFixture) -> None:
    """Not at debug level, not when it works, not when it fails."""
    caplog.set_level(logging.DEBUG)
    logging.getLogger("sqlalchemy").setLevel(logging.DEBUG)
    try:
        store = own.store()
        committed(store)
        own.server.kill()
        ends(lambda: store.load(KEY))
        store.close()
    finally:
        logging.getLogger("sqlalchemy").setLevel(logging.NOTSET)
    assert caplog.records
    assert PASSWORD not in caplog.text


# -- answers that are lost


@pytest.mark.parametrize("then_cut", [False, True])
def test_d1_a_commit_whose_answer_was_lost_is_found_to_have_taken_place(
    place: Place, tap: Tap, tapped: SqlStore, direct: SqlStore, then_cut: bool
) -> None:
    commit = commit_on(tapped.load(KEY), leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
    tap.drop_replies(containing=place.end, times=1, then_cut=then_cut)
    answer = tapped.commit(commit)
    assert isinstance(answer, Committed)
    assert (answer.already, answer.head, tap.dropped) == (True, commit.head_after, 1)
    assert direct.load(KEY).head == commit.head_after
    assert len(direct.tail(KEY, after=(0, 0), limit=9)) == 1


def test_d1_a_commit_that_broke_off_before_its_end_is_made_again(tap: Tap, tapped: SqlStore, direct: SqlStore) -> None:
    commit = commit_on(tapped.load(KEY))
    tap.drop_replies(containing=b"INSERT INTO coordinator_events", times=1, then_cut=True)
    answer = tapped.commit(commit)
    assert isinstance(answer, Committed)
    assert (answer.already, tap.dropped) == (False, 1)
    assert len(direct.tail(KEY, after=(0, 0), limit=9)) == 1


def test_d1_an_answer_lost_twice_leaves_the_outcome_unknown_until_it_is_asked_again(
    place: Place, tap: Tap, tapped: SqlStore, direct: SqlStore
) -> None:
    commit = commit_on(tapped.load(KEY))
    tap.drop_replies(containing=place.end, times=1)
    # The second attempt finds the commit, and the answer that says so is lost too.
    told = aggregates.overtaken

    def lose(*arguments: Any) -> object:
        tap.cut()
        return told(*arguments)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(aggregates, "overtaken", lose)
        error = ends(lambda: tapped.commit(commit))
    assert isinstance(error, OutcomeUnknown)
    tap.pass_through()
    assert direct.load(KEY).head.revision == 1
    answer = tapped.commit(commit)
    assert isinstance(answer, Committed)
    assert answer.already


def test_an_append_whose_answer_was_lost_is_found_to_have_taken_place(
    place: Place, tap: Tap, tapped: SqlStore, direct: SqlStore
) -> None:
    head = committed(direct).head
    entries = appended(head, request_entry())
    tap.drop_replies(containing=place.end, times=1, then_cut=True)
    after = tapped.append(KEY, expected=head, entries=entries)
    assert after is not None
    assert tap.dropped == 1
    assert direct.load(KEY).head == after
    assert [entry.entry_id for entry in direct.tail(KEY, after=(0, 0), limit=9)] == ["1-0", "1-1"]


def test_what_would_not_be_recognised_is_not_sent_twice(place: Place, tap: Tap, tapped: SqlStore) -> None:
    tap.drop_replies(containing=place.end, times=1, then_cut=True)
    error = ends(lambda: tapped.append_request(b"the audit entry"))
    assert isinstance(error, OutcomeUnknown)
    assert place.execute("SELECT count(*) FROM coordinator_requests") == [(1,)]


# -- others in the way


def test_a_row_that_another_holds_is_waited_for_and_then_told(place: Place, direct: SqlStore) -> None:
    head = committed(direct).head
    store = place.store()
    commit = commit_on(store.load(KEY))
    with held_by_another(direct):
        error = ends(lambda: store.commit(commit))
        assert not isinstance(error, OutcomeUnknown)
        ends(lambda: store.touch(touch_of(store, head)))
        assert store.load(KEY).head == head, "reading waits for nobody"
    assert isinstance(store.commit(commit), Committed)
    store.close()


class held_by_another:  # noqa: N801  read as a phrase
    """Holds the row of the group as an open commit does, and has raised its revision when the block ends by `commit`."""

    def __init__(self, store: SqlStore) -> None:
        self._engine = store._dialect.engine()
        self._begin = store._dialect.begin

    def __enter__(self) -> Self:
        self.connection = self._engine.connect()
        self.connection.execute(text(self._begin))
        self.connection.execute(text("UPDATE coordinator_metadata SET store_revision = store_revision + 1, commit_id = 'other'"))
        return self

    def commit(self) -> None:
        self.connection.execute(text("COMMIT"))

    def __exit__(self, *_: object) -> None:
        self.connection.execute(text("ROLLBACK"))
        self.connection.close()
        self._engine.dispose()


def touch_of(store: SqlStore, head: Head, **changes: Any) -> Touch:
    plain = Touch(
        key=KEY, revision=head.revision, commit_id=head.commit_id, identity=store.identity(), renew=("m",), ttl_ms=LONG_MS
    )
    return replace(plain, **changes)


def test_a_touch_that_meets_a_commit_renews_nothing(place: Place, direct: SqlStore) -> None:
    """The commit began first and ends first: what the touch was decided on is no more, though it could not see that."""
    head = committed(direct, leases=LeaseChanges(ttl_ms=1, renew=("m",))).head
    touch = touch_of(direct, head, reports={"m": b"report"})
    with held_by_another(direct) as other, ThreadPoolExecutor(1) as pool:
        touching = pool.submit(lambda: direct.touch(touch))
        time.sleep(0.3)  # so that it waits; if it came later, the outcome is the same
        other.commit()
        touched = touching.result()
    assert (touched.current, touched.revision) == (False, 2)
    soft = direct.soft(KEY)
    assert soft.reports == {}
    assert soft.leases["m"] < soft.now


def test_an_expiry_that_meets_a_touch_waits_for_it_and_loses(place: Place, direct: SqlStore) -> None:
    """The touch is in the middle of its renewal: what the expiry rests on is judged once that has ended."""
    committed(direct, leases=LeaseChanges(ttl_ms=1, renew=("m",)))
    expiry = commit_on(direct.load(KEY), guards=LeaseGuards(lapsed=("m",)), leases=LeaseChanges(remove=("m",)))
    engine = direct._dialect.engine()
    with engine.connect() as connection, ThreadPoolExecutor(1) as pool:
        connection.execute(text(direct._dialect.begin))
        hold = "FOR SHARE" if place.is_postgresql else "LOCK IN SHARE MODE"
        connection.execute(text(f"SELECT * FROM coordinator_metadata {hold}"))
        connection.execute(text("UPDATE coordinator_leases SET deadline_ms = deadline_ms + 100000"))
        expiring = pool.submit(lambda: direct.commit(expiry))
        time.sleep(0.3)  # so that it waits; if it came later, the outcome is the same
        connection.execute(text("COMMIT"))
        outcome = expiring.result()
    engine.dispose()
    assert isinstance(outcome, Conflict)
    assert outcome.what == "lease"
    assert list(direct.soft(KEY).leases) == ["m"]


def test_n1_a_deadlock_is_retried_and_at_last_a_conflict(place: Place, direct: SqlStore) -> None:
    """Whatever meets serialization failures without end: a commit is decided again, all else is told."""
    head = committed(direct).head
    commit = commit_on(direct.load(KEY))
    if place.is_postgresql:
        raising = "RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'"
        place.execute(f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {raising}; END $$")
        for table in ("events", "leases"):
            place.execute(f"CREATE TRIGGER fail BEFORE INSERT ON coordinator_{table} FOR EACH ROW EXECUTE FUNCTION fail()")
    else:
        raising = "SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'deadlock found'"
        for table in ("events", "leases"):
            place.execute(f"CREATE TRIGGER fail_{table} BEFORE INSERT ON coordinator_{table} FOR EACH ROW {raising}")
    answer = direct.commit(commit)
    assert isinstance(answer, Conflict)
    assert (answer.what, answer.revision) == ("head", 1)
    ends(lambda: direct.touch(touch_of(direct, head)))
    ends(lambda: direct.grant_missing_leases(KEY, ["m"], ttl_ms=1))
    assert direct.load(KEY).head == head


def test_n1_threads_that_meet_deadlocks_now_and_then_lose_no_update(place: Place, direct: SqlStore) -> None:
    """Equal content each time: a database that counts changed rows only would take a save for a conflict."""
    direct.ping()
    if place.is_postgresql:
        raising = "IF random() < 0.2 THEN RAISE EXCEPTION 'could not serialize' USING ERRCODE = '40001'; END IF; RETURN NEW"
        place.execute(f"CREATE FUNCTION fail() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {raising}; END $$")
        place.execute("CREATE TRIGGER fail BEFORE INSERT ON coordinator_events FOR EACH ROW EXECUTE FUNCTION fail()")
    else:
        raising = "IF rand() < 0.2 THEN SIGNAL SQLSTATE '40001' SET MYSQL_ERRNO = 1213, MESSAGE_TEXT = 'deadlock'; END IF"
        place.execute(f"CREATE TRIGGER fail BEFORE INSERT ON coordinator_events FOR EACH ROW BEGIN {raising}; END")
    threads, each = 6, 10

    def write(number: int) -> int:
        wins = 0
        while wins < each:
            wins += isinstance(direct.commit(commit_on(direct.load(KEY), (fact(f"{number}-{wins}"),))), Committed)
        return wins

    with ThreadPoolExecutor(threads) as pool:
        assert sum(pool.map(write, range(threads))) == threads * each
    assert direct.load(KEY).head.revision == threads * each
    assert len(direct.tail(KEY, after=(0, 0), limit=999)) == threads * each


def test_n1_a_server_whose_default_is_serializable(place: Place) -> None:
    """The session's own level counts, whatever the server's default is."""
    if place.is_postgresql:
        place.execute(f"ALTER DATABASE {place.database} SET default_transaction_isolation = 'serializable'")
    store = place.store(timeout_ms=10_000)
    level = "SHOW transaction_isolation" if place.is_postgresql else "SELECT @@tx_isolation"
    told = store._connections.read(lambda connection: connection.execute(text(level)).scalar_one())
    assert told.lower().replace("-", " ") == "read committed"
    with ThreadPoolExecutor(4) as pool:
        answers = list(
            pool.map(lambda n: store.commit(commit_on(store.load(StreamKey(f"s{n}")), key=StreamKey(f"s{n}"))), range(8))
        )
    assert all(isinstance(answer, Committed) for answer in answers)
    store.close()


# -- processes


def test_f6_a_child_process_uses_no_connection_of_its_parent(place: Place, direct: SqlStore) -> None:
    committed(direct, leases=LeaseChanges(ttl_ms=LONG_MS, renew=("m",)))
    asked = "SELECT pg_backend_pid()" if place.is_postgresql else "SELECT CONNECTION_ID()"

    def connection_id() -> int:
        number: int = direct._connections.read(lambda connection: connection.execute(text(asked)).scalar_one())
        return number

    mine = connection_id()
    reader, writer = os.pipe()
    child = os.fork()
    if child == 0:
        outcome = b"failed"
        try:
            direct.after_fork()
            theirs = connection_id()
            sound = all(direct.lease(KEY, "nobody")[0] is None for _ in range(100))
            outcome = b"fine" if sound and theirs != mine else b"crossed"
        finally:
            os.write(writer, outcome)
            os._exit(0)
    for _ in range(100):
        assert direct.lease(KEY, "m")[0] is not None
    assert os.waitpid(child, 0)[1] == 0
    assert os.read(reader, 99) == b"fine"
    assert connection_id() == mine, "the child closed nothing of its parent's"
    os.close(reader)
    os.close(writer)


def test_too_many_callers_wait_for_a_connection(place: Place) -> None:
    store = place.store(max_connections=2, timeout_ms=20_000)
    with ThreadPoolExecutor(16) as pool:
        heads = list(pool.map(lambda _: store.load(KEY).head.revision, range(200)))
    assert heads == [0] * 200
    asked = (
        f"SELECT count(*) FROM pg_stat_activity WHERE datname = '{place.database}' AND application_name = 'coord'"
        if place.is_postgresql
        else f"SELECT count(*) FROM information_schema.processlist WHERE db = '{place.database}' AND user = 'coord'"
    )
    ((connections,),) = place.execute(asked)
    assert isinstance(connections, int)
    assert connections <= 2
    store.close()


# -- what is sent


def test_a_touch_is_one_round_trip(place: Place, direct: SqlStore) -> None:
    """One statement on PostgreSQL; on MariaDB three, in one packet."""
    head = committed(direct).head
    touch = touch_of(direct, head)
    with Tap(place.server.port) as tap:
        store = place.store(port=tap.port, timeout_ms=20_000, max_connections=2)
        assert store.touch(touch).current
        sent: list[object] = []
        engine = store._connections._engine
        event.listen(engine, "before_cursor_execute", lambda *arguments: sent.append(arguments[2]))
        begun = time.monotonic()
        tap.delay(0.25)  # each answer
        assert store.touch(touch).current
        assert time.monotonic() - begun >= 0.25, "it was asked"
        assert len(sent) == (1 if place.is_postgresql else 0), sent  # the driver itself is asked on MariaDB
        store.close()


def test_the_audit_entries_of_no_aggregate_are_bounded(place: Place, direct: SqlStore, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("coord.store.sql.store.REQUESTS_MAX", 20)
    monkeypatch.setattr("coord.store.sql.store.REQUESTS_TRIM_EVERY", 5)
    for number in range(60):
        direct.append_request(f'{{"number":{number}}}'.encode())
    kept = [entry for (entry,) in place.execute("SELECT entry FROM coordinator_requests ORDER BY id")]
    assert 20 <= len(kept) <= 25
    assert kept[-1] == '{"number":59}'


def test_names_of_any_length_script_and_case(place: Place, direct: SqlStore) -> None:
    """Compared byte for byte, and as long as a name may be: 255 characters of four bytes each, and no compression helps."""
    long = "".join(chr(0x10000 + (number * 7919) % 0xFFFF) for number in range(255))
    keys = [GroupKey(long, long)]
    keys += [GroupKey(KEY.stream_prefix, name) for name in ("Straße", "strasse", "STRASSE", "ﬁ", "fi", "é", "e\u0301", "a", "á")]
    for number, key in enumerate(keys):
        aggregate = f'{{"number":{number}}}'.encode()
        leases = LeaseChanges(ttl_ms=LONG_MS, renew=(long[::-1], "member", "Member"))
        committed(direct, key=key, aggregate=aggregate, leases=leases)
        assert direct.touch(replace(touch_of(direct, direct.load(key).head), key=key, renew=(long,))).current
    for number, key in enumerate(keys):
        assert direct.load(key).aggregate == f'{{"number":{number}}}'.encode()
        assert set(direct.soft(key).leases) == {long, long[::-1], "member", "Member"}


def test_a_large_group_in_one_commit(direct: SqlStore) -> None:
    """More members than are named in a statement, and an aggregate of a megabyte."""
    members = tuple(f"member-{number:05}" for number in range(3_000))
    aggregate = b'{"text":"' + b"x" * 1_000_000 + b'"}'
    committed(direct, aggregate=aggregate, leases=LeaseChanges(ttl_ms=LONG_MS, renew=members))
    read = direct.load(KEY)
    assert read.aggregate == aggregate
    deadlines = direct.soft(KEY).leases
    assert set(deadlines) == set(members)
    unchanged = commit_on(read, guards=LeaseGuards(unchanged=dict(deadlines)), leases=LeaseChanges(remove=members[1:]))
    assert isinstance(direct.commit(unchanged), Committed)
    assert set(direct.soft(KEY).leases) == {members[0]}


def test_a_thread_that_dies_in_a_call_leaves_no_transaction_open(place: Place, direct: SqlStore) -> None:
    """What is raised in the middle, even by the interpreter, undoes what was begun."""
    committed(direct)

    class Died(BaseException):
        pass

    def die(connection: Any) -> None:
        connection.execute(text("UPDATE coordinator_metadata SET store_revision = 99"))
        raise Died

    for _ in range(3):
        with pytest.raises(Died):
            direct._connections.write(die)
    assert committed(direct).head.revision == 2
    assert threading.active_count() < 50
