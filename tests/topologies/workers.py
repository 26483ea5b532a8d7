"""Workers of coordinators, and members of a group: the real runtime on a real Redis, without HTTP in between."""

from __future__ import annotations

import time
from itertools import count

from coord.bootstrap import Services, wire
from coord.config import Configuration
from coord.config.schema import Streams
from coord.core.commands import Heartbeat
from coord.core.decision import HeartbeatReply
from coord.names import GroupKey
from coord.refusals import Refused
from coord.runtime.requests import RequestInfo
from coord.store.redis.store import RedisStore
from coord.streams.provisioning import ShardStreams

GROUP = GroupKey("orders", "orders-consumer")
LEASE_MS = 15_000
_requests = count(1)


def worker(store: RedisStore, name: str = "one") -> Services:
    """Wire a worker on a store; nothing of it runs by itself."""
    config = Configuration(id=name, streams=Streams(provisioning_enabled=True), member_lease_ttl_ms=LEASE_MS)
    return wire(config, store, ShardStreams(store._commands))


def request(action: str) -> RequestInfo:
    """An administrative request as the HTTP face would describe it."""
    return RequestInfo(
        action=action, success_status=200, principal="admin", roles=("WRITE",), requested_by="ops", reason="because",
        request_id=f"q{next(_requests)}", client_address="127.0.0.1", user_agent="test", method="POST", route="/", path="/",
        query_string="", request_summary="", request_body_sha256="", started_ns=time.monotonic_ns(),
    )  # fmt: skip


def create(services: Services, *, shards: int = 8, key: GroupKey = GROUP) -> None:
    made = services.admin.create_group(key, shard_count=shards, start_from="0", info=request("CREATE_GROUP"))
    assert not isinstance(made, Refused), made


class Member:
    """A well-behaved member: it does what it was told last. `statuses` counts its answers."""

    def __init__(self, name: str, key: GroupKey = GROUP) -> None:
        self.name = name
        self.statuses: dict[str, int] = {}
        self._key = key
        self._epoch = 0
        self._metadata_version = 0
        self._owned: tuple[int, ...] = ()

    def beat(self, services: Services, *, capacity: int = 4) -> HeartbeatReply:
        """Send one heartbeat through a worker; another capacity is a change to be recorded."""
        command = Heartbeat(
            path_member_id=self.name, member_id=self.name, member_name=None, request_id=f"q{next(_requests)}",
            protocol_version=1, member_epoch=self._epoch, metadata_version=self._metadata_version,
            runtime_max_concurrency=capacity, owned=frozenset(self._owned), draining=frozenset(),
            revoked=frozenset(),
        )  # fmt: skip
        reply = services.coordinator.heartbeat(self._key, command).reply
        self.statuses[reply.status] = self.statuses.get(reply.status, 0) + 1
        if reply.status in {"FENCED_MEMBER_EPOCH", "UNKNOWN_MEMBER_ID"}:
            self._epoch, self._owned = 0, ()
        elif reply.status != "RETRY":
            self._epoch, self._owned = reply.member_epoch, tuple(reply.assigned)
            self._metadata_version = reply.metadata_version
        return reply
