"""A whole coordinator of two workers on a SQL store: with no Redis at all, and with one for the shards."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import msgspec
import pytest
import redis
import urllib3

from coord.client.protocol import MemberProtocol
from coord.wire import Capacity, HealthResponse, HeartbeatResponse
from tests.chaos.coordinators import ROOT, login
from tests.servers import free_port, private_redis, wait_until
from tests.store.sql_servers import PASSWORD, PostgresqlServer

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
CAPACITY = Capacity(runtime_max_concurrency=1, available_concurrency=1)
SHARDS = 4


@dataclass
class Served:
    """A running coordinator."""

    url: str
    config: Path
    log: Path

    def post(self, path: str, body: Mapping[str, object]) -> urllib3.BaseHTTPResponse:
        headers = {"Authorization": login(self.url)}
        return urllib3.request("POST", f"{self.url}{path}", json=body, headers=headers, timeout=10, retries=False)

    def health(self) -> HealthResponse:
        headers = {"Authorization": login(self.url)}
        answer = urllib3.request("GET", f"{self.url}/monitoring/health", headers=headers, timeout=10, retries=False)
        return msgspec.json.decode(answer.data, type=HealthResponse)

    def beat(self, member: MemberProtocol, number: int) -> HeartbeatResponse:
        """One heartbeat of a member of the group that the tests make; drains end at once."""
        outgoing = member.next_request(number, f"{member.member_id}-{number}", capacity=CAPACITY)
        answer = urllib3.request(
            "POST",
            f"{self.url}/streams/orders/groups/billing/members/{member.member_id}/heartbeat",
            body=msgspec.json.encode(outgoing.body),
            timeout=10,
            retries=False,
        )
        if answer.status != 200:
            member.unanswered(outgoing.attempt)
            raise AssertionError(answer.data)
        response = msgspec.json.decode(answer.data, type=HeartbeatResponse)
        member.answered(number, outgoing.attempt, response)
        for shard in list(member.draining):
            member.drained(shard)
        return response

    def verify(self) -> None:
        done = subprocess.run(
            [sys.executable, "-m", "coord", "verify", "--config", str(self.config)],
            cwd=ROOT, capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode == 0, done.stdout + done.stderr


@contextmanager
def serving(folder: Path, settings: Mapping[str, object]) -> Iterator[Served]:
    """Run `coord serve` with two workers."""
    port = free_port()
    config, log = folder / "coordinator.yaml", folder / "serve.log"
    plain = {"server": {"port": port, "workers": 2}, "loop": {"tick-interval": "200ms"}}
    config.write_text(json.dumps({"coordinator": {**plain, **settings}}))
    with log.open("wb") as written:
        process = subprocess.Popen(
            [sys.executable, "-m", "coord", "serve", "--config", str(config)], cwd=ROOT, stdout=written, stderr=written
        )
    served = Served(f"http://127.0.0.1:{port}/coord/v1", config, log)

    def answers() -> bool:
        assert process.poll() is None, log.read_text()
        with contextlib.suppress(urllib3.exceptions.HTTPError):
            return served.health().status == "UP"
        return False

    try:
        wait_until(answers, timeout_s=60, what="the coordinator is up")
        yield served
    finally:
        process.terminate()
        assert process.wait(60) == 0, log.read_text()


def share_out(served: Served) -> None:
    """Two members of a new group come to hold all shards between them, through whichever worker answers."""
    made = served.post("/streams/orders/groups/billing", {"initialShardCount": SHARDS, "requestedBy": "test", "reason": "test"})
    assert made.status == 201, made.data
    members = [MemberProtocol("one"), MemberProtocol("two")]

    def settled() -> bool:
        for member in members:
            served.beat(member, member.attempts)
        held = [sorted(member.reading) for member in members]
        return all(held) and sorted(held[0] + held[1]) == list(range(SHARDS))

    wait_until(settled, timeout_s=60, what="both members hold their shards", poll_s=0.1)


def command(served: Served, name: str, redis_url: str, *options: str) -> subprocess.Popen[str]:
    """Run `coord consume` or `coord produce`, as an operator does."""
    where = ("--url", served.url, "--redis-url", redis_url, "--stream", "orders")
    return subprocess.Popen(
        [sys.executable, "-m", "coord", name, *where, *options],
        cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        env={**os.environ, "COORD_USERNAME": "admin", "COORD_PASSWORD": "password"},
    )  # fmt: skip


def scale(served: Served, shards: int) -> None:
    told = served.post("/streams/orders/scale", {"targetShardCount": shards, "requestedBy": "test", "reason": "test"})
    assert told.status == 202, told.data


def shard_count(served: Served) -> tuple[int, str]:
    """Where records go, and the state of the stream."""
    headers = {"Authorization": login(served.url)}
    answer = urllib3.request("GET", f"{served.url}/monitoring/streams/orders", headers=headers, timeout=10, retries=False)
    told = answer.json()
    return told["shardCount"], told["state"]


def unread(client: redis.Redis) -> dict[bytes, int]:
    """What the group has not read, or not acknowledged, a shard."""
    left = {}
    for key in client.scan_iter(match="orders:*"):
        (group,) = client.xinfo_groups(key)
        after: Sequence[object] = client.xrange(key, min=b"(" + group["last-delivered-id"]) or []
        left[key] = len(after) + group["pending"]
    return left


def work_through(served: Served, redis_url: str, targets: Sequence[int], records: int = 400) -> None:
    """Two members read all that is published while the stream is scaled, and leave in order."""
    made = served.post("/streams/orders/groups/billing", {"initialShardCount": SHARDS, "requestedBy": "test", "reason": "test"})
    assert made.status == 201, made.data
    who = ("--group", "billing", "--member-id", "m", "--members", "2", "--block-ms", "50")
    consumer = command(served, "consume", redis_url, *who)
    producer = command(served, "produce", redis_url, "--rate", "100", "--count", str(records), "--refresh-ms", "300")
    try:
        for target in targets:
            scale(served, target)
            wait_until(lambda target=target: shard_count(served) == (target, "STABLE"), timeout_s=60, what=f"{target} shards")  # type: ignore[misc]  # bound at once
        told = producer.communicate(timeout=60)[0]
        assert (producer.returncode, f"published {records}  failed 0" in told) == (0, True), told
        with redis.Redis.from_url(redis_url) as client:
            wait_until(lambda: not any(unread(client).values()), timeout_s=60, what="all is read and acknowledged")
            assert sum(client.xlen(key) for key in client.scan_iter(match="orders:*")) == records
        consumer.terminate()
        told = consumer.communicate(timeout=60)[0]
        assert consumer.returncode == 0, told
    finally:
        for process in (consumer, producer):
            if process.poll() is None:
                process.kill()
                process.communicate()
    served.verify()


def test_members_work_with_the_shards_in_the_coordinators_redis(tmp_path: Path) -> None:
    """Scaled out and in again while records flow; a shard leaves only once it was read."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    with contextlib.closing(PostgresqlServer(durable=True)) as database, private_redis() as server:
        settings = {
            "store": {"type": "jdbc", "url": database.url(database.new_database())},
            "redis": {"url": server.url},
            "streams": {"provisioning-enabled": True},
            "resharding": {"routing-grace": "500ms"},
        }
        with serving(tmp_path, settings) as served:
            work_through(served, server.url, [SHARDS + 2, SHARDS - 1])


def test_members_work_where_the_coordinator_has_no_redis(tmp_path: Path) -> None:
    """The shards are the clients' own: somebody else makes them, and the coordinator only shares them out."""
    settings = {
        "store": {"type": "jdbc", "url": f"jdbc:sqlite:{tmp_path / 'coord.db'}"},
        "resharding": {"routing-grace": "500ms"},
    }
    with private_redis() as server, serving(tmp_path, settings) as served:
        with redis.Redis.from_url(server.url) as client:
            for shard in range(SHARDS + 2):
                client.xgroup_create(f"orders:{shard}", "billing", id="0", mkstream=True)
        work_through(served, server.url, [SHARDS + 2])
        assert served.health().redis == "NOT_CONFIGURED"


def test_a_file_and_no_redis_at_all(tmp_path: Path) -> None:
    with serving(tmp_path, {"store": {"type": "sql", "url": f"jdbc:sqlite:{tmp_path / 'coord.db'}"}}) as served:
        assert (served.health().redis, served.health().store) == ("NOT_CONFIGURED", "UP")
        share_out(served)
        served.verify()
        assert f"jdbc:sqlite:{tmp_path / 'coord.db'}" in served.log.read_text()
    served.verify()


def test_a_database_with_a_redis_for_the_shards(tmp_path: Path) -> None:
    """The shards are made in Redis. While it is away the members go on: what they need is in the database."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    with contextlib.closing(PostgresqlServer(durable=True)) as database, private_redis() as server:
        settings = {
            "store": {"type": "jdbc", "url": database.url(database.new_database())},
            "redis": {"url": server.url, "timeout-ms": 500},
            "streams": {"provisioning-enabled": True},
        }
        with serving(tmp_path, settings) as served:
            assert (served.health().redis, served.health().store) == ("UP", "UP")
            share_out(served)
            with redis.Redis.from_url(server.url) as client:
                assert sorted(client.keys("*")) == [f"orders:{shard}".encode() for shard in range(SHARDS)]
            server.kill()
            member = MemberProtocol("three")
            wait_until(lambda: served.health().redis == "DOWN", timeout_s=60, what="the missing Redis is told")
            assert (served.health().status, served.health().store) == ("DEGRADED", "UP")
            assert served.beat(member, 0).status in {"OK", "REVOKE_PENDING"}
            served.verify()
        assert PASSWORD not in served.log.read_text()
