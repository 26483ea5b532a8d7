"""What is logged is no part of a story."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def quiet() -> Iterator[None]:
    """Keep log lines out of the output."""
    with structlog.testing.capture_logs():
        yield
