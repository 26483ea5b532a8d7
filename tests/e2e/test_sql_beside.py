"""Two real workers on one SQL store: each request is sent to the worker that is meant, the other one is held meanwhile."""

from __future__ import annotations

import contextlib
import json
import sqlite3
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import pytest

from tests.http.served import BASE, Answer, Served, serving
from tests.servers import wait_until
from tests.store.sql_servers import USER, PostgresqlServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
LIMIT = 6
SCALE = {"targetShardCount": 4, "requestedBy": "t", "reason": "r"}


@dataclass(frozen=True)
class Place:
    """A server of two workers; `is_free`: whether nobody is in the middle of a change to its database."""

    served: Served
    is_free: Callable[[], bool]

    def only(self, index: int) -> AbstractContextManager[None]:
        """Let one worker alone answer; the other one is held where it holds nothing that this one needs."""
        return self.served.only(index, is_free=self.is_free)


def is_free_sqlite(file: Path) -> bool:
    with closing(sqlite3.connect(file, timeout=0.2)) as connection:
        try:
            connection.execute("BEGIN IMMEDIATE")
        except sqlite3.OperationalError:
            return False
        connection.rollback()
        return True


def is_free_postgresql(server: PostgresqlServer) -> bool:
    busy = "SELECT count(*) FROM pg_stat_activity WHERE usename = %s AND state <> 'idle'"
    return server.execute("postgres", busy, (USER,)) == [(0,)]


def scale(served: Served) -> int:
    return served.ask("POST", f"{BASE}/streams/orders/scale", SCALE).status


def create_group(served: Served, *headers: str) -> Answer:
    return served.ask("POST", f"{BASE}/streams/orders/groups/g", {"requestedBy": "t"}, headers=headers)


@pytest.fixture(scope="module", params=["postgresql", "sqlite"])
def place(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Place]:
    tmp_path = tmp_path_factory.mktemp("beside")
    with contextlib.ExitStack() as stack:
        file = tmp_path / "coord.db"
        url, is_free = f"jdbc:sqlite:{file}", partial(is_free_sqlite, file)
        if request.param == "postgresql":
            if not PostgresqlServer.is_there():
                pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
            server = stack.enter_context(contextlib.closing(PostgresqlServer()))
            url, is_free = server.url(server.new_database()), partial(is_free_postgresql, server)
        config = {
            # A worker that is held within its tick would hold SQLite's one write lock with it: it ticks at the start only.
            "member-lease-ttl": "10m",
            "loop": {"tick-interval": "2m"},
            "store": {"type": "jdbc", "url": url},
            "api": {"rate-limit": {"enabled": True, "admin-mutations-per-minute": LIMIT}},
        }
        served = stack.enter_context(serving(tmp_path / "s", "--workers", "2", config=json.dumps({"coordinator": config})))
        wait_until(lambda: len(served.workers()) == 2, what="both workers run")
        yield Place(served, is_free)


@pytest.fixture
def served(place: Place) -> Served:
    return place.served


def test_l3_the_limit_and_the_answers_hold_across_workers_on_a_sql_store(place: Place, served: Served) -> None:
    """What one worker counted and answered, the other knows."""
    left_s = 60 - time.time() % 60
    if left_s < 30:  # all calls are to fall into one minute of the clock
        time.sleep(left_s + 0.1)
    made = {"initialShardCount": 4, "requestedBy": "t"}
    assert served.ask("POST", f"{BASE}/streams/orders", made).status == 201  # counts too
    with place.only(0):
        statuses = [scale(served) for _ in range(2)]
        first = create_group(served, "Idempotency-Key: k")
    with place.only(1):
        again, anew = create_group(served, "Idempotency-Key: k"), create_group(served)
        statuses += [scale(served) for _ in range(LIMIT)]
    with place.only(0):
        statuses += [scale(served) for _ in range(2)]
    assert (first.status, again.status, anew.status) == (201, 201, 409)
    assert again.body == first.body
    assert statuses == [202] * (LIMIT - 1) + [429] * 5


def test_n1_all_who_change_one_stream_at_once_succeed_or_are_told_in_words(served: Served) -> None:
    """Each new group is a commit on the same stream, through two workers: none is lost, none is a 500."""
    base = f"{BASE}/streams/busy"
    assert served.ask("POST", base, {"initialShardCount": 2, "requestedBy": "t"}).status == 201

    def create(number: int) -> str:
        while True:
            answer = served.ask("POST", f"{base}/groups/g{number}", {"requestedBy": "t"}, timeout_s=60)
            told = "made" if answer.status == 201 else answer.code[1]
            if told not in {"STORE_UNAVAILABLE", "STATE_VERSION_CONFLICT"}:
                return told  # else others were in the way for as long as a call may take

    with ThreadPoolExecutor(24) as pool:
        assert set(pool.map(create, range(48))) <= {"made", "GROUP_ALREADY_EXISTS"}
    told = served.ask("GET", f"{BASE}/monitoring/streams/busy").json
    assert told["consumerGroups"] == sorted(f"g{number}" for number in range(48))
    assert "Traceback" not in served.text()
