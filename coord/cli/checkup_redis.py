"""What `coord doctor` looks at in Redis: servers and settings, the user's rights, clocks, who would fail over."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from typing import Final

from coord.addresses import redis_settings
from coord.cli.checkup import Line, fail, ok, warn
from coord.config import Configuration
from coord.rediscommands.access import (
    SHARD_READERS,
    SHARD_WRITERS,
    Access,
    Part,
    coordinator,
    needed_by,
)
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import RedisFault, Refused
from coord.rediscommands.survey import Concern, Wanted
from coord.rediscommands.watchers import Told, ask_sentinels
from coord.streams.shards import shard_key

CLOCK_SKEW_MS_MAX: Final = 1_000
STREAMS_LOOKED_AT: Final = 20
"""On how many streams' shards rights are looked at."""


class RedisCheckup:
    """Looks at the Redis of a configuration. Raises RedisFault.

    `streams`: the prefixes of streams whose shards are in it, while the store is elsewhere; None: the store is in it too.
    """

    def __init__(self, config: Configuration, commands: RedisCommands, *, streams: Sequence[str] | None = None) -> None:
        self._config = config
        self._commands = commands
        self._streams = streams

    def lines(self) -> Iterator[Line]:
        """Give all lines; raises RedisFault when Redis does not answer."""
        try:
            self._commands.time_ms()
        except Refused as refusal:
            if refusal.code != "NOPERM":  # told among the rights
                raise
        yield ok("reachable", f"Redis answers ({self._place()})")
        yield from self._settings()
        yield from self._rights()
        yield from self._clocks()
        if self._config.redis.cluster.nodes:
            yield from self._cluster()
        yield from self._sentinels()

    def _place(self) -> str:
        redis = self._config.redis
        if redis.sentinel.nodes:
            return f"master {redis.sentinel.master} behind {len(redis.sentinel.nodes)} Sentinels"
        if redis.cluster.nodes:
            return "a cluster"
        return f"{redis.host}:{redis.port}"

    def _settings(self) -> Iterator[Line]:
        waits = self._config.store.wait_replicas
        for concern in self._commands.survey(Wanted(lease_ttl_ms=self._config.member_lease_ttl_ms, wait_replicas=waits)):
            yield _line_of(concern)

    def _rights(self) -> Iterator[Line]:
        user = self._config.redis.username or "default"
        lacking = 0
        access = self._access()
        for node, missing in self._commands.missing_rights(access):
            if missing is None:
                text = f"Redis at {node} cannot tell what the user {user} may do"
                yield warn("rights", text, "compare its rules with the README's `ACL SETUSER` line")
                lacking += 1
            for each in missing or ():
                lacking += 1
                if each.is_unknown:
                    yield fail("rights", f"Redis at {node} does not know '{each.command}'", "use Redis 7.0 or newer")
                else:
                    yield fail(
                        "rights",
                        f"Redis at {node}: the user {user} may not run '{each.command}' on {each.key}",
                        f"ACL SETUSER {user} +{each.command} for these keys; the README has the whole line",
                    )
        if not lacking:
            count = sum(len(part.commands) for part in access.parts)
            yield ok("rights", f"the user {user} may run all {count} commands that are needed")

    def _access(self) -> Access:
        """Give what is needed, on the shards of streams that exist (whatever pattern a user was given for them)."""
        config, redis = self._config, self._config.redis
        provisioning = config.streams.provisioning_enabled
        used = (*SHARD_READERS, *SHARD_WRITERS) if provisioning else SHARD_READERS
        if self._streams is not None:
            lists = Part(f"{config.store.key_prefix}:*", needed_by(("push_audit",)))
            kept_there = (lists,) if config.audit.sink == "redis" else ()
            shards = (Part(shard_key(prefix, 0), needed_by(used)) for prefix in self._streams)
            return Access((Part("", ("time",)), *kept_there, *shards))
        own = coordinator(
            key_prefix=config.store.key_prefix,
            cluster=bool(redis.cluster.nodes),
            sentinel=bool(redis.sentinel.nodes),
            replicas=config.store.wait_replicas > 0,
            database=redis.database != 0,
        )
        return Access((*own.parts, *(Part(key, needed_by(used)) for key in self._shards())))

    def _shards(self) -> Sequence[str]:
        try:
            prefixes = sorted(prefix.decode() for prefix in self._commands.index_members())
        except Refused:  # told among the rights
            return ()
        return [shard_key(prefix, 0) for prefix in prefixes[:STREAMS_LOOKED_AT]]

    def _clocks(self) -> Iterator[Line]:
        found: list[int] = []
        for node, reply in self._commands.clocks():
            if isinstance(reply, Refused):
                yield warn("clock", f"Redis at {node} does not tell its clock: {reply}", "allow TIME: leases are judged by it")
                continue
            seen, now = reply
            found.append(seen - now)
            if abs(seen - now) > CLOCK_SKEW_MS_MAX:
                text = f"the clock of Redis at {node} differs from this machine's by {seen - now} ms"
                yield warn("clock", text, "run NTP on both: tokens and logs go by this machine's clock, leases by Redis's")
        if found and max(found) - min(found) > CLOCK_SKEW_MS_MAX:
            text = f"the clocks of the masters differ by {max(found) - min(found)} ms"
            yield warn("clock", text, "run NTP on all: a failover or a moved slot changes the clock that leases go by")
        elif found and max(map(abs, found)) <= CLOCK_SKEW_MS_MAX:
            yield ok("clock", f"Redis's clock and this machine's differ by {max(found, key=abs)} ms")

    def _cluster(self) -> Iterator[Line]:
        for node, reply in self._commands.cluster_info():
            if isinstance(reply, Refused):
                text = f"CLUSTER INFO is refused by {node}: whether all slots are served is not known"
                yield warn("topology", text, "look at it by hand, or allow +cluster|info")
            elif b"cluster_state:ok" not in reply:
                yield fail("topology", f"{node} says that the cluster is down", "see CLUSTER INFO and CLUSTER NODES there")
            else:
                yield ok("topology", f"{node} is a master of a cluster whose slots are all served")

    def _sentinels(self) -> Iterator[Line]:
        told = list(ask_sentinels(redis_settings(self._config)))
        for address, about in told:
            yield _line_of_sentinel(address, about, count=len(told))


def now_ms() -> int:
    """Give this machine's clock, ms."""
    return time.time_ns() // 1_000_000


def _line_of(concern: Concern) -> Line:
    text = f"Redis at {concern.node}: {concern.text}"
    if concern.level == "ok":
        return ok(concern.name, text)
    return (fail if concern.is_unsafe else warn)(concern.name, text, concern.advice)


def _line_of_sentinel(address: object, about: Told, *, count: int) -> Line:
    if isinstance(about, RedisFault):
        return warn("topology", f"Sentinel {address} tells nothing: {about}", "start it, or correct redis.sentinel")
    others, quorum = int(about.get("num-other-sentinels", 0)), int(about.get("quorum", 0))
    replicas, flags = int(about.get("num-slaves", 0)), about.get("flags", "")
    if flags != "master":
        return fail("topology", f"Sentinel {address} holds the master for {flags}", "wait for the failover, or see its log")
    if others + 1 < quorum or count < quorum:
        return fail("topology", f"Sentinel {address} knows {others} others, the quorum is {quorum}", "add Sentinels")
    if not replicas:
        return warn("topology", f"Sentinel {address} knows no replica: there is nothing to fail over to", "add a replica")
    return ok("topology", f"Sentinel {address}: {replicas} replicas, {others} other Sentinels, quorum {quorum}")
