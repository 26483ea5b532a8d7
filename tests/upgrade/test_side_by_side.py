"""While an instance of this release is alive, one of the next emits nothing that it could not read."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import msgspec
import pytest
import urllib3

from coord.bootstrap import open_store
from coord.config import load
from coord.core.decision import Moment, Policy
from coord.events import codec
from coord.events.catalog import MemberJoined
from coord.names import GroupKey
from coord.runtime.embedded import EmbeddedRedis, free_port
from coord.runtime.verify import entries_of
from coord.store.memory import MemoryStore
from tests.chaos.coordinators import CoordinatorProcess, login
from tests.servers import private_redis, wait_until
from tests.upgrade import next_build

KEY = GroupKey("orders", "workers")
LEASE_MS = 1_000
pytestmark = pytest.mark.timeout(300)


class EntryType(msgspec.Struct):
    """What every build can read of an entry."""

    type: str


def test_the_lowest_live_reader_decides() -> None:
    """An instance that is gone for long enough holds nobody back."""
    clock = [1_000_000]
    store = MemoryStore(lambda: clock[0])
    assert store.announce("old", reads=1, within_ms=100) == 1
    assert store.announce("new", reads=2, within_ms=100) == 1
    clock[0] += 90
    assert store.announce("old", reads=1, within_ms=100) == 1
    clock[0] += 90
    assert store.announce("new", reads=2, within_ms=100) == 1
    clock[0] += 20
    assert store.announce("new", reads=2, within_ms=100) == 2


def test_nothing_is_past_the_present_level() -> None:
    """A decision starts from the lowest level, and this release emits nothing above its own."""
    assert Moment(now=0, identity="", revision=1, policy=Policy()).level == 1
    assert max(codec.level_of(kind) for kind in codec.NAMES.values()) <= codec.LEVEL


@pytest.fixture
def redis() -> Iterator[EmbeddedRedis]:
    """A Redis of one's own."""
    with private_redis() as server:
        yield server


@pytest.mark.e2e
@pytest.mark.slow
def test_two_builds_side_by_side(redis: EmbeddedRedis, tmp_path: Path) -> None:
    """Members join through both builds in turn; the new event appears only once the old build is gone."""
    folder = next_build.make(tmp_path / "next")
    old = CoordinatorProcess("old", free_port(), redis.url, tmp_path, workers=1, lease_ms=LEASE_MS)
    new = CoordinatorProcess("new", free_port(), redis.url, tmp_path, workers=1, lease_ms=LEASE_MS, python_path=folder)
    try:
        old.start()
        new.start()
        _create(old)
        for number in range(10):
            _join((old, new)[number % 2], f"both-{number}")
            time.sleep(0.05)
        assert "MemberNoted" not in _types(redis.url)
        assert old.stop() == 0
        wait_until(lambda: _emits(new, redis.url), timeout_s=60, what="the next build to emit its new event", poll_s=0.3)
    finally:
        old.kill()
        new.kill()
    verified = subprocess.run(
        [sys.executable, "-m", "coord", "verify", "--redis-url", redis.url],
        cwd=folder,
        capture_output=True,
        text=True,
        check=False,
    )
    assert verified.returncode == 0, verified.stdout
    refused = subprocess.run(
        [sys.executable, "-m", "coord", "verify", "--redis-url", redis.url],
        cwd=next_build.ROOT,
        capture_output=True,
        text=True,
        check=False,
    )
    assert refused.returncode == 1
    assert "a newer coord is needed" in refused.stdout


def _create(coordinator: CoordinatorProcess) -> None:
    answer = urllib3.request(
        "POST",
        f"{coordinator.url}/streams/{KEY.stream_prefix}/groups/{KEY.consumer_group}",
        json={"initialShardCount": 4, "requestedBy": "test", "reason": "test"},
        headers={"Authorization": login(coordinator.url)},
        retries=False,
    )
    assert answer.status == 201, answer.data


def _join(coordinator: CoordinatorProcess, member_id: str) -> None:
    answer = urllib3.request(
        "POST",
        f"{coordinator.url}/streams/{KEY.stream_prefix}/groups/{KEY.consumer_group}/members/{member_id}/heartbeat",
        json={
            "protocolVersion": 1,
            "requestId": f"{member_id}-1",
            "memberId": member_id,
            "memberEpoch": 0,
            "metadataVersion": 0,
            "runtimeConsumerCapacity": {"runtimeMaxConcurrency": 1, "availableConcurrency": 1},
        },
        retries=False,
    )
    assert answer.status == 200, answer.data
    assert msgspec.json.decode(answer.data)["status"] == "OK", answer.data


def _emits(coordinator: CoordinatorProcess, redis_url: str) -> bool:
    """Let a member join; tell whether the new event is there by now."""
    _join(coordinator, f"alone-{time.monotonic_ns()}")
    return "MemberNoted" in _types(redis_url)


def _types(redis_url: str) -> set[str]:
    store, _ = open_store(load(overrides={"redis.url": redis_url}))
    try:
        types = {msgspec.json.decode(entry.body, type=EntryType).type for entry in entries_of(store, KEY)}
    finally:
        store.close()
    assert MemberJoined.__name__ in types
    return types
