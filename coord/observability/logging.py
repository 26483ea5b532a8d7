"""Logs: one JSON object a line on stdout, everybody's lines through the same pipeline, no secret in any of them.

Our own code logs with `structlog.get_logger()`, libraries (gunicorn, redis-py, …) with the standard library; both end
in one handler of the root logger. Call sites may write the fields of the design page in snake_case: they leave in
camelCase (`stream_prefix` as `streamPrefix`). There is no thread and no queue, so nothing is lost at a fork.
"""

from __future__ import annotations

import logging
import math
import re
import sys
from typing import TYPE_CHECKING, Final, Literal, TextIO

import structlog

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

    from structlog.typing import EventDict, Processor, WrappedLogger

LogFormat = Literal["json", "console"]
LEVELS: Final[Mapping[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
}
FIELD_NAMES: Final[Mapping[str, str]] = {
    "stream_prefix": "streamPrefix",
    "consumer_group": "consumerGroup",
    "coordinator_id": "coordinatorId",
    "group_epoch": "groupEpoch",
    "assignment_epoch": "assignmentEpoch",
    "member_id": "memberId",
    "member_epoch": "memberEpoch",
    "event_type": "eventType",
    "requested_by": "requestedBy",
    "resharding_id": "reshardingId",
    "request_id": "requestId",
}
"""The fields of the design page whose names have two words, as code writes them and as they are logged."""

MASK: Final = "******"
VALUE_LENGTH_MAX: Final = 16_384
DEPTH_MAX: Final = 8
ENTRIES_MAX: Final = 1_000
PAIR: Final = 2

_SECRET_KEY = re.compile(
    r"passw(or)?d|passphrase|secret|token|authori[sz]ation|cookie|credential|(api|private|signing)[-_]?key|\bauth\b",
    re.IGNORECASE,
)
_TELLING_NAME: Final = (
    r"(?<![\w.-])[\w.-]*(?:passw(?:or)?d|passphrase|secret|token|authori[sz]ation|cookie|api[-_]?key|private[-_]?key)"
)
_URL_CREDENTIALS = re.compile(r"(?<![a-z0-9+.-])(?P<scheme>[a-z][a-z0-9+.-]*://)[^\s\"'<>]{0,512}@", re.IGNORECASE)
_SCHEME_TOKEN = re.compile(r"\b(?P<scheme>Bearer|Basic)\s+[\w.~+/=-]{4,}", re.IGNORECASE)
_JWT = re.compile(r"(?<![\w-])eyJ[\w-]{4,}\.[\w-]*\.[\w-]*")
_QUOTED: Final = r"""b?(?:"(?:[^"\\]|\\++.)*+"?|'(?:[^'\\]|\\++.)*+'?)"""
"""A quoted text of any depth of escaping, also one that was cut off before its end."""
_ASSIGNMENT = re.compile(
    rf"""(?P<start>{_TELLING_NAME}[\w-]{{0,32}}(?:\\*["']?\s*[=:]\s*\\*|["']\s*,\s*(?=b?["'])))(?:{_QUOTED}|[^\s,;&"'}}\])]+)""",
    re.IGNORECASE | re.DOTALL,
)
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ud800-\udfff]")
"""What starts a line, colours a terminal, or turns the order of what is read."""


def configure(
    log_format: LogFormat = "json", level: str = "info", *, coordinator_id: str = "", stream: TextIO | None = None
) -> None:
    """Send all logs of this process, and of what it forks, as `log_format` to `stream` (default: stdout of the moment).

    `coordinator_id` is put on each line when not empty. May be called again; the last call holds. Raises ValueError
    for an unknown format or level.
    """
    if log_format not in {"json", "console"}:
        message = f"log format {log_format!r} is not allowed: json or console"
        raise ValueError(message)
    threshold = LEVELS.get(level.strip().lower())
    if threshold is None:
        message = f"log level {level!r} is not allowed: one of {', '.join(LEVELS)}"
        raise ValueError(message)
    before: list[Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.stdlib.add_log_level,
        structlog.stdlib.add_logger_name,
        structlog.processors.TimeStamper(fmt="iso", utc=True, key="timestamp"),
        _Identity(coordinator_id),
    ]
    structlog.configure(
        processors=[*before, structlog.stdlib.ProcessorFormatter.wrap_for_formatter],
        wrapper_class=structlog.make_filtering_bound_logger(threshold),
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=False,
    )
    handler = _StdoutHandler(sys.stdout) if stream is None else logging.StreamHandler(stream)
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=[*before, structlog.stdlib.ExtraAdder(), _drop_formatted],
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                structlog.processors.StackInfoRenderer(),
                structlog.processors.format_exc_info,
                name_fields,
                redact,
                *_renderers(log_format, colors=(stream or sys.stdout).isatty()),
            ],
        )
    )
    root = logging.getLogger()
    for old in list(root.handlers):
        if isinstance(old.formatter, structlog.stdlib.ProcessorFormatter):
            root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(threshold)
    logging.captureWarnings(capture=True)


def _renderers(log_format: LogFormat, *, colors: bool) -> list[Processor]:
    if log_format == "console":
        return [
            escape,
            structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
        ]
    return [structlog.processors.JSONRenderer()]


class _StdoutHandler(logging.StreamHandler[TextIO]):
    """Writes to whatever `sys.stdout` is at the time of the line, also after it was replaced."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line; called under the handler's lock."""
        self.stream = sys.stdout
        super().emit(record)


class _Identity:
    """Puts the coordinator's id on each line."""

    def __init__(self, coordinator_id: str) -> None:
        self.coordinator_id = coordinator_id

    def __call__(self, _logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
        if self.coordinator_id:
            event_dict.setdefault("coordinatorId", self.coordinator_id)
        return event_dict


def _drop_formatted(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Leave out what another handler's formatter wrote onto the record: the event says it already."""
    return {key: value for key, value in event_dict.items() if key not in {"message", "asctime"}}


def name_fields(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Give the known fields their logged names."""
    return {FIELD_NAMES.get(key, key): value for key, value in event_dict.items()}


def redact(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Hide what looks like a secret: values under telling keys, credentials in URLs, tokens in any text."""
    return {key: value if key == "level" else _clean(key, value, 0) for key, value in event_dict.items()}


def _clean(key: str, value: object, depth: int) -> object:
    if isinstance(value, bool) or value is None:
        return value
    if _SECRET_KEY.search(key):
        return MASK if value not in ("", b"") else value
    if isinstance(value, int) or (isinstance(value, float) and math.isfinite(value)):
        return value
    if isinstance(value, dict | list | tuple | set | frozenset):
        return _clean_inside(value, depth) if depth < DEPTH_MAX else "…"
    return redact_text(value if isinstance(value, str) else repr(value))


def _clean_inside(value: dict[object, object] | Collection[object], depth: int) -> object:
    if isinstance(value, dict):
        return {str(name): _clean(str(name), inner, depth + 1) for name, inner in list(value.items())[:ENTRIES_MAX]}
    if isinstance(value, tuple) and len(value) == PAIR and isinstance(value[0], str | bytes):  # a header, a parameter
        name = value[0] if isinstance(value[0], str) else value[0].decode("latin-1")
        return [redact_text(name), _clean(name, value[1], depth + 1)]
    return [_clean("", inner, depth + 1) for inner in list(value)[:ENTRIES_MAX]]


def redact_text(text: str) -> str:
    """Return a text with credentials in URLs, tokens and `password=…` replaced by `******`, and of bounded length."""
    if len(text) > VALUE_LENGTH_MAX:
        text = text[:VALUE_LENGTH_MAX] + "…"
    text = _URL_CREDENTIALS.sub(rf"\g<scheme>{MASK}@", text)
    text = _SCHEME_TOKEN.sub(rf"\g<scheme> {MASK}", text)
    text = _JWT.sub(MASK, text)
    return _ASSIGNMENT.sub(rf"\g<start>{MASK}", text)


def escape(_logger: WrappedLogger, _method: str, event_dict: EventDict) -> EventDict:
    """Write control characters as escapes, so that no value starts a line or colours the terminal; JSON does it itself.

    Tracebacks keep their lines.
    """
    return {key: value if key in {"exception", "stack"} else _escaped(value) for key, value in event_dict.items()}


def _escaped(value: object) -> object:
    if not isinstance(value, str):
        return value
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode("ascii"), value)
