"""From the bytes of a request to a checked struct; every wrong field is named at once.

Order: media type, then the names in the path together with the body's fields. Source: design page `api.md`, "Limits".
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any, Final, TypeVar, get_args
from urllib.parse import parse_qsl

import msgspec
from msgspec import Struct

from coord import wire
from coord.http.errors import invalid, refusal
from coord.http.gate import too_large
from coord.http.request import ApiRequest
from coord.http.validation import faults_of, text_faults
from coord.names import name_fault
from coord.refusals import Code
from coord.runtime.auditreading import Wanted
from coord.runtime.moments import moment_of

T = TypeVar("T", bound=Struct)

LIMIT_MAX: Final = 1000
_QUERY_FIELDS_MAX: Final = 64
_CURSOR_LENGTH_MAX: Final = 2048
_WHOLE_NUMBER: Final = re.compile(r"[+-]?[0-9]+")
_DIGITS_MAX: Final = 12
"""More digits than any limit has; Python refuses to read numbers of thousands of digits."""
_JSON: Final = re.compile(r"application/(json|[\w.+-]+\+json)", re.IGNORECASE)
_UNICODE_CHARSETS: Final = frozenset({"utf-8", "utf8", "us-ascii"})
_NOT_SUMMARIZED: Final = frozenset({"requestedBy", "reason"})
_ACTION: Final = re.compile(r"[A-Z_]{1,64}")
_OUTCOMES: Final[tuple[str, ...]] = get_args(wire.AuditOutcome)
_PLAIN: Final = re.compile(r"[\w.:$/+-]*")
_CAMEL: Final = re.compile(r"_(\w)")
_decoders: dict[type[Struct], msgspec.json.Decoder[Any]] = {}


def read(req: ApiRequest, body_type: type[T], *, max_body_bytes: int) -> T:
    """Give the checked body, having judged the path's names too. Raises the 400, 413 or 415."""
    faults = path_faults(req.call.params)
    body = _json_body(req, max_body_bytes)
    operation = req.call.operation
    if not body and operation is not None and operation.body_in_query:
        value, wrong = _converted(_query_object(req, body_type), body_type)
    else:
        value, wrong = decoded(body, body_type)
    if faults or wrong or value is None:
        raise invalid([*faults, *wrong])
    _note(req, value)
    return value


def read_optional(req: ApiRequest, body_type: type[T], *, max_body_bytes: int) -> T | None:
    """Give the checked body, or None where there is none."""
    body = _json_body(req, max_body_bytes)
    if not body:
        return None
    value, wrong = decoded(body, body_type)
    if wrong or value is None:
        raise invalid(wrong)
    return value


def check_names(req: ApiRequest) -> None:
    """Judge the names of a path that comes without a body. Raises the 400."""
    if faults := path_faults(req.call.params):
        raise invalid(faults)


def path_faults(params: Mapping[str, str]) -> list[str]:
    """List what is wrong with the names in a path."""
    return [f"{_camel(name)}: {fault}" for name, text in params.items() if (fault := name_fault(text))]


def read_page(req: ApiRequest) -> tuple[int | None, str | None]:
    """Give `limit` (clamped to 1..1000; None: all) and `cursor` (None: from the start). Raises the 400."""
    query, faults = _query(req)
    page = _page(query, faults)
    if faults:
        raise invalid(faults)
    return page


def read_audit_query(req: ApiRequest) -> tuple[Wanted, int | None, str | None]:
    """Give which audit entries are wanted, and the page as of `read_page`; blank means any. Raises the 400."""
    query, faults = _query(req)
    given = {name: text for name, text in query.items() if text.strip()}
    times: dict[str, int] = {}
    for name in ("since", "until"):
        try:
            if name in given:
                times[name] = moment_of(given[name])
        except ValueError as error:
            faults.append(f"{name}: {error}")
    action, outcome = given.get("action"), given.get("outcome")
    if action is not None and not _ACTION.fullmatch(action):
        faults.append("action: must be capital letters and underscores, such as SCALE_STREAM")
    if outcome is not None and outcome not in _OUTCOMES:
        faults.append(f"outcome: must be one of {', '.join(_OUTCOMES)}")
    limit, cursor = _page(query, faults)
    if faults:
        raise invalid(faults)
    return Wanted(since=times.get("since"), until=times.get("until"), action=action, outcome=outcome), limit, cursor


def _page(query: Mapping[str, str], faults: list[str]) -> tuple[int | None, str | None]:
    limit: int | None = None
    if "limit" in query:
        text = query["limit"].strip()
        if not _WHOLE_NUMBER.fullmatch(text):
            faults.append("limit: must be a whole number")
        elif len(text) > _DIGITS_MAX:
            limit = 1 if text.startswith("-") else LIMIT_MAX
        else:
            limit = min(max(int(text), 1), LIMIT_MAX)
    cursor = query.get("cursor") or None
    if cursor is not None and len(cursor) > _CURSOR_LENGTH_MAX:
        faults.append(f"cursor: must be at most {_CURSOR_LENGTH_MAX} characters")
    return limit, cursor


def decoded(body: bytes, body_type: type[T]) -> tuple[T | None, list[str]]:
    """Give the struct that a body holds, and what is wrong with it."""
    decoder = _decoders.get(body_type)
    if decoder is None:
        decoder = _decoders[body_type] = msgspec.json.Decoder(body_type)
    try:
        value: T = decoder.decode(body)
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        return None, _what_is_wrong(body, body_type, error)
    return value, list(_heartbeat_faults(value, body) if isinstance(value, wire.HeartbeatRequest) else text_faults(value))


def _heartbeat_faults(value: wire.HeartbeatRequest, body: bytes) -> Iterator[str]:
    if body.isascii() and b"\\" not in body and b"\x7f" not in body:
        # No text of such a body can hold a control character or a lone surrogate, and lengths are the types': what is left
        # is that the memberId is a name. Nearly all heartbeats end here.
        if fault := name_fault(value.member_id):
            yield f"memberId: {fault}"
    else:
        yield from text_faults(value)
        for index, revoking in enumerate(value.revoking_shards or ()):
            yield from text_faults(revoking, f"revokingShards[{index}].")
        for index, progress in enumerate(value.shard_progress or ()):
            yield from text_faults(progress, f"shardProgress[{index}].")
    yield from _contradictions(value)


def _contradictions(request: wire.HeartbeatRequest) -> Iterator[str]:
    """Two states for one shard cannot both be true; the same one twice is only said twice."""
    seen: dict[int, str] = {}
    for index, revoking in enumerate(request.revoking_shards or ()):
        shard = revoking.shard.shard_index
        if seen.setdefault(shard, revoking.state) != revoking.state:
            yield f"revokingShards[{index}].state: shard {shard} is {seen[shard]} already, one shard has one state"


def _what_is_wrong(body: bytes, body_type: type[Struct], error: Exception) -> list[str]:
    if not body.strip():
        return ["body: is required, a JSON object"]
    if isinstance(error, RecursionError):
        return ["body: is nested too deeply"]
    try:
        generic = msgspec.json.decode(body)
    except RecursionError:
        return ["body: is nested too deeply"]
    except (msgspec.DecodeError, ValueError) as syntax_error:
        return [f"body: is no valid JSON in UTF-8: {syntax_error}"]
    return faults_of(generic, body_type) or [f"body: {error}"]


def _converted(value: Mapping[str, object], body_type: type[T]) -> tuple[T | None, list[str]]:
    if faults := faults_of(value, body_type):
        return None, faults
    return msgspec.convert(value, body_type), []


def _query_object(req: ApiRequest, body_type: type[Struct]) -> dict[str, object]:
    """Give the query parameters that are fields of a struct, truth values read."""
    query, faults = _query(req)
    if faults:
        raise invalid(faults)
    truth = {"true": True, "false": False}
    flags = {"force", "destroyConsumerGroups"}
    known = {field.encode_name for field in msgspec.structs.fields(body_type)}
    return {name: truth.get(text, text) if name in flags else text for name, text in query.items() if name in known}


def _query(req: ApiRequest) -> tuple[dict[str, str], list[str]]:
    faults: list[str] = []
    query: dict[str, str] = {}
    try:
        pairs = parse_qsl(req.query_string, keep_blank_values=True, errors="strict", max_num_fields=_QUERY_FIELDS_MAX)
    except ValueError:
        return {}, ["query: is not well-formed UTF-8, or has too many parameters"]
    for name, text in pairs:
        if query.setdefault(name, text) != text:
            faults.append(f"{name if name.isprintable() else 'query'}: is given twice")
    return query, faults


def _json_body(req: ApiRequest, max_body_bytes: int) -> bytes:
    body = body_bytes(req, max_body_bytes)
    if req.call.operation is not None and req.call.operation.action:  # what is not audited needs no hash
        req.note_body(body)
    if not body:
        return body
    encoding = (req.env.get("HTTP_CONTENT_ENCODING") or "identity").strip().lower()
    if encoding != "identity":
        raise refusal(Code.UNSUPPORTED_MEDIA_TYPE, "the body must not be compressed")
    if not _is_json(req.content_type):
        raise refusal(Code.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json in UTF-8")
    return body


def _is_json(content_type: str | None) -> bool:
    """Say whether a media type is JSON in UTF-8; a body without one is taken for JSON."""
    if not content_type or not content_type.strip():
        return True
    media_type, *parameters = (part.strip() for part in content_type.split(";"))
    if not _JSON.fullmatch(media_type):
        return False
    charsets = [
        value.strip().strip("\"'").lower()
        for name, _, value in (p.partition("=") for p in parameters)
        if name.strip().lower() == "charset"
    ]
    return all(charset in _UNICODE_CHARSETS for charset in charsets)


def body_bytes(req: ApiRequest, max_body_bytes: int) -> bytes:
    """Read the body. Raises the 400 for one that ends early or cannot be read, the 413."""
    length = req.content_length
    if length is None and not req.env.get("wsgi.input_terminated"):
        return b""
    wanted = max_body_bytes + 1 if length is None else length
    try:
        body = bytes(req.env["wsgi.input"].read(wanted))
    except Exception as error:  # whatever breaks while reading is the sender's: broken chunks, a cut connection
        raise invalid([f"body: could not be read ({type(error).__name__})"]) from error
    if len(body) > max_body_bytes:
        raise too_large(max_body_bytes)
    if length is not None and len(body) < length:
        raise invalid([f"body: ended after {len(body)} of {length} bytes"])
    return body


def _note(req: ApiRequest, value: Struct) -> None:
    """Keep for the audit entry who asks, why, and for what."""
    call = req.call
    call.requested_by = getattr(value, "requested_by", None)
    call.reason = getattr(value, "reason", None)
    if call.operation is not None and call.operation.action:
        told = {field.encode_name: getattr(value, field.name) for field in msgspec.structs.fields(value)}
        call.summary = " ".join(
            f"{name}={_told(text)}" for name, text in told.items() if text is not None and name not in _NOT_SUMMARIZED
        )


def _told(value: object) -> str:
    """Write a field's value for the record; a text that could be taken for more than itself is quoted."""
    text = str(value)
    return text if _PLAIN.fullmatch(text) else msgspec.json.encode(text).decode()


def _camel(name: str) -> str:
    return _CAMEL.sub(lambda match: match[1].upper(), name)
