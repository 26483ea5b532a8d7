"""What happens in the demo, and when: the timeline, and the settings under which it plays."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

SECONDS_MIN: Final = 20
SECONDS_DEFAULT: Final = 40
STREAM: Final = "orders"
GROUP: Final = "billing"
SHARDS_FIRST: Final = 8
SHARDS_MOST: Final = 12
SHARDS_LAST: Final = 6
MEMBERS_FIRST: Final = ("consumer-1", "consumer-2", "consumer-3", "consumer-4")
VICTIM: Final = "consumer-2"
MEMBERS_LATER: Final = ("consumer-5", "consumer-6")

HEARTBEAT_INTERVAL_MS: Final = 500
LEASE_TTL_MS: Final = 4_000
ROUTING_GRACE_MS: Final = 1_000
TICK_INTERVAL_MS: Final = 200
REBALANCE_TIMEOUT_MS: Final = 10_000
ROUTING_REFRESH_MS: Final = 250
ROUTING_LEASE_MS: Final = 900
"""Shorter than the routing grace: the producer has stopped using an old route before a drain can be proved."""

TIMINGS: Final[dict[str, int]] = {
    "heartbeatIntervalMs": HEARTBEAT_INTERVAL_MS,
    "memberLeaseTtlMs": LEASE_TTL_MS,
    "routingGraceMs": ROUTING_GRACE_MS,
    "tickIntervalMs": TICK_INTERVAL_MS,
    "rebalanceTimeoutMs": REBALANCE_TIMEOUT_MS,
}

Kind = Literal["kill", "start", "scale"]


@dataclass(frozen=True, slots=True)
class Step:
    """Something that happens `at_s` seconds after the first record. `names`: members; `shards`: the new count."""

    at_s: float
    kind: Kind
    names: tuple[str, ...] = ()
    shards: int = 0

    @property
    def text(self) -> str:
        """Tell it."""
        match self.kind:
            case "kill":
                return f"SIGKILL to {', '.join(self.names)}: its shards move once its lease of {LEASE_TTL_MS} ms has lapsed"
            case "start":
                return f"{' and '.join(self.names)} start: members give up shards for them, one by one"
            case "scale":
                return f"scale to {self.shards} shards"


def timeline(seconds: int) -> tuple[Step, ...]:
    """Spread the story over the time there is."""
    return (
        Step(seconds * 0.20, "kill", names=(VICTIM,)),
        Step(seconds * 0.35, "start", names=MEMBERS_LATER),
        Step(seconds * 0.50, "scale", shards=SHARDS_MOST),
        Step(seconds * 0.72, "scale", shards=SHARDS_LAST),
    )


def configuration(
    *, port: int, redis: Mapping[str, object], password: str, token_secret: str, key_prefix: str | None = None
) -> str:
    """Give the coordinator's configuration file (JSON is YAML); `redis` is its section of that name."""
    return json.dumps(
        {
            "coordinator": {
                "id": "demo",
                "server": {"host": "127.0.0.1", "port": port, "workers": 2, "threads": 16, "graceful-timeout": "8s"},
                "api": {"admin-password": password, "token-secret": token_secret},
                "redis": redis,
                **({"store": {"key-prefix": key_prefix}} if key_prefix else {}),
                "heartbeat-interval": f"{HEARTBEAT_INTERVAL_MS}ms",
                "member-lease-ttl": f"{LEASE_TTL_MS}ms",
                "rebalance-timeout": f"{REBALANCE_TIMEOUT_MS}ms",
                "loop": {"tick-interval": f"{TICK_INTERVAL_MS}ms"},
                "streams": {"provisioning-enabled": True, "new-group-start": "0"},
                "resharding": {"routing-grace": f"{ROUTING_GRACE_MS}ms"},
            }
        },
        indent=2,
    )
