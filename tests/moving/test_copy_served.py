"""The whole way: members of `coord serve` on Redis go on with `coord serve` on PostgreSQL, once `coord store copy` says so."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.cli.conftest import Run
from tests.http.face import heartbeat
from tests.http.served import BASE, Served, serving
from tests.servers import wait_until

SETTINGS: dict[str, Any] = {
    "member-lease-ttl": "3s",
    "heartbeat-interval": "500ms",
    "loop": {"tick-interval": "100ms"},
    "server": {"workers": 1},
}


class Members:
    """Two members that report what they were last assigned, and give up at once what they must."""

    def __init__(self) -> None:
        self.epochs = {"one": 0, "two": 0}
        self.version = 0
        self.holds: dict[str, list[int]] = {"one": [], "two": []}
        self.statuses: list[str] = []

    def beat(self, served: Served) -> None:
        for member, epoch in list(self.epochs.items()):
            body = heartbeat(
                memberId=member, memberEpoch=epoch, metadataVersion=self.version, requestId=f"{member}-{len(self.statuses)}",
                ownedShards=[{"shardIndex": shard} for shard in self.holds[member]],
            )  # fmt: skip
            path = f"{BASE}/streams/orders/groups/billing/members/{member}/heartbeat"
            answer = served.ask("POST", path, body, credentials=False).json
            assert answer["status"] in {"OK", "SYNC_METADATA", "REVOKE_PENDING"}, answer
            self.statuses.append(answer["status"])
            self.epochs[member], self.version = answer["memberEpoch"], answer["metadataVersion"]
            shown = [shard["shardIndex"] for shard in answer["assignment"]["assignedShards"]]
            self.holds[member] = shown if answer["status"] == "OK" else [each for each in self.holds[member] if each in shown]

    def hold_all(self, served: Served) -> bool:
        self.beat(served)
        return sorted(self.holds["one"] + self.holds["two"]) == [0, 1, 2, 3] and all(self.holds.values())


def test_members_go_on_at_the_new_store(tmp_path: Path, run: Run, redis_url: str, database: str) -> None:
    """A copy of a store in use is not final; the one after the stop is. Nobody loses a shard, nobody has to join again."""
    old = {**SETTINGS, "redis": {"url": redis_url}}
    new = {**SETTINGS, "store": {"type": "sql", "url": database, "failover-grace": "500ms"}}
    members = Members()
    with serving(tmp_path / "old", config=json.dumps({"coordinator": old})) as served:
        made = served.ask("POST", f"{BASE}/streams/orders/groups/billing", {"initialShardCount": 4, "requestedBy": "test"})
        assert made.status == 201, made.body
        wait_until(lambda: members.hold_all(served), timeout_s=20, what="the members share the shards", poll_s=0.1)
        early = run("store", "copy", "--from", redis_url, "--to", database)
        assert (early.exit_code, "a coordinator works on it" in early.stderr) == (1, True), early.output
        members.beat(served)
    held = {member: list(shards) for member, shards in members.holds.items()}
    done = run("store", "copy", "--from", redis_url, "--to", database)
    assert done.exit_code == 0, done.output
    members.statuses.clear()
    with serving(tmp_path / "new", config=json.dumps({"coordinator": new})) as served:

        def over() -> bool:
            members.beat(served)
            assert members.holds == held, members.statuses
            return members.statuses[-2:] == ["OK", "OK"]

        wait_until(over, timeout_s=30, what="the correction round is over", poll_s=0.2)
    assert members.statuses[:2] == ["SYNC_METADATA", "SYNC_METADATA"]
    assert "REVOKE_PENDING" in members.statuses
