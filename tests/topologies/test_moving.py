"""Moving into and out of a cluster, and adopting in one: keys lie on several nodes."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from redis.cluster import ClusterNode, RedisCluster

from tests.cli.conftest import Run, run  # noqa: F401  a fixture
from tests.moving.kotlin import keys_of
from tests.moving.lives import Life, on, stored
from tests.topologies.servers import Cluster


@pytest.fixture
def file(cluster: Cluster, tmp_path: Path) -> str:
    """A configuration of the cluster."""
    place = tmp_path / "cluster.yaml"
    nodes = [f"127.0.0.1:{node.port}" for node in cluster.nodes]
    place.write_text(json.dumps({"coordinator": {"redis": {"cluster": {"nodes": nodes}}}}))
    return str(place)


def test_into_a_cluster_and_out_again(run: Run, redis_url: str, file: str) -> None:  # noqa: F811  the fixture
    """To the byte; a deletion and names with a colon among them."""
    life = Life(redis_url)
    life.live()
    life.close()
    done = run("store", "copy", "--from", redis_url, "--to", file)
    assert done.exit_code == 0, done.output
    assert run("verify", "--config", file).exit_code == 0
    done = run("store", "copy", "--from", file, "--to", on(redis_url, 1))
    assert done.exit_code == 0, done.output
    assert stored(on(redis_url, 1)) == stored(redis_url)


def test_one_node_of_a_cluster_is_named_for_what_it_is(run: Run, redis_url: str, cluster: Cluster) -> None:  # noqa: F811  the fixture
    life = Life(redis_url)
    life.live()
    life.close()
    refused = run("store", "copy", "--from", redis_url, "--to", f"redis://127.0.0.1:{cluster.nodes[0].port}")
    assert (refused.exit_code, "redis.cluster.nodes" in refused.stderr) == (3, True), refused.stderr


def test_adopting_in_a_cluster_and_back(run: Run, cluster: Cluster, file: str) -> None:  # noqa: F811  the fixture
    """The older key of a group with a colon in its name lies on another slot than ours."""
    odd, value = "redis-stream:coord:{odd:a:b}:metadata", keys_of("kotlin-0.1-stable")[0]["value"]
    text = value["aggregate"].replace('"streamPrefix":"orders"', '"streamPrefix":"odd"').replace('"orders-consumer"', '"a:b"')
    seeds = [ClusterNode("127.0.0.1", node.port) for node in cluster.nodes]  # type: ignore[no-untyped-call]  # redis-py leaves it untyped
    with RedisCluster(startup_nodes=seeds) as client:
        client.hset(odd, mapping={**value, "aggregate": text})
        for key in keys_of("kotlin-0.3-stream-and-group")[:2]:
            client.hset(key["key"], mapping=key["value"])
        before = {key: client.hgetall(key) for key in client.scan_iter("*", target_nodes=RedisCluster.PRIMARIES)}
        done = run("adopt", "--config", file, "--output", "json")
        assert done.exit_code == 0, done.output
        assert [each["streamPrefix"] for each in json.loads(done.stdout)["streams"]] == ["odd", "orders"]
        assert run("verify", "--config", file).exit_code == 0
        assert client.exists(odd) == 0
        assert client.hget("redis-stream:coord:{odd:a%3Ab}:metadata", "schemaVersion") == b"2"
        done = run("adopt", "--undo", "--config", file)
        assert done.exit_code == 0, done.output
        after = {
            key: client.hgetall(key)
            for key in client.scan_iter("*", target_nodes=RedisCluster.PRIMARIES)
            if client.type(key) == b"hash"
        }
        assert after == before
