"""What is safe and unsafe about the Redis that is used, as far as it tells: version, eviction, what survives a crash, replicas.

A Redis that does not tell (managed ones often refuse CONFIG, and so does a user with few rights) is said not to tell; that is no
failure. What INFO tells needs no CONFIG.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final, Literal

from coord.rediscommands.errors import Refused
from coord.rediscommands.link import Reply
from coord.rediscommands.settings import Address
from coord.rediscommands.template import Template

SETTINGS: Final = ("appendfsync", "cluster-node-timeout", "min-replicas-max-lag", "min-replicas-to-write")
VERSION_MIN: Final = (7, 0)
VERSION_NEEDS: Final = "scripts with #!lua flags, EVALSHA_RO, INFO with several sections"

Level = Literal["ok", "unknown", "warn", "unsafe"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Concern:
    """One thing that was looked at: `name` for machines, `text` and `advice` for people.

    `level`: fine; could not be looked at; a risk to know of; or `unsafe`: what is acknowledged may be lost or contradicted, or
    nothing works.
    """

    name: str
    node: Address
    text: str
    level: Level
    advice: str = ""

    @property
    def is_unknown(self) -> bool:
        """Whether it could not be looked at."""
        return self.level == "unknown"

    @property
    def is_unsafe(self) -> bool:
        """Whether it makes the coordinator's health DEGRADED."""
        return self.level == "unsafe"

    def __str__(self) -> str:
        return f"Redis at {self.node}: {self.text}{f'; {self.advice}' if self.advice else ''}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """What a configuration wants of its Redis: failure detection faster than the lease (ms), and replicas that confirm."""

    lease_ttl_ms: int
    wait_replicas: int = 0


def survey(template: Template, wanted: Wanted) -> tuple[Concern, ...]:
    """Ask every master, and give all that was looked at. Bounded; raises Unreachable when one does not answer."""
    informed = template.call_masters("INFO")
    configured = dict(template.call_masters("CONFIG", "GET", *SETTINGS))
    return tuple(concern for node, reply in informed for concern in findings(node, reply, configured.get(node), wanted))


def findings(node: Address, informed: Reply, configured: Reply, wanted: Wanted) -> Iterator[Concern]:
    """Judge one server by its replies to INFO and to CONFIG GET (flat pairs), either of which may be a refusal."""
    if isinstance(informed, Refused):
        yield Concern(
            name="info",
            node=node,
            level="unknown",
            text=f"INFO is refused, nothing is known of it: {informed}",
            advice="allow it, or look at this Redis by hand",
        )
        return
    info = dict(line.split(":", 1) for line in informed.decode(errors="replace").splitlines() if ":" in line)
    look = _Look(node, info, _settings(configured), wanted, why=f": {configured}" if isinstance(configured, Refused) else "")
    yield look.version()
    yield look.eviction()
    yield look.persistence()
    yield from look.replicas()
    yield from look.failover()


def _settings(configured: Reply) -> Mapping[str, str] | None:
    if configured is None or isinstance(configured, Refused) or not configured:
        return None
    return {name.decode(): value.decode() for name, value in zip(configured[::2], configured[1::2], strict=True)}


@dataclass(frozen=True, slots=True)
class _Look:
    """One server as it told of itself; `settings` None: it refused CONFIG, `why` says how."""

    node: Address
    info: Mapping[str, str]
    settings: Mapping[str, str] | None
    wanted: Wanted
    why: str

    def _told(self, name: str, level: Level, text: str, advice: str = "") -> Concern:
        return Concern(name=name, node=self.node, level=level, text=text, advice=advice)

    def version(self) -> Concern:
        version = self.info.get("redis_version", "")
        numbers = re.match(r"(\d+)\.(\d+)", version)
        if numbers is None:
            return self._told("version", "unknown", "INFO tells no redis_version", f"7.0 or newer is needed ({VERSION_NEEDS})")
        if (int(numbers[1]), int(numbers[2])) < VERSION_MIN:
            text = f"version {version} is too old for commands that are used: {VERSION_NEEDS}"
            return self._told("version", "unsafe", text, "upgrade to 7.0 or newer")
        return self._told("version", "ok", f"version {version}")

    def eviction(self) -> Concern:
        policy = self.info.get("maxmemory_policy", "")
        if not policy:
            return self._told("eviction", "unknown", "INFO tells no maxmemory_policy", "it must be noeviction")
        if policy.startswith("allkeys"):
            text = f"maxmemory-policy {policy} may remove the coordinator's keys"
            return self._told("eviction", "unsafe", text, "set noeviction")
        if policy != "noeviction":
            text = f"maxmemory-policy {policy} may remove mutexes, the rate limit's counts and answers kept for repeated requests"
            return self._told("eviction", "warn", text, "set noeviction")
        return self._told("eviction", "ok", "maxmemory-policy noeviction")

    def persistence(self) -> Concern:
        if self.info.get("aof_enabled") != "1":
            if "aof_enabled" not in self.info:
                return self._told("persistence", "unknown", "INFO tells no aof_enabled", "an append-only file must be on")
            text = "there is no append-only file: a crash or restart loses what was acknowledged since the last snapshot"
            return self._told("persistence", "warn", text, "set appendonly yes, and appendfsync everysec or always")
        if self.info.get("aof_last_write_status", "ok") != "ok":
            text = "its append-only file cannot be written: what it acknowledges is lost with a crash"
            return self._told("persistence", "unsafe", text, "look at its disk and its log")
        fsync = (self.settings or {}).get("appendfsync")
        if fsync is None:
            text = f"an append-only file; appendfsync is not known, CONFIG GET is refused{self.why}"
            return self._told("persistence", "unknown", text, "it should be everysec or always")
        if fsync == "no":
            text = "appendfsync no: a crash of the machine loses what the system had not written, often 30 seconds"
            return self._told("persistence", "warn", text, "set appendfsync everysec or always")
        text = "appendfsync always" if fsync == "always" else f"appendfsync {fsync}: a crash of the machine may lose a second"
        return self._told("persistence", "ok", f"an append-only file, {text}")

    def replicas(self) -> Iterator[Concern]:
        connected, wanted = int(self.info.get("connected_slaves", "0")), self.wanted.wait_replicas
        if connected < wanted:
            text = f"store.wait-replicas is {wanted}, and {connected} replicas follow: no administrative commit is confirmed"
            yield self._told("replicas", "warn", text, "add replicas, or lower store.wait-replicas")
        else:
            yield self._told("replicas", "ok", f"{connected} replicas follow, store.wait-replicas is {wanted}")

    def failover(self) -> Iterator[Concern]:
        is_cluster = self.info.get("cluster_enabled") == "1"
        if not is_cluster and self.info.get("connected_slaves", "0") == "0":
            return
        good = self.info.get("min_slaves_good_slaves")  # told only where min-replicas-to-write and -max-lag are set
        if self.settings is None:
            unknown = [name for name in SETTINGS if name != "min-replicas-to-write" and (is_cluster or "cluster" not in name)]
            text = f"CONFIG GET is refused, {', '.join(unknown)} are not known{self.why}"
            yield self._told("config", "unknown", text, "look at them by hand, or allow +config|get (it shows passwords)")
        if int((self.settings or {}).get("min-replicas-to-write", 0)) < 1 and good is None:
            text = "min-replicas-to-write is 0: cut off from its replicas it goes on granting"
            yield self._told("min-replicas", "unsafe", text, "set min-replicas-to-write 1")
            yield from self._node_timeout(is_cluster=is_cluster)
            return
        half_lease_ms = self.wanted.lease_ttl_ms // 2
        lag = (self.settings or {}).get("min-replicas-max-lag")
        if lag is not None and not 0 < int(lag) * 1000 <= half_lease_ms:
            text = f"min-replicas-max-lag {lag} s is more than half a lease ({half_lease_ms} ms)"
            yield self._told("min-replicas", "unsafe", text, f"set it to at most {half_lease_ms // 1000}")
        elif good == "0":
            text = "no replica is good enough for min-replicas-to-write: every write is refused (NOREPLICAS)"
            yield self._told("min-replicas", "unsafe", text, "bring its replicas back")
        else:
            yield self._told("min-replicas", "ok", f"min-replicas-to-write is set, {good or 'some'} replicas count")
        yield from self._node_timeout(is_cluster=is_cluster)

    def _node_timeout(self, *, is_cluster: bool) -> Iterator[Concern]:
        timeout, half_lease_ms = (self.settings or {}).get("cluster-node-timeout"), self.wanted.lease_ttl_ms // 2
        if not is_cluster or timeout is None:
            return
        if int(timeout) > half_lease_ms:
            text = f"cluster-node-timeout {timeout} ms is more than half a lease ({half_lease_ms} ms)"
            yield self._told("node-timeout", "unsafe", text, "lower it, or lengthen member-lease-ttl")
        else:
            yield self._told("node-timeout", "ok", f"cluster-node-timeout {timeout} ms")
