"""Whether replicas have a commit: asked on the connection that it was made on, as Redis's WAIT needs it.

WAIT counts the replicas that have acknowledged what THIS connection wrote. On another connection it would confirm what nobody
has, and after a failover another server would. So a commit that was recognised as made earlier has no count, and is held for
confirmed by nobody.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import structlog

from coord.names import AggregateKey
from coord.rediscommands.errors import RedisFault
from coord.rediscommands.link import Link, Reply, checked, pack
from coord.rediscommands.links import deadline_after
from coord.store.base import Replicas

log: Final = structlog.get_logger(__name__)

ANSWER_MS_MAX: Final = 1000
"""How much longer than it waits WAIT may take to answer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicaWait:
    """How many replicas are to confirm, and for how long they may take (ms)."""

    replicas: int
    timeout_ms: int


class Confirmation:
    """Asks once, after one commit. Whatever goes wrong here, the commit has taken place: it is logged, never raised."""

    def __init__(self, key: AggregateKey, wait: ReplicaWait) -> None:
        self._key = key
        self._wait = wait
        self._confirmed = 0
        self._reason = "nothing is known of it: the commit was made on a connection that is gone"

    def ask(self, link: Link, reply: Reply) -> None:
        """Wait for the replicas, on the connection of the commit that this is the reply of."""
        if reply[0] != b"committed":
            return
        wait = self._wait
        deadline = deadline_after(wait.timeout_ms + ANSWER_MS_MAX)
        try:
            packed = pack("WAIT", wait.replicas, wait.timeout_ms)
            self._confirmed = checked(link.exchange(packed, replies=1, deadline=deadline)[0])
            self._reason = f"no more did within {wait.timeout_ms} ms"
        except RedisFault as fault:
            self._reason = f"WAIT: {fault}"

    def result(self) -> Replicas:
        """Give who has the commit; the log tells when these are too few."""
        found = Replicas(self._confirmed, self._wait.replicas)
        if found.confirmed < found.wanted:
            log.warning(
                "a commit is not on as many replicas as asked for",
                streamPrefix=self._key.stream_prefix,
                consumerGroup=getattr(self._key, "consumer_group", None),
                confirmed=found.confirmed,
                wanted=found.wanted,
                reason=self._reason,
            )
        return found
