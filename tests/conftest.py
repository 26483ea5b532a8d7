"""What all tests share: the private Redis, hypothesis profiles, `--rewrite` for scenario files."""

from __future__ import annotations

import logging
import os
from collections.abc import Generator, Iterator
from pathlib import Path

import pytest
import structlog
from hypothesis import HealthCheck, settings

from coord.runtime.embedded import EmbeddedRedis
from tests.hanging import pytest_configure, pytest_runtest_protocol, pytest_unconfigure
from tests.servers import private_redis, wipe

__all__ = ["pytest_configure", "pytest_runtest_protocol", "pytest_unconfigure"]

TESTS = Path(__file__).parent
WAITING = {"cli", "client", "e2e", "failover", "topologies", "upgrade"}
"""Folders whose tests wait for real programs most of their time; so do those marked `e2e`, wherever they are."""

IN_CI = os.environ.get("CI", "").lower() in {"1", "true", "yes"}

# No deadline an example: two cores are shared with real servers, and pytest-timeout bounds the test as a whole.
settings.register_profile("dev", max_examples=50, deadline=None)
settings.register_profile("ci", max_examples=200, deadline=None, print_blob=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("night", max_examples=20_000, deadline=None, print_blob=True, suppress_health_check=list(HealthCheck))
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE") or ("ci" if IN_CI else "dev"))


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add `--rewrite`."""
    parser.addoption("--rewrite", action="store_true", help="write what scenario files print back into them")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark what may run beside other tests, and how: all but what is marked `alone`."""
    for item in items:
        marks = {mark.name for mark in item.iter_markers()}
        if "alone" not in marks:
            waits = "e2e" in marks or item.path.relative_to(TESTS).parts[0] in WAITING
            item.add_marker(pytest.mark.waiting if waits else pytest.mark.shared)


@pytest.fixture(autouse=True)
def _logging_as_before() -> Iterator[None]:
    """What a test configures ends with it: pytest keeps what reaches the root logger, which the next test would pay for."""
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    configured = structlog.get_config() if structlog.is_configured() else None
    yield
    root.handlers[:] = handlers
    root.setLevel(level)
    logging.captureWarnings(capture=False)
    structlog.contextvars.clear_contextvars()
    structlog.reset_defaults()
    if configured is not None:
        structlog.configure(**configured)


@pytest.fixture(scope="session")
def rewrite(request: pytest.FixtureRequest) -> bool:
    """Whether scenario files are to be recorded anew."""
    return bool(request.config.getoption("--rewrite"))


@pytest.fixture(scope="session")
def redis_server() -> Iterator[EmbeddedRedis]:
    """One private Redis a test process; for tests that stop or reconfigure a server there is `private_redis`."""
    with private_redis() as server:
        yield server


@pytest.fixture
def redis_url(redis_server: EmbeddedRedis) -> str:
    """The address of an empty database on the private Redis."""
    wipe(redis_server)
    return redis_server.url


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """In CI a skipped test is a failed one: what is not checked there is checked nowhere."""
    report = yield
    if IN_CI and report.skipped and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """In CI a module that skips itself has failed too."""
    report = yield
    if IN_CI and report.skipped:
        report.outcome = "failed"
        report.longrepr = f"skipped in CI: {report.longrepr}"
    return report
