"""Is this the password of that user: plain ones by digest, argon2 hashes by argon2, at a cost that tells nothing.

As soon as one user has a hash, every check costs one argon2 run, whether the user is unknown, has a plain password or a
hash: the time of an answer tells nobody which. A run takes about 0.15 s and 64 MiB, so only so many run at once, and who was
verified is remembered for a minute under a keyed digest of name and password.
Source: design page `config-and-observability.md`.
"""

from __future__ import annotations

import hashlib
import hmac
import secrets
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Final, Literal, TypeAlias

import argon2

from coord.config import Secret, User
from coord.http.slots import Slots

VERIFIED_FOR_S: Final = 60.0
VERIFIED_MAX: Final = 1024
RENEWED_BEFORE_S: Final = 15.0
ARGON2_MARK: Final = "$argon2"
_NOBODY: Final = User(username="", password=Secret())
Verdict: TypeAlias = Literal["right", "wrong", "busy"]


class Passwords:
    """Checks passwords of these users, who do not change.

    `runs`: permits for argon2 runs, shared with whoever checks passwords.
    """

    def __init__(self, users: Mapping[str, User], runs: Slots, *, clock: Callable[[], float] = time.monotonic) -> None:
        self._users = users
        self._runs = runs
        self._verified = Verified(clock)
        hashes = [user.password.reveal() for user in users.values() if is_hash(user)]
        self._decoy = hashes[0] if hashes else None
        """A hash that stands in for those who have none: its outcome is not looked at, its time is."""

    def is_remembered(self, username: str, password: str) -> bool:
        """Say whether just this pair was found right within the last minute.

        Near the end of that minute whoever asks first verifies it anew meanwhile, so that callers who come all the time under one
        name are never told to wait for each other.
        """
        left_s = self._verified.left_s(username, password)
        if username not in self._users or left_s <= 0:
            return False
        if left_s < RENEWED_BEFORE_S:
            self.check(username, password)
        return True

    def check(self, username: str, password: str) -> Verdict:
        """Say whether the password is right; `busy` when too many are being checked. A blank password is nobody's."""
        user = self._users.get(username, _NOBODY)
        is_right = hmac.compare_digest(_digest(password), _digest(user.password.reveal()))
        if self._decoy is not None:
            hashed = user.password.reveal() if is_hash(user) else self._decoy
            with self._runs.one() as may_run:
                if not may_run:
                    return "busy"
                fits = _fits(hashed, password)
            is_right = fits if is_hash(user) else is_right
        if not is_right or user.password.is_blank():
            return "wrong"
        self._verified.add(username, password)
        return "right"


class Verified:
    """Credentials found right lately, as keyed digests; the key is never stored, the oldest go first."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock = clock
        self._key = secrets.token_bytes(32)
        self._until_s: OrderedDict[bytes, float] = OrderedDict()
        self._lock = threading.Lock()

    def left_s(self, username: str, password: str) -> float:
        """Give how long the pair is still remembered; not above 0: it is not."""
        digest = self._digest(username, password)
        with self._lock:
            return self._until_s.get(digest, 0.0) - self._clock()

    def add(self, username: str, password: str) -> None:
        """Remember a pair for `VERIFIED_FOR_S` from now on; looking it up does not prolong it."""
        digest = self._digest(username, password)
        with self._lock:
            self._until_s[digest] = self._clock() + VERIFIED_FOR_S
            self._until_s.move_to_end(digest)
            while len(self._until_s) > VERIFIED_MAX:
                self._until_s.popitem(last=False)

    def _digest(self, username: str, password: str) -> bytes:
        return hmac.digest(self._key, f"{username}\0{password}".encode("utf-8", "surrogatepass"), "sha256")


def is_hash(user: User) -> bool:
    """Say whether a user's password is configured as an argon2 hash."""
    return user.password.reveal().startswith(ARGON2_MARK)


def _fits(hashed: str, password: str) -> bool:
    try:
        return argon2.PasswordHasher().verify(hashed, password.encode("utf-8", "surrogatepass"))
    except (argon2.exceptions.VerificationError, argon2.exceptions.InvalidHashError):
        return False


def _digest(password: str) -> bytes:
    return hashlib.sha256(password.encode("utf-8", "surrogatepass")).digest()
