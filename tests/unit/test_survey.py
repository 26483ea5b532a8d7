"""What a Redis tells of itself is judged: each risk has its name, its level and what to do."""

from __future__ import annotations

import re

import pytest

from coord.rediscommands.errors import Refused
from coord.rediscommands.link import Reply
from coord.rediscommands.settings import Address
from coord.rediscommands.survey import Concern, Wanted, findings

NODE = Address("redis.example", 6379)
SOUND = {
    "redis_version": "8.2.1", "maxmemory_policy": "noeviction", "aof_enabled": "1", "aof_last_write_status": "ok",
    "connected_slaves": "1", "min_slaves_good_slaves": "1", "cluster_enabled": "0",
}  # fmt: skip
CONFIG = {"appendfsync": "everysec", "min-replicas-to-write": "1", "min-replicas-max-lag": "5", "cluster-node-timeout": "5000"}
REFUSED = Refused("NOPERM User x has no permissions to run the 'config|get' command")


def judged(changes: dict[str, str], config: dict[str, str] | Refused = CONFIG, *, wait_replicas: int = 0) -> dict[str, Concern]:
    info = "\r\n".join(f"{name}:{value}" for name, value in {**SOUND, **changes}.items()).encode()
    reply: Reply = config
    if isinstance(config, dict):
        reply = [word.encode() for pair in config.items() for word in pair]
    wanted = Wanted(lease_ttl_ms=15_000, wait_replicas=wait_replicas)
    return {concern.name: concern for concern in findings(NODE, info, reply, wanted)}


def test_a_sound_server_is_fine() -> None:
    found = judged({}, wait_replicas=1)
    assert {name: concern.level for name, concern in found.items()} == dict.fromkeys(
        ("version", "eviction", "persistence", "replicas", "min-replicas"), "ok"
    )


@pytest.mark.parametrize(
    ("changes", "config", "name", "level", "says"),
    [
        ({"redis_version": "6.2.14"}, {}, "version", "unsafe", "6.2.14 is too old .* EVALSHA_RO"),
        ({"redis_version": "?"}, {}, "version", "unknown", "no redis_version"),
        ({"maxmemory_policy": "allkeys-lfu"}, {}, "eviction", "unsafe", "allkeys-lfu may remove"),
        ({"maxmemory_policy": "volatile-ttl"}, {}, "eviction", "warn", "volatile-ttl may remove mutexes"),
        ({"maxmemory_policy": ""}, {}, "eviction", "unknown", "no maxmemory_policy"),
        ({"aof_enabled": "0"}, {}, "persistence", "warn", "no append-only file: .* loses"),
        ({"aof_last_write_status": "err"}, {}, "persistence", "unsafe", "cannot be written"),
        ({}, {"appendfsync": "no"}, "persistence", "warn", "appendfsync no"),
        ({}, {"appendfsync": "always"}, "persistence", "ok", "appendfsync always"),
        ({"connected_slaves": "0"}, {}, "replicas", "warn", "wait-replicas is 1, and 0 replicas"),
        ({"min_slaves_good_slaves": "0"}, {}, "min-replicas", "unsafe", "NOREPLICAS"),
        ({}, {"min-replicas-max-lag": "8"}, "min-replicas", "unsafe", r"8 s is more than half a lease \(7500 ms\)"),
        ({"cluster_enabled": "1"}, {"cluster-node-timeout": "15000"}, "node-timeout", "unsafe", "15000 ms is more than half"),
        ({"cluster_enabled": "1"}, {}, "node-timeout", "ok", "5000 ms"),
    ],
)  # fmt: skip
def test_each_risk_has_its_name(changes: dict[str, str], config: dict[str, str], name: str, level: str, says: str) -> None:
    concern = judged(changes, {**CONFIG, **config}, wait_replicas=1)[name]
    assert concern.level == level
    assert re.search(says, concern.text), concern.text
    assert concern.advice or level == "ok", "it says what to do"


def test_what_config_would_tell_is_told_to_be_unknown() -> None:
    """And what INFO tells all the same is judged."""
    found = judged({}, REFUSED)
    assert found["persistence"].level == found["config"].level == "unknown"
    assert "'config|get'" in found["config"].text
    assert found["min-replicas"].level == "ok"
    info = {name: value for name, value in SOUND.items() if name != "min_slaves_good_slaves"}
    reply = "\r\n".join(f"{name}:{value}" for name, value in info.items()).encode()
    unset = {each.name: each.level for each in findings(NODE, reply, REFUSED, Wanted(lease_ttl_ms=15_000))}
    assert unset["min-replicas"] == "unsafe", "INFO would count good replicas if it were set"


def test_a_server_that_refuses_info_tells_nothing() -> None:
    (concern,) = findings(NODE, Refused("NOPERM no"), None, Wanted(lease_ttl_ms=15_000))
    assert (concern.name, concern.is_unknown, concern.is_unsafe) == ("info", True, False)
    assert str(concern) == "Redis at redis.example:6379: INFO is refused, nothing is known of it: NOPERM no; " + concern.advice
