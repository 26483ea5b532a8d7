"""A coordinator in this process, on a real store, and what it leaves there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import redis
from falcon import testing

from coord.bootstrap import build
from coord.config import load
from coord.events.catalog import GroupCreated, MemberPruned
from coord.events.codec import seal
from coord.events.envelope import Entry
from coord.names import GroupKey
from coord.projections.aggregate import encode, evolve
from coord.store.base import Commit, Committed
from tests.http.face import BASE, heartbeat
from tests.store.author import CAUSE

ADMIN = {"Authorization": "Basic YWRtaW46cGFzc3dvcmQ="}
WHY = {"requestedBy": "test", "reason": "test"}
Stored = dict[bytes, tuple[bytes, Any]]


class Life:
    """A coordinator without a ticker; `overrides` by dotted key."""

    def __init__(self, redis_url: str, overrides: Mapping[str, object] | None = None) -> None:
        settings = {"redis.url": redis_url, "store.type": "redis", "server.workers": 1, **(overrides or {})}
        self.url = redis_url
        self.config = load("/dev/null", overrides=settings, environ={})
        self.services = build(self.config)
        from coord.http.app import create_app

        self.client = testing.TestClient(create_app(self.services))

    def ask(self, method: str, path: str, body: object = None, **headers: str) -> testing.Result:
        return self.client.simulate_request(method, BASE + path, json=body, headers=ADMIN | headers)

    def done(self, method: str, path: str, body: object = None, **headers: str) -> Any:
        answer = self.ask(method, path, body, **headers)
        assert answer.status_code < 300, answer.text
        return answer.json

    def beat(self, group: str, member: str, epoch: int, *, stream: str = "orders", **changes: Any) -> Any:
        """One heartbeat; it owns what `ownedShards` says."""
        body = heartbeat(memberId=member, memberEpoch=epoch, requestId=f"{member}-{epoch}", **changes)
        return self.done("POST", f"/streams/{stream}/groups/{group}/members/{member}/heartbeat", body)

    def live(self) -> None:
        """Streams and groups, members, a resharding, deletions, keyed requests, refusals."""
        self.done("POST", "/streams/orders", {"initialShardCount": 4, **WHY}, **{"Idempotency-Key": "k-1"})
        for group in ("billing", "a:b%c", "gone"):
            self.done("POST", f"/streams/orders/groups/{group.replace('%', '%25')}", {"initialShardCount": 4, **WHY})
        first = self.beat("billing", "one", 0)
        self.beat("billing", "one", first["memberEpoch"], metadataVersion=first["metadataVersion"])
        self.beat("billing", "two", 0)
        self.done("DELETE", "/streams/orders/groups/gone?requestedBy=test&reason=test")
        self.done("POST", "/streams/orders/scale", {"targetShardCount": 6, **WHY}, **{"Idempotency-Key": "k-2"})
        self.done("POST", "/streams/short", {"initialShardCount": 1, **WHY})
        self.done("DELETE", "/streams/short?requestedBy=test&reason=test")
        for _ in range(2):
            assert self.ask("POST", "/streams/nowhere/scale", {"targetShardCount": 6, **WHY}).status_code == 404

    def fill(self, key: GroupKey, revisions: int) -> None:
        """A group with a long log, which nothing but the tests knows of."""
        store = self.services.store
        created = GroupCreated(
            registration=1, stream_revision=1, shard_count=1, read_set=(0,), epoch=1, metadata_version=1, grants_from=0,
            identity=store.identity(), how="create", requested_by="test",
        )  # fmt: skip
        loaded = store.load(key)
        state, chain = None, loaded.head.chain
        entries: list[Entry] = []
        for revision in range(1, revisions + 1):
            event = created if revision == 1 else MemberPruned(member_id=f"member-{revision}")
            entries += seal((event,), revision=revision, first=0, at=revision, cause=CAUSE, prev=chain)
            chain = entries[-1].chain
            of = (key.stream_prefix, key.consumer_group)
            state = evolve(state, event, key=GroupKey(*of), revision=revision, at=revision)
        assert state is not None
        commit = Commit(
            key=key, expected=loaded.head, identity=loaded.identity, commit_id="filled", entries=tuple(entries),
            aggregate=encode(state),
        )  # fmt: skip
        assert isinstance(store.commit(commit), Committed)

    def close(self) -> None:
        self.services.store.close()


def stored(url: str, *patterns: str) -> Stored:
    """Everything under these patterns as it stands, but for soft state, which is by nature another moment's."""
    with redis.Redis.from_url(url) as client:
        found: Stored = {}
        for pattern in patterns or ("redis-stream:coord:*",):
            for key in client.scan_iter(match=pattern):
                kind = client.type(key)
                if key.endswith((b":leases", b":loop", b":windows", b":reports", b":answered", b":answers")):
                    continue
                read = {
                    b"hash": client.hgetall,
                    b"stream": client.xrange,
                    b"set": client.smembers,
                    b"string": client.get,
                    b"zset": lambda key: client.zrange(key, 0, -1, withscores=True),
                }[kind]
                found[key] = (kind, read(key))
        return found


def on(url: str, database: int) -> str:
    """The address of another database of the same server."""
    return f"{url.rpartition('/')[0]}/{database}"
