"""TLS: the server's certificate is checked against the configured CA and host name, and commands go through.

The key beside this file is for these tests only. The server's side of TLS is a thread in front of a plain server.
"""

from __future__ import annotations

import contextlib
import select
import socket
import ssl
from collections.abc import Iterator
from pathlib import Path
from threading import Event as Signal
from threading import Thread

import pytest

from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.settings import RedisSettings, RedisTls
from coord.store.base import StoreUnavailable
from coord.store.redis.store import RedisStore
from tests.store.author import KEY, committed
from tests.store.redis_server import RedisServer

FILES = Path(__file__).parent / "tls"
CA = str(FILES / "certificate.pem")


def _pump(secured: ssl.SSLSocket, plain: socket.socket, done: Signal) -> None:
    with secured, plain, contextlib.suppress(OSError):
        while not done.is_set():
            ready = [secured] if secured.pending() else select.select([secured, plain], [], [], 0.05)[0]
            for source in ready:
                data = source.recv(65536)
                if not data:
                    return
                (plain if source is secured else secured).sendall(data)


def _serve(listener: socket.socket, upstream_port: int, done: Signal) -> None:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(CA, FILES / "key.pem")
    pumps: list[Thread] = []
    while not done.is_set():
        try:
            client, _ = listener.accept()
        except TimeoutError:
            continue
        try:
            secured = context.wrap_socket(client, server_side=True)
        except OSError:
            client.close()
            continue
        pumps.append(Thread(target=_pump, args=(secured, socket.create_connection(("127.0.0.1", upstream_port)), done)))
        pumps[-1].start()
    for pump in pumps:
        pump.join()


@pytest.fixture
def tls_port(server: RedisServer) -> Iterator[int]:
    done = Signal()
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(0.05)
        thread = Thread(target=_serve, args=(listener, server.port, done))
        thread.start()
        yield int(listener.getsockname()[1])
        done.set()
        thread.join()


def store_with(tls: RedisTls | None, *, port: int, host: str = "localhost") -> RedisStore:
    return RedisStore(RedisCommands(RedisSettings(host=host, port=port, tls=tls, timeout_ms=1000, db=2)))


def test_commands_go_through_tls(tls_port: int) -> None:
    for tls in (RedisTls(ca_file=CA), RedisTls(verify=False)):
        store = store_with(tls, port=tls_port)
        before = store.load(KEY).head.revision
        for _ in range(20):
            committed(store, aggregate=b"x" * 200_000)
        assert store.load(KEY).head.revision == before + 20
        assert store.load(KEY).aggregate == b"x" * 200_000
        store.close()


def test_a_stranger_is_not_talked_to(tls_port: int) -> None:
    """No CA that knows the certificate; a certificate for another host name; no TLS at all."""
    for store in (
        store_with(RedisTls(), port=tls_port),
        store_with(RedisTls(ca_file=CA), port=tls_port, host="127.0.0.1"),
        store_with(None, port=tls_port),
    ):
        with pytest.raises(StoreUnavailable):
            store.load(KEY)
