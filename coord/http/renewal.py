"""What may be changed while requests are served: users and token secrets. Everything else needs new workers."""

from __future__ import annotations

import mmap
from collections.abc import Callable
from typing import Final, Literal

import structlog
from msgspec import structs

from coord.config import Configuration, ConfigurationError
from coord.config.schema import Api

RENEWED: Final = ("admin_username", "admin_password", "users", "token_secret", "token_ttl_ms", "previous_token_secrets")
"""The fields of `api` that `coord.http.auth.Authenticator.replace` puts in force."""
_PLAIN: Final = Api()
_COUNT_BYTES: Final = 8
_LOG: Final = structlog.get_logger(__name__)


class Editions:
    """Counts, in memory that a master shares with its workers, how often users and secrets were replaced.

    A signal that reaches a worker before it listens is lost; the count is not. Made in the master, before any fork.
    """

    def __init__(self) -> None:
        self._shared = mmap.mmap(-1, _COUNT_BYTES)
        self._mine = 0

    def next(self) -> None:
        """Note a further edition (in the master), before any worker is told."""
        self._mine += 1
        self._shared[:] = self._mine.to_bytes(_COUNT_BYTES)

    def is_outdated(self) -> bool:
        """Say whether there were editions since the fork (in a worker, once it listens)."""
        return int.from_bytes(self._shared[:]) != self._mine


def news_of_access(
    before: Configuration, reread: Callable[[], Configuration] | None
) -> Configuration | Literal["refused", "other"]:
    """Read the configuration again, and give it if nothing but users and token secrets changed.

    `refused`: it is wrong, which is logged, and the old one stays. `other`: something else changed, or nothing did (a renewed
    certificate, say), or there is nothing to read.
    """
    if reread is None:
        return "other"
    try:
        after = reread()
    except ConfigurationError as error:
        _LOG.error("the configuration is refused, the old one stays", problems=[str(each) for each in error.problems])
        return "refused"
    return after if changes_access_only(before, after) else "other"


def changes_access_only(before: Configuration, after: Configuration) -> bool:
    """Say whether two configurations differ, and in nothing but users and token secrets."""
    return _access(before) != _access(after) and _rest(before) == _rest(after)


def _access(config: Configuration) -> tuple[object, ...]:
    return tuple(getattr(config.api, name) for name in RENEWED)


def _rest(config: Configuration) -> Configuration:
    api = structs.replace(config.api, **{name: getattr(_PLAIN, name) for name in RENEWED})
    return structs.replace(config, api=api, origins={}, warnings=())
