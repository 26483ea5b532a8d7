"""The tap does to a line what it says, and nothing else."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

from coord.runtime.embedded import EmbeddedRedis
from tests.servers import wait_until
from tests.tap import Tap


@pytest.fixture
def tap(redis_server: EmbeddedRedis, redis_url: str) -> Iterator[Tap]:
    with Tap(redis_server.port) as opened:
        yield opened


def client_of(port: int) -> redis.Redis:
    """A client that never tries twice by itself, and waits half a second."""
    return redis.Redis(port=port, socket_timeout=1.0, retry=Retry(NoBackoff(), 0), decode_responses=True)


@pytest.fixture
def near(tap: Tap) -> Iterator[redis.Redis]:
    """Through the tap."""
    with client_of(tap.port) as client:
        yield client


@pytest.fixture
def far(redis_server: EmbeddedRedis) -> Iterator[redis.Redis]:
    """Past the tap."""
    with client_of(redis_server.port) as client:
        yield client


def test_by_default_everything_passes(tap: Tap, near: redis.Redis) -> None:
    near.set("k", "v" * 1_000_000)
    assert near.get("k") == "v" * 1_000_000
    assert tap.connections >= 1


def test_a_delay_holds_the_answer_back(tap: Tap, near: redis.Redis) -> None:
    near.ping()
    tap.delay(0.3)
    before_s = time.monotonic()
    near.ping()
    assert time.monotonic() - before_s >= 0.3
    tap.pass_through()
    before_s = time.monotonic()
    near.ping()
    assert time.monotonic() - before_s < 0.3


def test_a_cut_resets_open_connections_and_new_ones(tap: Tap, near: redis.Redis) -> None:
    near.ping()
    tap.cut()
    assert tap.open_connections == 0
    for _ in range(2):
        with pytest.raises(redis.ConnectionError):
            near.ping()
    tap.pass_through()
    assert near.ping()


def test_a_black_hole_is_silent_and_delivers_nothing_afterwards(tap: Tap, near: redis.Redis, far: redis.Redis) -> None:
    near.ping()
    tap.blackhole()
    with pytest.raises(redis.TimeoutError):
        near.set("k", "lost")
    with pytest.raises(redis.TimeoutError):
        near.set("k", "lost on a new connection")
    tap.pass_through()
    assert far.get("k") is None
    assert near.ping()


def test_a_dropped_reply_is_of_a_request_that_was_done(tap: Tap, near: redis.Redis, far: redis.Redis) -> None:
    tap.drop_replies(containing=b"INCR", times=1)
    near.set("other", "1")
    with pytest.raises(redis.TimeoutError):
        near.incr("k")
    assert far.get("k") == "1"
    assert near.incr("k") == 2
    assert tap.dropped == 1


def test_a_dropped_reply_can_break_the_connection_at_once(tap: Tap, near: redis.Redis, far: redis.Redis) -> None:
    tap.drop_replies(containing=b"INCR", then_cut=True)
    for done in (1, 2):
        with pytest.raises(redis.ConnectionError):
            near.incr("k")
        assert far.get("k") == str(done)
    assert tap.dropped == 2


def test_the_string_is_found_across_two_pieces(tap: Tap, redis_server: EmbeddedRedis, far: redis.Redis) -> None:
    import socket

    tap.drop_replies(containing=b"INCR", times=1)
    with socket.create_connection(("127.0.0.1", tap.port), 2) as raw:
        raw.settimeout(0.3)
        raw.sendall(b"*2\r\n$4\r\nIN")
        time.sleep(0.1)
        raw.sendall(b"CR\r\n$1\r\nk\r\n")
        with pytest.raises(TimeoutError):
            raw.recv(100)
    wait_until(lambda: far.get("k") == "1", what="the request reached the server")


def test_a_server_that_is_not_there_looks_like_a_reset(redis_server: EmbeddedRedis) -> None:
    from tests.servers import free_port

    with Tap(free_port()) as tap, client_of(tap.port) as client, pytest.raises(redis.ConnectionError):
        client.ping()


def test_closing_ends_every_connection(redis_server: EmbeddedRedis) -> None:
    with Tap(redis_server.port) as tap:
        clients = [client_of(tap.port) for _ in range(5)]
        for client in clients:
            client.ping()
        assert tap.open_connections == 5
    assert tap.open_connections == 0
    for client in clients:
        with pytest.raises(redis.ConnectionError):
            client.ping()
        client.close()
