"""The shards' Redis when it is a cluster: redis-py's map and connections, and a sending of our own.

redis-py's own sending is not used. Its pipeline repeats a command whose answer was lost; it asks some other node which words of
an XREADGROUP are keys; it draws a new map before it sends a command on, which may take longer than a lease lasts. Here a
command goes to the node of its key. Told MOVED or ASK it follows once, and at once or not at all; after any other trouble
the map is drawn anew, by one thread, AFTER the call has failed: whoever calls again checks its lease again first.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, Final, cast

import redis
from redis.cluster import ClusterNode, RedisCluster
from redis.exceptions import (
    AskError,
    ClusterDownError,
    MovedError,
    RedisClusterException,
    RedisError,
    ResponseError,
    TryAgainError,
)

from coord.client.dataplane import NO_MASTER, Command, Word, never, pipelined, raw
from coord.client.redisurl import RedisPlace

FOLLOW_S_MAX: Final = 0.025
"""How late after its beginning a call may still be sent on: within half the margin that a reader keeps to its lease's end."""
LOOK_AGAIN_S: Final = 0.1
_log = logging.getLogger("coord.client.cluster")


class ClusterPlane:
    """A cluster. Heals from take-overs, moved slots, and from nodes that are all gone but for those first named."""

    def __init__(self, place: RedisPlace, options: dict[str, Any]) -> None:
        self._seeds = place.nodes
        self._options = options
        self._cluster: RedisCluster | None = None
        self._looking = threading.Lock()
        self._looked_at = float("-inf")

    def prepare(self) -> None:
        """Draw the map, if there is none."""
        self._known()

    def call(self, key: str, *command: Word) -> object:
        """Send a command to the node that holds `key`."""
        begun = time.monotonic()
        try:
            client = self._client_of(key)
            if time.monotonic() - begun > FOLLOW_S_MAX:
                message = "the Redis Cluster's map came late"
                raise redis.ConnectionError(message)
            return _execute(client, *command)
        except AskError as told:  # MOVED is an ASK to redis-py
            return self._follow(told, begun, command, only_at_once=True)
        except RedisError as error:
            self._judge(error)
            raise

    def batch(self, commands: Sequence[tuple[str, Command]]) -> list[object]:
        """Send commands, each to the node of its key; those for one node over one connection, in order."""
        replies: list[object] = [None] * len(commands)
        by_client: dict[redis.Redis, list[int]] = {}
        for position, (key, _) in enumerate(commands):
            try:
                by_client.setdefault(self._client_of(key), []).append(position)
            except RedisError as error:
                replies[position] = error
        for client, positions in by_client.items():
            told = pipelined(client, [commands[position][1] for position in positions])
            for position, reply in zip(positions, told, strict=True):
                replies[position] = self._followed(reply, commands[position][1])
        for reply in replies:
            if isinstance(reply, RedisError):
                self._judge(reply)
        return replies

    def close(self) -> None:
        """Close all connections."""
        cluster, self._cluster = self._cluster, None
        if cluster is not None:
            cluster.close()

    def _followed(self, reply: object, command: Command) -> object:
        if not isinstance(reply, AskError):
            return reply
        try:
            return self._follow(reply, time.monotonic(), command, only_at_once=False)
        except RedisError as error:
            return error

    def _follow(self, told: AskError, begun: float, command: Command, *, only_at_once: bool) -> object:
        """Send what was not run to where the answer points; a second redirection is an error, for the caller to try again."""
        cluster = self._known()
        if isinstance(told, MovedError):
            _safely(lambda: cluster.nodes_manager.move_slot(told))
        if only_at_once and time.monotonic() - begun > FOLLOW_S_MAX:
            raise told
        node = cast("Any", cluster).get_node(told.host, told.port) or _node(told.host, told.port)
        client = self._client_at(cluster, node)
        try:
            if isinstance(told, MovedError):
                return _execute(client, *command)
            # One connection: ASKING is good for the next command on it only.
            _, reply = pipelined(client, [("ASKING",), command])
        except RedisError as error:
            self._judge(error)
            raise
        if isinstance(reply, RedisError):
            self._judge(reply)
            raise reply
        return reply

    def _client_of(self, key: str) -> redis.Redis:
        cluster = self._known()
        try:
            node = cast("Any", cluster).get_node_from_key(key)
        except RedisClusterException as error:  # no RedisError to redis-py
            message = f"no node of the Redis Cluster serves {key!r}"
            raise ClusterDownError(message) from error
        return self._client_at(cluster, node)

    @staticmethod
    def _client_at(cluster: RedisCluster, node: Any) -> redis.Redis:
        return raw(_safely(lambda: cluster.get_redis_connection(node)))

    def _judge(self, error: RedisError) -> None:
        """Draw the map anew after what may mean that it is old."""
        if isinstance(error, TryAgainError):
            return
        lost = isinstance(error, redis.ConnectionError | redis.TimeoutError | ClusterDownError | AskError)
        if lost or (isinstance(error, ResponseError) and str(error).startswith(NO_MASTER)):
            self._look_again()

    def _known(self) -> RedisCluster:
        cluster = self._cluster
        if cluster is None:
            with self._looking:
                if self._cluster is None:
                    self._cluster = _safely(self._first_look)
                cluster = self._cluster
        return cluster

    def _first_look(self) -> RedisCluster:
        nodes = [_node(host, port) for host, port in self._seeds]
        return RedisCluster(startup_nodes=nodes, retry=never(), require_full_coverage=False, **self._options)

    def _look_again(self) -> None:
        """Ask for the map; not more than ten times a second, and who comes meanwhile does not wait."""
        if not self._looking.acquire(blocking=False):
            return
        try:
            cluster = self._cluster
            if cluster is None or time.monotonic() - self._looked_at < LOOK_AGAIN_S:
                return
            self._looked_at = time.monotonic()
            try:
                _safely(cluster.nodes_manager.initialize)
            except RedisError as error:
                _log.warning("the Redis Cluster's map cannot be had: %s; the nodes first named are asked next", error)
                self._cluster = None
        finally:
            self._looking.release()


def _node(host: str, port: int) -> ClusterNode:
    return ClusterNode(host, port)  # type: ignore[no-untyped-call]  # redis-py leaves it untyped


def _execute(client: redis.Redis, *command: Word) -> object:
    return cast("Callable[..., object]", client.execute_command)(*command)


def _safely(act: Callable[[], Any]) -> Any:
    """Run a part of redis-py whose errors are of many kinds; all come out as RedisError."""
    try:
        return act()
    except RedisError:
        raise
    except (RedisClusterException, KeyError, AttributeError, ValueError) as error:
        message = f"the Redis Cluster's map: {error}"
        raise redis.ConnectionError(message) from error
