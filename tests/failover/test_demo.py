"""`coord demo --redis-cluster`: the same story on a cluster that is somebody else's, which is left as it was found."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator

import pytest

from coord.rediscommands.slots import slot_of
from tests.chaos.coordinators import ROOT
from tests.topologies.servers import HOST, Cluster

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]
BOUND_S = 240


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    made = Cluster(node_timeout_ms=3000)
    yield made
    made.close()


def demo(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "coord", "demo", "--seconds", "20", "--json", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False, timeout=BOUND_S)


def test_the_demo_holds_its_promise_on_a_cluster(cluster: Cluster) -> None:
    """Every record consumed, no shard read by two, a sound log; the shards are spread over all masters."""
    cluster.call("theirs", "SET", "theirs", "kept")
    cluster.call("orders:0", "XADD", "orders:0", "*", "theirs", "kept")
    done = demo("--redis-cluster", ",".join(f"{HOST}:{node.port}" for node in cluster.nodes[:2]))
    assert done.returncode == 0, done.stderr[-3000:]
    result = json.loads(done.stdout.splitlines()[-1])
    assert result["ok"] is result["verdict"] is result["verify"] is True
    assert result["produced"] == result["consumed"] > 500
    assert (result["lost"], result["violations"], result["problems"]) == (0, 0, [])
    assert result["shardCounts"] == [8, 12, 6]
    stream = result["stream"]
    assert len({slot_of(f"{stream}:{shard}") * 3 // 16384 for shard in range(12)}) == 3
    keys = sorted(key for node in cluster.masters() for key in node.call("KEYS", "*"))
    assert keys == [b"orders:0", b"theirs"]
    assert cluster.call("orders:0", "XLEN", "orders:0") == 1


@pytest.mark.parametrize(
    ("given", "code", "says"),
    [
        (f"redis://{HOST}:1", 2, "--redis-cluster"),
        (f"{HOST}:no", 2, "is not host:port"),
        (f"redis-cluster://:hidden@{HOST}:1", 3, "the Redis Cluster does not answer"),
    ],
)
def test_a_cluster_that_is_none_is_refused(given: str, code: int, says: str) -> None:
    done = demo("--redis-cluster", given)
    assert done.returncode == code, done.stderr
    assert says in done.stderr
    assert "hidden" not in done.stderr
