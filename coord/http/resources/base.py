"""What resources share: how an answer leaves, and how a refusal is raised."""

from __future__ import annotations

from typing import Final, TypeVar

import falcon
import msgspec
from msgspec import Struct

from coord.http.errors import RefusedError
from coord.http.request import ApiRequest
from coord.refusals import Refused
from coord.runtime.requests import Result

T = TypeVar("T", bound=Struct)
ENCODER: Final = msgspec.json.Encoder()
REVISION_HEADER: Final = "X-Store-Revision"
REPLICAS_HEADER: Final = "X-Replicas-Confirmed"
DURABILITY_WARNING_HEADER: Final = "X-Durability-Warning"


def granted(result: Refused | Result[T]) -> Result[T]:
    """Give the result, or raise the refusal."""
    if isinstance(result, Refused):
        raise RefusedError(result)
    return result


def answer(resp: falcon.Response, body: Struct) -> None:
    """Answer a struct as JSON."""
    answer_encoded(resp, ENCODER.encode(body))


def answer_encoded(resp: falcon.Response, body: bytes) -> None:
    """Answer what is JSON already."""
    resp.content_type = falcon.MEDIA_JSON
    resp.data = body


def answer_result(req: ApiRequest, resp: falcon.Response, result: Refused | Result[T]) -> None:
    """Answer what a request gave, with the status of its operation; a mutation tells its revision."""
    done = granted(result)
    operation = req.call.operation
    assert operation is not None, "a responder runs for a matched operation only"
    resp.status = operation.success
    if operation.tells_revision:
        resp.set_header(REVISION_HEADER, str(done.revision))
    tell_replicas(req, resp)
    answer(resp, done.value)


def tell_replicas(req: ApiRequest, resp: falcon.Response) -> None:
    """Tell how many replicas have what was committed, where they were waited for; too few is success with a warning."""
    replication = req.call.replication
    replicas = replication.fewest if replication is not None else None
    if replicas is None:
        return
    resp.set_header(REPLICAS_HEADER, str(replicas.confirmed))
    if replicas.confirmed < replicas.wanted:
        warning = (
            f"committed, but only {replicas.confirmed} of {replicas.wanted} replicas confirmed it in time:"
            " a failover now may lose it; do not repeat it, read the state"
        )
        resp.set_header(DURABILITY_WARNING_HEADER, warning)
