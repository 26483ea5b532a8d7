"""What a thread does with several heartbeats, one of which has a client that takes nothing."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from queue import SimpleQueue
from typing import Any

import pytest

from coord.http.engines.answering import Answering
from coord.http.engines.connections import Output
from coord.http.together import Declined

ANSWER = b"HTTP/1.1 200 OK\r\n\r\n"


class Client:
    """A connection to a worker, seen from both ends. `declines`: its request may not be answered together with others."""

    def __init__(self, *, is_deaf: bool = False, declines: bool = False) -> None:
        self.ours, self.theirs = socket.socketpair()
        self.ours.setblocking(False)
        self.sock = Output(self.ours, seconds=30)
        self.client = "test"
        self.declines = declines
        self.runs = 0
        if is_deaf:
            self.fill()

    def fill(self) -> None:
        try:
            while True:
                self.ours.send(b"x" * 65_536)
        except BlockingIOError:
            pass

    def begin_again(self) -> None:
        self.sock.discard()

    def close(self) -> None:
        self.ours.close()
        self.theirs.close()


class Worker(Answering):
    """Only its threads; what they hand to the main loop is in `finished`."""

    def __init__(self, pool: ThreadPoolExecutor) -> None:
        self.tpool = pool
        self.method_queue = self
        self.finished: SimpleQueue[tuple[Any, bool]] = SimpleQueue()

    def defer(self, _finish: object, conn: Client, done: Future[bool]) -> None:
        self.finished.put((conn, done.result()))

    def finish_request(self, conn: Any, done: Future[bool]) -> None:
        raise AssertionError("the main loop's")

    def _answer(self, conn: Any) -> bool:
        conn.runs += 1
        if conn.declines and conn.sock.foreseeing is not None:
            raise Declined
        conn.sock.sendall(ANSWER)
        return True


@pytest.fixture
def worker() -> Iterator[Worker]:
    with ThreadPoolExecutor(4) as pool:
        yield Worker(pool)


def test_a_client_that_takes_no_answer_keeps_nobody_waiting(worker: Worker) -> None:
    clients: Any = [Client(is_deaf=True), Client()]
    deaf, other = clients
    assert worker.handle_together(clients) == [None, True]
    assert other.theirs.recv(1_000) == ANSWER
    assert worker.finished.empty(), "a thread of its own waits for it"
    taken = b""
    while not taken.endswith(ANSWER):
        taken += deaf.theirs.recv(1 << 20)
    assert worker.finished.get(timeout=30) == (deaf, True)
    for client in clients:
        client.close()


def test_a_client_that_is_gone_costs_its_own_connection_only(worker: Worker) -> None:
    clients: Any = [Client(), Client()]
    gone, other = clients
    gone.theirs.close()
    assert worker.handle_together(clients) == [False, True]
    assert other.theirs.recv(1_000) == ANSWER
    for client in clients:
        client.close()


def test_who_may_have_to_wait_is_run_once_more_by_itself(worker: Worker) -> None:
    clients: Any = [Client(declines=True), Client()]
    waiting, other = clients
    assert worker.handle_together(clients) == [None, True]
    assert worker.finished.get(timeout=30) == (waiting, True)
    assert (waiting.runs, other.runs) == (2, 1)
    assert waiting.theirs.recv(1_000) == other.theirs.recv(1_000) == ANSWER
    for client in clients:
        client.close()
