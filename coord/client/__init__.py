"""The data plane's client: members that read the shards they hold, producers that route to the write set.

Ships alone: of `coord` it imports only `wire`, `names` and `refusals`. Start at `Consumer` (a member that reads) and
`Producer` (routing version 1, publish). Theory of operation: `MemberProtocol` is a pure state machine for "What a client
owes" (design page `protocol.md`); `MemberLoop` gives it a thread, a clock and HTTP; `Consumer` gives it shards to read.
`HeartbeatBatcher` lets the members of one process share their heartbeats' requests.
"""

from __future__ import annotations

from coord.client.batching import HeartbeatBatcher
from coord.client.consumer import Consumer, ConsumerHealth
from coord.client.errors import (
    CoordinatorError,
    FatalError,
    NoShardsError,
    PublishError,
    PublishUncertainError,
    RetriableError,
    RoutingExpiredError,
    ShardGoneError,
)
from coord.client.handling import Entry, Handler, PoisonPolicy, ReaderSettings
from coord.client.health import MemberHealth, ShardHealth
from coord.client.host import HeartbeatCall, LoopSettings, ShardHost
from coord.client.http import CoordinatorHttp, Credentials
from coord.client.member import MemberLoop
from coord.client.producer import Outcome, Producer, Published, Record
from coord.client.protocol import Change, MemberProtocol
from coord.client.routing import redis_slot, shard_for

__all__ = [
    "Change",
    "Consumer",
    "ConsumerHealth",
    "CoordinatorError",
    "CoordinatorHttp",
    "Credentials",
    "Entry",
    "FatalError",
    "Handler",
    "HeartbeatBatcher",
    "HeartbeatCall",
    "LoopSettings",
    "MemberHealth",
    "MemberLoop",
    "MemberProtocol",
    "NoShardsError",
    "Outcome",
    "PoisonPolicy",
    "Producer",
    "PublishError",
    "PublishUncertainError",
    "Published",
    "ReaderSettings",
    "Record",
    "RetriableError",
    "RoutingExpiredError",
    "ShardGoneError",
    "ShardHealth",
    "ShardHost",
    "redis_slot",
    "shard_for",
]
