"""A master behind Sentinels: asked for by name, checked by its own word that it is one, and looked for again when in doubt.

Looked for again also every second without any doubt: a master cut off from its Sentinels, but not from here, would go on
taking what its successor never sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import structlog

from coord.rediscommands.errors import RedisFault, Refused, Unreachable
from coord.rediscommands.link import Link, checked, pack, remaining
from coord.rediscommands.links import Links, deadline_after
from coord.rediscommands.settings import Address, RedisSettings
from coord.rediscommands.topology import NOT_SERVING, Doubt, SingleFlight, Step, each_in_time

log: Final = structlog.get_logger(__name__)

LOOK_EVERY_S: Final = 1.0
LOOK_SHARE: Final = 0.5
"""How much of a call's time a look may take while a master is known."""


class SentinelTopology:
    """The master of a name, wherever it is now."""

    heals = True

    def __init__(self, settings: RedisSettings) -> None:
        assert settings.sentinel is not None
        self._settings = settings
        self._name = settings.sentinel.master
        self._sentinels = list(settings.sentinel.nodes)
        self._master: Links | None = None
        self._flight = SingleFlight()
        self._doubt = Doubt()
        self._tells_its_role = True

    def links_for(self, key: str, *, deadline: float) -> Links:
        """Give the connections to the master: it holds all keys. Unreachable while none is known."""
        del key
        known = self._master
        if known is None:
            self._flight.fly(lambda: self._look(deadline), deadline=deadline)
        elif self._doubt.is_due() or (self._doubt.age_s > LOOK_EVERY_S and not self._flight.is_flying):
            self._doubt.looking()
            share = deadline_after(remaining(deadline) * LOOK_SHARE * 1000)
            try:
                self._flight.fly(lambda: self._look(share), deadline=share)
            except Unreachable as error:
                self._doubt.raise_it()
                if self._doubt.complains():
                    log.warning("the redis master cannot be looked for", master=self._name, reason=str(error))
        found = self._master
        assert found is not None
        return found

    def doubt(self) -> None:
        """Look for the master at the next call."""
        self._doubt.raise_it()

    def judge(self, refusal: Refused, links: Links) -> Step | None:
        """Look again for the master where this is none; NOREPLICAS may come from one that was cut off, and is the answer."""
        if refusal.code in NOT_SERVING:
            links.drop()
            self._doubt.raise_it()
            return Step()
        if refusal.code == "NOREPLICAS":
            self._doubt.raise_it()
        return None

    def masters(self, *, deadline: float) -> Sequence[Links]:
        """Give the connections to the master."""
        return (self.links_for("", deadline=deadline),)

    def _look(self, deadline: float) -> None:
        """Ask one Sentinel after the other, who answered last first, until one names a server that says it is the master."""
        self._doubt.looking()
        reasons: list[str] = []
        for sentinel, share in each_in_time(self._sentinels, deadline=deadline):
            try:
                address = self._told_by(sentinel, share)
                self._check(address, share)
            except RedisFault as error:
                reasons.append(f"Sentinel {sentinel}: {error}")
                continue
            self._sentinels.remove(sentinel)
            self._sentinels.insert(0, sentinel)
            self._follow(address)
            return
        message = f"no Sentinel names a master for {self._name}: {'; '.join(reasons) or 'no time was left'}"
        raise Unreachable(message, sent=False)

    def _told_by(self, sentinel: Address, deadline: float) -> Address:
        link = Link(self._settings.at_sentinel(sentinel), deadline=deadline)
        try:
            packed = pack("SENTINEL", "GET-MASTER-ADDR-BY-NAME", self._name)
            reply = checked(link.exchange(packed, replies=1, deadline=deadline)[0])
        finally:
            link.close()
        if not reply:
            message = f"knows no master named {self._name}"
            raise Unreachable(message, sent=False)
        return Address(reply[0].decode(), int(reply[1]))

    def _check(self, address: Address, deadline: float) -> None:
        link = Link(self._settings.at(address), deadline=deadline)
        try:
            self._greet(link, deadline)
        finally:
            link.close()

    def _greet(self, link: Link, deadline: float) -> None:
        """Refuse a connection to what is no master. Where ROLE is not allowed, the Sentinels' word has to do."""
        if not self._tells_its_role:
            return
        reply = link.exchange(pack("ROLE"), replies=1, deadline=deadline)[0]
        if isinstance(reply, Refused):
            if reply.code in NOT_SERVING:
                raise Unreachable(str(reply), sent=False)
            self._tells_its_role = False
            log.warning("redis does not tell its role; the sentinels' word is taken for it", command="ROLE", reason=str(reply))
        elif reply[0] != b"master":
            message = f"it is a {reply[0].decode()}, not the master"
            raise Unreachable(message, sent=False)

    def _follow(self, address: Address) -> None:
        old = self._master
        if old is not None and old.address == address:
            return
        self._master = Links(self._settings.at(address), greet=self._greet)
        if old is not None:
            log.warning("the redis master is another one", master=self._name, before=str(old.address), now=str(address))
            old.retire()

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process."""
        self._flight.after_fork()
        if self._master is not None:
            self._master.after_fork()

    def close(self) -> None:
        """Close all idle connections."""
        if self._master is not None:
            self._master.drop()
