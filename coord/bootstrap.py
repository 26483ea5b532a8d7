"""The composition root: a configuration in, wired objects out; the only place that picks a store.

Nothing is connected here and no thread is started: `build` may run before a fork or after it, `start` runs in each worker.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

from coord.addresses import redis_commands, uses_redis
from coord.config import Configuration
from coord.config.databaseurl import parse as parse_database_url
from coord.core.decision import Policy
from coord.runtime.admin import Admin
from coord.runtime.allocation import return_large_blocks
from coord.runtime.audit import AuditTrail
from coord.runtime.auditsinks import AuditDelivery, ListSink, LogSink
from coord.runtime.cache import Aggregates
from coord.runtime.clock import StoreClock
from coord.runtime.coordinator import Coordinator
from coord.runtime.corruption import CorruptionWalk
from coord.runtime.executor import Executor
from coord.runtime.groups import GroupSagas
from coord.runtime.health import Health, Worry
from coord.runtime.heartbeats import Heartbeats
from coord.runtime.idempotency import Idempotency
from coord.runtime.mutex import MutexPolicy, StateMutex
from coord.runtime.pulse import Pulse
from coord.runtime.resharder import Resharder
from coord.runtime.ticker import Ticker
from coord.runtime.views import Views
from coord.store.answers import Answers
from coord.store.base import Store
from coord.store.memory import MemoryStore
from coord.store.memory_answers import MemoryAnswers
from coord.store.memory_windows import MemoryWindows
from coord.store.redis.replicas import ReplicaWait
from coord.store.redis.store import RedisStore
from coord.store.sql.settings import SqlSettings
from coord.store.versions import Tables
from coord.store.windows import Windows
from coord.streams.provisioning import ShardStreams
from coord.wire import CoordinatorCompatibilityResponse, HealthResponse

NS_PER_MS = 1_000_000


@dataclass(slots=True, kw_only=True)
class Services:
    """Everything that one process runs."""

    config: Configuration
    policy: Policy
    store: Store
    executor: Executor
    coordinator: Coordinator
    admin: Admin
    views: Views
    ticker: Ticker
    monitor: Health
    windows: Windows
    idempotency: Idempotency
    data_plane: Pulse | None = None
    """The shards' Redis, where the store is not in it."""

    def health(self) -> HealthResponse:
        """Give the health; bounded, never raises. A Redis beside the store is asked for itself."""
        if self.data_plane is None:
            return self.monitor.health()
        return self.data_plane.beside(self.monitor.health)

    def compatibility(self) -> CoordinatorCompatibilityResponse:
        """Say which protocol versions are spoken."""
        return self.views.compatibility()

    @property
    def terminating(self) -> bool:
        """Whether this process is stopping: heartbeats are answered RETRY, mutations 503."""
        return self.coordinator.terminating

    @terminating.setter
    def terminating(self, value: bool) -> None:
        self.coordinator.terminating = value
        self.admin.terminating = value

    def start(self) -> None:
        """Start this process's threads; after the fork, never before."""
        return_large_blocks()
        self.store.after_fork()
        if self.data_plane is not None:
            self.data_plane.after_fork()
        self.executor.aggregates.clear()
        self.ticker.start()
        threading.Thread(target=self.monitor.health, name="first look", daemon=True).start()  # logs what is unsafe

    def stop(self) -> None:
        """End this process's threads and connections; bounded."""
        self.ticker.stop()
        self.store.close()
        if self.data_plane is not None:
            self.data_plane.close()


def policy_of(config: Configuration) -> Policy:
    """Give the timings and limits that decisions depend on."""
    return Policy(
        heartbeat_interval_ms=config.heartbeat_interval_ms,
        member_lease_ttl_ms=config.member_lease_ttl_ms,
        rebalance_timeout_ms=config.rebalance_timeout_ms,
        stale_member_retention_ms=config.stale_member_retention_ms,
        failover_grace_ms=config.store.failover_grace_ms,
        routing_grace_ms=config.resharding.routing_grace_ms,
        watch_retired_ms=config.resharding.watch_retired_ms,
        auto_register=config.members.auto_register,
        groups_per_stream=config.limits.groups_per_stream,
    )


@runtime_checkable
class TellsConcerns(Protocol):
    """A SQL store, whose module is imported only where there is one: its libraries are an extra."""

    def unsafe(self) -> Sequence[str]:
        """Say what is unsafe about the database in use."""


def unsafe_settings(store: Store) -> tuple[str, ...]:
    """Say by which settings a SQL store's database loses what it acknowledged. Raises StoreUnavailable."""
    return tuple(store.unsafe()) if isinstance(store, TellsConcerns) else ()


def worries_of(store: Store, policy: Policy) -> tuple[Worry, ...]:
    """Say what is unsafe about the store in use: it may lose or evict what it acknowledged. Raises StoreUnavailable."""
    if not isinstance(store, RedisStore):
        return tuple(Worry(text) for text in unsafe_settings(store))
    concerns = store.concerns(lease_ttl_ms=policy.member_lease_ttl_ms)
    return tuple(Worry(str(concern), degrades=concern.is_unsafe) for concern in concerns if not concern.is_unknown)


def open_store(config: Configuration, *, migrates: bool = False) -> tuple[Store, ShardStreams | None]:
    """Give the configured store, and the shards of Redis, if there is one. Connects on first use.

    `migrates`: a SQL store may make and change its tables; else it says that they are not as needed.
    """
    if config.store.type == "memory":
        return MemoryStore(_now_ms, identity=f"memory-{uuid.uuid4()}"), None
    if config.store.type == "jdbc":
        return sql_store(config, migrates=migrates), ShardStreams(redis_commands(config)) if uses_redis(config) else None
    commands = redis_commands(config)
    return RedisStore(commands, wait=replica_wait(config)), ShardStreams(commands)


def replica_wait(config: Configuration) -> ReplicaWait | None:
    """Give what replicas have to confirm of an administrator's commit; None for nothing."""
    store = config.store
    return ReplicaWait(replicas=store.wait_replicas, timeout_ms=store.wait_timeout_ms) if store.wait_replicas else None


def sql_store(config: Configuration, *, migrates: bool) -> Store:
    """Give the store on the configured database."""
    from coord.store.sql.choice import dialect_of  # noqa: PLC0415  SQLAlchemy and the drivers are an extra
    from coord.store.sql.store import SqlStore  # noqa: PLC0415  as above

    return SqlStore(dialect_of(sql_settings(config, migrates=migrates)))


def sql_tables(config: Configuration) -> Tables:
    """Give the tables of the configured database, to look at and to migrate."""
    from coord.store.sql.choice import dialect_of  # noqa: PLC0415  SQLAlchemy and the drivers are an extra
    from coord.store.sql.schema import SqlTables  # noqa: PLC0415  as above

    return SqlTables(dialect_of(sql_settings(config, migrates=True)))


def sql_settings(config: Configuration, *, migrates: bool) -> SqlSettings:
    """Give how the database is reached; the configuration was checked, so its URL can be read."""
    url, jdbc = parse_database_url(config.store.url.reveal()), config.store.jdbc
    return SqlSettings(
        kind=url.kind,
        hosts=url.hosts,
        database=url.database,
        username=jdbc.username or url.username or None,
        password=jdbc.password.reveal() or url.password.reveal() or None,
        options=url.options,
        timeout_ms=jdbc.timeout_ms,
        max_connections=jdbc.max_connections,
        identity_source=config.store.identity,
        migrates=migrates,
    )


@runtime_checkable
class KeepsBeside(Protocol):
    """A store that keeps, where it is itself, what all its processes share about mutations."""

    windows: Windows
    answers: Answers


def beside(store: Store) -> tuple[Windows, Answers]:
    """Give what is kept beside a store about mutations: counts of windows, and answers by key. In this process for a double."""
    if isinstance(store, KeepsBeside):
        return store.windows, store.answers
    return MemoryWindows(_now_ms), MemoryAnswers(_now_ms)


def delivery_of(config: Configuration, shards: ShardStreams | None) -> AuditDelivery:
    """Give what hands audit entries to the configured sink; lists are in the shards' Redis, where a store in Redis is too."""
    if config.audit.sink == "log" or shards is None:
        return AuditDelivery(LogSink())
    kept, gone_ttl_ms = config.audit.redis_max_entries, config.events.retention_after_delete_ms
    return AuditDelivery(ListSink(shards.commands, kept=kept, gone_ttl_ms=gone_ttl_ms))


def _now_ms() -> int:
    return time.time_ns() // NS_PER_MS


def mutex_of(config: Configuration, store: Store) -> StateMutex:
    """Give the mutexes of the store's Redis, or none where there is no Redis, or they are switched off."""
    mutex = config.coordination.state_mutex
    policy = MutexPolicy(
        strategy=mutex.strategy,
        ttl_ms=mutex.ttl_ms,
        acquire_timeout_ms=mutex.acquire_timeout_ms,
        retry_interval_ms=mutex.retry_interval_ms,
    )
    return StateMutex(store.mutexes if isinstance(store, RedisStore) and mutex.enabled else None, policy)


def ticker_of(config: Configuration, executor: Executor, sagas: GroupSagas, resharder: Resharder) -> Ticker:
    """Give this process's ticker; no other has its name."""
    return Ticker(
        executor=executor,
        sagas=sagas,
        resharder=resharder,
        instance=f"{config.id}/{os.getpid()}-{uuid.uuid4().hex[:8]}",
        interval_ms=config.loop.tick_interval_ms,
        enabled=config.loop.enabled,
    )


def build(config: Configuration) -> Services:
    """Wire a process."""
    store, shards = open_store(config, migrates=config.store.jdbc.migrate)
    services = wire(config, store, shards)
    services.data_plane = Pulse(shards) if shards is not None and config.store.type == "jdbc" else None
    return services


def wire(config: Configuration, store: Store, shards: ShardStreams | None, *, clock: StoreClock | None = None) -> Services:
    """Wire a process around a store that is given, and a clock if its time is not this machine's."""
    policy = policy_of(config)
    clock = clock or StoreClock()
    aggregates = Aggregates(store, clock)
    slowest_ms = config.redis.timeout_ms + (config.store.wait_timeout_ms if config.store.wait_replicas else 0)
    lock_wait_s = (config.coordination.state_mutex.acquire_timeout_ms + slowest_ms) / 1000
    executor = Executor(
        store=store,
        aggregates=aggregates,
        clock=clock,
        policy=policy,
        coordinator_id=config.id,
        snapshot_every=config.events.snapshot_every,
        lock_wait_s=lock_wait_s,
        mutex=mutex_of(config, store),
        delivery=delivery_of(config, shards),
    )
    provisioned = shards if config.streams.provisioning_enabled else None
    sagas = GroupSagas(executor, provisioned)
    resharder = Resharder(
        executor,
        shards,
        provisioning=config.streams.provisioning_enabled,
        delete_retired=config.resharding.retired_shards == "delete",
    )
    windows, answers = beside(store)
    views = Views(store=store, aggregates=aggregates, resharder=resharder, policy=policy)
    return Services(
        config=config,
        policy=policy,
        store=store,
        executor=executor,
        coordinator=Coordinator(
            executor, Heartbeats(executor, wait_s=lock_wait_s), sagas, new_group_start=config.streams.new_group_start
        ),
        admin=Admin(
            executor=executor,
            sagas=sagas,
            resharder=resharder,
            audit=AuditTrail(executor),
            shards=shards,
            provisioned_shards=provisioned,
            default_shard_count=config.defaults.initial_shard_count,
            new_group_start=config.streams.new_group_start,
        ),
        views=views,
        ticker=ticker_of(config, executor, sagas, resharder),
        monitor=Health(
            store=store,
            walk=CorruptionWalk(store, aggregates),
            coordinator_id=config.id,
            redis_counts=shards is not None,
            loop_late_ms=max(policy.member_lease_ttl_ms, 5 * config.loop.tick_interval_ms),
            worries=lambda: (*map(Worry, executor.delivery.concerns()), *worries_of(store, policy)),
        ),
        windows=windows,
        idempotency=Idempotency(executor, answers),
    )
