"""The rate limit on mutations, at the face: who is held back, what it says, and what is never limited."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from coord.names import StreamKey
from coord.store.base import StoreUnavailable
from tests.http.face import OLD_SECRET, SECRET, USERS, Face, FaultyStore, configuration, error_of, heartbeat, make_face
from tests.http.served import BASE, Served, serving
from tests.http.test_requests import audited
from tests.servers import private_redis

LIMIT = "    rate-limit: {{enabled: true, admin-mutations-per-minute: {count}}}\n"
SCALE = {"targetShardCount": 4, "requestedBy": "t", "reason": "r"}


def limited(folder: Path, count: int) -> Face:
    """Make an app with that limit, the stream `orders` and its group `g` (made by `legacy`)."""
    text = USERS.format(secret=SECRET, old=OLD_SECRET, members="false") + LIMIT.format(count=count)
    face = make_face(configuration(folder, text=text))
    for path in ("/streams/orders", "/streams/orders/groups/g"):
        made = face.ask("POST", path, {"initialShardCount": 4, "requestedBy": "t"}, user="legacy")
        assert made.status_code == 201
    return face


def test_l3_a_mutation_too_many_is_a_429_that_says_when(tmp_path: Path) -> None:
    face = limited(tmp_path, 3)
    assert [face.ask("POST", "/streams/orders/scale", SCALE).status_code for _ in range(3)] == [202] * 3
    answer = face.ask("POST", "/streams/orders/scale", SCALE)
    assert error_of(answer) == (429, "RATE_LIMIT_EXCEEDED")
    # The store's clock stands still at 1 700 000 000 000 ms: 20 s into a minute.
    assert answer.headers["retry-after"] == "40"
    entry = audited(face, StreamKey("orders"))[-1]
    assert (entry.status, entry.outcome, entry.error_code) == (429, "FAILED", "RATE_LIMIT_EXCEEDED")
    assert (entry.principal, entry.action) == ("writer", "SCALE_STREAM")


def test_the_next_window_is_another(tmp_path: Path) -> None:
    face = limited(tmp_path, 1)
    now = [1_700_000_000_000]
    face.store.windows._clock = lambda: now[0]
    statuses = []
    for now[0] in (1_700_000_000_000, 1_700_000_039_999, 1_700_000_040_000, 1_700_000_040_001):
        answer = face.ask("POST", "/streams/orders/scale", SCALE)
        statuses.append((answer.status_code, answer.headers.get("retry-after")))
    assert statuses == [(202, None), (429, "1"), (202, None), (429, "60")]


MINUTE_MS = 60_000
EDGE_MS = 1_700_000_040_000
"""A minute of the clock begins."""
CALLS = {
    "240 evenly over a minute": ([EDGE_MS + index * MINUTE_MS // 240 for index in range(240)], 60),
    "240 evenly over four minutes": ([EDGE_MS + index * MINUTE_MS // 60 for index in range(240)], 240),
    "61 in the last second": ([EDGE_MS - 1000 + index * 16 for index in range(61)], 60),
    "60 in the last second, 60 in the next": ([EDGE_MS - 960 + index * 16 for index in range(120)], 120),
    "60 in the last second, 61 in the next": ([EDGE_MS - 960 + index * 16 for index in range(121)], 120),
}
"""When calls come, and how many are let through at 60 a minute: around an edge twice as many fit as into a minute."""


@pytest.mark.parametrize("pattern", CALLS)
def test_l3_so_many_are_let_through_and_who_waits_as_told_gets_through(tmp_path: Path, pattern: str) -> None:
    face = limited(tmp_path, 60)
    times, accepted = CALLS[pattern]
    now = [0]
    face.store.windows._clock = lambda: now[0]
    told = []
    for now[0] in times:
        answer = face.ask("POST", "/streams/orders/scale", SCALE)
        told.append((answer.status_code, int(answer.headers.get("retry-after", "0"))))
    assert [status for status, _ in told].count(202) == accepted
    assert {status for status, _ in told} <= {202, 429}
    for came, (status, wait_s) in zip(times, told, strict=True):
        left_ms = MINUTE_MS - (came - EDGE_MS) % MINUTE_MS
        assert status == 202 or (wait_s - 1) * 1000 < left_ms <= wait_s * 1000
    status, wait_s = told[-1]
    now[0] += wait_s * 1000
    assert status == 202 or face.ask("POST", "/streams/orders/scale", SCALE).status_code == 202


def test_refused_mutations_count_and_unlimited_ones_do_not(tmp_path: Path) -> None:
    """Who may not make a mutation is not counted; one that is refused for what it says is. Others have counts of their own."""
    face = limited(tmp_path, 2)
    for _ in range(5):
        assert face.ask("POST", "/streams/orders/scale", SCALE, user="reader").status_code == 403
        assert face.ask("POST", "/streams/orders/scale", SCALE, user=None).status_code == 401
        assert face.ask("PUT", "/streams/orders", SCALE).status_code == 405
        assert face.ask("POST", "/streams/or%7Bders/scale", SCALE).status_code == 400
    assert face.ask("POST", "/streams/orders/scale", {}).status_code == 400
    assert face.ask("POST", "/streams/orders/scale", SCALE).status_code == 202
    assert face.ask("POST", "/streams/orders/scale", SCALE).status_code == 429
    assert face.ask("POST", "/streams/orders/groups/g/scale", SCALE).status_code == 202
    assert face.ask("POST", "/streams/orders/scale", SCALE, user="scoped").status_code == 202
    assert face.ask("POST", "/streams/other", {"requestedBy": "t"}).status_code == 201


def test_l3_reads_and_heartbeats_are_never_limited(tmp_path: Path) -> None:
    face = limited(tmp_path, 1)
    while face.ask("POST", "/streams/orders/groups/g/scale", SCALE).status_code != 429:
        pass
    for _ in range(20):
        assert face.ask("GET", "/monitoring/streams/orders/groups/g").status_code == 200
        assert face.ask("GET", "/streams/orders/producer-routing").status_code == 200
        assert face.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat()).status_code == 200


def test_a_store_that_cannot_count_is_a_503(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    face = limited(tmp_path, 1)

    def away(*_: object, **__: object) -> int:
        raise StoreUnavailable("away")

    monkeypatch.setattr(face.store.windows, "take", away)
    assert error_of(face.ask("POST", "/streams/orders/scale", SCALE)) == (503, "STORE_UNAVAILABLE")


def test_without_the_switch_there_is_no_limit(tmp_path: Path) -> None:
    text = USERS.format(secret=SECRET, old=OLD_SECRET, members="false") + LIMIT.format(count=1).replace("true", "false")
    face = make_face(configuration(tmp_path, text=text))
    assert isinstance(face.store, FaultyStore)
    face.make_stream()
    assert {face.ask("POST", "/streams/orders/scale", SCALE).status_code for _ in range(5)} == {202}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Served, Served]]:
    """Two instances of two workers each on one Redis, 20 mutations a minute."""
    folder = tmp_path_factory.mktemp("pair")
    config = "coordinator: {api: {rate-limit: {enabled: true, admin-mutations-per-minute: 20}}}"
    with private_redis() as redis:
        environ = {"REDIS_URL": redis.url}
        with (
            serving(folder / "a", "--workers", "2", config=config, environ=environ) as first,
            serving(folder / "b", "--workers", "2", config=config, environ=environ) as second,
        ):
            yield first, second


@pytest.mark.e2e
def test_l1_l3_the_limit_holds_for_all_workers_of_all_instances_together(pair: tuple[Served, Served]) -> None:
    """60 calls at once to four workers, each with another forged address: 20 are let through."""
    assert pair[0].ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 4, "requestedBy": "t"}).status == 201
    left_s = 60 - time.time() % 60
    if left_s < 20:  # all calls are to fall into one minute of the clock
        time.sleep(left_s + 0.1)

    def call(index: int) -> tuple[int, str | None]:
        forged = (f"X-Forwarded-For: 203.0.113.{index}", "Connection: close")
        answer = pair[index % 2].ask("POST", f"{BASE}/streams/orders/scale", SCALE, headers=forged)
        return answer.status, answer.headers.get("retry-after")

    with ThreadPoolExecutor(12) as pool:
        answers = list(pool.map(call, range(60)))
    accepted = [status for status, _ in answers].count(202)
    # The creation may have fallen into the minute before.
    assert accepted in {19, 20}, answers
    assert all(1 <= int(wait or 0) <= 60 for status, wait in answers if status == 429)
    assert pair[1].ask("GET", f"{BASE}/monitoring/streams/orders").status == 200


def test_l1_the_audit_names_the_real_peer_whatever_is_forged(tmp_path: Path) -> None:
    face = limited(tmp_path, 1)
    body: dict[str, Any] = SCALE
    for index in range(3):
        face.ask("POST", "/streams/orders/scale", body, headers={"X-Forwarded-For": f"203.0.113.{index}"}, address="127.9.9.9")
    mine = [entry for entry in audited(face, StreamKey("orders")) if entry.principal == "writer"]
    assert [(entry.status, entry.client_address) for entry in mine] == [
        (202, "127.9.9.9"),
        (429, "127.9.9.9"),
        (429, "127.9.9.9"),
    ]
