"""Every key of the configuration with its default, what is allowed and what it means.

This is a catalogue: the table in the README is made from it. Durations are whole milliseconds in code (names end in
`_ms`) and are written with a unit in YAML. An empty text stands for "not set".
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec
from msgspec import field

from coord.config.durations import DAY_MS, HOUR_MS, MINUTE_MS, SECOND_MS
from coord.config.problems import Problem
from coord.config.rules import (
    PORT_MAX,
    Retention,
    choice,
    database_url,
    duration,
    flag,
    many,
    milliseconds,
    network,
    node,
    node_pair,
    retention,
    secret,
    secret_url,
    text,
    whole,
)
from coord.config.secret import Secret, SecretUrl
from coord.names import SHARDS_MAX

DEFAULT_PASSWORD = "password"  # noqa: S105 - the published default of local development, refused elsewhere
RETAINED_ENTRIES_MIN = 1000
WORKERS_MAX = 256

Role = Literal["READ", "WRITE", "MEMBER", "ADMIN", "MONITOR"]
"""What a user may do; ADMIN (everything) and MONITOR (READ) are the older names."""


Origins = Mapping[str, str]
Warnings = tuple[Problem, ...]


class Section(msgspec.Struct, frozen=True, kw_only=True, rename="kebab"):
    """A mapping in the YAML. Never changed after the load."""


class ServerTls(Section, frozen=True, kw_only=True):
    """The certificate of the HTTP server; both files or none."""

    cert_file: Annotated[str, text("certificate chain of the HTTP server (PEM)")] = ""
    key_file: Annotated[str, text("private key of the HTTP server (PEM)")] = ""
    ca_file: Annotated[str, text("when set, clients must show a certificate that one of these signed (PEM)")] = ""


class Server(Section, frozen=True, kw_only=True):
    """The HTTP server of one instance."""

    host: Annotated[str, text("address to listen on", pattern=r"[^\s/]+", allowed="a host name or an IP address")] = "127.0.0.1"
    port: Annotated[int, whole("port to listen on", low=1, high=PORT_MAX)] = 8080
    workers: Annotated[
        int,
        whole(
            "worker processes (`WEB_CONCURRENCY` counts too)",
            low=1,
            high=WORKERS_MAX,
            default_text="cores (1 with the memory store)",
        ),
    ] = 1
    threads: Annotated[int, whole("threads of each worker", low=1, high=1024)] = 64
    engine: Annotated[Literal["gunicorn", "granian"], choice("HTTP server; `granian` is an extra", "gunicorn", "granian")] = (
        "gunicorn"
    )
    graceful_timeout_ms: Annotated[
        int, duration("how long a stopping worker may finish its requests", low_ms=SECOND_MS, high_ms=10 * MINUTE_MS)
    ] = field(default=30 * SECOND_MS, name="graceful-timeout")
    keep_alive_ms: Annotated[
        int, duration("how long an idle connection stays open", low_ms=SECOND_MS, high_ms=10 * MINUTE_MS)
    ] = field(default=75 * SECOND_MS, name="keep-alive")
    readyz_needs_store: Annotated[bool, flag("`/readyz` fails while the store is away (then every pod leaves at once)")] = False
    tls: ServerTls = ServerTls()


class RateLimit(Section, frozen=True, kw_only=True):
    """The limit on admin mutations: a fixed window per principal and group."""

    enabled: Annotated[bool, flag("limit admin mutations per principal and group, in fixed windows")] = False
    admin_mutations_per_minute: Annotated[int, whole("mutations allowed in a minute", low=1, high=1_000_000)] = 60


class User(Section, frozen=True, kw_only=True):
    """Somebody who may use the API. A blank password means: cannot log in."""

    username: Annotated[str, text("name to log in with", pattern=r"[^:]{0,255}", allowed="up to 255 characters, no colon")] = ""
    password: Annotated[Secret, secret("password, plain or an argon2 hash; blank: cannot log in")] = Secret()
    roles: Annotated[
        tuple[Role, ...],
        many(
            choice("READ, WRITE, MEMBER (older names: ADMIN, MONITOR)", "READ", "WRITE", "MEMBER", "ADMIN", "MONITOR", aliases={})
        ),
    ] = ()
    streams: Annotated[
        tuple[str, ...],
        many(
            text(
                "stream prefixes the user may touch; `orders*` means all that begin so",
                pattern=r"(?=.{1,255}\Z)[^*/{}]*\*?",
                allowed="1 to 255 characters, none of / { }, an asterisk only at the end",
            )
        ),
    ] = ("*",)


class Api(Section, frozen=True, kw_only=True):
    """The HTTP API: where it is and who may use it."""

    base_path: Annotated[
        str,
        text(
            "path in front of every API endpoint",
            pattern=r"(/(?!\.{1,2}(/|$))[A-Za-z0-9._~-]+)+",
            allowed="a path such as /coord/v1: starts with a slash, ends without one, letters, digits and . _ ~ - between",
        ),
    ] = "/coord/v1"
    admin_username: Annotated[
        str,
        text(
            "who has READ, WRITE and MEMBER when `users` is empty",
            pattern=r"[^:]{1,255}",
            allowed="1 to 255 characters, no colon",
        ),
    ] = "admin"
    admin_password: Annotated[
        Secret,
        secret("password of that user", default_text=f"${{REDIS_STREAM_COORDINATOR_ADMIN_PASSWORD:{DEFAULT_PASSWORD}}}"),
    ] = Secret(DEFAULT_PASSWORD)
    users: tuple[User, ...] = ()
    token_secret: Annotated[
        Secret, secret("key that signs tokens, at least 32 bytes; empty: a fallback for local development only")
    ] = Secret()
    token_ttl_ms: Annotated[int, duration("how long a token is good", low_ms=SECOND_MS, high_ms=365 * DAY_MS)] = field(
        default=7 * DAY_MS, name="token-ttl"
    )
    previous_token_secrets: Annotated[tuple[Secret, ...], many(secret("older keys that still verify tokens, for rotation"))] = ()
    authenticate_member_api: Annotated[bool, flag("heartbeats need a user with MEMBER")] = False
    rate_limit: RateLimit = RateLimit()
    trusted_proxies: Annotated[
        tuple[str, ...], many(network("proxies whose `X-Forwarded-For` is believed; all others' is ignored"))
    ] = ()
    max_body_bytes: Annotated[int, whole("largest request body; more is answered 413", low=1024, high=64 * 1024 * 1024)] = (
        1024 * 1024
    )
    allow_insecure_defaults: Annotated[
        bool, flag("listen beyond loopback with the default password or without a token secret; warns at every start")
    ] = False


class Audit(Section, frozen=True, kw_only=True):
    """Where the record of admin requests goes."""

    sink: Annotated[Literal["log", "redis"], choice("where audit entries go besides the event logs", "log", "redis")] = "log"
    redis_max_entries: Annotated[int, whole("audit entries kept per stream and group in Redis", low=1, high=1_000_000)] = 1000


class Jdbc(Section, frozen=True, kw_only=True):
    """How the SQL database of `store.url` is used, for `store.type: jdbc`."""

    username: Annotated[str, text("database user; wins over the one in the URL")] = ""
    password: Annotated[Secret, secret("password of that user; wins over the one in the URL")] = Secret()
    timeout_ms: Annotated[
        int, milliseconds("bound on each call; one that must open a connection first may take 2 s more", low=100, high=60_000)
    ] = 2000
    max_connections: Annotated[int, whole("connections of one worker process", low=2, high=1000)] = 10
    migrate: Annotated[bool, flag("make and change the tables at the start; false: only `coord store migrate` does")] = True


class Store(Section, frozen=True, kw_only=True):
    """Where the groups' logs and metadata are kept."""

    type: Annotated[
        Literal["redis", "memory", "jdbc"],
        choice(
            "`redis`; `memory` (one process, nothing survives); `jdbc` (alias `sql`)",
            "redis",
            "memory",
            "jdbc",
            aliases={"sql": "jdbc"},
        ),
    ] = "redis"
    key_prefix: Annotated[
        str,
        text(
            "first part of every key of the coordinator",
            pattern=r"[^\s{}*?\[\]]{1,128}",
            allowed="1 to 128 characters without blanks, braces, brackets, * and ?",
        ),
    ] = "redis-stream:coord"
    url: Annotated[
        SecretUrl,
        database_url("the SQL database, for `jdbc`: `jdbc:postgresql://host/db?user=…`, `jdbc:mariadb://…`, `jdbc:sqlite:file`"),
    ] = SecretUrl()
    jdbc: Jdbc = Jdbc()
    wait_replicas: Annotated[int, whole("replicas that must confirm an admin commit", low=0, high=16)] = 0
    wait_timeout_ms: Annotated[int, milliseconds("how long to wait for them", low=1, high=60_000)] = 100
    identity: Annotated[
        Literal["auto", "constant"],
        choice("`constant`: your word that the store never loses a write (proxies, some managed stores)", "auto", "constant"),
    ] = "auto"
    failover_grace_ms: Annotated[
        int, duration("added to a lease before a changed store is trusted again", low_ms=0, high_ms=HOUR_MS)
    ] = field(default=10 * SECOND_MS, name="failover-grace")


class RedisTls(Section, frozen=True, kw_only=True):
    """TLS towards Redis, beyond `redis.ssl`."""

    ca_file: Annotated[str, text("certificates that sign the server's (PEM); empty: the system's")] = ""
    cert_file: Annotated[str, text("client certificate (PEM)")] = ""
    key_file: Annotated[str, text("private key of the client certificate (PEM)")] = ""
    verify: Annotated[bool, flag("check the server's certificate and host name")] = True


class RedisSentinel(Section, frozen=True, kw_only=True):
    """Redis behind Sentinel."""

    master: Annotated[str, text("name of the master at the Sentinels (`REDIS_SENTINEL_MASTER`)")] = ""
    nodes: Annotated[tuple[str, ...], many(node("the Sentinels (`REDIS_SENTINEL_NODES`)"))] = ()
    username: Annotated[str, text("ACL user at the Sentinels")] = ""
    password: Annotated[Secret, secret("password at the Sentinels")] = Secret()


class RedisCluster(Section, frozen=True, kw_only=True):
    """Redis Cluster."""

    nodes: Annotated[tuple[str, ...], many(node("some nodes of the cluster (`REDIS_CLUSTER_NODES`)"))] = ()
    address_map: Annotated[
        tuple[str, ...], many(node_pair("`host:port=host:port`: a node's address as told, and as reached from here"))
    ] = ()


class Redis(Section, frozen=True, kw_only=True):
    """How Redis is reached. After the load, host to ssl already hold what `url` says."""

    host: Annotated[str, text("host", pattern=r"[^\s/@]+", allowed="a host name or an IP address")] = "localhost"
    port: Annotated[int, whole("port", low=1, high=PORT_MAX)] = 6379
    database: Annotated[int, whole("database index", low=0, high=32_767)] = 0
    username: Annotated[str, text("ACL user")] = ""
    password: Annotated[Secret, secret("password", default_text="${REDIS_PASSWORD:}")] = Secret()
    ssl: Annotated[bool, flag("use TLS")] = False
    url: Annotated[
        SecretUrl,
        secret_url(
            "`redis://user:password@host:port/database`, `rediss://` with TLS (`REDIS_URL`); wins over the keys above",
            schemes=("redis", "rediss"),
        ),
    ] = SecretUrl()
    tls: RedisTls = RedisTls()
    sentinel: RedisSentinel = RedisSentinel()
    cluster: RedisCluster = RedisCluster()
    timeout_ms: Annotated[int, milliseconds("bound on connecting and on each command", low=10, high=60_000)] = 2000
    max_connections: Annotated[int, whole("connections of one worker process", low=1, high=10_000)] = 128


class Loop(Section, frozen=True, kw_only=True):
    """The ticker: expiry, deadlines, resharding."""

    enabled: Annotated[bool, flag("run the ticker in this instance")] = True
    tick_interval_ms: Annotated[
        int, duration("time between two ticks, at most a quarter of the lease", low_ms=10, high_ms=HOUR_MS)
    ] = field(default=SECOND_MS, name="tick-interval")


class StateMutex(Section, frozen=True, kw_only=True):
    """The mutex that saves wasted work; safety rests on the revision."""

    enabled: Annotated[bool, flag("false: compare-and-set only")] = True
    strategy: Annotated[
        Literal["contended", "always"],
        choice("`contended`: the mutex only after a lost compare-and-set; `always`: around every change", "contended", "always"),
    ] = "contended"
    ttl_ms: Annotated[
        int, milliseconds("when a killed holder's mutex is free again; keep it below the lease", low=10, high=600_000)
    ] = 3000
    acquire_timeout_ms: Annotated[int, milliseconds("longest wait for the mutex", low=1, high=600_000)] = 5000
    retry_interval_ms: Annotated[int, milliseconds("time between two attempts", low=1, high=60_000)] = 100


class Coordination(Section, frozen=True, kw_only=True):
    """How instances stay out of each other's way."""

    state_mutex: StateMutex = StateMutex()


class Streams(Section, frozen=True, kw_only=True):
    """What the coordinator does to the shard streams themselves."""

    provisioning_enabled: Annotated[bool, flag("create shard streams and Redis consumer groups (on in `coord demo`)")] = False
    new_group_start: Annotated[
        Literal["0", "$"],
        choice("where a new group on an existing stream starts: `0` the first entry, `$` the end", "0", "$"),
    ] = "$"


class Members(Section, frozen=True, kw_only=True):
    """How members come in."""

    auto_register: Annotated[bool, flag("the first heartbeat may make the group, on an existing stream")] = True


class Limits(Section, frozen=True, kw_only=True):
    """Bounds on what callers can make."""

    groups_per_stream: Annotated[int, whole("groups on one stream", low=1, high=100_000)] = 1000


class Monitoring(Section, frozen=True, kw_only=True):
    """What is shown of the groups."""

    metrics_auth: Annotated[bool, flag("the metrics endpoints need READ")] = False
    offset_cache_ttl_ms: Annotated[int, milliseconds("how long shard offsets are remembered", low=0, high=600_000)] = 15_000
    per_member_metrics: Annotated[bool, flag("series per member")] = True
    per_shard_metrics: Annotated[bool, flag("series per shard")] = True


class Resharding(Section, frozen=True, kw_only=True):
    """How a stream changes its shard count."""

    routing_grace_ms: Annotated[int, duration("how long producers may still hold an old route", low_ms=10, high_ms=DAY_MS)] = (
        field(default=10 * SECOND_MS, name="routing-grace")
    )
    watch_retired_ms: Annotated[
        int, duration("how long retired shards are watched for late entries", low_ms=0, high_ms=365 * DAY_MS)
    ] = field(default=HOUR_MS, name="watch-retired")
    retired_shards: Annotated[
        Literal["keep", "delete"], choice("what becomes of a retired, empty shard's stream", "keep", "delete")
    ] = "keep"


class Events(Section, frozen=True, kw_only=True):
    """How much of the log is kept."""

    snapshot_every: Annotated[int, whole("revisions between two snapshots", low=1, high=1_000_000)] = 1000
    retain: Annotated[
        Retention,
        retention(
            "what is kept of a log, never trimmed past its last snapshot; `unlimited`: a noeviction Redis will refuse writes",
            entries_low=RETAINED_ENTRIES_MIN,
        ),
    ] = Retention(age_ms=30 * DAY_MS, entries_max=1_000_000)
    retention_after_delete_ms: Annotated[
        int, duration("how long a deleted group's log stays", low_ms=SECOND_MS, high_ms=3650 * DAY_MS)
    ] = field(default=30 * DAY_MS, name="retention-after-delete")


class Defaults(Section, frozen=True, kw_only=True):
    """What an admin request means when it leaves a field out."""

    initial_shard_count: Annotated[
        int, whole("shards of a new stream when the request names no count", low=1, high=SHARDS_MAX)
    ] = 1


class Configuration(Section, frozen=True, kw_only=True):
    """The whole configuration, as `load` returns it.

    `origins` says for each key (`api.users[0].username`) where its value came from; `warnings` must be logged at every
    start. Both belong to the load and are no keys.
    """

    id: Annotated[
        str,
        text(
            "this instance's name in logs and metrics, shared by its workers",
            pattern=r"[^\s\"\\]{1,255}",
            allowed="1 to 255 characters without blanks, quotes and backslashes",
            default_text="host name",
        ),
    ] = "coordinator"
    server: Server = Server()
    api: Api = Api()
    audit: Audit = Audit()
    store: Store = Store()
    redis: Redis = Redis()
    heartbeat_interval_ms: Annotated[
        int, duration("how often members are told to send a heartbeat", low_ms=10, high_ms=HOUR_MS)
    ] = field(default=3 * SECOND_MS, name="heartbeat-interval")
    member_lease_ttl_ms: Annotated[
        int,
        duration("silence after which a member is expired; at least twice the heartbeat interval", low_ms=100, high_ms=DAY_MS),
    ] = field(default=15 * SECOND_MS, name="member-lease-ttl")
    rebalance_timeout_ms: Annotated[
        int, duration("time a member has to let a shard go before it is fenced", low_ms=100, high_ms=DAY_MS)
    ] = field(default=MINUTE_MS, name="rebalance-timeout")
    stale_member_retention_ms: Annotated[
        int, duration("how long members that are gone stay in the lists", low_ms=100, high_ms=365 * DAY_MS)
    ] = field(default=10 * MINUTE_MS, name="stale-member-retention")
    loop: Loop = Loop()
    coordination: Coordination = Coordination()
    streams: Streams = Streams()
    members: Members = Members()
    limits: Limits = Limits()
    monitoring: Monitoring = Monitoring()
    resharding: Resharding = Resharding()
    events: Events = Events()
    defaults: Defaults = Defaults()
    origins: Origins = field(default_factory=dict, name="origins")
    warnings: Warnings = ()
