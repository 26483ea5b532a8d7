"""Signed checkpoints: where each log ended at a time, and the chain value there, under an Ed25519 signature.

Kept where whoever can write the store cannot, a checkpoint proves what the chain alone cannot: that nothing up to it was cut off
or rewritten since. It proves nothing of what came after it. `cryptography` is an extra (`audit`), imported where it is used.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Final, Literal

import msgspec
from msgspec import Struct

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.chainwalk import ChainReport

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey

PURPOSE: Final = "coord-audit-checkpoint"
VERSION: Final = 1
Marks = Mapping[AggregateKey, Mapping[tuple[int, int], str]]


class BadCheckpoint(Exception):
    """A checkpoint that cannot be read, or whose signature is not of the expected key."""


class BadKey(Exception):
    """A key file that holds no Ed25519 key of the wanted kind."""


class Mark(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """Where a log ended: the id of its last entry, and the chain value (hex) after it. `consumerGroup` null: a stream's."""

    stream_prefix: str
    consumer_group: str | None
    revision: int
    index: int
    chain: str

    @property
    def key(self) -> AggregateKey:
        """The stream or group whose log it is."""
        return StreamKey(self.stream_prefix) if self.consumer_group is None else GroupKey(self.stream_prefix, self.consumer_group)


class Signed(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """What is signed: as canonical JSON, in this order, without blanks. `at`: ISO-8601 UTC, by the clock of who signed."""

    purpose: Literal["coord-audit-checkpoint"]
    version: Literal[1]
    at: str
    logs: tuple[Mark, ...]


class Checkpoint(Struct, frozen=True, rename="camel", kw_only=True, forbid_unknown_fields=True):
    """The file. `publicKey` only tells which key it was: what verifies is the key that the verifier brings."""

    signed: Signed
    public_key: str
    signature: str


def checkpoint_of(reports: Iterable[ChainReport], *, at: str, key: Ed25519PrivateKey) -> bytes:
    """Sign where these logs end; each of them holds."""
    marks = []
    for report in reports:
        assert report.holds, "nobody signs what does not hold"
        marks.append(
            Mark(
                stream_prefix=report.key.stream_prefix,
                consumer_group=report.key.consumer_group if isinstance(report.key, GroupKey) else None,
                revision=report.last[0],
                index=report.last[1],
                chain=report.chain,
            )
        )
    signed = Signed(purpose=PURPOSE, version=VERSION, at=at, logs=tuple(marks))
    checkpoint = Checkpoint(
        signed=signed,
        public_key=_text(key.public_key().public_bytes_raw()),
        signature=_text(key.sign(msgspec.json.encode(signed))),
    )
    return msgspec.json.format(msgspec.json.encode(checkpoint), indent=1) + b"\n"


def verified(data: bytes, key: Ed25519PublicKey) -> Signed:
    """Give what a checkpoint says, once its signature is that of this key. Raises BadCheckpoint."""
    from cryptography.exceptions import InvalidSignature  # noqa: PLC0415  an extra

    try:
        checkpoint = msgspec.json.decode(data, type=Checkpoint)
        signature = base64.b64decode(checkpoint.signature, validate=True)
    except (msgspec.MsgspecError, UnicodeDecodeError, binascii.Error) as error:
        raise BadCheckpoint(f"it is no checkpoint: {error}") from error
    try:
        key.verify(signature, msgspec.json.encode(checkpoint.signed))
    except InvalidSignature:
        raise BadCheckpoint("its signature is not that of the given public key: it was changed, or signed by another") from None
    return checkpoint.signed


def marks_of(checkpoints: Iterable[Signed]) -> Marks:
    """Give the marks of checkpoints by log. Raises BadCheckpoint where two of them contradict each other."""
    marks: dict[AggregateKey, dict[tuple[int, int], str]] = {}
    for checkpoint in checkpoints:
        for mark in checkpoint.logs:
            if marks.setdefault(mark.key, {}).setdefault((mark.revision, mark.index), mark.chain) != mark.chain:
                raise BadCheckpoint(f"two checkpoints note different chain values of {mark.key} at {mark.revision}-{mark.index}")
    return marks


def new_key() -> tuple[bytes, bytes]:
    """Make a key pair: private and public key as PEM (PKCS #8 and SubjectPublicKeyInfo)."""
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  an extra
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  as above

    key = Ed25519PrivateKey.generate()
    private = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    public = key.public_key().public_bytes(serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo)
    return private, public


def private_key(pem: bytes) -> Ed25519PrivateKey:
    """Read a private key without a passphrase. Raises BadKey, which quotes nothing of it."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  an extra
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey  # noqa: PLC0415  as above

    try:
        key = serialization.load_pem_private_key(pem, password=None)
    except (ValueError, TypeError, UnsupportedAlgorithm):
        raise BadKey("holds no private key in PEM without a passphrase") from None
    if not isinstance(key, Ed25519PrivateKey):
        raise BadKey("holds a key of another kind than Ed25519")
    return key


def public_key(pem: bytes) -> Ed25519PublicKey:
    """Read a public key. Raises BadKey."""
    from cryptography.exceptions import UnsupportedAlgorithm  # noqa: PLC0415  an extra
    from cryptography.hazmat.primitives import serialization  # noqa: PLC0415  as above
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey  # noqa: PLC0415  as above

    try:
        key = serialization.load_pem_public_key(pem)
    except (ValueError, UnsupportedAlgorithm):
        raise BadKey("holds no public key in PEM") from None
    if not isinstance(key, Ed25519PublicKey):
        raise BadKey("holds a key of another kind than Ed25519")
    return key


def _text(raw: bytes) -> str:
    return base64.b64encode(raw).decode("ascii")
