"""How a command reaches Redis: on a connection for its key, before a deadline, never repeated unless it surely did not run.

What surely did not run: nothing was sent, or the server said so (NOSCRIPT, MOVED, ASK, TRYAGAIN, CLUSTERDOWN, READONLY, LOADING).
Where a command may go then, the topology says. A lost answer is the caller's. Raises `Unreachable` and `Refused`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from coord.rediscommands.cluster import ClusterTopology
from coord.rediscommands.denials import explained_command, explained_script, is_denied
from coord.rediscommands.errors import Busy, RedisFault, Refused, Unreachable
from coord.rediscommands.link import Argument, Link, Reply, pack
from coord.rediscommands.links import Links, deadline_after
from coord.rediscommands.scripts import Script, script
from coord.rediscommands.sentinel import SentinelTopology
from coord.rediscommands.settings import Address, RedisSettings
from coord.rediscommands.topology import Patience, Standalone, Topology

BATCH_MAX = 256
"""How many script calls go out on one connection before their replies are read."""
KEY_SETS_MAX = 200
"""How many key sets one script call goes over: a millisecond or two in which the server does nothing else."""
SCANNED_AT_ONCE = 1_000
"""About how many keys are gone through in one step of a scan."""
_ASKING = pack("ASKING")
Call = tuple[Sequence[str], Sequence[Argument]]
Then = Callable[[Link, Reply], None]


class Template:
    """Runs commands and scripts. Safe for threads and over a fork."""

    def __init__(self, settings: RedisSettings) -> None:
        self.settings = settings
        self._topology = _topology(settings)

    def deadline(self, timeout_ms: float | None = None) -> float:
        """Give the deadline of a call that starts now, by default after the settings' `timeout_ms`."""
        return deadline_after(self.settings.timeout_ms if timeout_ms is None else timeout_ms)

    def call(self, key: str, *command: Argument, deadline: float | None = None) -> Reply:
        """Run one command that concerns `key`."""
        try:
            return self._answer(key, pack(*command), deadline=self.deadline() if deadline is None else deadline)
        except Refused as refusal:
            raise explained_command(refusal, key, command) from None

    def run(
        self,
        name: str,
        keys: Sequence[str],
        *arguments: Argument,
        deadline: float | None = None,
        together: bool = False,
        then: Then | None = None,
    ) -> Reply:
        """Run a script on keys of one slot. A server that does not have it says so without running it, and is sent the text.

        `together`: in one pipeline with what other threads send to the same server at this moment, for short scripts that are
        called often. `then`: is handed the connection that the script ran on, and its reply, before anybody else uses it; it
        raises nothing.
        """
        wanted = script(name)
        try:
            return self._answer(
                keys[0],
                _by_name(wanted, keys, arguments),
                in_full=lambda: _in_full(wanted, keys, arguments),
                deadline=self.deadline() if deadline is None else deadline,
                together=together,
                then=then,
            )
        except Refused as refusal:
            raise self._explained(refusal, wanted, keys) from None

    def run_each(self, name: str, calls: Sequence[Call]) -> list[Reply]:
        """Run a script once a (keys, arguments), many to a round trip and server; each batch has a deadline of its own.

        The keys of one call lie in one slot. Replies come in order, errors among them as `Refused` values.
        """
        wanted = script(name)
        replies: list[Reply] = [None] * len(calls)
        for links, places in self._by_server([keys[0] for keys, _ in calls]):
            for start in range(0, len(places), BATCH_MAX):
                batch = places[start : start + BATCH_MAX]
                told = self._run_batch(links, wanted, [calls[place] for place in batch])
                for place, reply in zip(batch, told, strict=True):
                    replies[place] = reply
        return replies

    def run_over(self, name: str, key_sets: Sequence[Sequence[str]], *arguments: Argument) -> list[tuple[range, Reply]]:
        """Run a script that goes over many key sets, each set's keys in one slot; a call takes as many sets as may be.

        That is up to `KEY_SETS_MAX`, or one where slots lie on several servers, then with many calls to a round trip and server.
        Gives each reply with the places of its key sets, all places in order. What failed is told for the places that it
        concerns, as the `RedisFault` for a reply; a server that cannot be reached is not asked again.
        """
        if self.settings.cluster is None:
            return self._run_in_chunks(name, key_sets, arguments)
        wanted = script(name)
        replies: list[Reply] = [None] * len(key_sets)
        for links, places in self._reachable(key_sets, replies):
            fault: Unreachable | None = None
            for start in range(0, len(places), BATCH_MAX):
                batch = places[start : start + BATCH_MAX]
                try:
                    told = (
                        [fault] * len(batch)
                        if fault
                        else self._run_batch(links, wanted, [(key_sets[at], arguments) for at in batch])
                    )
                except Unreachable as error:
                    fault = error
                    told = [fault] * len(batch)
                for place, reply in zip(batch, told, strict=True):
                    replies[place] = reply
        return [(range(place, place + 1), reply) for place, reply in enumerate(replies)]

    def call_masters(self, *command: Argument) -> list[tuple[Address, Reply]]:
        """Run a command that only reads on every server that takes writes; error replies come as `Refused` values."""
        deadline = self.deadline()
        packed = pack(*command)
        found = []
        for links in self._topology.masters(deadline=deadline):
            with links.lend(deadline=deadline) as link:
                found.append((links.address, link.exchange(packed, replies=1, deadline=deadline)[0]))
        return found

    def scan(self, pattern: str) -> Iterator[bytes]:
        """Give the keys like a glob pattern on every server that takes writes; a key may come twice. Each page has a deadline."""
        for links in self._topology.masters(deadline=self.deadline()):
            cursor: bytes = b"0"
            while True:
                deadline = self.deadline()
                with links.lend(deadline=deadline) as link:
                    packed = pack("SCAN", cursor, "MATCH", pattern, "COUNT", SCANNED_AT_ONCE)
                    reply = link.exchange(packed, replies=1, deadline=deadline)[0]
                if isinstance(reply, Refused):
                    raise reply
                cursor, found = reply
                yield from found
                if cursor == b"0":
                    break

    def _answer(
        self,
        key: str,
        packed: bytes,
        *,
        deadline: float,
        in_full: Callable[[], bytes] | None = None,
        together: bool = False,
        then: Then | None = None,
    ) -> Reply:
        """Send a command, and send it on for as long as it surely did not run and there is patience left."""
        patience = Patience(deadline)
        links: Links | None = None
        asking = False
        while True:
            try:
                if links is None:
                    links = self._topology.links_for(key, deadline=deadline)
                if together and not asking:
                    reply = links.together(packed, deadline=deadline)
                    if in_full is not None and _is_missing(reply):
                        reply = links.together(in_full(), deadline=deadline)
                else:
                    reply = _exchange(links, packed, in_full, asking=asking, deadline=deadline, then=then)
            except Busy:
                raise
            except Unreachable as error:
                self._topology.doubt()
                if error.sent or not self._topology.heals or not patience.wait():
                    raise
                links, asking = None, False
                continue
            if not isinstance(reply, Refused):
                return reply
            step = self._topology.judge(reply, links)
            if step is None or not (patience.wait() if step.waits else patience.hop()):
                raise reply
            links, asking = step.links, step.asking

    def _run_in_chunks(
        self, name: str, key_sets: Sequence[Sequence[str]], arguments: Sequence[Argument]
    ) -> list[tuple[range, Reply]]:
        found: list[tuple[range, Reply]] = []
        for start in range(0, len(key_sets), KEY_SETS_MAX):
            places = range(start, min(start + KEY_SETS_MAX, len(key_sets)))
            keys = [key for place in places for key in key_sets[place]]
            try:
                found.append((places, self.run(name, keys, *arguments)))
            except Unreachable as error:
                found.append((range(start, len(key_sets)), error))
                break
            except Refused as refusal:
                found.append((places, refusal))
        return found

    def _by_server(self, keys: Sequence[str]) -> list[tuple[Links, list[int]]]:
        """Give the places of keys by the server that they are on."""
        deadline = self.deadline()
        found: dict[Links, list[int]] = {}
        for place, key in enumerate(keys):
            found.setdefault(self._topology.links_for(key, deadline=deadline), []).append(place)
        return list(found.items())

    def _reachable(self, key_sets: Sequence[Sequence[str]], replies: list[Reply]) -> list[tuple[Links, list[int]]]:
        """Give the places of key sets by server; for those of which no server is known, the reason goes into `replies`."""
        deadline = self.deadline()
        found: dict[Links, list[int]] = {}
        for place, keys in enumerate(key_sets):
            try:
                found.setdefault(self._topology.links_for(keys[0], deadline=deadline), []).append(place)
            except RedisFault as error:
                replies[place] = error
        return list(found.items())

    def _run_batch(self, links: Links, wanted: Script, calls: Sequence[Call]) -> list[Reply]:
        """Send a batch to one server; each call that was not run there goes on by itself."""
        deadline = self.deadline()
        packed = b"".join(_by_name(wanted, keys, arguments) for keys, arguments in calls)
        try:
            with links.lend(deadline=deadline) as link:
                replies = link.exchange(packed, replies=len(calls), deadline=deadline)
                for place, (keys, arguments) in enumerate(calls):
                    if _is_missing(replies[place]):
                        in_full = _in_full(wanted, keys, arguments)
                        replies[place] = link.exchange(in_full, replies=1, deadline=deadline)[0]
        except Busy:
            raise
        except Unreachable as error:
            self._topology.doubt()
            if error.sent or not self._topology.heals:
                raise
            return [self._alone(wanted, call) for call in calls]
        denied: Refused | None = None
        for place, call in enumerate(calls):
            if not isinstance(replies[place], Refused):
                continue
            if self._topology.judge(replies[place], links) is not None:
                replies[place] = self._alone(wanted, call)
            elif is_denied(replies[place]):  # explained once: what one may not, none of them may
                denied = replies[place] = denied or self._explained(replies[place], wanted, call[0])
        return replies

    def _alone(self, wanted: Script, call: Call) -> Reply:
        keys, arguments = call
        try:
            return self.run(wanted.name, keys, *arguments)
        except Refused as refusal:
            return refusal

    def _explained(self, refusal: Refused, wanted: Script, keys: Sequence[str]) -> Refused:
        return explained_script(refusal, wanted, keys, lambda packed: self._answer(keys[0], packed, deadline=self.deadline()))

    def after_fork(self) -> None:
        """Drop every connection inherited from the parent process (a fork by Python does this by itself)."""
        self._topology.after_fork()

    def close(self) -> None:
        """Close all idle connections; a later call opens new ones."""
        self._topology.close()


def _topology(settings: RedisSettings) -> Topology:
    if settings.sentinel is not None:
        return SentinelTopology(settings)
    return ClusterTopology(settings) if settings.cluster is not None else Standalone(settings)


def _exchange(
    links: Links,
    packed: bytes,
    in_full: Callable[[], bytes] | None,
    *,
    asking: bool,
    deadline: float,
    then: Then | None,
) -> Reply:
    with links.lend(deadline=deadline) as link:
        reply = _said(link, packed, asking=asking, deadline=deadline)
        if in_full is not None and _is_missing(reply):
            reply = _said(link, in_full(), asking=asking, deadline=deadline)
        if then is not None and not isinstance(reply, Refused):
            then(link, reply)
        return reply


def _said(link: Link, packed: bytes, *, asking: bool, deadline: float) -> Reply:
    if not asking:
        return link.exchange(packed, replies=1, deadline=deadline)[0]
    asked, reply = link.exchange(_ASKING + packed, replies=2, deadline=deadline)
    return asked if isinstance(asked, Refused) else reply


def _by_name(wanted: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
    """Pack the call of a script that a server may know; one that only reads by a command that only reads, as ACLs tell these."""
    return pack("EVALSHA_RO" if wanted.reads_only else "EVALSHA", wanted.sha, len(keys), *keys, *arguments)


def _in_full(wanted: Script, keys: Sequence[str], arguments: Sequence[Argument]) -> bytes:
    return pack("EVAL_RO" if wanted.reads_only else "EVAL", wanted.text, len(keys), *keys, *arguments)


def _is_missing(reply: Reply) -> bool:
    return isinstance(reply, Refused) and reply.code == "NOSCRIPT"
