"""A test that hangs fails by its name, and the run goes on.

pytest-timeout raises in the main thread, which is not enough where that then waits for a thread that hangs: to leave a pool is
to join its threads. So some time later its process ends, with the stacks of all threads; pytest-xdist names the test that
it was in, counts it as failed, and goes on in a new process.
"""

from __future__ import annotations

import faulthandler
import os
from collections.abc import Generator

import pytest

GRACE_S = float(os.environ.get("HANGING_GRACE_S") or 60)
"""For what pytest-timeout has raised to reach pytest."""
_STDERR = pytest.StashKey[int]()


def pytest_configure(config: pytest.Config) -> None:
    """Keep standard error, which is taken away while a test runs."""
    config.stash[_STDERR] = os.dup(2)


def pytest_unconfigure(config: pytest.Config) -> None:
    os.close(config.stash[_STDERR])


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Generator[None, object, object]:
    """End the process when the test's time is long over."""
    faulthandler.dump_traceback_later(limit_s(item) + GRACE_S, exit=True, file=item.config.stash[_STDERR])
    try:
        return (yield)
    finally:
        faulthandler.cancel_dump_traceback_later()


def limit_s(item: pytest.Item) -> float:
    """How long pytest-timeout lets a test run."""
    mark = item.get_closest_marker("timeout")
    if mark is not None:
        return float(mark.args[0])
    return float(item.config.getoption("--timeout") or item.config.getini("timeout"))
