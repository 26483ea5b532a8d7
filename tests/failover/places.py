"""Where the store and the shards are, and how their master is lost: Sentinels or a cluster, with two replicas of what matters."""

from __future__ import annotations

import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol

import redis

from coord.rediscommands.errors import RedisFault
from coord.rediscommands.keys import Keys
from tests.chaos.run import KEY
from tests.servers import wait_until
from tests.store.redis_server import RedisServer, free_port
from tests.topologies.servers import HOST, MASTERS, READY_S_MAX, SENTINEL_NAME, Cluster, Sentinels, info

GROUP_KEY = Keys().aggregate(KEY).metadata
JUNK_BYTES = 8 * 1024 * 1024
JUNK_COUNT = 4
"""More than the kernel holds between two local processes: what follows it waits in the master's own memory."""


class Place(Protocol):
    """A topology under test."""

    @property
    def redis(self) -> Mapping[str, object]:
        """The coordinator's section `redis`."""

    @property
    def url(self) -> str:
        """What the data plane's clients are given."""

    def holder(self, key: str) -> RedisServer:
        """Give the server that everybody calls the master of a key; waits for there to be one."""

    def replicas(self, master: RedisServer) -> list[RedisServer]:
        """Give the servers that follow it."""

    def bring_back(self, server: RedisServer, master: RedisServer) -> None:
        """Start a killed server, as a replica if it must be told."""

    def wait_whole(self) -> None:
        """Wait until every server has its role again, and follows."""

    def close(self) -> None:
        """End all servers."""


class BehindSentinels:
    """A master and two replicas, watched by three Sentinels."""

    def __init__(self, *, down_after_ms: int, max_lag_s: int) -> None:
        self.sentinels = Sentinels(down_after_ms=down_after_ms)
        self._max_lag_s = max_lag_s
        try:
            servers = self.sentinels.servers
            servers.append(RedisServer("--replicaof", f"{HOST} {servers[0].port}", "--repl-diskless-sync-delay", "0"))
            for server in servers:
                advise(server, max_lag_s)
            for sentinel in self.sentinels.sentinels:
                sentinel.call("SENTINEL", "RESET", SENTINEL_NAME)  # it looks for replicas at once, not within ten seconds
            self.wait_whole()
        except BaseException:
            self.close()
            raise

    @property
    def redis(self) -> Mapping[str, object]:
        """The Sentinels, by their addresses."""
        return {"sentinel": {"master": SENTINEL_NAME, "nodes": [f"{HOST}:{each.port}" for each in self.sentinels.sentinels]}}

    @property
    def url(self) -> str:
        """The Sentinels, by their addresses."""
        nodes = ",".join(f"{HOST}:{each.port}" for each in self.sentinels.sentinels)
        return f"redis-sentinel://{nodes}/{SENTINEL_NAME}"

    def holder(self, key: str) -> RedisServer:
        """Ask the Sentinels; all must name the same."""
        del key
        return self.sentinels.master

    def replicas(self, master: RedisServer) -> list[RedisServer]:
        """All others."""
        return [server for server in self.sentinels.servers if server is not master]

    def bring_back(self, server: RedisServer, master: RedisServer) -> None:
        """Start it as a replica of the new master."""
        options = list(server._options)
        if "--replicaof" in options:
            del options[(place := options.index("--replicaof")) : place + 2]
        server._options = ("--replicaof", f"{HOST} {master.port}", *options)
        server.start()

    def wait_whole(self) -> None:
        """Wait until two replicas are online, and the Sentinels could fail over again."""

        def is_whole() -> bool:
            master = self.sentinels.master
            told = info(master, "replication")
            if sum("state=online" in told.get(f"slave{number}", "") for number in range(3)) != len(self.sentinels.servers) - 1:
                return False
            return all(self._is_watched_by(sentinel, master) for sentinel in self.sentinels.sentinels)

        wait_until(is_whole, timeout_s=READY_S_MAX, what="two replicas follow the master", poll_s=0.2)

    def _is_watched_by(self, sentinel: RedisServer, master: RedisServer) -> bool:
        """Whether a Sentinel knows the others, and that all servers are well and in their places."""
        try:
            quorum = sentinel.call("SENTINEL", "CKQUORUM", SENTINEL_NAME)
            replicas = sentinel.call("SENTINEL", "REPLICAS", SENTINEL_NAME)
        except RedisFault:
            return False
        told = [dict(zip(flat[::2], flat[1::2], strict=True)) for flat in replicas]
        follow = [each for each in told if each[b"flags"] == b"slave" and each[b"master-port"] == str(master.port).encode()]
        return quorum.startswith(b"OK 3 ") and len(follow) == len(told) == len(self.sentinels.servers) - 1

    def close(self) -> None:
        """End all servers."""
        self.sentinels.close()


class InCluster:
    """Six nodes, and a seventh: the second replica of the master that holds the group."""

    def __init__(self, *, node_timeout_ms: int, max_lag_s: int) -> None:
        self.cluster = Cluster(node_timeout_ms=node_timeout_ms)
        try:
            cluster, bus = self.cluster, free_port()
            master = cluster.id_of(cluster.master_of(GROUP_KEY))
            extra = RedisServer(*Cluster._options(bus, node_timeout_ms))
            cluster.nodes.append(extra)
            cluster._buses.append(bus)
            cluster.meet()
            wait_until(lambda: master in cluster._known_by(len(cluster.nodes) - 1), what="the master is known")
            extra.call("CLUSTER", "REPLICATE", master)
            for node in cluster.nodes:
                advise(node, max_lag_s)
            cluster.wait_whole()
        except BaseException:
            self.cluster.close()
            raise

    @property
    def redis(self) -> Mapping[str, object]:
        """Half of the nodes."""
        return {"cluster": {"nodes": [f"{HOST}:{node.port}" for node in self.cluster.nodes[:MASTERS]]}}

    @property
    def url(self) -> str:
        """Half of the nodes."""
        return "redis-cluster://" + ",".join(f"{HOST}:{node.port}" for node in self.cluster.nodes[:MASTERS])

    def holder(self, key: str) -> RedisServer:
        """Ask the masters."""
        return self.cluster.master_of(key)

    def replicas(self, master: RedisServer) -> list[RedisServer]:
        """Ask each node whom it follows."""
        return [node for node in self.cluster.nodes if info(node, "replication").get("master_port") == str(master.port)]

    def bring_back(self, server: RedisServer, master: RedisServer) -> None:
        """Start it: its own file says where it belongs, the others say what it is."""
        del master
        server.start()

    def wait_whole(self) -> None:
        """Wait until all follow; says how each sees the others when that does not come."""

        def is_whole() -> bool:
            self._mend()
            return self.cluster._is_whole()

        try:
            wait_until(is_whole, timeout_s=READY_S_MAX, what="the cluster is whole", poll_s=0.1)
        except AssertionError as error:
            seen = [f"{node.port}:\n{self.cluster._known_by(number)}" for number, node in enumerate(self.cluster.nodes)]
            raise AssertionError("\n".join([str(error), *seen])) from None

    def _mend(self) -> None:
        """Have a replica of a replica follow the master: Redis leaves it so when two elections follow each other closely."""
        by_port = {node.port: node for node in self.cluster.nodes}
        followed = {node: by_port.get(int(info(node, "replication").get("master_port", 0))) for node in self.cluster.nodes}
        for node, middle in followed.items():
            top = followed.get(middle) if middle is not None else None
            if top is not None:
                node.call("CLUSTER", "REPLICATE", self.cluster.id_of(top))

    def close(self) -> None:
        """End all nodes."""
        self.cluster.close()


class Alone:
    """One server without replicas, whose snapshots are kept aside and put back."""

    def __init__(self) -> None:
        self.server = RedisServer()

    @property
    def redis(self) -> Mapping[str, object]:
        """The server."""
        return {"url": self.url}

    @property
    def url(self) -> str:
        """The server."""
        return f"redis://{HOST}:{self.server.port}/0"

    def holder(self, key: str) -> RedisServer:
        """It holds all."""
        del key
        return self.server

    def replicas(self, master: RedisServer) -> list[RedisServer]:
        """There is none."""
        del master
        return []

    def bring_back(self, server: RedisServer, master: RedisServer) -> None:
        """Start it on the snapshot that is in its directory."""
        del master
        server.start()

    def wait_whole(self) -> None:
        """It is whole when it runs."""

    def snapshot(self) -> bytes:
        """Give its data as of now, as an RDB file."""
        self.server.call("SAVE")
        return self._file.read_bytes()

    def put_back(self, snapshot: bytes) -> None:
        """Kill the server, and have it run on an old snapshot."""
        self.server.stop()
        self._file.write_bytes(snapshot)
        self.server.start()

    @property
    def _file(self) -> Path:
        return Path(self.server.directory) / "dump.rdb"

    def close(self) -> None:
        """End it."""
        self.server.close()


def advise(server: RedisServer, max_lag_s: int) -> None:
    """Set what the README advises, now and for a restart; 0 leaves it out."""
    if max_lag_s:
        advice = {"min-replicas-to-write": "1", "min-replicas-max-lag": str(max_lag_s)}
        for name, value in advice.items():
            server.call("CONFIG", "SET", name, value)
            server._options = (*server._options, f"--{name}", value)


def make_lag(master: RedisServer, replicas: list[RedisServer], key: str) -> None:
    """Freeze the replicas just after they have acknowledged, and fill the pipes to them."""
    tag = re.findall(r"{(.*?)}", key)[0]
    with redis.Redis(host=HOST, port=master.port, socket_timeout=5) as client:
        client.set(f"junk:{{{tag}}}", "", px=1)
        client.wait(len(replicas), 500)  # has each replica acknowledge now: from here on its lag counts
        for replica in replicas:
            replica.freeze()
        for _ in range(JUNK_COUNT):
            client.set(f"junk:{{{tag}}}", b"." * JUNK_BYTES, px=1)


def accepts_writes_s(server: RedisServer, key: str, *, s_max: float) -> tuple[float, str]:
    """Write to a server until it refuses; gives how long it took writes, s, and what it said then."""
    tag = re.findall(r"{(.*?)}", key)[0]
    begun = accepted = now_s()
    with redis.Redis(host=HOST, port=server.port, socket_timeout=5) as client:
        while now_s() - begun < s_max:
            try:
                client.set(f"probe:{{{tag}}}", "", px=1)
            except redis.RedisError as error:
                return accepted - begun, str(error)
            accepted = now_s()
            time.sleep(0.002)
    return accepted - begun, "nothing: it still took them"


def shard_key(shard: int) -> str:
    """Give the key of a shard's stream."""
    return f"{KEY.stream_prefix}:{shard}"


def now_s() -> float:
    """Monotonic seconds."""
    return time.monotonic()
