"""Times as people write them, `3s`, and as code keeps them, whole milliseconds."""

from __future__ import annotations

import re
from typing import Final

import durationpy

SECOND_MS: Final = 1_000
MINUTE_MS: Final = 60 * SECOND_MS
HOUR_MS: Final = 60 * MINUTE_MS
DAY_MS: Final = 24 * HOUR_MS

_DURATION = re.compile(r"([0-9]{1,12}(\.[0-9]{1,6})?(ms|s|m|h|d))+")
_UNITS_MS: Final = (("d", DAY_MS), ("h", HOUR_MS), ("m", MINUTE_MS), ("s", SECOND_MS))


def is_duration(text: str) -> bool:
    """Say whether a text is a number with a unit, or several."""
    return _DURATION.fullmatch(text.strip()) is not None


def parse_duration(value: object) -> int:
    """Read `100ms`, `3s`, `1m30s`, `2h`, `7d` as whole milliseconds; ValueError for anything else, negative too."""
    if not isinstance(value, str) or not is_duration(value):
        raise ValueError(value)
    try:
        span = durationpy.from_str(value.strip())
    except (durationpy.DurationError, OverflowError) as error:
        raise ValueError(value) from error
    total_us = (span.days * 86_400 + span.seconds) * 1_000_000 + span.microseconds
    if total_us % 1_000:
        raise ValueError(value)
    return total_us // 1_000


def show_duration(value_ms: int) -> str:
    """Write milliseconds in the largest unit that fits without a rest: 90000 is `90s`, 604800000 is `7d`."""
    for unit, unit_ms in _UNITS_MS:
        if value_ms and value_ms % unit_ms == 0:
            return f"{value_ms // unit_ms}{unit}"
    return f"{value_ms}ms"
