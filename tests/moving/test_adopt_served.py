"""The whole way: members of a Kotlin coordinator talk to `coord serve` over HTTP, before and after `coord adopt`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import redis

from tests.cli.conftest import Run
from tests.http.face import heartbeat
from tests.http.served import BASE, Served, serving
from tests.moving.kotlin import STABLE, seed
from tests.servers import wait_until

SETTINGS = """
  member-lease-ttl: 3s
  heartbeat-interval: 500ms
  loop: {tick-interval: 100ms}
  resharding: {routing-grace: 200ms}
"""
MINE = {"10.0.3.11-m0": [0, 2, 4], "10.0.3.12-m0": [1, 3, 5]}


def beat(served: Served, group: str, member: str, epoch: int, owned: list[int], **more: object) -> Any:
    body = heartbeat(
        memberId=member, memberEpoch=epoch, metadataVersion=9, ownedShards=[{"shardIndex": shard} for shard in owned], **more
    )
    answer = served.ask("POST", f"{BASE}/streams/orders/groups/{group}/members/{member}/heartbeat", body, credentials=False)
    assert answer.status == 200, answer.body
    return answer.json


def assigned(answer: Any) -> list[int]:
    return [shard["shardIndex"] for shard in answer["assignment"]["assignedShards"]]


def config(url: str) -> str:
    return f"coordinator:\n  redis: {{url: '{url}'}}\n{SETTINGS}"


def test_members_keep_heartbeating_through_an_adoption(tmp_path: Path, run: Run, redis_url: str) -> None:
    """A coordinator that runs already answers RETRY until the state is adopted, then OK: same epochs, same shards, no rejoin."""
    seed(redis_url, "kotlin-0.1-stable")
    with serving(tmp_path, config=config(redis_url)) as served:
        for member, owned in MINE.items():
            before = beat(served, "orders-consumer", member, 7, owned)
            assert (before["status"], before["memberEpoch"]) == ("RETRY", 7)
        assert run("adopt", "--redis-url", redis_url).exit_code == 0
        for _ in range(3):
            for member, owned in MINE.items():
                answer = beat(served, "orders-consumer", member, 7, owned)
                assert (answer["status"], answer["memberEpoch"], assigned(answer)) == ("OK", 7, owned)
        routing = served.ask("GET", f"{BASE}/streams/orders/producer-routing").json
        assert routing["shardCount"] == 6
        assert routing["metadataVersion"] > 9
    assert run("verify", "--redis-url", redis_url).exit_code == 0
    with redis.Redis.from_url(redis_url) as client:
        assert client.hget(f"{STABLE}:kotlin", "schemaVersion") == b"1"


def test_a_resharding_goes_on_to_its_end(tmp_path: Path, run: Run, redis_url: str) -> None:
    """Begun by the other coordinator, ended by ours: members that report come to hold all eight shards, four each."""
    seed(redis_url, "kotlin-0.1-resharding-old-aliases")
    assert run("adopt", "--redis-url", redis_url).exit_code == 0
    with serving(tmp_path, config=config(redis_url)) as served:
        epochs, owned = {"billing-0": 9, "billing-1": 9}, {"billing-0": [0, 1, 2], "billing-1": [4, 5]}

        def settled() -> bool:
            for member, epoch in list(epochs.items()):
                answer = beat(served, "billing", member, epoch, owned[member])
                assert answer["status"] == "OK", answer
                epochs[member], owned[member] = answer["memberEpoch"], assigned(answer)
            held = sorted([*owned["billing-0"], *owned["billing-1"]])
            assert len(set(held)) == len(held), "no shard has two members"
            return held == list(range(8)) and len(owned["billing-0"]) == 4

        wait_until(settled, timeout_s=20, what="all shards are held, evenly", poll_s=0.1)

        def ended() -> bool:
            settled()
            listed = served.ask("GET", f"{BASE}/monitoring/streams/orders/migrations").json["migrations"]
            return [(each["reshardingId"], each["state"]) for each in listed] == [("reshard-5b0a", "DEPRECATED")]

        wait_until(ended, timeout_s=20, what="the resharding ends", poll_s=0.1)
    assert run("verify", "--redis-url", redis_url).exit_code == 0
