"""One chaos run, from start to verdict."""

from __future__ import annotations

import random
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

import msgspec
import urllib3

from coord.bootstrap import open_store
from coord.config import load
from coord.names import GroupKey
from coord.runtime.embedded import EmbeddedRedis, free_port
from coord.wire import StreamScaleResponse
from tests.chaos.coordinators import ROOT, CoordinatorProcess, login
from tests.chaos.ledger import Ledger, double_holders, missing_from_log
from tests.chaos.swarm import Swarm
from tests.store.sql_servers import MariadbServer, PostgresqlServer, SqlServer

KEY = GroupKey("orders", "workers")
SHARDS = (8, 12, 6, 16)
ACCEPTED = 202
CREATED = 201


@dataclass(slots=True, kw_only=True)
class Plan:
    """How hard, and for how long."""

    seconds: float
    coordinators: int = 2
    members: int = 50
    kill_every_s: tuple[float, float] = (2.0, 4.5)
    kills_min: int = 20
    changes_min: int = 2_000
    port: int | None = None
    seed: int = 1
    redis_every: int = 0
    """Every so many kills, Redis is killed too, and started again on its append-only file; 0 for never."""
    store: Literal["redis", "postgresql", "mariadb"] = "redis"
    """Where logs and metadata are; the shards are in Redis in any case."""
    database_every: int = 0
    """As `redis_every`, for the database of another store than Redis; it keeps what it acknowledged on disk."""


@dataclass(slots=True)
class Redis:
    """A Redis with an append-only file that can be killed and come back, at the same port."""

    folder: Path
    port: int = field(default_factory=free_port)
    kills: int = 0
    server: EmbeddedRedis | None = None

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"redis://127.0.0.1:{self.port}/0"

    def start(self) -> None:
        """Start, on what its file holds."""
        self.server = EmbeddedRedis.start(state_dir=self.folder, port=self.port, append_fsync="everysec")

    def kill(self) -> None:
        """SIGKILL: what it has acknowledged is with the kernel, and stays."""
        if self.server is not None:
            self.server.kill()
            self.server = None
            self.kills += 1


class Database:
    """The database of a SQL store, which can be killed and come back; none where the store is Redis."""

    def __init__(self, kind: str) -> None:
        self.kills = 0
        self._kind: type[SqlServer] | None = {"postgresql": PostgresqlServer, "mariadb": MariadbServer}.get(kind)
        self._server: SqlServer | None = None
        self._name = ""

    @property
    def store(self) -> dict[str, object]:
        """What the section `store` says of it."""
        if self._server is None:
            return {}
        return {"type": "jdbc", "url": self._server.url(self._name), "jdbc": {"timeout-ms": 1000, "max-connections": 16}}

    def start(self) -> None:
        """Start, the first time with an empty database."""
        if self._server is not None:
            self._server.start()
        elif self._kind is not None:
            self._server = self._kind(durable=True)
            self._name = self._server.new_database()

    def kill(self) -> None:
        """SIGKILL to all its processes."""
        if self._server is not None:
            self._server.kill()
            self.kills += 1

    def close(self) -> None:
        """End it, and drop what it holds."""
        if self._server is not None:
            self._server.close()


@dataclass(slots=True)
class Verdict:
    """What a run showed; `problems` is empty when all held."""

    kills: int = 0
    redis_kills: int = 0
    database_kills: int = 0
    changes: int = 0
    tenancies: int = 0
    statuses: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    problems: list[str] = field(default_factory=list)


def run(plan: Plan, say: Callable[[str], None]) -> Verdict:
    """Start everything, disturb it for the planned time, stop it, judge."""
    verdict = Verdict()
    ledger = Ledger()
    chance = random.Random(plan.seed)
    with tempfile.TemporaryDirectory(prefix="coord-chaos-") as name:
        folder = Path(name)
        redis = Redis(folder / "redis")
        database = Database(plan.store)
        database.start()
        ports = [plan.port + n if plan.port else free_port() for n in range(plan.coordinators)]
        coordinators = [
            CoordinatorProcess(f"coordinator-{n}", port, redis.url, folder, store=database.store) for n, port in enumerate(ports)
        ]
        swarm = Swarm([c.url for c in coordinators], KEY, ledger, count=plan.members, threads=10, seed=plan.seed)
        try:
            redis.start()
            for coordinator in coordinators:
                coordinator.start()
            _create_group(coordinators[0])
            swarm.start()
            _disturb(plan, coordinators, redis, database, ledger, chance, say)
            swarm.stop()
            verdict.kills = sum(c.kills for c in coordinators)
            for coordinator in coordinators:
                if coordinator.stop() != 0:
                    verdict.problems.append(f"{coordinator.name} did not stop cleanly: {coordinator.log_tail()}")
            verdict.redis_kills, verdict.database_kills = redis.kills, database.kills
            _judge(plan, ledger, coordinators[0].config, swarm, verdict)
        finally:
            swarm.stop()
            for coordinator in coordinators:
                coordinator.kill()
            redis.kill()
            database.close()
    return verdict


def _create_group(coordinator: CoordinatorProcess) -> None:
    answer = urllib3.request(
        "POST",
        f"{coordinator.url}/streams/{KEY.stream_prefix}/groups/{KEY.consumer_group}",
        json={"initialShardCount": SHARDS[0], "requestedBy": "chaos", "reason": "chaos"},
        headers={"Authorization": login(coordinator.url)},
        timeout=10,
        retries=False,
    )
    assert answer.status == CREATED, answer.data


def _disturb(
    plan: Plan,
    coordinators: list[CoordinatorProcess],
    redis: Redis,
    database: Database,
    ledger: Ledger,
    chance: random.Random,
    say: Callable[[str], None],
) -> None:
    """Kill and restart, scale now and then, until the time is over."""
    ends = time.monotonic() + plan.seconds
    turn = 0
    while time.monotonic() < ends or turn < plan.kills_min:
        time.sleep(chance.uniform(*plan.kill_every_s))
        victim = chance.choice(coordinators)
        victim.kill()
        if plan.redis_every and (turn + 1) % plan.redis_every == 0:
            redis.kill()
            redis.start()
        if plan.database_every and (turn + 1) % plan.database_every == 0:
            database.kill()
            database.start()
        say(f"{ends - time.monotonic():4.0f} s to go, killed {victim.name}; {dict(ledger.statuses)}")
        victim.start()
        turn += 1
        if turn % 2 == 0:
            scale(chance.choice(coordinators), SHARDS[turn // 2 % len(SHARDS)], ledger)


def scale(coordinator: CoordinatorProcess, target: int, ledger: Ledger) -> None:
    """Ask for a shard count, and note what was acknowledged."""
    try:
        answer = urllib3.request(
            "POST",
            f"{coordinator.url}/streams/{KEY.stream_prefix}/scale",
            json={"targetShardCount": target, "requestedBy": "chaos", "reason": "chaos"},
            headers={"Authorization": login(coordinator.url)},
            timeout=5,
            retries=False,
        )
    except urllib3.exceptions.HTTPError:
        return
    if answer.status == ACCEPTED:
        scaled = msgspec.json.decode(answer.data, type=StreamScaleResponse)
        ledger.answered(KEY.stream, int(answer.headers["X-Store-Revision"]), "202")
        for migration in scaled.migrations:
            if migration.resharding_id != "noop":
                ledger.scaled(migration.resharding_id)


def _judge(plan: Plan, ledger: Ledger, config: Path, swarm: Swarm, verdict: Verdict) -> None:
    store, _ = open_store(load(config))
    try:
        missing, verdict.changes = missing_from_log(ledger, store)
    finally:
        store.close()
    verdict.tenancies, verdict.statuses = len(ledger.tenancies), dict(ledger.statuses)
    verdict.acknowledged = len(ledger.joins) + len(ledger.leaves) + len(ledger.reshardings)
    verdict.problems += double_holders(ledger.tenancies)
    verdict.problems += [f"acknowledged, and not in the log: {what}" for what in missing]
    verdict.problems += [f"the swarm failed: {failure!r}" for failure in swarm.failures]
    checked = subprocess.run(
        [sys.executable, "-m", "coord", "verify", "--config", str(config)], cwd=ROOT, capture_output=True, text=True, check=False
    )
    if checked.returncode != 0:
        verdict.problems.append(f"coord verify: exit {checked.returncode}: {checked.stdout[-2000:]} {checked.stderr[-500:]}")
    if verdict.kills < plan.kills_min:
        verdict.problems.append(f"only {verdict.kills} kills, {plan.kills_min} were asked for")
    if verdict.changes < plan.changes_min:
        verdict.problems.append(f"only {verdict.changes} membership changes, {plan.changes_min} were asked for")
