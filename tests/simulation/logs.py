"""What the simulated coordinators log: nothing, but that an exception which nobody expected ends the run."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any

import structlog

from tests.simulation.checkers import Violation


def end_at_surprises(*, for_good: bool = True) -> None:
    """Drop what is logged. The ticker survives any exception and logs it: here that is a violation, with its cause.

    `for_good`: loggers that were used once stay so, which is faster, in a process that does nothing else.
    """
    structlog.configure(
        processors=[_judge],
        wrapper_class=structlog.make_filtering_bound_logger(logging.ERROR),
        cache_logger_on_first_use=for_good,
    )


def _judge(_logger: object, _method: str, event: MutableMapping[str, Any]) -> MutableMapping[str, Any]:
    if event.get("exc_info"):
        raise Violation("surprise", f"{event['event']}: an exception that nobody expected")
    raise structlog.DropEvent
