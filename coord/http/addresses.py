"""Where a request comes from: its peer, or what a trusted proxy says of whom it speaks for.

`X-Forwarded-For` is read from its end, since each proxy adds whom it was asked by; what stands before the first address that is
no trusted proxy was written by a stranger. Source: design page `config-and-observability.md`, `api.trusted-proxies`; scenario L1.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Final, TypeAlias

Address: TypeAlias = ipaddress.IPv4Address | ipaddress.IPv6Address
Network: TypeAlias = ipaddress.IPv4Network | ipaddress.IPv6Network
PEERS_MAX: Final = 1024
"""So many peers are remembered, each with its address as text."""
HOPS_MAX: Final = 32
"""Entries of the header that are looked at; no honest chain of proxies is longer."""


class AddressJudge:
    """Finds the client's address. `trusted`: networks of the proxies that are believed."""

    def __init__(self, trusted: Iterable[str] = ()) -> None:
        self._trusted: tuple[Network, ...] = tuple(ipaddress.ip_network(network) for network in trusted)

    def client_address(self, env: Mapping[str, object]) -> str | None:
        """Give the address of who asks, without a port; None where the server tells none (a Unix socket)."""
        known = _peer(str(env.get("REMOTE_ADDR") or ""))
        if known is None:
            return None
        peer, text = known
        if not self._is_trusted(peer):
            return text
        client = peer
        told = str(env.get("HTTP_X_FORWARDED_FOR") or "").split(",")
        for entry in reversed(told[-HOPS_MAX:]):
            before = parsed(entry)
            if before is None:
                break
            client = before
            if not self._is_trusted(before):
                break
        return str(client)

    def _is_trusted(self, address: Address) -> bool:
        return any(address in network for network in self._trusted)


@lru_cache(maxsize=PEERS_MAX)
def _peer(text: str) -> tuple[Address, str] | None:
    peer = parsed(text)
    return None if peer is None else (peer, str(peer))


def parsed(text: str) -> Address | None:
    """Read an address, with or without a port; an IPv4 address in IPv6 form is that IPv4 address. None: it is none."""
    bare = text.strip()
    if bare.startswith("["):
        bare = bare[1:].partition("]")[0]
    elif bare.count(":") == 1:
        bare = bare.partition(":")[0]
    try:
        address = ipaddress.ip_address(bare)
    except ValueError:
        return None
    if isinstance(address, ipaddress.IPv6Address) and address.ipv4_mapped is not None:
        return address.ipv4_mapped
    return address
