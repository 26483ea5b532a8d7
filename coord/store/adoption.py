"""A port beside the store: what another coordinator left in it, and putting ours in its place. Only Redis has it.

What was there is kept beside its key, under `<key>:kotlin`, until somebody removes it or puts it back.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Literal, Protocol, TypeAlias

from coord.names import AggregateKey
from coord.store.base import Commit, Head, StoreError

ASIDE: Final = ":kotlin"
"""What the name of a key has behind it that keeps what another coordinator had there."""
Kind: TypeAlias = Literal["hash", "string", "other"]


class Changed(StoreError):
    """What was read is no longer so: somebody else is at work. Nothing was written by the step that found it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foreign:
    """What another coordinator stored under a key.

    `tag`: what stands in its braces. `role`: `group` or `stream`; `is_aside`: it is kept beside its key. `text`: JSON, b"" for
    none; `fields`: revision, schemaVersion and layoutVersion of a hash.
    """

    key: str
    tag: str
    role: Literal["group", "stream"]
    is_aside: bool
    kind: Kind
    text: bytes
    fields: tuple[str | None, str | None, str | None]


class Adoption(Protocol):
    """Every method is bounded in time and may raise StoreUnavailable."""

    def found(self) -> Sequence[Foreign]:
        """Give everything of another coordinator's that is there, sorted by key; of hashes all that are not ours."""

    def indexed(self) -> Sequence[str]:
        """Give the keys that another coordinator's indexes name, sorted."""

    def moment(self, key: AggregateKey) -> tuple[int, str]:
        """Give the clock (ms) and the identity of the store where an aggregate is."""

    def metadata_key(self, key: AggregateKey) -> str:
        """Give the key of an aggregate of ours."""

    def set_aside(self, foreign: Foreign) -> None:
        """Keep a copy beside it; `Changed` when it is not as it was read, or another copy is there."""

    def adopt(self, commit: Commit, *, seen: bytes) -> None:
        """Begin an aggregate, in one step, in the place of the hash that was read as `seen`; `Changed` otherwise."""

    def drop(self, foreign: Foreign) -> None:
        """Remove a key, if it is as it was read; `Changed` otherwise."""

    def put_back(self, foreign: Foreign) -> None:
        """Copy what is kept aside to where it was; `Changed` when something else is there."""

    def retire(self, key: AggregateKey, head: Head) -> None:
        """Take an aggregate of ours away whose log ends with `head`, and keep the log; `Changed` when it ends otherwise."""

    def close(self) -> None:
        """Close all connections."""
