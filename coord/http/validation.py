"""What is wrong with a decoded JSON value, field by field, against a struct of `coord.wire`.

Only the slow path comes here: a body that decodes at once has nothing to list. Source: design page `api.md`, "Limits".
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from functools import cache
from types import MappingProxyType
from typing import Final

import msgspec
from msgspec import inspect

from coord import wire
from coord.names import TEXT_LENGTH_MAX, name_fault, text_fault

FAULTS_MAX: Final = 50
"""A body can be wrong in a million places; the answer names so many."""

TextCheck = Callable[[str], str | None]


def note_fault(text: str) -> str | None:
    """Say what is wrong with a free text (a reason); unlike a name it may have several lines."""
    return text_fault(text.translate({9: " ", 10: " ", 13: " "}), length_max=TEXT_LENGTH_MAX)


def detail_fault(text: str) -> str | None:
    """Say what is wrong with a short text that may be empty (a time, a record id, a key)."""
    return text_fault(text, length_max=TEXT_LENGTH_MAX) if text else None


_WHO_AND_WHY: Final[Mapping[str, TextCheck]] = MappingProxyType({"requestedBy": text_fault, "reason": note_fault})
TEXT_CHECKS: Final[Mapping[type[msgspec.Struct], Mapping[str, TextCheck]]] = MappingProxyType(
    {
        wire.CreateStreamRequest: _WHO_AND_WHY,
        wire.CreateGroupRequest: _WHO_AND_WHY,
        wire.AdoptStreamRequest: _WHO_AND_WHY,
        wire.ScaleRequest: {**_WHO_AND_WHY, "deprecatedAfter": note_fault},
        wire.DeleteGroupRequest: _WHO_AND_WHY,
        wire.RollbackMigrationRequest: _WHO_AND_WHY,
        wire.CompleteMigrationRequest: _WHO_AND_WHY,
        wire.HeartbeatRequest: {"requestId": text_fault, "memberId": name_fault, "memberName": text_fault},
        wire.RevokingShard: {"ackedAt": detail_fault},
        wire.ShardProgress: dict.fromkeys(("streamKey", "lastDeliveredId", "lastAckedId", "updatedAt"), detail_fault),
    }
)
"""What the types cannot say: which characters a text may have. By struct, then by field as it is called on the wire."""


def faults_of(value: object, expected: type[msgspec.Struct]) -> list[str]:
    """List `field: message` for everything that is wrong with a decoded JSON value, at most `FAULTS_MAX` of them."""
    listed: list[str] = []
    for fault in _walk(value, _type_info(expected), ""):
        if len(listed) == FAULTS_MAX:
            listed.append("body: more is wrong than is listed here")
            break
        listed.append(fault)
    return listed


@cache
def checked_fields(struct: type[msgspec.Struct]) -> tuple[tuple[str, str, TextCheck], ...]:
    """Give (attribute, name on the wire, check) of a struct's checked texts."""
    checks = TEXT_CHECKS.get(struct, {})
    return tuple(
        (each.name, each.encode_name, checks[each.encode_name])
        for each in msgspec.structs.fields(struct)
        if each.encode_name in checks
    )


def text_faults(struct: msgspec.Struct, path: str = "") -> Iterator[str]:
    """Yield what is wrong with the texts of a struct that is right in every other way (not of structs inside it)."""
    for attribute, name, check in checked_fields(type(struct)):
        text = getattr(struct, attribute)
        if text is not None and (fault := check(text)):
            yield f"{path}{name}: {fault}"


@cache
def _type_info(expected: type[msgspec.Struct]) -> inspect.Type:
    return inspect.type_info(expected)


def _walk(value: object, expected: inspect.Type, path: str) -> Iterator[str]:
    match expected:
        case inspect.UnionType():
            if value is not None:
                yield from _walk(value, next(each for each in expected.types if not isinstance(each, inspect.NoneType)), path)
        case inspect.StructType():
            yield from _walk_struct(value, expected, path)
        case inspect.VarTupleType():
            yield from _walk_list(value, expected, path)
        case inspect.RawType():
            return  # judged by itself, by whoever takes the list apart
        case _:
            if fault := _leaf_fault(value, expected):
                yield f"{path or 'body'}: {fault}"


def _walk_struct(value: object, expected: inspect.StructType, path: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{path or 'body'}: must be a JSON object"
        return
    checks = TEXT_CHECKS.get(expected.cls, {})
    for field in expected.fields:
        name = f"{path}.{field.encode_name}" if path else field.encode_name
        if field.encode_name not in value:
            if field.required:
                yield f"{name}: is required"
            continue
        inner = value[field.encode_name]
        if inner is None and not field.required:
            continue
        faults = list(_walk(inner, field.type, name))
        yield from faults
        check = checks.get(field.encode_name)
        if check and not faults and isinstance(inner, str) and (fault := check(inner)):
            yield f"{name}: {fault}"


def _walk_list(value: object, expected: inspect.VarTupleType, path: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{path}: must be a list"
        return
    if expected.max_length is not None and len(value) > expected.max_length:
        yield f"{path}: must have at most {expected.max_length} entries"
        return
    if len(value) < (expected.min_length or 0):
        yield f"{path}: must not be empty"
        return
    for index, item in enumerate(value):
        yield from _walk(item, expected.item_type, f"{path}[{index}]")


def _leaf_fault(value: object, expected: inspect.Type) -> str | None:
    if value is None:
        return "must not be null"
    match expected:
        case inspect.IntType():
            return _number_fault(value, expected)
        case inspect.StrType():
            return _string_fault(value, expected)
        case inspect.BoolType():
            return None if isinstance(value, bool) else "must be true or false"
        case inspect.LiteralType():
            is_one = isinstance(value, str) and value in expected.values
            return None if is_one else f"must be one of {', '.join(map(str, expected.values))}"
        case _:
            raise AssertionError(f"{expected} stands in a request, and nothing here judges it")


def _number_fault(value: object, expected: inspect.IntType) -> str | None:
    if type(value) is not int:
        return "must be a whole number"
    low, high = expected.ge, expected.le
    inside = (low is None or value >= low) and (high is None or value <= high)
    return None if inside else f"must be from {low} to {high}"


def _string_fault(value: object, expected: inspect.StrType) -> str | None:
    if not isinstance(value, str):
        return "must be a text"
    if len(value) < (expected.min_length or 0):
        return "must not be empty"
    if expected.max_length is not None and len(value) > expected.max_length:
        return f"must be at most {expected.max_length} characters"
    return None
