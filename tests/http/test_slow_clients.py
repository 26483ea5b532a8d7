"""Clients that say nothing, say it slowly, or take no answer cost others nothing, and are given up in the end."""

from __future__ import annotations

import json
import socket
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.http.face import heartbeat
from tests.http.served import ADMIN, BASE, ENGINES, Served, Wire, serving
from tests.servers import wait_until

pytestmark = pytest.mark.e2e

THREADS = 4
FEW_THREADS = f"coordinator: {{store: {{type: memory}}, server: {{threads: {THREADS}}}, api: {{max-body-bytes: 4096}}}}"
CREATE = {"initialShardCount": 4, "requestedBy": "tester", "reason": "a test"}
BEAT = f"{BASE}/streams/orders/groups/g/members/m/heartbeat"
HEAD = f"POST {BEAT} HTTP/1.1\r\nHost: t\r\n"
MANY = b"GET /v3/api-docs HTTP/1.1\r\nHost: t\r\n\r\n" * 200
"""Answers that no socket's buffer holds."""
QUICK = "import coord.http.engines.worker as worker; worker.ARRIVAL_S = 1; worker.LINGER_S = 1"


@contextmanager
def few_threads(folder: Path, engine: str = "gunicorn", *, changed: str = "", config: str = FEW_THREADS) -> Iterator[Served]:
    """One worker with four threads; the stream `orders` with its group `g`."""
    with serving(folder, config=config, engine=engine, changed=changed) as running:
        assert running.ask("POST", f"{BASE}/streams/orders", CREATE).status == 201
        assert running.ask("POST", f"{BASE}/streams/orders/groups/g", CREATE).status == 201
        yield running


def beats(running: Served) -> None:
    """A heartbeat is answered, within a time that only a held thread can exceed."""
    answer = running.ask("POST", BEAT, heartbeat(), timeout_s=20)
    assert (answer.status, answer.json["status"]) in {(200, "OK"), (200, "SYNC_METADATA")}


def is_closed(connection: Wire) -> bool:
    """Whether the server has ended a connection without an answer; waits for that as long as the connection's time-out."""
    try:
        return connection.stream.read(1) == b""
    except TimeoutError:
        return False
    except ConnectionError:
        return True


@pytest.mark.parametrize("engine", ENGINES)
def test_j8_idle_clients_and_slow_heads_hold_no_thread(tmp_path: Path, engine: str) -> None:
    with few_threads(tmp_path, engine) as running, ExitStack() as crowd:
        connections = [crowd.enter_context(Wire(running.port)) for _ in range(4 * THREADS)]
        for index, connection in enumerate(connections):
            connection.send((b"", b"P", HEAD.encode(), HEAD.encode() + b"X-Slow: ")[index % 4])
        beats(running)
        for connection in connections:
            connection.socket.setblocking(False)
            with pytest.raises(BlockingIOError):  # all still there, and not answered
                connection.socket.recv(1)


def test_j8_slow_bodies_hold_no_thread(tmp_path: Path) -> None:
    """The default engine; granian reads a body in the thread that answers it."""
    framings = (b"Content-Length: 100\r\n\r\n{", b"Transfer-Encoding: chunked\r\n\r\n5\r\n{", b"Content-Length: 4096\r\n\r\n")
    with few_threads(tmp_path) as running, ExitStack() as crowd:
        connections = [crowd.enter_context(Wire(running.port)) for _ in range(3 * THREADS)]
        for index, connection in enumerate(connections):
            connection.send(HEAD.encode() + framings[index % 3])
        beats(running)
        connections[0].send(b"}" + b" " * 98)
        assert connections[0].receive().code == (400, "INVALID_REQUEST")


def test_j8_who_neither_reads_on_nor_closes_after_the_last_answer_holds_nobody_up(tmp_path: Path) -> None:
    """Refused by its announced length, a body still comes: the answer arrives, and the rest is thrown away."""
    big = b"x" * 50_000
    with few_threads(tmp_path) as running, ExitStack() as crowd:
        connections = [crowd.enter_context(Wire(running.port)) for _ in range(3 * THREADS)]
        for index, connection in enumerate(connections):
            ends = "Connection: close\r\n\r\n" if index % 2 else f"Content-Length: {len(big) + 1}\r\n\r\n"
            connection.send((HEAD + ends).encode())
            if not index % 2:
                connection.send(big)
        beats(running)
        for index, connection in enumerate(connections):
            answer = connection.receive()
            assert answer.code == ((400, "INVALID_REQUEST") if index % 2 else (413, "PAYLOAD_TOO_LARGE"))
            assert answer.headers["connection"] == "close" or not index % 2
        assert all(is_closed(connection) for connection in connections)


def test_j8_what_is_not_whole_in_time_is_given_up(tmp_path: Path) -> None:
    """The limit is shortened here. It counts from the first byte, whatever dribbles in."""
    with few_threads(tmp_path, changed=QUICK) as running, Wire(running.port) as idle, Wire(running.port) as slow:
        slow.send(HEAD.encode())

        def ended() -> bool:
            try:
                slow.send(b"X-Slow: x\r\n")
            except OSError:
                return True
            return False

        wait_until(ended, timeout_s=60, what="the slow request is given up")
        assert "it was not whole in time" in running.text()
        idle.send(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")
        assert idle.receive().status == 200


def test_j8_who_takes_no_answer_is_given_up(tmp_path: Path) -> None:
    """The limit is shortened here. Answers that wait in vain hold their thread for that long and no longer."""
    changed = "import coord.http.engines.worker as worker; worker.ANSWER_S = 0.5"
    with few_threads(tmp_path, changed=changed) as running, ExitStack() as crowd:
        for _ in range(2 * THREADS):
            crowd.enter_context(Wire(running.port)).send(MANY)
        wait_until(lambda: running.text().count("did not take its answer") >= THREADS, what="threads wait in vain")
        beats(running)


def test_who_takes_many_answers_late_gets_each_whole(tmp_path: Path) -> None:
    with few_threads(tmp_path) as running, Wire(running.port) as connection:
        connection.send(MANY)
        connection.socket.recv(1, socket.MSG_PEEK)
        answers = {connection.receive().body for _ in range(MANY.count(b"GET"))}
        assert len(answers) == 1
        assert json.loads(answers.pop())["openapi"].startswith("3.")


def test_j8_of_too_much_that_is_not_whole_the_largest_goes(tmp_path: Path) -> None:
    changed = "import coord.http.engines.worker as worker; worker.KEPT_BYTES_MAX = 5000"
    with few_threads(tmp_path, changed=changed) as running, Wire(running.port) as small, Wire(running.port) as large:
        body = json_of(heartbeat())
        small.send(f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body[:-1])
        large.send(f"{HEAD}Content-Length: 4000\r\n\r\n".encode() + b"x" * 3900)
        with Wire(running.port) as another:
            another.send(f"{HEAD}Content-Length: 4000\r\n\r\n".encode() + b"x" * 3800)
            assert is_closed(large)
            small.send(body[-1:])
            assert small.receive().status == 200
            another.send(b"x" * 200)
            assert another.receive().code == (400, "INVALID_REQUEST")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_idle_connection_ends_after_keep_alive(tmp_path: Path, engine: str) -> None:
    config = "coordinator: {store: {type: memory}, server: {keep-alive: 1s}}"
    with few_threads(tmp_path, engine, config=config) as running, Wire(running.port) as new, Wire(running.port) as used:
        used.send(b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n")
        assert used.receive().status == 200
        assert is_closed(used)
        assert is_closed(new)


def test_requests_that_come_together_are_answered_in_turn(tmp_path: Path) -> None:
    body = json_of(heartbeat())
    beat = f"{HEAD}Content-Length: {len(body)}\r\n\r\n".encode() + body
    probe = b"GET /livez HTTP/1.1\r\nHost: t\r\nContent-Length: 3\r\n\r\n{[}"
    with few_threads(tmp_path) as running, Wire(running.port) as connection:
        connection.send(beat + probe + beat + b"GET /livez HT")
        assert [connection.receive().json["status"] for _ in range(3)] == ["OK", "UP", "OK"]
        connection.send(b"TP/1.1\r\nHost: t\r\n\r\n")
        assert connection.receive().json["status"] == "UP"


@pytest.mark.parametrize("engine", ENGINES)
def test_who_waits_for_100_continue_gets_it_once_and_for_a_body_that_is_wanted(tmp_path: Path, engine: str) -> None:
    body = json_of(heartbeat())
    with few_threads(tmp_path, engine) as running:
        with Wire(running.port) as connection:
            connection.send(f"{HEAD}Expect: 100-continue\r\nContent-Length: {len(body)}\r\n\r\n".encode())
            assert connection.stream.readline().split()[1] == b"100"
            assert connection.stream.readline() == b"\r\n"
            connection.send(body)
            assert connection.receive().json["status"] == "OK"
        with Wire(running.port) as connection:
            connection.send(f"{HEAD}Expect: 100-continue\r\nContent-Length: 5000\r\n\r\n".encode())
            assert connection.receive().code == (413, "PAYLOAD_TOO_LARGE")


def test_half_closed_clients_get_their_answer(tmp_path: Path) -> None:
    with few_threads(tmp_path) as running, Wire(running.port) as connection:
        connection.send(f"GET {BASE}/monitoring/streams HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\n\r\n".encode())
        connection.socket.shutdown(socket.SHUT_WR)
        assert connection.receive().status == 200


def json_of(value: object) -> bytes:
    return json.dumps(value).encode()
