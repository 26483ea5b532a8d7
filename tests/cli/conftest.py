"""A real coordinator for the commands to talk to: `coord serve` as a process, on a private Redis."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
import urllib3
from click.testing import CliRunner, Result

from coord.cli.main import main
from coord.runtime.embedded import EmbeddedRedis
from tests.servers import free_port, private_redis, wait_until

LEASE_TTL = "4s"


@dataclass(frozen=True, slots=True)
class Served:
    """A running coordinator and the Redis of its store."""

    url: str
    redis: EmbeddedRedis


Run = Callable[..., Result]


@pytest.fixture(scope="session")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One coordinator a test process."""
    folder = tmp_path_factory.mktemp("served")
    port = free_port()
    clean = {k: v for k, v in os.environ.items() if not k.startswith(("COORD", "REDIS"))}
    with private_redis() as server, (folder / "serve.log").open("wb") as log:
        environ = {
            **clean,
            "REDIS_URL": server.url,
            "COORDINATOR_STREAMS_PROVISIONING_ENABLED": "true",
            "COORDINATOR_MEMBER_LEASE_TTL": LEASE_TTL,
            "COORDINATOR_HEARTBEAT_INTERVAL": "500ms",
            "COORDINATOR_LOOP_TICK_INTERVAL": "100ms",
            "COORDINATOR_RESHARDING_ROUTING_GRACE": "200ms",
        }
        process = subprocess.Popen(
            [sys.executable, "-m", "coord", "serve", "--port", str(port), "--workers", "1"], env=environ, stdout=log, stderr=log
        )
        try:
            wait_until(lambda: _answers(port, process, folder / "serve.log"), timeout_s=60, what="the coordinator answers")
            yield Served(f"http://127.0.0.1:{port}/coord/v1", server)
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            process.kill()
            process.wait(60)


def _answers(port: int, process: subprocess.Popen[bytes], log: Path) -> bool:
    if process.poll() is not None:
        raise AssertionError(f"coord serve ended (exit {process.returncode}): {log.read_text(errors='replace')[-2000:]}")
    try:
        return urllib3.request("GET", f"http://127.0.0.1:{port}/readyz", timeout=1, retries=False).status == 200
    except urllib3.exceptions.HTTPError:
        return False


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Run:
    """Run `coord …` in this process, in a directory of its own, without the caller's variables."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("COORD", "REDIS"))]:
        monkeypatch.delenv(name)

    def invoke(*arguments: str, text: str | None = None, environ: dict[str, str] | None = None) -> Result:
        return CliRunner().invoke(main, list(arguments), input=text, env=environ)

    return invoke


@pytest.fixture
def ask(run: Run, served: Served) -> Run:
    """Run `coord …` against the real coordinator."""

    def invoke(*arguments: str, text: str | None = None) -> Result:
        return run(*arguments, text=text, environ={"COORD_URL": served.url})

    return invoke


@pytest.fixture
def stream() -> str:
    """A stream prefix that no other test uses."""
    return f"orders-{uuid.uuid4().hex[:8]}"
