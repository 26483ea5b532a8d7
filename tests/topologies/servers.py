"""Real topologies of local processes.

A cluster of three masters with a replica each, and a master with a replica behind three Sentinels. Every wait is bounded; each
server has its own directory and is ended by its own process handle.
"""

from __future__ import annotations

import re
import socket
from contextlib import suppress
from pathlib import Path

from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import RedisFault
from coord.rediscommands.keys import Keys
from coord.rediscommands.link import Reply
from coord.rediscommands.settings import Address, ClusterSettings, RedisSettings, SentinelSettings
from coord.rediscommands.slots import SLOTS, slot_of
from coord.rediscommands.survey import Concern
from coord.store.redis.store import RedisStore
from tests.servers import wait_until
from tests.store.redis_server import BINARY, RedisServer, free_port

HOST = "127.0.0.1"
MASTERS = 3
NODES = 6
READY_S_MAX = 90.0
PREFIX = "test:coord"
SENTINEL_NAME = "the-master"


def info(server: RedisServer, section: str) -> dict[str, str]:
    """Give a section of INFO; empty when the server does not answer."""
    with suppress(RedisFault):
        told: bytes = server.call("INFO", section)
        return dict(line.split(":", 1) for line in told.decode().splitlines() if ":" in line)
    return {}


def is_master(server: RedisServer) -> bool:
    return server.is_running and info(server, "replication").get("role") == "master"


def has_replica(server: RedisServer) -> bool:
    """Whether a replica follows and is up to date."""
    return bool(re.search("state=online", info(server, "replication").get("slave0", "")))


class Cluster:
    """Six nodes; the first three began as masters of a third of the slots each, node n + 3 as the replica of node n."""

    def __init__(self, *, node_timeout_ms: int, binary: Path = BINARY) -> None:
        self.nodes: list[RedisServer] = []
        self._buses: list[int] = []
        try:
            for _ in range(NODES):
                bus = free_port()
                self._buses.append(bus)
                self.nodes.append(RedisServer(*self._options(bus, node_timeout_ms), binary=binary))
            self._join()
        except BaseException:
            self.close()
            raise

    @staticmethod
    def _options(bus: int, node_timeout_ms: int) -> tuple[str, ...]:
        return (
            "--cluster-enabled", "yes", "--cluster-port", str(bus), "--cluster-node-timeout", str(node_timeout_ms),
            "--cluster-replica-validity-factor", "0", "--repl-diskless-sync-delay", "0",
            "--repl-ping-replica-period", "1",  # a replica is listed once it was sent something
        )  # fmt: skip

    def _join(self) -> None:
        for number, node in enumerate(self.nodes):
            node.call("CLUSTER", "SET-CONFIG-EPOCH", number + 1)
        edges = [SLOTS * number // MASTERS for number in range(MASTERS + 1)]
        for number in range(MASTERS):
            self.nodes[number].call("CLUSTER", "ADDSLOTSRANGE", edges[number], edges[number + 1] - 1)
        self.meet()
        for number in range(MASTERS, NODES):
            master = self.id_of(self.nodes[number - MASTERS])
            wait_until(lambda master=master, number=number: master in self._known_by(number), what="the master is known")  # type: ignore[misc]  # bound at once
            self.nodes[number].call("CLUSTER", "REPLICATE", master)
        self.wait_whole()

    def meet(self) -> None:
        """Make every node known to every other."""
        for number, node in enumerate(self.nodes):
            for other in range(number):
                node.call("CLUSTER", "MEET", HOST, self.nodes[other].port, self._buses[other])

    def _known_by(self, number: int) -> str:
        told: bytes = self.nodes[number].call("CLUSTER", "NODES")
        return told.decode()

    def wait_whole(self) -> None:
        """Wait until every slot is served, every running replica follows its master, and every running node knows so."""
        wait_until(self._is_whole, timeout_s=READY_S_MAX, what="the cluster is whole", poll_s=0.05)

    def _is_whole(self) -> bool:
        running = [node for node in self.nodes if node.is_running]
        ports = sorted(node.port for node in running)
        for node in running:
            state, replication = info(node, "replication"), node.call("CLUSTER", "INFO")
            if b"cluster_state:ok" not in replication or (state["role"] == "slave" and state["master_link_status"] != "up"):
                return False
            told = node.call("CLUSTER", "SLOTS")
            if sorted({place[1] for entry in told for place in entry[2:]}) != ports:
                return False
            if len({entry[2][1] for entry in told}) != MASTERS:
                return False
        return True

    def id_of(self, node: RedisServer) -> str:
        told: bytes = node.call("CLUSTER", "MYID")
        return told.decode()

    def master_of(self, key: str) -> RedisServer:
        """Give the running node that says it serves the key."""

        def found() -> RedisServer | None:
            slot = slot_of(key)
            for node in self.masters():
                with suppress(RedisFault):  # it may be ended or frozen meanwhile
                    for first, last, (_, port, *_), *_ in node.call("CLUSTER", "SLOTS"):
                        if first <= slot <= last and port == node.port:
                            return node
            return None

        node = wait_until(found, timeout_s=READY_S_MAX, what=f"a node serves {key}")
        assert node is not None
        return node

    def masters(self) -> list[RedisServer]:
        return [node for node in self.nodes if is_master(node)]

    def replica_of(self, master: RedisServer) -> RedisServer:
        port = str(master.port)
        (replica,) = (node for node in self.nodes if info(node, "replication").get("master_port") == port)
        return replica

    def flush(self) -> None:
        for node in self.masters():
            node.call("FLUSHALL", "SYNC")

    def migrate_begin(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        """Begin to move a slot: both nodes know, no key has gone yet."""
        target.call("CLUSTER", "SETSLOT", slot, "IMPORTING", self.id_of(source))
        source.call("CLUSTER", "SETSLOT", slot, "MIGRATING", self.id_of(target))

    def migrate_keys(self, slot: int, source: RedisServer, target: RedisServer, *, count: int = 1000) -> int:
        """Move up to so many keys of a slot; gives how many."""
        keys: list[bytes] = source.call("CLUSTER", "GETKEYSINSLOT", slot, count)
        if keys:
            source.call("MIGRATE", HOST, target.port, "", 0, 5000, "KEYS", *keys)
        return len(keys)

    def migrate_end(self, slot: int, source: RedisServer, target: RedisServer) -> None:
        for node in (target, source, *(node for node in self.masters() if node not in {source, target})):
            node.call("CLUSTER", "SETSLOT", slot, "NODE", self.id_of(target))

    def move_to_new_addresses(self) -> None:
        """Restart every node on ports that nobody knows, and let them find each other again."""
        for node in self.nodes:
            node.stop()
        for number, node in enumerate(self.nodes):
            bus = free_port()
            options = list(node._options)
            options[options.index("--cluster-port") + 1] = str(bus)
            node._options, node.port, self._buses[number] = tuple(options), free_port(), bus
            node.start()
        self.meet()
        self.wait_whole()

    def settings(
        self, *, timeout_ms: int = 2000, max_connections: int = 16, reached: dict[Address, Address] | None = None,
        nodes: tuple[Address, ...] = (), username: str | None = None, password: str | None = None,
    ) -> RedisSettings:  # fmt: skip
        seeds = nodes or tuple(Address(HOST, node.port) for node in self.nodes)
        cluster = ClusterSettings(nodes=seeds, address_map=reached or {})
        return RedisSettings(
            cluster=cluster, timeout_ms=timeout_ms, max_connections=max_connections, username=username, password=password
        )

    def store(self, *, timeout_ms: int = 2000, **more: object) -> RedisStore:
        return store_of(self.settings(timeout_ms=timeout_ms, **more))  # type: ignore[arg-type]  # options as they come

    def call(self, key: str, *command: str | bytes | int) -> Reply:
        """Run a command on the node that serves the key."""
        return self.master_of(key).call(*command)

    def close(self) -> None:
        for node in self.nodes:
            node.close()


class Sentinels:
    """A master, a replica, and three Sentinels that watch them."""

    def __init__(self, *, down_after_ms: int = 1000, binary: Path = BINARY, username: str = "", password: str = "") -> None:
        self.servers: list[RedisServer] = []
        self.sentinels: list[RedisServer] = []
        try:
            self.servers.append(RedisServer("--repl-diskless-sync-delay", "0", binary=binary))
            master = self.servers[0]
            following = ("--replicaof", f"{HOST} {master.port}", "--repl-diskless-sync-delay", "0")
            self.servers.append(RedisServer(*following, binary=binary))
            wait_until(lambda: has_replica(master), timeout_s=READY_S_MAX, what="the replica follows")
            for _ in range(3):
                self.sentinels.append(_Sentinel(master.port, down_after_ms=down_after_ms, binary=binary))
            self.wait_watched()
        except BaseException:
            self.close()
            raise

    def wait_watched(self) -> None:
        """Wait until every Sentinel knows the others and the replica, and agrees that a failover is possible."""

        def is_watched() -> bool:
            for sentinel in self.sentinels:
                try:
                    told = sentinel.call("SENTINEL", "CKQUORUM", SENTINEL_NAME)
                    flat = sentinel.call("SENTINEL", "MASTER", SENTINEL_NAME)
                except RedisFault:
                    return False
                fields = dict(zip(flat[::2], flat[1::2], strict=True))
                if not told.startswith(b"OK 3 ") or fields[b"num-slaves"] != b"1" or fields[b"flags"] != b"master":
                    return False
            return True

        wait_until(is_watched, timeout_s=READY_S_MAX, what="the Sentinels watch", poll_s=0.1)

    @property
    def master(self) -> RedisServer:
        """The server that all Sentinels name."""

        def named() -> RedisServer | None:
            ports = {int(sentinel.call("SENTINEL", "GET-MASTER-ADDR-BY-NAME", SENTINEL_NAME)[1]) for sentinel in self.sentinels}
            return next((server for server in self.servers if {server.port} == ports and is_master(server)), None)

        server = wait_until(named, timeout_s=READY_S_MAX, what="the Sentinels agree on a master", poll_s=0.1)
        assert server is not None
        return server

    def begin_failover(self) -> None:
        """Tell the Sentinels to promote the replica; returns at once."""

        def accepted() -> bool:
            try:
                self.sentinels[0].call("SENTINEL", "FAILOVER", SENTINEL_NAME)
            except RedisFault as error:
                if not re.search("INPROG|NOGOODSLAVE", str(error)):
                    raise
                return False
            return True

        wait_until(accepted, timeout_s=READY_S_MAX, what="a failover begins", poll_s=0.2)

    def failover(self) -> None:
        """Promote the replica, and wait until all Sentinels know; the old master goes on for some seconds before it follows."""
        old = self.master
        self.begin_failover()
        wait_until(lambda: self.master is not old, timeout_s=READY_S_MAX, what="another master")

    def follow(self) -> None:
        """Make the old master follow the new one now, and wait until it does; Sentinels take ten seconds to say so."""
        master = self.master
        next(server for server in self.servers if server is not master).call("REPLICAOF", HOST, master.port)
        wait_until(lambda: has_replica(self.master), timeout_s=READY_S_MAX, what="the old master follows", poll_s=0.1)

    def settings(self, *, timeout_ms: int = 2000, max_connections: int = 16) -> RedisSettings:
        nodes = tuple(Address(HOST, sentinel.port) for sentinel in self.sentinels)
        sentinel = SentinelSettings(master=SENTINEL_NAME, nodes=nodes)
        return RedisSettings(sentinel=sentinel, timeout_ms=timeout_ms, max_connections=max_connections)

    def store(self, *, timeout_ms: int = 2000) -> RedisStore:
        return store_of(self.settings(timeout_ms=timeout_ms))

    def close(self) -> None:
        for server in (*self.sentinels, *self.servers):
            server.close()


class _Sentinel(RedisServer):
    """One Sentinel; it writes its configuration file, so that comes first."""

    def __init__(self, master_port: int, *, down_after_ms: int, binary: Path) -> None:
        self._master_port = master_port
        self._down_after_ms = down_after_ms
        super().__init__(binary=binary)

    def _command(self) -> list[str]:
        file = Path(self.directory) / "sentinel.conf"
        if not file.exists():
            file.write_text(
                f"port {self.port}\nbind {HOST}\ndir {self.directory}\n"
                f"sentinel monitor {SENTINEL_NAME} {HOST} {self._master_port} 2\n"
                f"sentinel down-after-milliseconds {SENTINEL_NAME} {self._down_after_ms}\n"
                f"sentinel failover-timeout {SENTINEL_NAME} 6000\n"
            )
        return [str(self._binary), str(file), "--sentinel"]


def store_of(settings: RedisSettings) -> RedisStore:
    return RedisStore(RedisCommands(settings, keys=Keys(PREFIX)))


def dead_port() -> int:
    """Give a port that refuses connections."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        return int(probe.getsockname()[1])


def worries(store: RedisStore, lease_ttl_ms: int) -> list[Concern]:
    """Give what is not as it should be about a test's servers, but that they keep nothing on disk."""
    return [concern for concern in store.concerns(lease_ttl_ms=lease_ttl_ms) if concern.name != "persistence"]
