"""`coord doctor` on a Cluster and behind Sentinels, real ones."""

from __future__ import annotations

import json
from collections.abc import Mapping

import pytest
from click.testing import CliRunner

from coord.cli.main import main
from tests.topologies.servers import HOST, SENTINEL_NAME, Cluster, Sentinels, dead_port

SAFE = {"COORDINATOR_API_ADMIN_PASSWORD": "something else", "COORDINATOR_API_TOKEN_SECRET": "0123456789abcdef0123456789abcdef"}


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory) -> None:
    monkeypatch.chdir(tmp_path_factory.mktemp("doctor"))


def doctor(environ: Mapping[str, str]) -> tuple[int, dict[str, list[tuple[str, str]]]]:
    """Run it; give the exit code, and by check each line's status and text."""
    result = CliRunner().invoke(main, ["doctor", "--output", "json"], env={**SAFE, **environ})
    found: dict[str, list[tuple[str, str]]] = {}
    for line in json.loads(result.stdout)["checks"]:
        found.setdefault(line["check"], []).append((line["status"], line["text"]))
    return result.exit_code, found


def test_every_master_of_a_cluster_is_looked_at(cluster: Cluster) -> None:
    nodes = {"REDIS_CLUSTER_NODES": ",".join(f"{HOST}:{node.port}" for node in cluster.nodes[:2])}
    code, found = doctor(nodes)
    for check in ("version", "eviction", "replicas", "min-replicas", "node-timeout", "topology"):
        assert len(found[check]) == 3, check
    assert {status for status, _ in found["topology"]} == {"OK"}
    assert {status for status, _ in found["min-replicas"]} == {"FAIL"}
    assert found["clock"][0][0] == found["rights"][0][0] == "OK"
    assert code == 1
    for node in cluster.nodes:
        node.call("CONFIG", "SET", "min-replicas-to-write", 1, "min-replicas-max-lag", 5)
    try:
        assert doctor(nodes)[0] == 0
    finally:
        for node in cluster.nodes:
            node.call("CONFIG", "SET", "min-replicas-to-write", 0)


def test_every_sentinel_is_asked(sentinels: Sentinels) -> None:
    addresses = [f"{HOST}:{sentinel.port}" for sentinel in sentinels.sentinels]
    environ = {"REDIS_SENTINEL_MASTER": SENTINEL_NAME, "REDIS_SENTINEL_NODES": ",".join([*addresses, f"{HOST}:{dead_port()}"])}
    _, found = doctor(environ)
    assert [status for status, _ in found["topology"]] == ["OK", "OK", "OK", "WARN"]
    assert "1 replicas, 2 other Sentinels, quorum 2" in found["topology"][0][1]
    assert "tells nothing" in found["topology"][3][1]
    assert f"master {SENTINEL_NAME} behind 4 Sentinels" in found["reachable"][0][1]
    code, found = doctor({**environ, "REDIS_SENTINEL_MASTER": "another"})
    assert (code, found["reachable"][0][0]) == (3, "FAIL")
