"""One method a command or script. Replies are as the script's header says; nothing is judged here.

Raises `Unreachable` when there is no answer in time, `Refused` for an error reply.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence

from coord.names import AggregateKey, GroupKey
from coord.rediscommands.access import Access, Missing, missing, question
from coord.rediscommands.errors import Refused
from coord.rediscommands.keys import AggregateKeys, Keys
from coord.rediscommands.link import Argument, Reply
from coord.rediscommands.settings import Address, RedisSettings
from coord.rediscommands.survey import Concern, Wanted, survey
from coord.rediscommands.template import Template, Then

NS_PER_MS = 1_000_000
REQUESTS_MAX = 10_000
"""About how many audit entries that belong to no aggregate are kept."""


class RedisCommands:
    """The coordinator's commands on one Redis. `identity_source`: `auto` (INFO in the script) or `constant`."""

    def __init__(self, settings: RedisSettings, *, keys: Keys | None = None, identity_source: str = "auto") -> None:
        if identity_source not in {"auto", "constant"}:
            message = f"store.identity must be auto or constant, not {identity_source!r}"
            raise ValueError(message)
        self.keys = Keys() if keys is None else keys
        self._source = identity_source
        self._template = Template(settings)

    def deadline(self, *, share: float = 1.0) -> float:
        """Give the deadline (monotonic s) of a call that starts now and may take this share of `timeout_ms`."""
        return self._template.deadline(self._template.settings.timeout_ms * share)

    # -- an aggregate

    def load(self, keys: AggregateKeys, *, seen: tuple[Argument, ...] = ()) -> Reply:
        """See `load.lua`; `seen` is what it takes to be given the log's tail only."""
        return self._template.run("load", all_of(keys), self._source, *seen)

    def commit(self, keys: AggregateKeys, *arguments: Argument, deadline: float, then: Then | None = None) -> Reply:
        """See `commit.lua`; the identity source is put before the arguments. `then`: see `Template.run`."""
        return self._template.run("commit", all_of(keys), self._source, *arguments, deadline=deadline, then=then)

    def append(self, keys: AggregateKeys, *arguments: Argument, deadline: float) -> Reply:
        """See `append.lua`."""
        return self._template.run("append", (keys.metadata, keys.events), *arguments, deadline=deadline)

    def entries(self, keys: AggregateKeys, *, first: str, limit: int) -> Reply:
        """Give up to `limit` log entries from the id `first` on (`(` before it: after it)."""
        return self._template.call(keys.events, "XRANGE", keys.events, first, "+", "COUNT", limit)

    def latest(self, stream: str, *, last: str, limit: int) -> Reply:
        """Give up to `limit` entries of a log or of `:requests`, newest first, from the id `last` (`(` before it: below it)."""
        return self._template.call(stream, "XREVRANGE", stream, last, "-", "COUNT", limit)

    # -- soft state of a group

    def touch(self, keys: AggregateKeys, *arguments: Argument) -> Reply:
        """See `touch.lua`; the identity source is put before the arguments."""
        return self._template.run("touch", (keys.metadata, keys.leases, keys.reports), self._source, *arguments, together=True)

    def touch_many(self, calls: Sequence[tuple[AggregateKeys, Sequence[Argument]]]) -> list[Reply]:
        """See `touch.lua`, once a group; error replies come as `Refused` values."""
        each = [((keys.metadata, keys.leases, keys.reports), (self._source, *arguments)) for keys, arguments in calls]
        return self._template.run_each("touch", each)

    def lease(self, keys: AggregateKeys, member_id: str) -> Reply:
        """See `lease.lua`."""
        return self._template.run("lease", (keys.leases,), member_id)

    def soft(self, keys: AggregateKeys) -> Reply:
        """See `soft.lua`."""
        return self._template.run("soft", (keys.leases, keys.reports))

    def due(self, groups: Sequence[GroupKey], *, ttl_ms: int, grace: bool) -> list[tuple[range, Reply]]:
        """See `due.lua`; replies with the places of the groups that they are about, faults among them (see `run_over`)."""
        return self._template.run_over("due", [self.keys.watched(group) for group in groups], self._source, ttl_ms, int(grace))

    def standings(self, aggregates: Sequence[AggregateKey]) -> list[tuple[range, Reply]]:
        """See `standings.lua`; replies as of `due`."""
        return self._template.run_over("standings", [(self.keys.metadata(key),) for key in aggregates], self._source)

    def grant_missing(self, keys: AggregateKeys, members: Sequence[str], *, ttl_ms: int) -> Reply:
        """See `grant_missing.lua`."""
        return self._template.run("grant_missing", (keys.metadata, keys.leases), ttl_ms, *members)

    # -- the mutex of an aggregate

    def take_mutex(self, keys: AggregateKeys, token: str, *, ttl_ms: int) -> Reply:
        """See `take_mutex.lua`."""
        return self._template.run("take_mutex", (keys.mutex,), token, ttl_ms)

    def keep_mutex(self, keys: AggregateKeys, token: str, *, ttl_ms: int) -> Reply:
        """See `keep_mutex.lua`."""
        return self._template.run("keep_mutex", (keys.mutex,), token, ttl_ms)

    def release_mutex(self, keys: AggregateKeys, token: str) -> Reply:
        """See `release_mutex.lua`."""
        return self._template.run("release_mutex", (keys.mutex,), token)

    # -- what is known of the mutations of an aggregate

    def take_window(self, windows: str, principal: str, *, limit: int, window_ms: int) -> Reply:
        """See `take_window.lua`."""
        return self._template.run("take_window", (windows,), principal, limit, window_ms)

    def swap_answer(self, keys: tuple[str, str], *arguments: Argument) -> Reply:
        """See `swap_answer.lua`."""
        return self._template.run("swap_answer", keys, *arguments)

    def push_audit(self, key: AggregateKey, entry: bytes, *, kept: int, ttl_ms: int | None) -> Reply:
        """See `push_audit.lua`."""
        return self._template.run("push_audit", (self.keys.admin_audit(key),), entry, kept, "" if ttl_ms is None else ttl_ms)

    # -- what belongs to no aggregate

    def index_members(self) -> Reply:
        """Give the prefixes in the index, in no order."""
        return self._template.call(self.keys.index, "SMEMBERS", self.keys.index)

    def index_add(self, stream_prefix: str) -> Reply:
        """Put a prefix into the index."""
        return self._template.call(self.keys.index, "SADD", self.keys.index, stream_prefix)

    def index_remove(self, stream_prefix: str) -> Reply:
        """Take a prefix out of the index."""
        return self._template.call(self.keys.index, "SREM", self.keys.index, stream_prefix)

    def take_turn(self, instance: str, *, takeover_ms: int) -> Reply:
        """See `take_turn.lua`."""
        return self._template.run("take_turn", (self.keys.loop,), instance, takeover_ms)

    def announce(self, instance: str, *, reads: int, within_ms: int) -> Reply:
        """See `announce.lua`."""
        return self._template.run("announce", (self.keys.loop,), instance, reads, within_ms)

    def last_tick(self) -> Reply:
        """See `last_tick.lua`."""
        return self._template.run("last_tick", (self.keys.loop,))

    def append_request(self, entry: bytes) -> Reply:
        """Keep an audit entry; the oldest go once there are about `REQUESTS_MAX`."""
        requests = self.keys.requests
        return self._template.call(requests, "XADD", requests, "MAXLEN", "~", REQUESTS_MAX, "*", "event", entry)

    def identity(self) -> Reply:
        """See `store_identity.lua`; asked of the node that holds the index."""
        return self._template.run("store_identity", (self.keys.index,), self._source)

    def time_ms(self) -> int:
        """Give the server's clock, ms."""
        return _ms(self._template.call(self.keys.index, "TIME"))

    # -- shards

    def types(self, keys: Sequence[str]) -> list[Reply]:
        """Give the type of each key, `none` for one that does not exist. See `key_type.lua`."""
        return self._template.run_each("key_type", [((key,), ()) for key in keys])

    def provision_shards(self, shards: Sequence[str], groups: Mapping[str, str]) -> list[Reply]:
        """See `provision_shard.lua`, once a shard; error replies come as `Refused` values."""
        pairs = [text for pair in groups.items() for text in pair]
        return self._template.run_each("provision_shard", [((shard,), pairs) for shard in shards])

    def remove_shards(self, shards: Sequence[str], groups: Sequence[str]) -> list[Reply]:
        """See `remove_shard.lua`, once a shard."""
        return self._template.run_each("remove_shard", [((shard,), groups) for shard in shards])

    def prove_drained(self, shard: str) -> Reply:
        """See `prove_drained.lua`."""
        return self._template.run("prove_drained", (shard,))

    def delete_drained(self, shard: str) -> Reply:
        """See `delete_drained.lua`."""
        return self._template.run("delete_drained", (shard,))

    def destroy_groups(self, shards: Sequence[str], group: str) -> list[Reply]:
        """See `destroy_group.lua`, once a shard."""
        return self._template.run_each("destroy_group", [((shard,), (group,)) for shard in shards])

    # -- the servers themselves

    def survey(self, wanted: Wanted) -> tuple[Concern, ...]:
        """Look at the Redis in use; see `survey`."""
        return survey(self._template, wanted)

    def missing_rights(self, access: Access) -> list[tuple[Address, tuple[Missing, ...] | None]]:
        """Tell of each server that takes writes what the user of this connection lacks there; see `access.missing`."""
        return [(node, missing(access, reply)) for node, reply in self._template.call_masters(*question(access))]

    def clocks(self) -> list[tuple[Address, tuple[int, int] | Refused]]:
        """Give the clock (ms) of each server that takes writes, beside this machine's in the middle of asking."""
        began = time.time_ns()
        replies = self._template.call_masters("TIME")
        here = (began + time.time_ns()) // 2 // NS_PER_MS
        return [(node, reply if isinstance(reply, Refused) else (_ms(reply), here)) for node, reply in replies]

    def cluster_info(self) -> list[tuple[Address, Reply]]:
        """Give CLUSTER INFO of each master; error replies come as `Refused` values."""
        return self._template.call_masters("CLUSTER", "INFO")

    # -- connections

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""
        self._template.after_fork()

    def close(self) -> None:
        """Close all connections."""
        self._template.close()


def _ms(told: Reply) -> int:
    seconds, micros = told
    return int(seconds) * 1000 + int(micros) // 1000


def all_of(keys: AggregateKeys) -> tuple[str, str, str, str]:
    """Give the keys that the scripts on a whole aggregate take."""
    return keys.metadata, keys.events, keys.leases, keys.reports
