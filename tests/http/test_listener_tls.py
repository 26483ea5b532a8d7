"""`server.tls.*` on each engine. The server's key is the one beside the tests of Redis over TLS; all keys are for tests only."""

from __future__ import annotations

import json
import socket
import ssl
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from tests.http.face import heartbeat
from tests.http.served import ADMIN, BASE, ENGINES, Answer, Served, Wire, serving
from tests.servers import wait_until

pytestmark = [pytest.mark.e2e, pytest.mark.parametrize("engine", ENGINES)]

FILES = Path(__file__).parents[1] / "store" / "tls"
CERTIFICATE, KEY = str(FILES / "certificate.pem"), str(FILES / "key.pem")
OURS = Path(__file__).parent / "tls"
PROBE = b"GET /livez HTTP/1.1\r\nHost: t\r\n\r\n"
THREADS = 4


class SecureWire(Wire):
    """One TLS connection. Raises ssl.SSLError when the server does not want it."""

    def __init__(self, port: int, *, shows_certificate: bool = False) -> None:
        super().__init__(port)
        context = ssl.create_default_context(cafile=CERTIFICATE)
        context.check_hostname = False
        if shows_certificate:
            context.load_cert_chain(OURS / "client.pem", OURS / "client-key.pem")
        self.stream.close()
        self.socket = context.wrap_socket(self.socket)
        self.stream = self.socket.makefile("rb")


@contextmanager
def secured(folder: Path, engine: str, *, wants_certificate: bool = False) -> Iterator[Served]:
    """A coordinator behind TLS, with few threads, on the memory store."""
    tls = {"cert-file": CERTIFICATE, "key-file": KEY, **({"ca-file": str(OURS / "ca.pem")} if wants_certificate else {})}
    config = {"coordinator": {"store": {"type": "memory"}, "server": {"threads": THREADS, "tls": tls}}}
    with serving(folder, config=json.dumps(config), engine=engine, ready=False) as running:
        wait_until(lambda: answers(running, shows_certificate=True), timeout_s=60, what="the coordinator answers over TLS")
        yield running


def answers(running: Served, *, shows_certificate: bool = False) -> bool:
    try:
        with SecureWire(running.port, shows_certificate=shows_certificate) as connection:
            connection.send(PROBE)
            return connection.receive().status == 200
    except OSError:
        assert running.process.poll() is None, running.text()
        return False


def post(connection: Wire, path: str, body: object) -> Answer:
    data = json.dumps(body).encode()
    connection.send(f"POST {BASE}{path} HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\nContent-Length: {len(data)}\r\n\r\n".encode() + data)
    return connection.receive()


def test_requests_large_and_small_on_one_connection(tmp_path: Path, engine: str) -> None:
    create = {"initialShardCount": 4, "requestedBy": "tester", "reason": "a test"}
    with secured(tmp_path, engine) as running, SecureWire(running.port) as connection:
        assert f"https://127.0.0.1:{running.port}" in running.text()
        assert post(connection, "/streams/orders", create).status == 201
        assert post(connection, "/streams/orders/groups/g", create).status == 201
        assert post(connection, "/streams/orders/groups/g/members/m/heartbeat", heartbeat()).json["status"] == "OK"
        assert post(connection, "/streams/orders/scale", {"reason": "x" * 300_000}).code == (400, "INVALID_REQUEST")
        connection.send(PROBE + PROBE)
        assert [connection.receive().status for _ in range(2)] == [200, 200]


def test_j8_handshakes_that_do_not_come_hold_no_thread(tmp_path: Path, engine: str) -> None:
    with secured(tmp_path, engine) as running, ExitStack() as crowd:
        for index in range(4 * THREADS):
            connection = crowd.enter_context(Wire(running.port))
            if index % 2:
                connection.send(b"\x16\x03\x01\x02\x00\x01")  # the first bytes of a ClientHello
        for _ in range(2 * THREADS):
            crowd.enter_context(SecureWire(running.port)).send(b"GET /livez HTTP/1.1\r\nX-Slow: ")
        assert answers(running)


def test_who_speaks_no_tls_is_not_answered(tmp_path: Path, engine: str) -> None:
    with secured(tmp_path, engine) as running, socket.create_connection(("127.0.0.1", running.port), timeout=10) as plain:
        plain.sendall(PROBE)
        try:
            told = plain.recv(1000)
        except ConnectionError:
            told = b""
        assert not told.startswith(b"HTTP")
        assert answers(running)


def test_with_a_ca_file_only_its_clients_come_in(tmp_path: Path, engine: str) -> None:
    with secured(tmp_path, engine, wants_certificate=True) as running:
        assert not answers(running)
        assert answers(running, shows_certificate=True)
