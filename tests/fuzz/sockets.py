"""Raw bytes on sockets: broken HTTP, giant headers, slow bodies, requests all at once, connections that are torn down.

Nothing is asked of the answers but that they are HTTP, in our form where they are errors, never a 500; and of the server that it
stays up with the same processes, answers others meanwhile, and takes no more memory in the end.
"""

from __future__ import annotations

import json
import random
import socket
import struct
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final

from tests.http.served import ADMIN, BASE, Served

PATIENCE_S: Final = 20.0
SLOW_CONNECTIONS: Final = 32
"""Half the threads of a worker."""
ALLOWED: Final = frozenset(
    {200, 201, 202, 204, 304, 400, 401, 403, 404, 405, 409, 413, 414, 415, 417, 422, 429, 431, 501, 503, 505}
)
_READ_BYTES_MAX: Final = 4 * 1024 * 1024


def request_of(random_: random.Random) -> bytes:
    """Give a request that is fine, to be broken by what follows."""
    body = random_.choice([b"", b'{"targetShardCount": 4, "requestedBy": "f", "reason": "f"}', b"[1, 2", b"\xff" * 20])
    method, path = random_.choice(
        [
            ("GET", "/livez"),
            ("GET", f"{BASE}/monitoring/streams"),
            ("POST", f"{BASE}/streams/orders/scale"),
            ("POST", f"{BASE}/auth/login"),
            ("DELETE", f"{BASE}/streams/none"),
            ("OPTIONS", f"{BASE}/streams/orders"),
            ("HEAD", "/readyz"),
        ]
    )
    headers = ["Host: fuzz", "Connection: close", *([ADMIN] if random_.random() < 0.7 else [])]
    headers += [f"Content-Length: {len(body)}", "Content-Type: application/json"] if body else []
    return f"{method} {path} HTTP/1.1\r\n".encode() + "".join(f"{line}\r\n" for line in headers).encode() + b"\r\n" + body


def mutated(random_: random.Random) -> bytes:
    """Change some bytes of a request: replaced, doubled, dropped, cut."""
    data = bytearray(request_of(random_))
    for _ in range(random_.randint(1, 8)):
        place = random_.randrange(len(data))
        match random_.randrange(5):
            case 0:
                data[place] = random_.randrange(256)
            case 1:
                data[place:place] = bytes(random_.choices(b"\r\n\0 :;%\xff", k=random_.randint(1, 4)))
            case 2:
                del data[place : place + random_.randint(1, 10)]
            case 3:
                data[place:place] = data[place : place + random_.randint(1, 60)]
            case _:
                data = data[: place + 1]
        data = data or bytearray(b"G")
    return bytes(data)


def nonsense(random_: random.Random) -> bytes:
    """Give bytes of other protocols, or of none."""
    return random_.choice(
        [
            random_.randbytes(random_.randint(1, 4096)),
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03" + random_.randbytes(200),
            b"*1\r\n$4\r\nPING\r\n",
            b"\r\n" * random_.randint(1, 2000),
            b"GET http://elsewhere/livez HTTP/1.1\r\nHost: x\r\n\r\n",
            b"CONNECT elsewhere:443 HTTP/1.1\r\nHost: x\r\n\r\n",
            b"GET /livez HTTP/1.0\r\n\r\n",
            b"GET /livez\r\n",
            b"GET /livez HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: Upgrade\r\n\r\n",
            b"GET /livez HTTP/1.1\r\nHost: x\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABk\r\nConnection: Upgrade\r\n\r\n",
            b"POST /livez HTTP/1.1\r\nHost: x\r\nExpect: 100-continue\r\nContent-Length: 3\r\n\r\nabc",
        ]
    )


def giant(random_: random.Random) -> bytes:
    """Give headers beyond all bounds: many, long, or without an end."""
    size = random_.choice([9_000, 100_000, 1_000_000])
    return random_.choice(
        [
            b"GET /livez HTTP/1.1\r\n" + b"".join(b"X-%d: y\r\n" % n for n in range(size // 10)) + b"\r\n",
            b"GET /livez HTTP/1.1\r\nX: " + b"y" * size + b"\r\n\r\n",
            b"GET /" + b"y" * size + b" HTTP/1.1\r\n\r\n",
            b"GET /livez HTTP/1.1\r\n" + b"y" * size,
            b"y" * size,
            b"GET /livez HTTP/1.1\r\nAuthorization: Bearer " + b"y" * 8000 + b"\r\n\r\n",
            b"POST /livez HTTP/1.1\r\nHost: x\r\nContent-Length: " + b"9" * random_.randint(1, 5000) + b"\r\n\r\n",
        ]
    )


def chunked(random_: random.Random) -> bytes:
    """Give bodies in chunks that do not add up."""
    head = f"POST {BASE}/streams/orders/scale HTTP/1.1\r\nHost: f\r\n{ADMIN}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()
    return head + random_.choice(
        [
            b"5\r\nabcde\r\n0\r\n\r\n",
            b"ffffffffffffffffff\r\nabc\r\n",
            b"-5\r\nabcde\r\n0\r\n\r\n",
            b"5;" + b"x" * random_.randint(1, 20_000) + b"\r\nabcde\r\n0\r\n\r\n",
            b"5\r\nabcdefgh\r\n0\r\n\r\n",
            b"0\r\nTrailer: " + b"x" * random_.randint(1, 20_000) + b"\r\n\r\n",
            b"1\r\n{\r\n" * random_.randint(1, 2000) + b"0\r\n\r\n",
            b"10000\r\n" + b" " * 0x10000 + b"\r\n",
            b"zz\r\n",
            b"5\nabcde\n0\n\n",
        ]
    )


def pipelined(random_: random.Random) -> bytes:
    """Give many requests in one piece, some of them broken."""
    parts = [request_of(random_).replace(b"Connection: close\r\n", b"") for _ in range(random_.randint(2, 60))]
    if random_.random() < 0.5:
        parts.insert(random_.randrange(len(parts)), random_.choice([mutated, nonsense, chunked])(random_))
    return b"".join(parts)


KINDS: Final[tuple[Callable[[random.Random], bytes], ...]] = (mutated, mutated, nonsense, giant, chunked, pipelined)


def throw(served: Served, *, cases: int, seed: int) -> Counter[str]:
    """Send so many pieces of bytes, each on its own connection; gives how often each kind was answered with what.

    Raises AssertionError, naming the bytes, for an answer that is none.
    """
    random_ = random.Random(seed)
    told: Counter[str] = Counter()
    for number in range(cases):
        kind = random_.choice(KINDS)
        data = kind(random_)
        try:
            statuses = exchange(served.port, data, ending=random_.choice(("half", "half", "full", "reset", "read first")))
        except AssertionError as error:
            raise AssertionError(f"{error}: case {number} of seed {seed}, {kind.__name__}: {data[:2000]!r}") from error
        told.update(f"{kind.__name__} {status}" for status in (statuses or ("closed",)))
    return told


def exchange(port: int, data: bytes, *, ending: str) -> list[int]:
    """Send bytes, end in one of several ways, and give the statuses of the answers, if any were read."""
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S) as connection:
        with suppress(ConnectionError, TimeoutError):  # a server may stop reading what is too much
            connection.sendall(data)
        if ending == "reset":
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return []
        if ending == "full":
            return []
        if ending == "half":
            with suppress(OSError):
                connection.shutdown(socket.SHUT_WR)
            return statuses_of(read_all(connection))
        connection.settimeout(0.2)  # a request that is not whole is not answered
        return statuses_of(read_all(connection))


def read_all(connection: socket.socket) -> bytes:
    """Read until the other side closes, or says no more."""
    received = bytearray()
    with suppress(ConnectionError, TimeoutError):
        while len(received) < _READ_BYTES_MAX and (piece := connection.recv(65_536)):
            received += piece
    return bytes(received)


def statuses_of(received: bytes) -> list[int]:
    """Read the answers that follow each other; raises AssertionError when one is no HTTP, a 500, or an error not in our form."""
    statuses: list[int] = []
    while received:
        if not received.startswith(b"HTTP/1."):
            raise AssertionError(f"no HTTP after {statuses}: {received[:200]!r}")
        head, ended, received = received.partition(b"\r\n\r\n")
        if not ended:  # cut by a reset
            return statuses
        lines = head.decode("latin-1").split("\r\n")
        status = int(lines[0].split()[1])
        if status == 100:
            continue
        headers = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        length = int(headers.get("content-length", "0"))
        body = received[:length]
        is_error = status >= 400
        # What follows a HEAD has no body although a length is told: then the next answer begins at once.
        if received.startswith(b"HTTP/1.") or not received:
            body, length = b"", 0
        received = received[length:]
        assert status in ALLOWED, f"status {status}: {body[:500]!r}"
        if is_error and body and len(body) == length:
            told = json.loads(body)
            assert set(told) == {"status", "errorCode", "message", "requestId", "details"}, body
        statuses.append(status)
    return statuses


@contextmanager
def slow(served: Served, *, connections: int = SLOW_CONNECTIONS) -> Iterator[Callable[[], None]]:
    """Hold connections open whose requests come in slowly; the function that is given sends one more byte on each."""
    length = 1000
    head = f"POST {BASE}/streams/orders/scale HTTP/1.1\r\nHost: f\r\n{ADMIN}\r\nContent-Length: {length}\r\n\r\n".encode()
    with ExitStack() as stack:
        held = []
        for index in range(connections):
            connection = stack.enter_context(socket.create_connection(("127.0.0.1", served.port), timeout=PATIENCE_S))
            connection.sendall(head if index % 2 else head[:40])
            held.append(connection)

        def drip() -> None:
            for connection in held:
                with suppress(OSError):
                    connection.sendall(b" ")

        yield drip


def memory_kib(served: Served) -> int:
    """Give the resident memory of all workers, KiB."""
    return sum(resident_kib(pid) for pid in served.workers())


def resident_kib(pid: int) -> int:
    """Give the resident memory of a process that is its own, KiB (what it shares with its parent is not counted)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text(encoding="ascii").splitlines():
        if line.startswith("Private_Dirty:"):
            return int(line.split()[1])
    raise AssertionError("no Private_Dirty in smaps_rollup")


def open_files(served: Served) -> int:
    """Give how many descriptors all workers have open."""
    return sum(len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in served.workers())


def answers_within(served: Served, seconds: float) -> bool:
    """Say whether a probe on a fresh connection is answered in that time."""
    began_s = time.monotonic()
    try:
        return served.ask("GET", "/livez", timeout_s=seconds).status == 200 and time.monotonic() - began_s < seconds
    except OSError:
        return False
