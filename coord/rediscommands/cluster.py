"""A Redis Cluster: each key's slot is served by one master. Redirections are followed; when in doubt, any node is asked anew.

Nodes that were ever told are asked as well as those of the settings, so that it heals when all of either have moved.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from coord.rediscommands.errors import RedisFault, Refused, Unreachable
from coord.rediscommands.link import Link, Reply, pack, remaining
from coord.rediscommands.links import Links, deadline_after
from coord.rediscommands.settings import Address, RedisSettings
from coord.rediscommands.slotmap import MapReader, SlotMap
from coord.rediscommands.slots import SLOTS, slot_of
from coord.rediscommands.topology import NOT_SERVING, Doubt, SingleFlight, Step, each_in_time

log: Final = structlog.get_logger(__name__)

LOOK_SHARE: Final = 0.5
"""How much of a call's time a look may take while a map is known."""
LOOK_AFTER_MOVED_S: Final = 1.0
"""A redirection mends one slot; the whole map is asked for when it is older than this."""
WAITS: Final = NOT_SERVING | {"CLUSTERDOWN", "TRYAGAIN"}


class ClusterTopology:
    """The masters of a cluster, by slot."""

    heals = True

    def __init__(self, settings: RedisSettings) -> None:
        assert settings.cluster is not None
        self._settings = settings
        self._seeds = settings.cluster.nodes
        self._reader = MapReader(settings.cluster.address_map)
        self._map: SlotMap | None = None
        self._nodes: dict[Address, Links] = {}
        self._flight = SingleFlight()
        self._doubt = Doubt()
        self._looks = 0
        self._subcommand = "SLOTS"

    def links_for(self, key: str, *, deadline: float) -> Links:
        """Give the connections to the master of the key's slot; Unreachable when that is not known."""
        slot = slot_of(key)
        owner = self._known(deadline).owners[slot]
        if owner is None:
            self._doubt.raise_it()
            message = f"no node of the Redis Cluster serves slot {slot}"
            raise Unreachable(message, sent=False)
        return self._links(owner)

    def doubt(self) -> None:
        """Ask for the map at the next call."""
        self._doubt.raise_it()

    def judge(self, refusal: Refused, links: Links) -> Step | None:
        """Follow MOVED and ASK; wait where the slot has no master yet, or is on its way to another node."""
        if refusal.code in {"MOVED", "ASK"}:
            _, slot, told = str(refusal).split(" ")[:3]
            address = self._reader.address(told, asked=links.address)
            if refusal.code == "MOVED":
                self._moved(int(slot), address)
            return Step(self._links(address), asking=refusal.code == "ASK", waits=False)
        if refusal.code in WAITS:
            if refusal.code != "TRYAGAIN":
                self._doubt.raise_it()
            return Step()
        return None

    def masters(self, *, deadline: float) -> Sequence[Links]:
        """Give the connections to every master that serves a slot."""
        return [self._links(address) for address in sorted(self._known(deadline).masters)]

    def _moved(self, slot: int, address: Address) -> None:
        known = self._map
        if known is not None:
            known.owners[slot] = address
        if self._doubt.age_s > LOOK_AFTER_MOVED_S:
            self._doubt.raise_it()

    def _links(self, address: Address) -> Links:
        links = self._nodes.get(address)
        if links is None:
            links = self._nodes.setdefault(address, Links(self._settings.at(address)))
        return links

    def _known(self, deadline: float) -> SlotMap:
        if self._map is None:
            self._flight.fly(lambda: self._look(deadline), deadline=deadline)
        elif self._doubt.is_due():
            self._doubt.looking()
            share = deadline_after(remaining(deadline) * LOOK_SHARE * 1000)
            try:
                self._flight.fly(lambda: self._look(share), deadline=share)
            except Unreachable as error:
                self._doubt.raise_it()
                if self._doubt.complains():
                    log.warning("the redis cluster's map cannot be asked for", reason=str(error))
        known = self._map
        assert known is not None
        return known

    def _look(self, deadline: float) -> None:
        """Ask one node after the other until one tells who serves every slot; else take the fullest map told.

        Each look begins with another node: one that lags behind must not be believed for ever.
        """
        self._doubt.looking()
        candidates = list(dict.fromkeys((*(self._map.known if self._map is not None else ()), *self._seeds)))
        self._looks += 1
        turn = self._looks % len(candidates)
        best: SlotMap | None = None
        reasons: list[str] = []
        for node, share in each_in_time((*candidates[turn:], *candidates[:turn]), deadline=deadline):
            try:
                told = self._told_by(node, share)
            except RedisFault as error:
                reasons.append(f"{node}: {error}")
                continue
            if best is None or told.covered > best.covered:
                best = told
            if told.covered == SLOTS:
                break
        if best is None or not best.covered:
            message = f"no node tells the Redis Cluster's map: {'; '.join(reasons) or 'none serves a slot'}"
            raise Unreachable(message, sent=False)
        self._take(best)

    def _told_by(self, node: Address, deadline: float) -> SlotMap:
        link = Link(self._settings.at(node), deadline=deadline)
        try:
            reply = self._ask(link, self._subcommand, deadline)
            if isinstance(reply, Refused) and "cluster support disabled" not in str(reply):
                other = "SHARDS" if self._subcommand == "SLOTS" else "SLOTS"
                log.warning("redis refuses a command; another is used", command=f"CLUSTER {self._subcommand}", instead=other)
                self._subcommand = other
                reply = self._ask(link, other, deadline)
        finally:
            link.close()
        if isinstance(reply, Refused):
            raise reply
        if self._subcommand == "SLOTS":
            return self._reader.of_slots(reply, asked=node)
        return self._reader.of_shards(reply, asked=node, secured=self._settings.tls is not None)

    @staticmethod
    def _ask(link: Link, subcommand: str, deadline: float) -> Reply:
        return link.exchange(pack("CLUSTER", subcommand), replies=1, deadline=deadline)[0]

    def _take(self, told: SlotMap) -> None:
        before = self._map.masters if self._map is not None else frozenset()
        self._map = told
        if before != told.masters:
            log.info("the redis cluster's masters", masters=[str(address) for address in sorted(told.masters)])
        for address in [address for address in list(self._nodes) if address not in told.masters]:
            if (gone := self._nodes.pop(address, None)) is not None:
                gone.retire()

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""
        self._flight.after_fork()
        for links in list(self._nodes.values()):
            links.after_fork()

    def close(self) -> None:
        """Close all idle connections."""
        for links in list(self._nodes.values()):
            links.drop()
