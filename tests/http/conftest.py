"""The app in this process, made anew for each test."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.http.face import Face, configuration, make_face


@pytest.fixture
def face(tmp_path: Path) -> Face:
    """An app without streams; heartbeats need no credentials."""
    return make_face(configuration(tmp_path))


@pytest.fixture
def world(face: Face) -> Face:
    """An app with the stream `orders` (4 shards) and its group `g`."""
    face.make_stream()
    face.make_group()
    return face


@pytest.fixture(scope="session")
def still(tmp_path_factory: pytest.TempPathFactory) -> Face:
    """A world like that, shared by all requests that change nothing because they are wrong."""
    shared = make_face(configuration(tmp_path_factory.mktemp("still")))
    shared.make_stream()
    shared.make_group()
    return shared
