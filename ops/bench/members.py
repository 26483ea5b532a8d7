"""Members of a group, brought through the API to where nothing moves any more; then their heartbeats can be repeated for ever.

Each is the client's own `MemberProtocol`, so what is sent is what real members send.
"""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import Final
from urllib.parse import quote

import msgspec
import urllib3

from coord.client.errors import RetriableError
from coord.client.http import CoordinatorHttp
from coord.client.protocol import MemberProtocol
from coord.names import GroupKey
from coord.wire import Capacity, CreateGroupRequest, HeartbeatRequest
from ops.bench.load_wrk import Request
from ops.bench.servers import BASE, Serving

TOGETHER: Final = 8
"""So many members heartbeat at a time while they settle."""
ROUNDS_MAX: Final = 200
CAPACITY: Final = Capacity(runtime_max_concurrency=4, available_concurrency=4)
ADMIN: Final = urllib3.make_headers(basic_auth="admin:password")
HEARTBEAT_TIMEOUT_MS: Final = 30_000


class Group:
    """A group of one stream and its members. `names` are theirs."""

    def __init__(self, stream_prefix: str, consumer_group: str, names: Sequence[str]) -> None:
        self.stream_prefix = stream_prefix
        self.consumer_group = consumer_group
        self.members = [MemberProtocol(name, name) for name in names]

    def create(self, server: Serving, *, shards: int) -> None:
        """Make the stream and the group."""
        body = msgspec.json.encode(CreateGroupRequest(initial_shard_count=shards, requested_by="bench", reason="bench"))
        headers = {**ADMIN, "Content-Type": "application/json"}
        answer = urllib3.request("POST", server.origin + self.path, body=body, headers=headers, timeout=30, retries=False)
        if answer.status != 201:  # noqa: PLR2004  HTTP's own word
            raise RuntimeError(f"the group was not created: {answer.status} {answer.data[:300]!r}")

    def settle(self, server: Serving, tell: Callable[[str], None]) -> None:
        """Let all members heartbeat, again and again, until a whole round changed nothing."""
        with ThreadPoolExecutor(TOGETHER) as pool:
            for turn in range(1, ROUNDS_MAX + 1):
                tell(f"{len(self.members)} members settle: round {turn}")
                shares = [self.members[place::TOGETHER] for place in range(TOGETHER)]
                if not any(list(pool.map(lambda share: self._round(server, share), shares))):  # all of them, then judged
                    return
        raise RuntimeError(f"{len(self.members)} members did not settle in {ROUNDS_MAX} rounds")

    def heartbeats(self) -> list[HeartbeatRequest]:
        """Give the heartbeat of each member as it stands."""
        return [_body(member) for member in self.members]

    def requests(self) -> list[Request]:
        """Give the same as POSTs of A13."""
        key = GroupKey(self.stream_prefix, self.consumer_group)
        return [Request(heartbeat_path(key, body.member_id), msgspec.json.encode(body)) for body in self.heartbeats()]

    @property
    def path(self) -> str:
        """The group's own path."""
        return group_path(GroupKey(self.stream_prefix, self.consumer_group))

    def _round(self, server: Serving, members: Sequence[MemberProtocol]) -> bool:
        """Let each of some members heartbeat once; tells whether anything is still on the move."""
        client = CoordinatorHttp(server.api, timeout_ms=HEARTBEAT_TIMEOUT_MS)
        try:
            return any([self._beat(client, member) for member in members])  # noqa: C419  every one, not up to the first
        finally:
            client.close()

    def _beat(self, client: CoordinatorHttp, member: MemberProtocol) -> bool:
        """Send one heartbeat and obey the answer; tells whether this member is still on the move."""
        before = (member.member_epoch, member.reading.copy())
        now_ms = time.monotonic_ns() // 1_000_000
        sent = member.next_request(now_ms, uuid.uuid4().hex, capacity=CAPACITY)
        answered = False
        with suppress(RetriableError):
            answer = client.heartbeat(self.stream_prefix, self.consumer_group, sent.body)
            change = member.answered(now_ms, sent.attempt, answer)
            for shard in change.drain:
                member.drained(shard)
            answered = answer.status == "OK"
        member.unanswered(sent.attempt)
        moved = before != (member.member_epoch, member.reading)
        return moved or not answered or bool(member.pending or member.draining or member.revoked)


def group_path(key: GroupKey) -> str:
    """Give the path of a group."""
    return f"{BASE}/streams/{quote(key.stream_prefix, safe='')}/groups/{quote(key.consumer_group, safe='')}"


def heartbeat_path(key: GroupKey, member_id: str) -> str:
    """Give the path of a member's heartbeats."""
    return f"{group_path(key)}/members/{quote(member_id, safe='')}/heartbeat"


def _body(member: MemberProtocol) -> HeartbeatRequest:
    sent = member.next_request(time.monotonic_ns() // 1_000_000, f"bench-{member.member_id}", capacity=CAPACITY)
    member.unanswered(sent.attempt)
    return sent.body
