"""The short form of `python -m tests.memory`: nothing that strangers name is kept beyond the bounds."""

from __future__ import annotations

import gc
import io
import tracemalloc
from collections import Counter
from pathlib import Path

import pytest

from coord.http import throttle
from coord.http.addresses import _peer
from coord.runtime import clock
from coord.store import memory_state, memory_windows
from tests.http.face import Face, configuration, make_face
from tests.memory.flood import requests_of

REQUESTS = 1_500
KEPT_BYTES_MAX = 40 * 1024
"""27 bytes for each request: less than its name alone would take."""


@pytest.fixture
def small(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Face:
    """An app whose tables are full after some hundred requests, and no memory of those that earlier tests have sent."""
    _peer.cache_clear()  # else its table may have to be made anew within the second flood
    for module, name in ((throttle, "COUNTS_MAX"), (clock, "TIMES_MAX"), (memory_windows, "COUNTS_MAX")):
        monkeypatch.setattr(module, name, 200)
    text = "coordinator: {api: {rate-limit: {enabled: true, admin-mutations-per-minute: 60}}}"
    face = make_face(configuration(tmp_path, text=text))
    face.store.state.requests = type(face.store.state.requests)(maxlen=200)
    assert memory_state.REQUESTS_MAX > 200
    return face


def flood(face: Face, first: int, count: int) -> Counter[int]:
    """Send requests of the flood straight into the app."""
    statuses: Counter[int] = Counter()
    for number, request in enumerate(requests_of(first, count), first):
        environ = environ_of(request, f"127.{number >> 16 & 255}.{number >> 8 & 255}.{number & 255}")
        told: list[str] = []
        for _ in face.app(environ, lambda status, headers, told=told: told.append(status)):
            pass
        statuses[int(told[0].split()[0])] += 1
    return statuses


def environ_of(request: bytes, address: str) -> dict[str, object]:
    """Give the WSGI environment of a request as gunicorn would."""
    head, _, body = request.partition(b"\r\n\r\n")
    first, *lines = head.decode().split("\r\n")
    method, path, _ = first.split()
    environ: dict[str, object] = {
        "REQUEST_METHOD": method,
        "PATH_INFO": path,
        "RAW_URI": path,
        "QUERY_STRING": "",
        "REMOTE_ADDR": address,
        "SERVER_NAME": "flood",
        "SERVER_PORT": "80",
        "SERVER_PROTOCOL": "HTTP/1.1",
        "wsgi.input": io.BytesIO(body),
        "wsgi.errors": io.StringIO(),
        "wsgi.url_scheme": "http",
    }
    for line in lines:
        name, _, value = line.partition(":")
        variable = name.upper().replace("-", "_")
        environ[variable if variable in {"CONTENT_TYPE", "CONTENT_LENGTH"} else f"HTTP_{variable}"] = value.strip()
    return environ


def kept_by(face: Face) -> tuple[int, Counter[int], str]:
    """Give how many bytes more the app holds after a second flood than after a first; what was answered; where they are."""
    tracemalloc.start()
    try:
        statuses = flood(face, 0, REQUESTS)
        gc.collect()
        before = tracemalloc.take_snapshot()
        statuses += flood(face, REQUESTS, REQUESTS)
        gc.collect()
        rise = tracemalloc.take_snapshot().compare_to(before, "lineno")
    finally:
        tracemalloc.stop()
    return sum(each.size_diff for each in rise), statuses, "\n".join(map(str, rise[:10]))


def test_l1_memory_is_flat_however_many_names_come(small: Face) -> None:
    """R22: made-up streams, groups, members, users, keys, ids and addresses leave nothing behind."""
    kept, statuses, told = kept_by(small)
    assert kept < KEPT_BYTES_MAX, told
    assert {200, 401, 404, 429} <= set(statuses)
    assert statuses[500] == 0


def test_a_leak_is_found(small: Face) -> None:
    """The measure itself: one name kept for each heartbeat is more than is allowed."""
    kept: list[str] = []
    real = small.services.coordinator.heartbeat

    def leaking(key: object, command: object, **options: object) -> object:
        kept.append(str(key) * 4)
        return real(key, command, **options)  # type: ignore[arg-type]  # handed on as it came

    small.services.coordinator.heartbeat = leaking  # type: ignore[method-assign, assignment]  # a bug on purpose
    assert kept_by(small)[0] > KEPT_BYTES_MAX
