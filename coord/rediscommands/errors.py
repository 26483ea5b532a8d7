"""What can go wrong between here and Redis.

    RedisFault
    ├── Unreachable   no answer in time, or no connection; `sent` tells whether the command may have run
    │   └── Busy      all connections are in use: nothing is wrong with the server
    └── Refused       the server answered with an error: the command was not run

No message holds a password.
"""

from __future__ import annotations


class RedisFault(Exception):
    """Redis did not do what it was asked."""


class Unreachable(RedisFault):
    """No answer came in time. With `sent` the command may have run; without, nothing left this process."""

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(why)
        self.sent = sent


class Busy(Unreachable):
    """No connection became free in time; nothing left this process."""

    def __init__(self, why: str) -> None:
        super().__init__(why, sent=False)


class Refused(RedisFault):
    """An error reply. `code` is its first word: `WRONGTYPE`, `NOSCRIPT`, `OOM`, `READONLY`, `LOADING`, ..."""

    def __init__(self, message: str) -> None:
        super().__init__(message)
        self.code = message.split(" ", 1)[0]
