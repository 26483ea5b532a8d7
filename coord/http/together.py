"""Heartbeats that one thread answers in one go: each is run through the app up to its answer, then one touch confirms them all.

A server that has several heartbeats at hand puts a `Foreseeing` into the environment of each. What changes nothing is then
answered as it will be if the store confirms it, and the server holds the answer back until then [R]. What cannot be answered
without waiting is `Declined`, and is run once more in a thread of its own. So no thread waits for another: under load those
waits cost more than the work. Source: design page `performance.md`, "Combine".
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, TypeAlias

from coord.core.commands import Heartbeat
from coord.names import GroupKey
from coord.runtime.coordinator import Answered, Coordinator
from coord.runtime.heartbeats import Foreseen
from coord.store.base import StoreError

FORESEEING: Final = "coord.foreseeing"
"""The key of the WSGI environment."""
Wsgi: TypeAlias = Callable[[dict[str, Any], Any], Iterable[bytes]]


class Declined(BaseException):
    """This request may have to wait for something. No failure, so that nothing on the way takes it for one."""


class Foreseeing:
    """One request that is answered together with others.

    `found`: on what its answer rests; None: on nothing that has to be confirmed. `failure`: why it could not be confirmed, which
    is the answer when the request is run once more.
    """

    def __init__(self) -> None:
        self.coordinator: Coordinator | None = None
        self.found: Foreseen | None = None
        self.failure: StoreError | None = None

    def heartbeat(self, coordinator: Coordinator, key: GroupKey, command: Heartbeat, report: bytes | None) -> Answered:
        """Answer a heartbeat. Raises Declined for one that changes something, or may."""
        if self.found is not None and self.failure is not None:
            return coordinator.answered(self.found, self.failure)
        self.coordinator, self.found = coordinator, coordinator.foresee(key, command, report)
        if self.found is None:
            raise Declined
        return coordinator.answered(self.found)


def confirmed(requests: Sequence[Foreseeing]) -> list[bool]:
    """Say of each whether its answer may be sent; the others have to be run once more, those with a `failure` to tell it."""
    found = [each.found for each in requests if each.found is not None]
    coordinator = next((each.coordinator for each in requests if each.coordinator is not None), None)
    outcomes = iter(coordinator.confirm(found) if coordinator is not None and found else ())
    holding: list[bool] = []
    for each in requests:
        outcome = next(outcomes) if each.found is not None else True
        each.failure = outcome if isinstance(outcome, StoreError) else None
        holding.append(outcome is True)
    return holding


def foreseen(app: Wsgi, *, of: Callable[[dict[str, Any]], Foreseeing | None]) -> Wsgi:
    """Put into the environment of each request what it is run with."""

    def run(environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        environ[FORESEEING] = of(environ)
        return app(environ, start_response)

    return run


def is_heartbeat(request: bytes) -> bool:
    """Tell by its first line whether a request is the heartbeat of one member. What it really is, the app says."""
    return request.startswith(b"POST ") and b"/heartbeat HTTP/1." in request[: max(request.find(b"\r"), 0)]
