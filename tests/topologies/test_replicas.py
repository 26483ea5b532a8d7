"""`store.wait-replicas`: an administrator's commit waits for real replicas, and says so honestly when they are silent."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import structlog
from falcon import testing

from coord.bootstrap import build
from coord.config import load
from coord.http.app import create_app
from coord.names import StreamKey
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.keys import Keys
from coord.rediscommands.settings import RedisSettings
from coord.store.base import Commit, Committed, Replicas
from coord.store.redis.replicas import ReplicaWait
from coord.store.redis.store import RedisStore
from tests.http.face import BASE
from tests.servers import wait_until
from tests.store.author import KEY, commit_on
from tests.store.redis_server import BINARY, BINARY_70, RedisServer
from tests.topologies.servers import HOST, PREFIX, Cluster, Sentinels, has_replica

WAIT = ReplicaWait(replicas=1, timeout_ms=150)
ADMIN = {"Authorization": "Basic YWRtaW46cGFzc3dvcmQ="}
CREATE = {"initialShardCount": 2, "requestedBy": "me", "reason": "replicas"}


class Pair:
    """A master and its replica."""

    def __init__(self, binary: Path) -> None:
        self.master = RedisServer("--repl-diskless-sync-delay", "0", binary=binary)
        following = ("--replicaof", f"{HOST} {self.master.port}", "--repl-diskless-sync-delay", "0")
        self.replica = RedisServer(*following, binary=binary)
        wait_until(lambda: has_replica(self.master), timeout_s=60, what="the replica follows")

    def close(self) -> None:
        self.replica.close()
        self.master.close()


@pytest.fixture(scope="module", params=[BINARY, BINARY_70], ids=["newest", "7.0"])
def pair(request: pytest.FixtureRequest) -> Iterator[Pair]:
    if not request.param.exists():
        pytest.skip("Redis 7.0 is not there: make redis70")
    pair = Pair(request.param)
    yield pair
    pair.close()


def store_on(settings: RedisSettings, wait: ReplicaWait | None = WAIT) -> RedisStore:
    return RedisStore(RedisCommands(settings, keys=Keys(PREFIX)), wait=wait)


def next_commit(store: RedisStore) -> Commit:
    return replace(commit_on(store.load(KEY)), waits=True)


def replicas_of(store: RedisStore) -> Replicas | None:
    """Commit; give who has it."""
    outcome = store.commit(next_commit(store))
    assert isinstance(outcome, Committed)
    assert not outcome.already
    return outcome.replicas


def hold(store: RedisStore, replica: RedisServer) -> None:
    """A commit is confirmed, is not while the replica is frozen though it takes place, and is again once it is thawed."""
    wait_until(lambda: replicas_of(store) == (1, 1), timeout_s=60, what="the replica confirms")
    replica.freeze()
    try:
        before = store.load(KEY).head
        assert replicas_of(store) == (0, 1)
        assert store.load(KEY).head.revision == before.revision + 1, "it is committed all the same, once"
    finally:
        replica.thaw()
    wait_until(lambda: replicas_of(store) == (1, 1), timeout_s=60, what="the replica confirms again")
    store.close()


def test_a_frozen_replica_confirms_nothing(pair: Pair) -> None:
    hold(store_on(pair.master.settings()), pair.replica)


def test_the_master_behind_sentinels_is_asked(sentinels: Sentinels) -> None:
    (replica,) = (server for server in sentinels.servers if server is not sentinels.master)
    hold(store_on(sentinels.settings()), replica)


def test_the_node_of_a_cluster_that_holds_the_aggregate_is_asked(cluster: Cluster) -> None:
    store = store_on(cluster.settings())
    hold(store, cluster.replica_of(cluster.master_of(store._commands.keys.metadata(KEY))))


def test_a_repeated_commit_is_confirmed_by_nobody(pair: Pair) -> None:
    """Its connection is gone; another one would count replicas that have heard nothing of it. It is not committed again."""
    store = store_on(pair.master.settings())
    commit = next_commit(store)
    store.commit(commit)
    again = store.commit(commit)
    assert isinstance(again, Committed)
    assert again.already
    assert again.replicas == (0, 1)
    assert store.load(KEY).head == commit.head_after
    store.close()


def test_nobody_waits_where_it_is_not_asked_for(pair: Pair) -> None:
    """A member's commits, and all of a store without `store.wait-replicas`, take no look at replicas."""
    pair.master.call("CONFIG", "RESETSTAT")
    store, careless = store_on(pair.master.settings()), store_on(pair.master.settings(), wait=None)
    for each, waits in ((store, False), (careless, True)):
        outcome = each.commit(replace(commit_on(each.load(KEY)), waits=waits))
        assert isinstance(outcome, Committed)
        assert outcome.replicas is None
        each.close()
    assert b"cmdstat_wait" not in pair.master.call("INFO", "commandstats")


def test_a_server_that_refuses_wait_has_committed(pair: Pair) -> None:
    pair.master.call("ACL", "SETUSER", "hasty", "on", ">secret", "~*", "+@all", "-wait")
    store = store_on(replace(pair.master.settings(), username="hasty", password="secret"))
    with structlog.testing.capture_logs() as logs:
        assert replicas_of(store) == (0, 1)
    assert any("'wait'" in line.get("reason", "") for line in logs), logs
    store.close()


def test_a_caller_is_told_that_it_is_done_and_not_replicated(pair: Pair, tmp_path: Path) -> None:
    """201 with a warning, never an error: what is committed must not be tried again."""
    overrides = {
        "redis.url": f"redis://{HOST}:{pair.master.port}",
        "store.wait-replicas": 1,
        "store.wait-timeout-ms": 100,
        "store.key-prefix": "told",
    }
    services = build(load(overrides=overrides, environ={}, directory=tmp_path, secrets_directory=tmp_path))
    client = testing.TestClient(create_app(services), headers=ADMIN)

    def created(stream: str) -> testing.Result:
        return client.simulate_post(f"{BASE}/streams/{stream}/groups/g", json=CREATE)

    def confirms() -> bool:
        confirms.tries += 1  # type: ignore[attr-defined]  # counted on the function
        answer = created(f"orders-{confirms.tries}")  # type: ignore[attr-defined]  # counted on the function
        assert answer.status_code == 201, answer.text
        return answer.headers["X-Replicas-Confirmed"] == "1" and "X-Durability-Warning" not in answer.headers

    confirms.tries = 0  # type: ignore[attr-defined]  # counted on the function
    wait_until(confirms, timeout_s=60, what="a creation is confirmed")
    pair.replica.freeze()
    try:
        told = created("frozen")
    finally:
        pair.replica.thaw()
    assert told.status_code == 201, told.text
    assert told.headers["X-Replicas-Confirmed"] == "0"
    assert "committed, but only 0 of 1 replicas" in told.headers["X-Durability-Warning"]
    assert services.store.load(StreamKey("frozen")).head.exists
    assert "X-Replicas-Confirmed" not in client.simulate_get(f"{BASE}/streams/frozen/groups/g").headers
    services.store.close()
