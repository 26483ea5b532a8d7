"""A tour through all that a coordinator does in Redis, each step by itself, with what Redis refused on the way."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from msgspec import structs

from coord.rediscommands.errors import RedisFault
from coord.store.answers import ANSWERS_MAX
from coord.store.base import CorruptAggregate, LeaseChanges, LeaseGuards, StoreError, Touch
from coord.store.redis.store import RedisStore
from coord.streams.provisioning import NoProof, ProvisioningFailed, ShardStreams
from tests.access.users import Owned
from tests.store.author import KEY, appended, commit_on, committed, deleted, request_entry

LEASE_MS = 60_000
GROUP = "billing"


class Tour:
    """The steps, taken by one user. Before them fate leaves a group with leases, and shards with pending and unread entries."""

    def __init__(self, owned: Owned, user: str = "coordinator") -> None:
        self._owned = owned
        self._store = RedisStore(owned.commands_of(user))
        self._shards = ShardStreams(self._store._commands)
        self._fate = RedisStore(owned.commands_of("fate"))
        self.refusals: list[str] = []

    def close(self) -> None:
        self._store.close()
        self._fate.close()

    @contextmanager
    def _step(self) -> Iterator[None]:
        """Take note of a refusal; nothing that an ACL refuses is taken for corruption, or ends as a bug."""
        try:
            yield
        except CorruptAggregate:
            raise
        except (StoreError, RedisFault, ProvisioningFailed, NoProof) as error:
            self.refusals.append(str(error))

    def _prepare(self) -> None:
        self._owned.call("FLUSHALL")
        self._owned.call("SCRIPT", "FLUSH")
        committed(self._fate, leases=LeaseChanges(ttl_ms=LEASE_MS, renew=("m", "n")))
        for shard in ("orders:0", "orders:1"):
            self._owned.call("XADD", shard, "1-0", "f", "v")
            self._owned.call("XGROUP", "CREATE", shard, GROUP, "0")
        self._owned.call("XREADGROUP", "GROUP", GROUP, "c", "COUNT", 1, "STREAMS", "orders:0", ">")
        self._owned.call("XADD", "orders:2", "1-0", "f", "v")
        self._owned.call("SCRIPT", "FLUSH")

    def walk(self) -> list[str]:
        """Take all steps; give what was refused."""
        self._prepare()
        for step in (*self._store_steps(), *self._steps_beside_it(), *self._shard_steps()):
            with self._step():
                step()
        return self.refusals

    def _store_steps(self) -> Iterator[Callable[[], object]]:
        """What is read for a step is read by fate, so that one refusal hides no other."""
        store, read = self._store, self._fate.load
        yield lambda: store.load(KEY)
        yield lambda: store.catch_up(KEY, seen=read(KEY).head, limit=10)
        yield lambda: store.tail(KEY, after=(0, 0), limit=10)
        yield lambda: store.latest(KEY, before=None, limit=10)
        yield lambda: store.commit(commit_on(read(KEY), guards=LeaseGuards(none_running=True)))
        yield lambda: store.commit(commit_on(read(KEY), guards=LeaseGuards(unchanged={"m": 1})))
        yield lambda: store.commit(
            commit_on(read(KEY), leases=LeaseChanges(ttl_ms=LEASE_MS, renew_all=True, remove=("n",), reports={"m": b"r"}))
        )
        yield lambda: store.append(KEY, expected=read(KEY).head, entries=appended(read(KEY).head, request_entry()))
        yield self._touched
        yield lambda: store.lease(KEY, "m")
        yield lambda: store.soft(KEY)
        yield lambda: _raised(store.due_many([KEY], lease_ttl_ms=LEASE_MS, grace=False))
        yield lambda: _raised(store.standings([KEY]))
        yield lambda: store.grant_missing_leases(KEY, ["o"], ttl_ms=LEASE_MS)
        yield lambda: deleted(store)
        other = structs.replace(KEY, consumer_group="another")
        yield lambda: store.commit(commit_on(read(other), key=other))

    def _touched(self) -> None:
        seen = self._fate.load(KEY)
        touch = Touch(
            key=KEY, revision=seen.head.revision, commit_id=seen.head.commit_id, identity=seen.identity, ttl_ms=LEASE_MS,
            renew=("m",), reports={"m": b"r"},
        )  # fmt: skip
        assert self._store.touch(touch).current

    def _steps_beside_it(self) -> Iterator[Callable[[], object]]:
        store = self._store
        yield lambda: store.mutexes.take(KEY, "token", ttl_ms=LEASE_MS)
        yield lambda: store.mutexes.keep(KEY, "token", ttl_ms=LEASE_MS)
        yield lambda: store.mutexes.release(KEY, "token")
        yield lambda: store.windows.take(KEY, "me", limit=9, window_ms=LEASE_MS)
        for number in range(ANSWERS_MAX + 1):
            yield lambda number=number: store.answers.swap(KEY, f"a{number}", seen=None, put=b"x")  # type: ignore[misc]  # bound at once
        yield lambda: store.answers.swap(KEY, f"a{ANSWERS_MAX}", seen=b"x", put=None)
        yield lambda: store.index_add(KEY.stream)
        yield store.streams
        yield lambda: store.index_remove(KEY.stream)
        yield lambda: store.take_turn("me", takeover_ms=1)
        yield lambda: store.announce("me", reads=1, within_ms=1)
        yield lambda: store.announce("another", reads=1, within_ms=0)
        yield store.last_tick
        yield lambda: store.append_request(b"{}")
        yield lambda: store.requests(before=None, limit=10)
        for ttl_ms in (None, LEASE_MS):
            yield lambda ttl_ms=ttl_ms: store._commands.push_audit(KEY, b"{}", kept=1, ttl_ms=ttl_ms)  # type: ignore[misc]  # bound at once
        yield store.identity
        yield store.ping

    def _shard_steps(self) -> Iterator[Callable[[], object]]:
        shards = self._shards
        yield lambda: shards.missing("orders", [0])
        for shard in (0, 1, 2):
            yield lambda shard=shard: shards.prove_drained("orders", shard)  # type: ignore[misc]  # bound at once
        yield lambda: shards.provision("orders", [1], {GROUP: "0"})
        yield lambda: shards.remove_created(shards.provision("orders", [8], {GROUP: "0"}))
        yield lambda: shards.destroy_consumer_group("orders", [0], GROUP)
        yield lambda: shards.delete_if_drained("orders", 9)
        yield self._deleted_when_drained

    def _deleted_when_drained(self) -> None:
        self._owned.call("XGROUP", "CREATE", "orders:7", GROUP, "0", "MKSTREAM")
        assert self._shards.delete_if_drained("orders", 7).is_drained


def _raised(answers: object) -> None:
    """Raise what stands for an answer."""
    assert isinstance(answers, list)
    for answer in answers:
        if isinstance(answer, StoreError):
            raise answer
