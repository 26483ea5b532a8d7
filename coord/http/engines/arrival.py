"""When the bytes that came in on a connection are a whole request.

This decides only how long to wait: what is a request, and where it ends, is the parser's judgement, which gets the bytes
afterwards. What it will refuse anyway is handed to it at once. Knows no socket and no clock.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

REQUEST_LINE_BYTES_MAX: Final = 8190
HEAD_BYTES_MAX: Final = 100 * 8192 + REQUEST_LINE_BYTES_MAX
"""A head that is longer than the parser's limits (100 fields of 8190 bytes) is not waited for."""
_CHUNK_LINE_BYTES_MAX: Final = 8190
_READ_AHEAD_BYTES: Final = 4096
"""The parser reads a little ahead: so much more of a body that is too large must be there, else the body looks torn."""
_FIELDS: Final = re.compile(rb"\r\n(content-length|transfer-encoding|expect):[ \t]*([^\r\n]*)", re.IGNORECASE)
_CHUNK_SIZE: Final = re.compile(rb"([0-9A-Fa-f]{1,12})[ \t]*(?:;.*)?", re.DOTALL)
_LENGTH_DIGITS_MAX: Final = 12
_HEAD_END: Final = b"\r\n\r\n"
_LINE_END: Final = b"\r\n"


class Arrival:
    """The bytes of one connection that no request was made of yet.

    `is_whole`: there is a request to take. `is_cut`: its end is not known or not waited for (a body that is too large, bad
    framing), so the connection cannot go on after its answer. `wants_continue`: the sender waits for a "100 Continue".
    """

    def __init__(self, max_body_bytes: int) -> None:
        self._max_body_bytes = max_body_bytes
        self._buffer = bytearray()
        self._begin()

    def __len__(self) -> int:
        return len(self._buffer)

    def feed(self, data: bytes) -> None:
        """Add bytes."""
        self._buffer += data
        self._advance()

    def take(self) -> bytes:
        """Give the request that is whole, and go on with what came after it."""
        assert self.is_whole, "only a whole request is taken"
        end = len(self._buffer) if self.is_cut else self._at
        data = bytes(self._buffer[:end])
        del self._buffer[:end]
        self._begin()
        self._advance()
        return data

    def _begin(self) -> None:
        self.is_whole = False
        self.is_cut = False
        self.wants_continue = False
        self._step: Callable[[], bool] = self._head
        self._at = 0
        self._body_at = 0
        self._decoded = 0
        self._length = 0

    def _advance(self) -> None:
        while not self.is_whole and self._step():
            pass

    def _head(self) -> bool:
        """Look for the end of the head; `_at` is where to look on."""
        buffer = self._buffer
        end = buffer.find(_HEAD_END, max(0, self._at - len(_HEAD_END) + 1))
        if end >= 0:
            return self._framed(bytes(buffer[:end]), end + len(_HEAD_END))
        has_bare_line_feed = buffer.count(b"\n", self._at) != buffer.count(_LINE_END, max(0, self._at - 1))
        is_endless_line = len(buffer) > REQUEST_LINE_BYTES_MAX + len(_LINE_END) and b"\n" not in buffer
        if has_bare_line_feed or is_endless_line or len(buffer) > HEAD_BYTES_MAX:
            return self._cut()
        self._at = len(buffer)
        return False

    def _framed(self, head: bytes, body_at: int) -> bool:
        """Find out how the body is framed."""
        lengths: list[bytes] = []
        codings: list[bytes] = []
        for name, value in _FIELDS.findall(head):
            kind = name.lower()
            if kind == b"expect":
                self.wants_continue = value.strip().lower() == b"100-continue"
            else:
                (lengths if kind == b"content-length" else codings).append(value.strip().lower())
        self._at = self._body_at = body_at
        if codings:
            self._step = self._chunk_line
            return self._cut() if lengths or not codings[-1].endswith(b"chunked") else True
        if not lengths:
            return self._whole(body_at)
        if len(lengths) > 1 or not lengths[0].isdigit() or len(lengths[0]) > _LENGTH_DIGITS_MAX:
            return self._cut()
        self._length = int(lengths[0])
        if self._length > self._max_body_bytes:
            return self._cut()
        self._step = self._sized_body
        return True

    def _sized_body(self) -> bool:
        end = self._body_at + self._length
        return self._whole(end) if len(self._buffer) >= end else False

    def _chunk_line(self) -> bool:
        """Read the line before a chunk at `_at`."""
        end = self._buffer.find(_LINE_END, self._at)
        if end < 0:
            return self._cut() if len(self._buffer) - self._at > _CHUNK_LINE_BYTES_MAX else self._is_too_long()
        found = _CHUNK_SIZE.fullmatch(self._buffer, self._at, end)
        if found is None:
            return self._cut()
        self._at = end + len(_LINE_END)
        self._length = int(found[1], 16)
        self._step = self._chunk if self._length else self._trailers
        return True

    def _chunk(self) -> bool:
        end = self._at + self._length + len(_LINE_END)
        if len(self._buffer) < end:
            there = self._decoded + len(self._buffer) - self._at
            return self._cut() if there > self._max_body_bytes + _READ_AHEAD_BYTES else self._is_too_long()
        if self._buffer[end - len(_LINE_END) : end] != _LINE_END:
            return self._cut()
        self._decoded += self._length
        self._at = end
        self._step = self._chunk_line
        return self._cut() if self._decoded > self._max_body_bytes + _READ_AHEAD_BYTES else True

    def _trailers(self) -> bool:
        if self._buffer.startswith(_LINE_END, self._at):
            return self._whole(self._at + len(_LINE_END))
        end = self._buffer.find(_HEAD_END, self._at)
        return self._whole(end + len(_HEAD_END)) if end >= 0 else self._is_too_long()

    def _is_too_long(self) -> bool:
        """Give up on a chunked body whose framing is longer than what it carries; what is missing is waited for else."""
        return self._cut() if len(self._buffer) - self._body_at > 2 * self._max_body_bytes + HEAD_BYTES_MAX else False

    def _whole(self, end: int) -> bool:
        self._at = end
        self.is_whole = True
        return True

    def _cut(self) -> bool:
        self.is_cut = self.is_whole = True
        return True
