"""What Sentinels say of the master that they watch, one by one: whether they agree, and whether they could fail over."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from coord.rediscommands.errors import RedisFault, Refused
from coord.rediscommands.link import Link, pack
from coord.rediscommands.links import deadline_after
from coord.rediscommands.settings import Address, RedisSettings

Told = Mapping[str, str] | RedisFault
"""A Sentinel's fields of the master, or why there are none."""


def ask_sentinels(settings: RedisSettings) -> Iterator[tuple[Address, Told]]:
    """Ask each configured Sentinel. Each is given the settings' `timeout_ms`; nothing is raised."""
    if settings.sentinel is None:
        return
    for address in settings.sentinel.nodes:
        yield address, _told_by(settings.at_sentinel(address), settings.sentinel.master)


def _told_by(settings: RedisSettings, master: str) -> Told:
    deadline = deadline_after(settings.timeout_ms)
    try:
        link = Link(settings, deadline=deadline)
        try:
            reply = link.exchange(pack("SENTINEL", "MASTER", master), replies=1, deadline=deadline)[0]
        finally:
            link.close()
    except RedisFault as fault:
        return fault
    if isinstance(reply, Refused):
        return reply
    words = [word.decode(errors="replace") for word in reply]
    return dict(zip(words[::2], words[1::2], strict=True))
