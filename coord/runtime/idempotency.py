"""A mutation that comes again under the same key is answered as the first time, and changes nothing.

    begin   claims the key, atomically and in the store, so that of several that come at once one is carried out
    finish  puts the answer in the place of the claim; a refusal takes the claim back, so that the key may be tried again

Between the commit and `finish` lies a gap that a crash, or a store that goes away, can fall into. The claim then stays,
and after its lease whoever comes with the key looks into the log for what the first attempt committed
(`coord.runtime.recovery`): the audit entry there says so, since it is part of the commit. Found: that is the answer. Not found:
nothing was done that would be the answer, and the request is judged anew.

Claims and answers live as long as `coord.store.answers` says. Source: design page `api.md`, "Idempotency".
"""

from __future__ import annotations

import hashlib
import time
import uuid
import zlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, TypeAlias

import msgspec
import structlog
from msgspec import Struct, structs

from coord.names import AggregateKey, GroupKey, StreamKey
from coord.runtime.executor import Executor
from coord.runtime.recovery import Committed, Request, committed_by
from coord.store.answers import Answers
from coord.store.base import StoreError

CLAIM_LEASE_MS: Final = 30_000
"""How long a claim is taken to be worked on; longer than any request takes, or its answer is found in the log."""
WAIT_S: Final = 2.0
"""How long a request waits for another one with its key to end."""
POLL_S: Final = 0.05
DELETIONS: Final = frozenset({"DELETE_STREAM", "DELETE_GROUP"})
log: Final = structlog.get_logger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class KeyedRequest:
    """A mutation that came with a key.

    `scope`: what its path names. `name`: digest of the key with principal, method and path (and content, where
    another content is another request). `fingerprint`: digest of its content. `action`: as in the audit entry.
    `body_sha256`: as there too. `success_status`: HTTP status if it succeeds.
    """

    scope: AggregateKey
    action: str
    success_status: int
    name: str
    fingerprint: str
    body_sha256: str
    principal: str
    request_id: str

    @property
    def home(self) -> AggregateKey:
        """Whose answers it is kept with: a group's deletion with the group, all else with the stream."""
        if self.action == "DELETE_GROUP" or isinstance(self.scope, StreamKey):
            return self.scope
        return self.scope.stream


class Claim(Struct, frozen=True, kw_only=True, tag="claim"):
    """Somebody carries the request out, until `deadline` (ms, store clock) at the latest; 0: it ended and nobody knows how.

    `stream_revision`, `group_revision`: what it commits comes after these.
    """

    fingerprint: str
    token: str
    request_id: str
    deadline: int
    stream_revision: int
    group_revision: int


class Answer(Struct, frozen=True, kw_only=True, tag="answer"):
    """What was answered. `body`: deflated. `revision`: the store revision that holds what was done."""

    fingerprint: str
    status: int
    revision: int
    body: bytes

    def text(self) -> bytes:
        """Give the body as it was sent."""
        return zlib.decompress(self.body)


@dataclass(frozen=True, slots=True)
class Begun:
    """Carry the request out, then call `finish` with this."""

    request: KeyedRequest
    claim: Claim
    stored: bytes


@dataclass(frozen=True, slots=True)
class Reused:
    """The key was used for another content."""


@dataclass(frozen=True, slots=True)
class UnderWay:
    """Another request with this key is still being carried out."""


Beginning: TypeAlias = Begun | Answer | Reused | UnderWay
_decode: Final = msgspec.msgpack.Decoder(Claim | Answer).decode
_encode: Final = msgspec.msgpack.Encoder().encode


class Idempotency:
    """Remembers answers to keyed mutations. Shared by all threads."""

    def __init__(self, executor: Executor, answers: Answers, *, pause: Callable[[float], None] = time.sleep) -> None:
        self._executor = executor
        self._answers = answers
        self._pause = pause

    def begin(self, request: KeyedRequest) -> Beginning:
        """Claim the key, or say what is known of it. Raises StoreUnavailable, CorruptAggregate."""
        give_up_s = time.monotonic() + WAIT_S
        while True:
            known = self._answers.swap(request.home, request.name, seen=None, put=None)
            judged = None if known.there is None else self._judged(request, known.there, known.now)
            if judged is None:
                claim = self._claim(request, known.now)
                stored = _encode(claim)
                if self._answers.swap(request.home, request.name, seen=known.there, put=stored).done:
                    return Begun(request, claim, stored)
            elif not isinstance(judged, UnderWay) or time.monotonic() >= give_up_s:
                return judged
            self._pause(POLL_S)

    def finish(self, begun: Begun, *, status: int, revision: int, body: bytes) -> None:
        """Remember what was answered: never raises, since the answer is already due.

        A refusal (4xx) changed nothing and frees the key; of a failure (5xx) nobody knows, so the next one looks into the log.
        """
        request, put = begun.request, None
        if status < 400:  # noqa: PLR2004  errors begin here
            put = _encode(
                Answer(fingerprint=request.fingerprint, status=status, revision=revision, body=zlib.compress(body, level=1))
            )
        elif status >= 500:  # noqa: PLR2004  server errors begin here
            put = _encode(structs.replace(begun.claim, deadline=0))
        alone = put is not None and status < 400 and request.action in DELETIONS  # noqa: PLR2004  as above
        try:
            self._answers.swap(request.home, request.name, seen=begun.stored, put=put, alone=alone)
        except StoreError as error:
            log.warning(
                "answer not remembered; a retry will find it in the log", request_id=request.request_id, reason=str(error)
            )

    def _claim(self, request: KeyedRequest, now: int) -> Claim:
        scope = request.scope
        return Claim(
            fingerprint=request.fingerprint,
            token=uuid.uuid4().hex,
            request_id=request.request_id,
            deadline=now + CLAIM_LEASE_MS,
            stream_revision=self._revision(scope.stream if isinstance(scope, GroupKey) else scope),
            group_revision=self._revision(scope) if isinstance(scope, GroupKey) else 0,
        )

    def _judged(self, request: KeyedRequest, there: bytes, now: int) -> Answer | Reused | UnderWay | None:
        """Say what is known of a key; None when a request may be carried out under it (again)."""
        known = _decode(there)
        if known.fingerprint != request.fingerprint:
            return Reused()
        if isinstance(known, Answer):
            return known
        return UnderWay() if now < known.deadline else self._recovered(request, known, there)

    def _recovered(self, request: KeyedRequest, claim: Claim, there: bytes) -> Answer | None:
        """Take the answer of an attempt that did not tell it out of the log, if it committed anything."""
        attempt = Request(
            scope=request.scope,
            action=request.action,
            principal=request.principal,
            request_id=claim.request_id,
            body_sha256=request.body_sha256,
            success_status=request.success_status,
            revisions=(claim.stream_revision, claim.group_revision),
        )
        found = committed_by(self._executor, attempt)
        if found is None:
            return None
        answer = answer_of(request, found)
        self._answers.swap(request.home, request.name, seen=there, put=_encode(answer), alone=request.action in DELETIONS)
        return answer

    def _revision(self, key: AggregateKey) -> int:
        """Give a revision that the aggregate has reached: the latest that is known here without asking, if any is."""
        seen = self._executor.aggregates.cached(key) or self._executor.aggregates.load(key)
        return seen.head.revision


def answer_of(request: KeyedRequest, found: Committed) -> Answer:
    """Give what was, or would have been, answered to a mutation that the log holds."""
    return Answer(
        fingerprint=request.fingerprint,
        status=found.status,
        revision=found.revision,
        body=zlib.compress(msgspec.json.encode(found.view), level=1),
    )


def digest(*parts: str | bytes) -> str:
    """Give the digest of parts, none of which can run into the next."""
    whole = hashlib.sha256()
    for part in parts:
        data = part.encode("utf-8", "surrogatepass") if isinstance(part, str) else part
        whole.update(len(data).to_bytes(8, "big") + data)
    return whole.hexdigest()
