"""The short form of `python -m tests.fuzz`: some hundreds of requests, and raw bytes for a real server."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.fuzz.api import fuzz
from tests.fuzz.sockets import (
    KINDS,
    SLOW_CONNECTIONS,
    answers_within,
    memory_kib,
    open_files,
    slow,
    statuses_of,
    throw,
)
from tests.http.served import BASE, ENGINES, Served, serving
from tests.servers import wait_until

MORE_KIB_MAX = 24 * 1024
"""What two workers may take beyond what a warm-up of the same kind left them with."""


def test_no_generated_request_is_answered_outside_the_description(tmp_path: Path) -> None:
    statuses = fuzz(tmp_path, cases=400, seed=random.randrange(2**32))
    assert statuses.total() == 400
    assert {200, 400, 401, 403} <= set(statuses)


@pytest.fixture(scope="module", params=ENGINES)
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    """Two workers with the stream `orders`."""
    arguments = ("--embedded-redis", "--workers", "2")
    with serving(tmp_path_factory.mktemp("fuzzed"), *arguments, engine=request.param) as running:
        made = running.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 4, "requestedBy": "t"})
        assert made.status == 201
        wait_until(lambda: len(running.workers()) == 2, what="both workers are there")
        yield running


@pytest.mark.e2e
def test_raw_bytes_leave_the_server_as_it_was(served: Served) -> None:
    """J4, J8: the same processes, no descriptor left open, no memory kept; and what could be answered was, in our form."""
    throw(served, cases=120, seed=7)
    workers, before_kib = served.workers(), memory_kib(served)
    files = open_files(served)
    told = throw(served, cases=240, seed=random.randrange(2**32))
    assert len({name.split()[0] for name in told}) == len(set(KINDS))
    assert served.lives()
    assert served.workers() == workers
    wait_until(lambda: open_files(served) <= files + 10, timeout_s=60, what="no descriptor is left open")
    assert memory_kib(served) - before_kib < MORE_KIB_MAX
    assert "Traceback" not in served.text()


@pytest.mark.e2e
def test_j8_slow_requests_do_not_hold_up_others(served: Served) -> None:
    with slow(served, connections=SLOW_CONNECTIONS) as drip:
        for _ in range(10):
            drip()
            assert answers_within(served, 10)
    assert served.ask("GET", f"{BASE}/monitoring/streams/orders").status == 200


@pytest.mark.parametrize(
    "received",
    [
        b"nonsense",
        b"HTTP/1.1 500 X\r\nContent-Length: 0\r\n\r\n",
        b"HTTP/1.1 400 X\r\nContent-Length: 2\r\n\r\n{}",
        b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nokmore",
    ],
)
def test_a_wrong_answer_is_found(received: bytes) -> None:
    with pytest.raises(AssertionError):
        statuses_of(received)


def test_right_answers_are_read_one_after_the_other() -> None:
    assert statuses_of(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nok") == [200]
    assert statuses_of(b"HTTP/1.1 200 X\r\nContent-Length: 2\r\n\r\nHTTP/1.1 204 X\r\n\r\n") == [200, 204]
