"""The swarm of tests/chaos with longer lives, whose members can be told to stay; and a ledger that knows when."""

from __future__ import annotations

import random
import threading
from collections.abc import Sequence
from dataclasses import dataclass, field

import urllib3

from tests.chaos.ledger import Ledger
from tests.chaos.run import KEY
from tests.chaos.swarm import Member, Swarm, now_ms
from tests.failover.places import now_s

STAY_MS = 10_000_000


@dataclass(slots=True)
class TimedLedger(Ledger):
    """Notes also when a change was acknowledged, s (monotonic), and when the group was last acknowledged anything at all."""

    at_s: dict[str, float] = field(default_factory=dict)
    progress_s: float = 0.0

    def joined(self, member_id: str, request_id: str) -> None:
        """Note an acknowledged join."""
        Ledger.joined(self, member_id, request_id)
        self.at_s[f"join {member_id} {request_id}"] = self.progress_s = now_s()

    def left(self, member_id: str) -> None:
        """Note an acknowledged leave."""
        Ledger.left(self, member_id)
        self.at_s[f"leave {member_id}"] = self.progress_s = now_s()

    def scaled(self, resharding_id: str) -> None:
        """Note an acknowledged resharding."""
        Ledger.scaled(self, resharding_id)
        self.at_s[f"resharding {resharding_id}"] = now_s()

    def forget_revisions(self) -> None:
        """Begin anew: the store has gone back."""
        with self.lock:
            self.revisions.clear()


class StayingSwarm(Swarm):
    """Members come and go until told to stay."""

    def __init__(
        self, urls: Sequence[str], ledger: Ledger, *, count: int, threads: int, seed: int, life_ms: tuple[int, int]
    ) -> None:
        super().__init__(urls, KEY, ledger, count=count, threads=threads, seed=seed)
        self._life_ms = life_ms
        self._staying = threading.Event()
        self._met: set[str] = set()
        self.living: dict[str, Member] = {}

    def stay(self) -> None:
        """From now on nobody leaves; who is on the way out goes, and a last one comes for each."""
        self._staying.set()

    def _live(self, member: Member, chance: random.Random, http: urllib3.PoolManager) -> bool:
        if member.protocol.member_id not in self._met:
            self._met.add(member.protocol.member_id)
            member.ends_ms = now_ms() + int(chance.uniform(*self._life_ms))
        if self._staying.is_set() and not member.protocol.leaving:
            member.ends_ms = now_ms() + STAY_MS
        lives = Swarm._live(self, member, chance, http)
        if lives:
            self.living[member.protocol.member_id] = member
        else:
            self.living.pop(member.protocol.member_id, None)
        return lives

    def held(self) -> list[int]:
        """Give the shards that living members read, sorted, each as often as it is read."""
        return sorted(shard for member in list(self.living.values()) for shard in list(member.begun))
