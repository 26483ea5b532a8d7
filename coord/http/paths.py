"""What a path says, judged on the bytes that came in where the server shows them.

A decoded path cannot tell an encoded slash from a real one, so gunicorn's `RAW_URI` is read first.
Source: design page `api.md`, "Limits".
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import unquote_to_bytes, urlsplit

_BAD_ENCODING: Final = re.compile(r"%(?![0-9A-Fa-f]{2})")


@dataclass(frozen=True, slots=True, kw_only=True)
class PathParts:
    """Decoded segments, without the empty one after a trailing slash; `fault`: why the path is no legal one, None when it is."""

    segments: tuple[str, ...]
    fault: str | None
    trailing_slash: bool


def path_parts(environ: Mapping[str, Any]) -> PathParts:
    """Take the path of a WSGI request apart."""
    raw = environ.get("RAW_URI") or environ.get("REQUEST_URI")
    if isinstance(raw, str) and raw:
        path = raw.partition("?")[0].partition("#")[0]
        if not path.startswith("/"):
            path = _path_of_absolute(path)
        if _is_plain(path):
            return _assembled(path.split("/"), None)
        fault = "bad percent-encoding" if _BAD_ENCODING.search(path) else None
        bodies = [unquote_to_bytes(segment) for segment in path.encode("latin-1", "replace").split(b"/")]
        if fault is None:
            fault = next((told for told in map(_encoded_fault, bodies) if told), None)
    else:
        path = environ.get("PATH_INFO") or "/"
        if _is_plain(path):
            return _assembled(path.split("/"), None)
        bodies = path.encode("latin-1", "replace").split(b"/")
        fault = next((told for told in map(_encoded_fault, bodies) if told), None)
    return _assembled([body.decode("utf-8", "replace") for body in bodies], fault)


def _is_plain(path: str) -> bool:
    """Say whether a path needs no decoding and has nothing to refuse in its bytes: nearly all do."""
    return path.isascii() and "%" not in path and "\0" not in path


def _path_of_absolute(uri: str) -> str:
    """Give the path of `http://host/path`, which clients send to proxies."""
    try:
        return urlsplit(uri).path or "/"
    except ValueError:
        return uri


def _encoded_fault(body: bytes) -> str | None:
    if b"/" in body:
        return "encoded slash"
    if b"\0" in body:
        return "NUL byte"
    try:
        body.decode("utf-8")
    except UnicodeDecodeError:
        return "bad UTF-8"
    return None


def _assembled(texts: list[str], fault: str | None) -> PathParts:
    if texts and not texts[0]:
        del texts[0]
    trailing_slash = bool(texts) and not texts[-1]
    if trailing_slash:
        del texts[-1]
    if fault is None and not all(texts):
        fault = "empty segment"
    return PathParts(segments=tuple(texts), fault=fault, trailing_slash=trailing_slash)
