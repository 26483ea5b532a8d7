"""Failed logins slow down whoever makes them: by address and by user, in bounded memory.

The first few failures of an address, or about a user, cost nothing; each further one doubles the time until the next attempt is
judged at all. Who logged in lately from an address has a count of its own there, so that guesses of strangers (or of a
neighbour behind the same proxy) lock nobody out. Counts are this process's own: an instance of N workers judges up to N
times as many attempts. A table that is full forgets nobody: who comes new shares a few counts with other newcomers.
Source: design page `config-and-observability.md`; scenario L1.
"""

from __future__ import annotations

import hashlib
import ipaddress
import math
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

FREE_FAILURES: Final = 5
"""Failures in a row before the first wait."""
WAIT_MAX_S: Final = 60.0
FORGOTTEN_AFTER_S: Final = 900.0
KNOWN_FOR_S: Final = 3600.0
"""How long a user who logged in from an address has a count of its own there."""
COUNTS_MAX: Final = 10_000
"""Counts a table holds one by one; all further ones share `SHARED_COUNTS`."""
SHARED_COUNTS: Final = 64
_DIGEST_BYTES: Final = 16
_IPV6_NETWORK_BITS: Final = 64
"""One customer's part of the IPv6 space: whoever has one address of it has all."""


@dataclass(slots=True)
class _Count:
    """Failures without a success, and when (monotonic s) the last of them was."""

    failures: int = 0
    last_s: float = 0.0

    def wait_s(self, now_s: float) -> float:
        """Give how long no attempt is judged."""
        if self.failures < FREE_FAILURES or now_s - self.last_s >= FORGOTTEN_AFTER_S:
            return 0.0
        pause_s = min(WAIT_MAX_S, 2.0 ** min(self.failures - FREE_FAILURES, 10))
        return max(0.0, self.last_s + pause_s - now_s)

    def add(self, now_s: float) -> None:
        """Count one failure."""
        self.failures = 1 if now_s - self.last_s >= FORGOTTEN_AFTER_S else self.failures + 1
        self.last_s = now_s


@dataclass(slots=True)
class _Counts:
    """A bounded table of counts; the one that failed last is at the end."""

    own: OrderedDict[bytes, _Count] = field(default_factory=OrderedDict)
    shared: list[_Count] = field(default_factory=lambda: [_Count() for _ in range(SHARED_COUNTS)])

    def wait_s(self, key: bytes, now_s: float) -> float:
        count = self.own.get(key)
        if count is None:
            if len(self.own) < COUNTS_MAX:
                return 0.0
            count = self.shared[key[0] % SHARED_COUNTS]
        return count.wait_s(now_s)

    def add(self, key: bytes, now_s: float) -> None:
        self._forget(now_s)
        count = self.own.get(key)
        if count is None and len(self.own) < COUNTS_MAX:
            count = self.own[key] = _Count()
        if count is None:
            count = self.shared[key[0] % SHARED_COUNTS]
        else:
            self.own.move_to_end(key)
        count.add(now_s)

    def _forget(self, now_s: float) -> None:
        while self.own:
            oldest = next(iter(self.own))
            if now_s - self.own[oldest].last_s < FORGOTTEN_AFTER_S:
                return
            del self.own[oldest]


class LoginThrottle:
    """Says whether an attempt to log in is judged now. Names are kept as keyed digests, so each entry has one size."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(_DIGEST_BYTES)
        self._lock = threading.Lock()
        self._counts = _Counts()
        self._known: OrderedDict[bytes, float] = OrderedDict()

    def wait_s(self, address: str, username: str) -> int:
        """Give how many whole seconds an attempt has to wait; 0: it is judged now."""
        with self._lock:
            now_s = self._clock()
            return math.ceil(max(self._counts.wait_s(key, now_s) for key in self._keys(address, username, now_s)))

    def failed(self, address: str, username: str) -> None:
        """Count an attempt that proved nobody."""
        with self._lock:
            now_s = self._clock()
            for key in self._keys(address, username, now_s):
                self._counts.add(key, now_s)

    def succeeded(self, address: str, username: str) -> None:
        """Forget what was counted about this user at this address; a count of the address itself only fades with time."""
        with self._lock:
            now_s = self._clock()
            pair = self._digest("pair", address, username)
            self._counts.own.pop(pair, None)
            self._known[pair] = now_s
            self._known.move_to_end(pair)
            while len(self._known) > COUNTS_MAX:
                self._known.popitem(last=False)

    def _keys(self, address: str, username: str, now_s: float) -> tuple[bytes, ...]:
        pair = self._digest("pair", address, username)
        if now_s - self._known.get(pair, -KNOWN_FOR_S) < KNOWN_FOR_S:
            return (pair,)
        return self._digest("address", address), self._digest("user", username)

    def _digest(self, *parts: str) -> bytes:
        text = "\0".join(parts).encode("utf-8", "surrogatepass")
        return hashlib.blake2b(text, key=self._key, digest_size=_DIGEST_BYTES).digest()


def origin_of(address: str | None) -> str:
    """Give what an address is counted as: itself, or its network for IPv6; "" when there is none."""
    try:
        parsed = ipaddress.ip_address(address or "")
    except ValueError:
        return ""
    if isinstance(parsed, ipaddress.IPv6Address):
        return str(ipaddress.ip_network((parsed, _IPV6_NETWORK_BITS), strict=False))
    return str(parsed)
