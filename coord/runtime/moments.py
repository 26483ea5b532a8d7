"""Points in time as people write them."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Final

MS_MAX: Final = 253_402_300_799_999
"""The last millisecond of the year 9999."""
EXAMPLES: Final = "an ISO-8601 time such as 2026-01-31T12:00:00Z, or milliseconds since 1970"
_MS: Final = re.compile(r"[0-9]{1,15}")


def moment_of(text: str) -> int:
    """Give ms since 1970 of an ISO-8601 time (UTC where it names no offset) or of a number of ms. Raises ValueError."""
    text = text.strip()
    if _MS.fullmatch(text):
        ms = int(text)
    else:
        try:
            moment = datetime.fromisoformat(text.replace(" ", "+") if "T" in text else text)  # a query's plus is a blank
            ms = round((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)
        except (ValueError, OverflowError):
            raise ValueError(f"must be {EXAMPLES}") from None
    if not 0 <= ms <= MS_MAX:
        raise ValueError(f"must be {EXAMPLES}, from 1970 to 9999")
    return ms
