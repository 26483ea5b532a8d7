"""Who is calling, and what they may do: signed tokens, and Basic for tools that cannot log in.

A token names its user and roles, but the configuration has the last word: whoever was removed is refused, whoever lost a
role has lost it, and a changed password ends the tokens made before (a keyed fingerprint of it is in the token). The
algorithm is pinned; a token names the key that signed it (`kid`), so that secrets can be changed with an overlap. Failed
logins slow down whoever makes them, Basic included. Users and secrets can be replaced while requests are judged.
Source: design pages `api.md` and `config-and-observability.md`.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import jwt

from coord.config.schema import Api, User
from coord.http.passwords import Passwords
from coord.http.request import Principal
from coord.http.routes import Role
from coord.http.slots import Slots
from coord.http.throttle import LoginThrottle, origin_of
from coord.names import SAFE_INTEGER_MAX
from coord.runtime.shown import iso
from coord.wire import LoginResponse

ALGORITHM: Final = "HS256"
ISSUER: Final = "redis-stream-coordinator"
LEEWAY_S: Final = 5
"""How far the clocks of two instances may differ."""
MS_PER_S: Final = 1000
BUSY_WAIT_S: Final = 1
"""When to come back while other passwords are being verified."""
ORDER: Final[tuple[Role, ...]] = ("READ", "WRITE", "MEMBER")
_GRANTS: Final[dict[str, frozenset[Role]]] = {
    "READ": frozenset({"READ"}),
    "WRITE": frozenset({"READ", "WRITE"}),
    "MEMBER": frozenset({"MEMBER"}),
    "ADMIN": frozenset({"READ", "WRITE", "MEMBER"}),
    "MONITOR": frozenset({"READ"}),
}
"""What each role of the configuration may do; ADMIN and MONITOR are the older names."""


@dataclass(frozen=True, slots=True)
class Wait:
    """Nothing was judged: too many failures, or too many passwords to verify. Come back after so many seconds."""

    seconds: int


Verdict: TypeAlias = Principal | Wait | None
"""Who it is; or that it has to wait; or that it is nobody."""


@dataclass(frozen=True)
class Key:
    """A key that verifies tokens. Only the first of several signs."""

    secret: bytes

    @cached_property
    def key_id(self) -> str:
        """What a token's header calls it; tells nothing of the secret that a signature would not tell."""
        return hmac.new(self.secret, b"key id", hashlib.sha256).hexdigest()[:16]

    def fingerprint(self, user: User) -> str:
        """Give what ties a token to the password of today; without the key it says nothing about it."""
        material = f"{user.username}\0{user.password.reveal()}".encode("utf-8", "surrogatepass")
        return hmac.new(self.secret, b"password\0" + material, hashlib.sha256).hexdigest()[:32]

    def __repr__(self) -> str:
        return "Key(******)"


class Authenticator:
    """Judges credentials against the configured users. Shared by all threads.

    `runs`: permits for argon2 runs, shared with other processes. `replace` puts other users and secrets in force from the next
    request on; what is under way ends as it began.
    """

    def __init__(self, api: Api, *, runs: Slots | None = None, throttle: LoginThrottle | None = None) -> None:
        self._runs = runs or Slots(1)
        self._throttle = throttle or LoginThrottle()
        self._access = Access(api, self._runs)

    def replace(self, api: Api) -> None:
        """Put the users and token secrets of another configuration in force."""
        self._access = Access(api, self._runs)

    def authenticate(self, header: str | None, *, address: str | None = None) -> Verdict:
        """Judge an Authorization header. `address`: of who sent it."""
        scheme, credentials = _parts_of(header)
        if scheme == "bearer":
            return self._access.holder_of(credentials)
        if scheme == "basic":
            pair = basic_credentials(credentials)
            return self.login(*pair, address=address) if pair else None
        return None

    def may_take_long(self, header: str | None) -> bool:
        """Tell whether a password would have to be verified to judge an Authorization header."""
        scheme, credentials = _parts_of(header)
        pair = basic_credentials(credentials) if scheme == "basic" else None
        return pair is not None and not self._access.passwords.is_remembered(*pair)

    def login(self, username: str, password: str, *, address: str | None = None) -> Verdict:
        """Judge a name and a password; takes as long for an unknown name as for a wrong password."""
        access = self._access
        if access.passwords.is_remembered(username, password):
            return access.principal(username)
        origin = origin_of(address)
        if wait_s := self._throttle.wait_s(origin, username):
            return Wait(wait_s)
        verdict = access.passwords.check(username, password)
        if verdict == "busy":
            return Wait(BUSY_WAIT_S)
        if verdict == "wrong":
            self._throttle.failed(origin, username)
            return None
        self._throttle.succeeded(origin, username)
        return access.principal(username)

    def issue(self, principal: Principal) -> LoginResponse | None:
        """Sign a token for somebody who just logged in; None when the user was removed in between."""
        return self._access.issue(principal)


class Access:
    """Users and keys of one configuration. Never changed."""

    def __init__(self, api: Api, runs: Slots) -> None:
        users = api.users or (User(username=api.admin_username, password=api.admin_password, roles=("ADMIN",)),)
        self._users: Mapping[str, User] = {user.username: user for user in users}
        self.passwords = Passwords(self._users, runs)
        current = api.token_secret.reveal().encode() if not api.token_secret.is_blank() else _fallback_secret(api)
        self._keys = (Key(current), *(Key(old.reveal().encode()) for old in api.previous_token_secrets if not old.is_blank()))
        self._token_ttl_s = max(1, api.token_ttl_ms // MS_PER_S)

    def principal(self, username: str) -> Principal | None:
        """Give a user as a caller."""
        user = self._users.get(username)
        return _principal(user) if user is not None else None

    def issue(self, principal: Principal) -> LoginResponse | None:
        """Sign a token."""
        user = self._users.get(principal.name)
        if user is None:
            return None
        key = self._keys[0]
        now_s = int(time.time())
        expires_s = now_s + self._token_ttl_s
        claims = {
            "iss": ISSUER,
            "sub": principal.name,
            "roles": list(principal.roles),
            "iat": now_s,
            "exp": expires_s,
            "pwd": key.fingerprint(user),
        }
        return LoginResponse(
            access_token=jwt.encode(claims, key.secret, algorithm=ALGORITHM, headers={"kid": key.key_id}),
            token_type="Bearer",  # noqa: S106  the name of the scheme
            expires_at=iso(expires_s * MS_PER_S),
            expires_in_seconds=self._token_ttl_s,
            roles=principal.roles,
        )

    def holder_of(self, token: str) -> Principal | None:
        """Give whom a token names, with the roles that both it and the configuration grant; None when it is not ours."""
        for key in self._keys_for(token):
            claims = _claims(token, key)
            if claims is not None:
                return self._holder(claims, key)
        return None

    def _keys_for(self, token: str) -> Iterable[Key]:
        """Give the key that a token names, or all of them when it names none (older releases named none)."""
        try:
            header = jwt.get_unverified_header(token)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            return ()
        key_id = header.get("kid")
        return self._keys if key_id is None else (key for key in self._keys if key.key_id == key_id)

    def _holder(self, claims: Mapping[str, Any], key: Key) -> Principal | None:
        user = self._users.get(claims["sub"])
        if user is None or user.password.is_blank():
            return None
        if not hmac.compare_digest(claims["pwd"].encode("utf-8", "surrogatepass"), key.fingerprint(user).encode()):
            return None
        today = _principal(user)
        return Principal(
            name=today.name, roles=tuple(role for role in today.roles if role in claims["roles"]), streams=today.streams
        )


def _parts_of(header: str | None) -> tuple[str, str]:
    """Give the scheme, in lower case, and the credentials of an Authorization header."""
    scheme, _, credentials = (header or "").strip().partition(" ")
    return scheme.lower(), credentials.strip()


def basic_credentials(encoded: str) -> tuple[str, str] | None:
    """Give user name and password of a Basic header's value, None when it is malformed."""
    try:
        text = base64.b64decode(encoded, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):
        return None
    username, colon, password = text.partition(":")
    return (username, password) if colon else None


def _claims(token: str, key: Key) -> dict[str, Any] | None:
    """Give the claims of a token that this key signed and that is good now; anything odd about it makes it no token."""
    try:
        claims: dict[str, Any] = jwt.decode(
            token,
            key.secret,
            algorithms=[ALGORITHM],
            issuer=ISSUER,
            leeway=LEEWAY_S,
            options={"require": ["exp", "iat", "iss", "sub"]},
        )
    except (jwt.PyJWTError, ValueError, TypeError, OverflowError, RecursionError):
        return None
    shapes = (
        isinstance(claims.get("pwd"), str)
        and isinstance(claims.get("sub"), str)
        and isinstance(claims.get("roles"), list)
        and all(type(claims.get(name)) is int and 0 <= claims[name] <= SAFE_INTEGER_MAX for name in ("exp", "iat"))
    )
    return claims if shapes else None


def _principal(user: User) -> Principal:
    granted = frozenset[Role]().union(*(_GRANTS[role] for role in user.roles))
    return Principal(name=user.username, roles=tuple(role for role in ORDER if role in granted), streams=user.streams)


def _fallback_secret(api: Api) -> bytes:
    """Derive a signing key from the credentials, the same in every worker, for local development.

    Slow on purpose: a token must not be a quick way to try passwords. The configuration refuses it beyond loopback.
    """
    users = (User(username=api.admin_username, password=api.admin_password), *api.users)
    material = "\0".join(f"{user.username}\0{user.password.reveal()}" for user in users)
    return hashlib.scrypt(
        material.encode("utf-8", "surrogatepass"), salt=b"redis-stream-coordinator local tokens", n=2**14, r=8, p=1, dklen=32
    )
