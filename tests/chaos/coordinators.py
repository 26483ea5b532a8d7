"""Coordinator processes that can be killed whole: master and workers."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import urllib3

ROOT = Path(__file__).parents[2]
READY_S_MAX = 30.0
STOP_S_MAX = 20.0
REBALANCE_MS_MIN = 4_000
"""Longer than a lease in any case: who has joined again is not freed of a shard before its elder's lease is over."""

SETTINGS = """
coordinator:
  id: {name}
  server: {{host: 127.0.0.1, port: {port}, workers: {workers}, threads: 32, graceful-timeout: 5s}}
  redis: {redis}
  coordination: {{state-mutex: {{ttl-ms: 1500}}}}
  heartbeat-interval: 500ms
  member-lease-ttl: {lease_ms}ms
  rebalance-timeout: {rebalance_ms}ms
  stale-member-retention: 5s
  store: {store}
  streams: {{provisioning-enabled: true}}
  resharding: {{routing-grace: 500ms, watch-retired: 10s}}
  events: {{snapshot-every: 200}}
  loop: {{tick-interval: 200ms}}
"""


@dataclass(slots=True)
class CoordinatorProcess:
    """`coord serve` in a process group of its own, so that a kill takes its workers too."""

    name: str
    port: int
    redis_url: str
    folder: Path
    workers: int = 2
    lease_ms: int = 3_000
    python_path: Path = ROOT
    """Where `coord` is taken from: this tree, or another build."""
    redis: Mapping[str, object] | None = None
    """The section `redis` of the configuration, for what no URL says; wins over `redis_url`."""
    failover_grace_ms: int = 500
    store: Mapping[str, object] = field(default_factory=dict)
    """What else the section `store` says: another kind of store, with Redis beside it for the shards."""
    kills: int = 0
    _process: subprocess.Popen[bytes] | None = field(default=None)

    @property
    def url(self) -> str:
        """Base URL of the API."""
        return f"http://127.0.0.1:{self.port}/coord/v1"

    @property
    def config(self) -> Path:
        """Its configuration file."""
        return self.folder / f"{self.name}.yaml"

    def start(self) -> None:
        """Start, and wait until it answers."""
        self.config.write_text(
            SETTINGS.format(
                name=self.name,
                port=self.port,
                workers=self.workers,
                redis=json.dumps({**(self.redis or {"url": self.redis_url}), "timeout-ms": 1000}),
                store=json.dumps({"failover-grace": f"{self.failover_grace_ms}ms", **self.store}),
                lease_ms=self.lease_ms,
                rebalance_ms=max(REBALANCE_MS_MIN, self.lease_ms + 1_000),
            )
        )
        with (self.folder / f"{self.name}.log").open("ab") as log:
            self._process = subprocess.Popen(
                [sys.executable, "-m", "coord", "serve", "--config", str(self.config)],
                cwd=self.python_path,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        deadline = time.monotonic() + READY_S_MAX
        while time.monotonic() < deadline:
            if self._process.poll() is not None:
                raise AssertionError(f"{self.name} ended with {self._process.returncode}: {self.log_tail()}")
            try:
                answer = urllib3.request("GET", f"http://127.0.0.1:{self.port}/livez", timeout=1, retries=False)
            except urllib3.exceptions.HTTPError:
                time.sleep(0.05)
                continue
            if answer.status == 200:
                return
        raise AssertionError(f"{self.name} does not answer: {self.log_tail()}")

    def kill(self) -> None:
        """SIGKILL to master and workers at once."""
        if self._process is not None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(STOP_S_MAX)
            self._process = None
            self.kills += 1

    def stop(self) -> int:
        """SIGTERM, and wait; gives the exit code."""
        if self._process is None:
            return 0
        self._process.terminate()
        try:
            return self._process.wait(STOP_S_MAX)
        except subprocess.TimeoutExpired:
            self.kill()
            raise
        finally:
            self._process = None

    def log_tail(self) -> str:
        """The end of its log."""
        return (self.folder / f"{self.name}.log").read_text(errors="replace")[-3000:]


class LoginBody(msgspec.Struct, rename="camel"):
    """What a login answers."""

    access_token: str


def login(url: str) -> str:
    """Log in as the development user; gives an Authorization header."""
    answer = urllib3.request(
        "POST", f"{url}/auth/login", json={"username": "admin", "password": "password"}, timeout=5, retries=False
    )
    return f"Bearer {msgspec.json.decode(answer.data, type=LoginBody).access_token}"
