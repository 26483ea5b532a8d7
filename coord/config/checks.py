"""Combinations that cannot work or are not safe, judged on values that are right one by one."""

from __future__ import annotations

import ipaddress
import re
from importlib.util import find_spec
from typing import TYPE_CHECKING, Final

from coord.config.databaseurl import parse
from coord.config.durations import show_duration
from coord.config.schema import DEFAULT_PASSWORD, Configuration, User
from coord.config.secret import Secret

if TYPE_CHECKING:
    from coord.config.problems import Findings

TOKEN_SECRET_BYTES_MIN: Final = 32
LEASE_PER_HEARTBEAT_MIN: Final = 2
LEASE_PER_TICK_MIN: Final = 4
LEASE_PER_WAIT_MIN: Final = 4
_OUTSIDE_THE_BASE_PATH: Final = frozenset({"livez", "readyz", "actuator", "metrics", "v3", "docs", "scalar", "console"})
_DRIVERS: Final[dict[str, tuple[str, ...]]] = {"postgresql": ("psycopg",), "mysql": ("pymysql",), "sqlite": ()}
"""What a kind of database needs beside SQLAlchemy and Alembic."""
_ARGON2_HASH: Final = re.compile(r"\$(argon2(?:id|i|d)\$v=[0-9]+\$m=[0-9]+,t=[0-9]+,p=[0-9]+)\$[A-Za-z0-9+/]+\$[A-Za-z0-9+/]+")
_FOREIGN_HASH: Final = re.compile(r"\$(2[abxy]?|5|6|y|scrypt|pbkdf2[a-z0-9-]*)\$|\{[A-Za-z0-9@_-]+\}")


def check(configuration: Configuration, findings: Findings) -> None:
    """Add every impossible or unsafe combination to the findings."""
    _check_timings(configuration, findings)
    _check_mutex(configuration, findings)
    _check_store(configuration, findings)
    _check_audit(configuration, findings)
    _check_redis(configuration, findings)
    _check_server(configuration, findings)
    _check_token_secrets(configuration, findings)
    _check_users(configuration, findings)
    _check_exposure(configuration, findings)


def _check_timings(configuration: Configuration, findings: Findings) -> None:
    lease_ms = configuration.member_lease_ttl_ms
    lease = show_duration(lease_ms)
    if lease_ms < LEASE_PER_HEARTBEAT_MIN * configuration.heartbeat_interval_ms:
        interval = show_duration(configuration.heartbeat_interval_ms)
        findings.refuse_pair(
            ("member-lease-ttl", "heartbeat-interval"),
            f"{lease} must be at least twice heartbeat-interval ({interval}): one lost heartbeat would expire a member",
        )
    if configuration.loop.tick_interval_ms * LEASE_PER_TICK_MIN > lease_ms:
        tick = show_duration(configuration.loop.tick_interval_ms)
        findings.refuse_pair(
            ("loop.tick-interval", "member-lease-ttl"),
            f"{tick} must be at most a quarter of member-lease-ttl ({lease}): expiry would come too late",
        )


def _check_mutex(configuration: Configuration, findings: Findings) -> None:
    mutex = configuration.coordination.state_mutex
    key = "coordination.state-mutex.ttl-ms"
    if not mutex.enabled:
        return
    if mutex.ttl_ms <= configuration.redis.timeout_ms:
        findings.refuse_pair(
            (key, "redis.timeout-ms"),
            f"{mutex.ttl_ms} must be more than redis.timeout-ms ({configuration.redis.timeout_ms}): the mutex would lapse"
            " during a single slow command",
        )
    if mutex.ttl_ms >= configuration.member_lease_ttl_ms:
        findings.warn(
            key,
            f"{mutex.ttl_ms} is not less than member-lease-ttl ({show_duration(configuration.member_lease_ttl_ms)}): one killed"
            " holder can make waiting members expire; 3000 is the default",
        )
    longest_ms = mutex.acquire_timeout_ms + configuration.redis.timeout_ms
    if configuration.server.graceful_timeout_ms <= longest_ms:
        findings.warn(
            "server.graceful-timeout",
            f"{show_duration(configuration.server.graceful_timeout_ms)} is not more than state-mutex.acquire-timeout-ms and"
            f" redis.timeout-ms together ({longest_ms} ms): a stop can cut requests off that wait for their turn",
        )
    if mutex.retry_interval_ms > mutex.acquire_timeout_ms:
        findings.refuse_pair(
            ("coordination.state-mutex.retry-interval-ms", "coordination.state-mutex.acquire-timeout-ms"),
            f"{mutex.retry_interval_ms} must be at most coordination.state-mutex.acquire-timeout-ms ({mutex.acquire_timeout_ms})",
        )


def _check_store(configuration: Configuration, findings: Findings) -> None:
    if configuration.store.type == "jdbc":
        _check_database(configuration, findings)
    _check_replicas(configuration, findings)
    if configuration.store.type != "memory":
        return
    if configuration.server.workers > 1:
        findings.refuse_pair(
            ("server.workers", "store.type"),
            f"{configuration.server.workers} workers cannot share store.type memory: each process would have its own groups;"
            " set server.workers (or WEB_CONCURRENCY) to 1, or store.type to redis",
        )
    if configuration.streams.provisioning_enabled:
        findings.refuse_pair(
            ("streams.provisioning-enabled", "store.type"),
            "true is refused with store.type memory: streams in Redis would outlive the groups that own them",
        )


def _check_audit(configuration: Configuration, findings: Findings) -> None:
    if configuration.audit.sink == "redis" and configuration.store.type == "memory":
        findings.refuse_pair(
            ("audit.sink", "store.type"),
            "redis is refused with store.type memory: entries in Redis would outlive the streams and groups that they are about",
        )


def _check_replicas(configuration: Configuration, findings: Findings) -> None:
    store, lease_ms = configuration.store, configuration.member_lease_ttl_ms
    if not store.wait_replicas:
        return
    if store.type != "redis":
        advice = "set synchronous replication in the database itself" if store.type == "jdbc" else "it has no replicas"
        findings.refuse_pair(
            ("store.wait-replicas", "store.type"),
            f"{store.wait_replicas} means nothing with store.type {store.type}: {advice}; set store.wait-replicas to 0",
        )
    if store.wait_timeout_ms * LEASE_PER_WAIT_MIN > lease_ms:
        findings.refuse_pair(
            ("store.wait-timeout-ms", "member-lease-ttl"),
            f"{store.wait_timeout_ms} must be at most a quarter of member-lease-ttl ({show_duration(lease_ms)}): the heartbeats"
            " of a group wait while one of its commits does",
        )


def _check_database(configuration: Configuration, findings: Findings) -> None:
    store = configuration.store
    if not store.url:
        findings.refuse_pair(("store.url", "store.type"), "store.type jdbc needs the URL of a database")
        return
    try:
        url = parse(store.url.reveal())
    except ValueError as error:
        findings.refuse("store.url", f"it is not allowed: {error}")
        return
    if missing := [name for name in ("alembic", "sqlalchemy", *_DRIVERS[url.kind]) if find_spec(name) is None]:
        findings.refuse(
            "store.type", f"jdbc needs {', '.join(missing)}, which is not installed: pip install 'redis-stream-coordinator[sql]'"
        )
    if url.ignored:
        findings.warn("store.url", f"these parameters mean nothing here and are ignored: {', '.join(url.ignored)}")
    if url.kind == "mysql" and not (url.username or store.jdbc.username):
        findings.refuse_pair(("store.jdbc.username", "store.url"), "a user is needed, here or in the URL")
    mutex = configuration.coordination.state_mutex
    if mutex.enabled and mutex.strategy == "always":
        findings.warn(
            "coordination.state-mutex.strategy",
            "always has no meaning with store.type jdbc: the database's own row locks order the writers",
        )


def _check_redis(configuration: Configuration, findings: Findings) -> None:
    redis = configuration.redis
    sentinel = bool(redis.sentinel.master or redis.sentinel.nodes)
    cluster = bool(redis.cluster.nodes)
    if sentinel and cluster:
        findings.refuse("redis.sentinel", "redis.sentinel and redis.cluster exclude each other; keep one")
    if bool(redis.sentinel.master) != bool(redis.sentinel.nodes):
        findings.refuse("redis.sentinel", "redis.sentinel.master and redis.sentinel.nodes are needed together")
    if redis.url and (sentinel or cluster):
        other = "redis.sentinel" if sentinel else "redis.cluster"
        findings.refuse("redis.url", f"it names one server and excludes {other}; keep one")
    if redis.cluster.address_map and not cluster:
        findings.refuse("redis.cluster.address-map", "it needs redis.cluster.nodes")
    if cluster and redis.database:
        findings.refuse_pair(
            ("redis.database", "redis.cluster.nodes"), f"{redis.database} is refused: a cluster has database 0 only"
        )
    if bool(redis.tls.cert_file) != bool(redis.tls.key_file):
        findings.refuse("redis.tls", "redis.tls.cert-file and redis.tls.key-file are needed together")
    if (redis.tls.ca_file or redis.tls.cert_file) and not redis.ssl:
        findings.refuse("redis.tls", "it is set while redis.ssl is false: the connection would not be encrypted; set redis.ssl")
    if redis.ssl and not redis.tls.verify:
        findings.warn(
            "redis.tls.verify", "false: the server's certificate is not checked, anybody in between can read and change"
        )
    if configuration.store.type == "redis" and redis.max_connections < configuration.server.threads:
        findings.warn(
            "redis.max-connections",
            f"{redis.max_connections} is less than server.threads ({configuration.server.threads}): requests will wait",
        )


def _check_server(configuration: Configuration, findings: Findings) -> None:
    tls = configuration.server.tls
    if bool(tls.cert_file) != bool(tls.key_file):
        findings.refuse("server.tls", "server.tls.cert-file and server.tls.key-file are needed together")
    if tls.ca_file and not tls.cert_file:
        findings.refuse("server.tls.ca-file", "it needs server.tls.cert-file and server.tls.key-file")
    first = configuration.api.base_path.split("/")[1]
    if first in _OUTSIDE_THE_BASE_PATH:
        findings.refuse(
            "api.base-path", f"{configuration.api.base_path!r} is refused: /{first} belongs to endpoints outside the API"
        )
    for index, proxy in enumerate(configuration.api.trusted_proxies):
        if ipaddress.ip_network(proxy).prefixlen == 0:
            findings.warn(f"api.trusted-proxies[{index}]", f"{proxy} believes everybody: any caller can invent its address")
    if configuration.api.trusted_proxies and configuration.server.engine == "granian":
        findings.warn(
            "api.trusted-proxies",
            "granian takes X_Forwarded_For for X-Forwarded-For: the proxies must drop headers with an underscore, else "
            "any caller can invent its address",
        )


def _check_token_secrets(configuration: Configuration, findings: Findings) -> None:
    named = [("api.token-secret", configuration.api.token_secret)] if configuration.api.token_secret else []
    named += [(f"api.previous-token-secrets[{i}]", old) for i, old in enumerate(configuration.api.previous_token_secrets)]
    for key, secret in named:
        if secret.is_blank():
            findings.refuse(key, "it has nothing but white space")
        elif secret.size_bytes() < TOKEN_SECRET_BYTES_MIN:
            findings.refuse(
                key,
                f"at least {TOKEN_SECRET_BYTES_MIN} bytes are needed, it has {secret.size_bytes()}",
            )


def _check_users(configuration: Configuration, findings: Findings) -> None:
    first_key: dict[str, str] = {}
    for index, user in enumerate(configuration.api.users):
        key = f"api.users[{index}]"
        name_key = f"{key}.username"
        if name_key not in findings.broken:
            if not user.username.strip():
                findings.refuse(name_key, "every user needs a name")
            elif user.username in first_key:
                findings.refuse(name_key, f"{user.username!r} is the name of {first_key[user.username]} too")
            first_key.setdefault(user.username, key)
        if not user.roles and not any(broken.startswith(f"{key}.roles") for broken in findings.broken):
            findings.warn(f"{key}.roles", f"the user {user.username!r} has no role and may do nothing")
        if not user.streams and not any(broken.startswith(f"{key}.streams") for broken in findings.broken):
            findings.warn(f"{key}.streams", f"the user {user.username!r} may touch no stream; leave the key out for all")
        _check_password(f"{key}.password", user.username, user.password, findings)
    costs = {found[1] for user in configuration.api.users if (found := _ARGON2_HASH.fullmatch(user.password.reveal()))}
    if len(costs) > 1:
        findings.warn(
            "api.users", "argon2 hashes of different cost: the time of an answer tells whose name it is; make them alike"
        )
    if not configuration.api.users:
        _check_password("api.admin-password", configuration.api.admin_username, configuration.api.admin_password, findings)


def _check_password(key: str, username: str, password: Secret, findings: Findings) -> None:
    if key in findings.broken:
        return
    if password.is_blank():
        findings.warn(key, f"the password is blank: the user {username!r} cannot log in")
    elif password.reveal().startswith("$argon2"):
        if not _ARGON2_HASH.fullmatch(password.reveal()):
            findings.refuse(key, f"the password of {username!r} starts like an argon2 hash but is none")
    elif _FOREIGN_HASH.match(password.reveal()):
        findings.refuse(key, f"the password of {username!r} looks like a hash, but not of argon2")


def _check_exposure(configuration: Configuration, findings: Findings) -> None:
    """Beyond loopback, default credentials would be an open door."""
    api = configuration.api
    users = api.users or (User(username=api.admin_username, password=api.admin_password),)
    weak = [
        f"api.users[{index}].password" if api.users else "api.admin-password"
        for index, user in enumerate(users)
        if user.password == Secret(DEFAULT_PASSWORD)
    ]
    if not api.token_secret.is_blank() and not weak:
        return
    missing = [*weak, *(["api.token-secret"] if api.token_secret.is_blank() else [])]
    names = " and ".join(missing)
    if is_loopback(configuration.server.host):
        findings.warn(
            missing[-1],
            f"not set to something of your own are {names}; fine on {configuration.server.host}, refused on any other address",
        )
    elif api.allow_insecure_defaults:
        findings.warn(
            "api.allow-insecure-defaults",
            f"INSECURE: listening on {configuration.server.host} while {names} are not set to something of your own",
        )
    else:
        findings.refuse_pair(
            ("server.host", "api.allow-insecure-defaults", *missing),
            f"listening on {configuration.server.host} needs api.admin-password (or the passwords of api.users) other than the"
            f" default and an api.token-secret of at least {TOKEN_SECRET_BYTES_MIN} bytes; not yet set are {names}"
            " (api.allow-insecure-defaults: true starts all the same)",
        )


def is_loopback(host: str) -> bool:
    """Say whether only this machine can reach the address; a host name other than localhost counts as reachable."""
    bare = host.strip().removeprefix("[").removesuffix("]")
    if bare.lower() == "localhost":
        return True
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return False
    mapped = address.ipv4_mapped if isinstance(address, ipaddress.IPv6Address) else None
    return (mapped or address).is_loopback
