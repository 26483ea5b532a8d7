"""A flood of requests, no two of which name the same stream, group, member, user or request id, from ever new addresses.

Every kind that a stranger can send and one that only the admin can, in one order, so that a run can be repeated: heartbeats to
made-up groups, reads and mutations with made-up users, forged tokens, unknown paths, odd methods, logins, and the admin's own
reads and refused mutations of streams that do not exist.
"""

from __future__ import annotations

import base64
import json
import socket
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Final

from tests.http.face import heartbeat
from tests.http.served import ADMIN, BASE

REQUESTS_A_CONNECTION: Final = 20
LOGIN_EVERY: Final = 500
PATIENCE_S: Final = 60.0
WHO: Final = {"requestedBy": "flood", "reason": "flood"}


def requests_of(first: int, count: int) -> Iterator[bytes]:
    """Give the requests with these numbers."""
    for number in range(first, first + count):
        yield _request(number)


def _request(number: int) -> bytes:
    name = f"made-up-{number}"
    group = f"{BASE}/streams/{name}/groups/{name}"
    stranger = "Authorization: Basic " + base64.b64encode(f"user-{number}:guess-{number}".encode()).decode()
    forged = f"Authorization: Bearer eyJhbGciOiJIUzI1NiJ9.{base64.urlsafe_b64encode(name.encode()).decode()}.AAAA"
    key = f"Idempotency-Key: key-{number}"
    if number % LOGIN_EVERY == 0:
        body: object = {"username": f"user-{number}", "password": f"guess-{number}"}
        return _bytes("POST", f"{BASE}/auth/login", number, body=body)
    match number % 10:
        case 0:
            return _bytes("GET", f"{group}/producer-routing", number, stranger)
        case 1:
            return _bytes("POST", f"{BASE}/streams/{name}/scale", number, forged, body={"targetShardCount": 2, **WHO})
        case 2:
            return _bytes("GET", f"{BASE}/nothing/{name}", number)
        case 3:
            return _bytes(f"ODD{number % 1000}", f"/{name}", number)
        case 4:
            return _bytes("GET", f"{BASE}/monitoring/streams/{name}/groups/{name}", number, ADMIN)
        case 5:
            return _bytes("DELETE", f"{BASE}/streams/{name}", number, ADMIN, key, body=WHO)
        case _:
            return _bytes("POST", f"{group}/members/{name}/heartbeat", number, body=heartbeat(memberId=name, requestId=name))


def _bytes(method: str, path: str, number: int, *headers: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    lines = [
        f"{method} {path} HTTP/1.1",
        "Host: flood",
        f"X-Request-Id: request-{number}",
        f"User-Agent: agent-{number}",
        f"X-Forwarded-For: 203.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}",
        *headers,
        *(["Content-Type: application/json", f"Content-Length: {len(data)}"] if data else []),
    ]
    return "\r\n".join([*lines, "", ""]).encode() + data


def address_of(connection: int) -> str:
    """Give the source address of a connection: no two of 16 million are the same."""
    return f"127.{1 + (connection >> 16) % 254}.{connection >> 8 & 255}.{1 + (connection & 255) % 254}"


def send(port: int, *, first: int, count: int) -> Counter[int]:
    """Send the requests with these numbers, some to a connection; gives the statuses. Raises OSError when the server is gone."""
    statuses: Counter[int] = Counter()
    for start in range(first, first + count, REQUESTS_A_CONNECTION):
        here = min(REQUESTS_A_CONNECTION, first + count - start)
        source = (address_of(start // REQUESTS_A_CONNECTION), 0)
        with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S, source_address=source) as connection:
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            stream = connection.makefile("rb")
            for request in requests_of(start, here):
                connection.sendall(request)
                statuses[_answer(stream.readline, stream.read)] += 1
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            stream.close()
    return statuses


def _answer(readline: Callable[[], bytes], read: Callable[[int], bytes]) -> int:
    status = int(readline().split()[1])
    length = 0
    while (line := readline().rstrip(b"\r\n")) != b"":
        name, _, value = line.partition(b":")
        if name.lower() == b"content-length":
            length = int(value)
    read(length)
    return status
