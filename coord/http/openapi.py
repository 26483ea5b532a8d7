"""The OpenAPI 3.1 document, made from the route table and the structs of `coord.wire`; nothing is written twice."""

from __future__ import annotations

import json
from collections import defaultdict
from typing import Any, Final, get_args

import msgspec

import coord
from coord.http.errors import CHALLENGE, STATUS_OF
from coord.http.resources.base import DURABILITY_WARNING_HEADER, REPLICAS_HEADER
from coord.http.routes import ROUTES, Operation, Query, Route, codes_of
from coord.names import NAME_LENGTH_MAX
from coord.refusals import Code
from coord.runtime.moments import EXAMPLES
from coord.wire import AuditOutcome, ErrorResponse

_JSON: Final = "application/json"
_ERROR_REF: Final = {"$ref": "#/components/schemas/ErrorResponse"}
_PARAMETERS: Final[dict[str, str]] = {
    "streamPrefix": "Names a stream; its shard keys are `{streamPrefix}:{shardIndex}`.",
    "consumerGroup": "Names a group of the stream.",
    "memberId": "Names a member of the group.",
    "reshardingId": "Names a resharding.",
    "name": "Name of a Redis consumer group.",
}
_QUERIES: Final[dict[Query, dict[str, Any]]] = {
    "limit": {
        "description": "Entries of the page; clamped to 1..1000, all when absent (of audit entries 100).",
        "schema": {"type": "integer", "minimum": 1, "maximum": 1000},
    },
    "cursor": {"description": "`nextCursor` of the page before.", "schema": {"type": "string"}},
    "since": {"description": f"No earlier entries: {EXAMPLES}.", "schema": {"type": "string"}},
    "until": {"description": f"Only entries before this time: {EXAMPLES}.", "schema": {"type": "string"}},
    "action": {"description": "Only entries of this action, such as SCALE_STREAM.", "schema": {"type": "string"}},
    "outcome": {"description": "Only entries of this outcome.", "schema": {"enum": list(get_args(AuditOutcome))}},
}
_TAGS: Final[dict[str, str]] = {
    "Authentication": "Tokens.",
    "Groups": "Streams and groups: create, show, delete.",
    "Producer Routing": "Where producers send records.",
    "Resharding": "Changing a stream's shard count.",
    "Members": "What consumers send.",
    "Monitoring": "What operators and dashboards read.",
    "Probes and documentation": "Open to everybody.",
}
_ROLES: Final[dict[str, str]] = {
    "READ": "Needs READ.",
    "WRITE": "Needs WRITE.",
    "MEMBER": "Needs MEMBER when `api.authenticate-member-api` is set, else open.",
}


_IDEMPOTENCY_KEY: Final = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": (
        "The same key with the same content again, by the same caller to the same path, is answered as the first time and"
        " changes nothing; without it an `X-Request-Id` that the caller sends is the key."
    ),
    "schema": {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX, "pattern": "^[ -~]*$"},
}


def description(base_path: str) -> dict[str, Any]:
    """Give the document as JSON values."""
    document: dict[str, Any] = msgspec.json.decode(msgspec.json.encode(_document(base_path)))
    return document


def _document(base_path: str) -> dict[str, Any]:
    structs = {each for route in ROUTES for op in route.operations.values() for each in (op.body, op.reply) if each}
    _, schemas = msgspec.json.schema_components(
        sorted({*structs, ErrorResponse}, key=lambda struct: struct.__name__), ref_template="#/components/schemas/{name}"
    )
    replies = _names_inside({op.reply.__name__ for route in ROUTES for op in route.operations.values() if op.reply}, schemas)
    requests = _names_inside({op.body.__name__ for route in ROUTES for op in route.operations.values() if op.body}, schemas)
    for name in (replies | {"ErrorResponse"}) - requests:
        schemas[name]["required"] = list(schemas[name].get("properties", ()))
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Redis Stream Coordinator",
            "version": coord.__version__,
            "description": "Who reads which shard of a sharded Redis Stream, and where producers write. Times are ISO-8601 UTC.",
            "license": {"name": "MIT", "identifier": "MIT"},
        },
        "servers": [{"url": "/", "description": "This coordinator."}],
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "security": [{"bearerAuth": []}, {"basicAuth": []}],
        "paths": {route.template(base_path): _path_item(route) for route in ROUTES},
        "components": {
            "schemas": schemas,
            "parameters": {name: _path_parameter(name) for name in _PARAMETERS} | {"IdempotencyKey": _IDEMPOTENCY_KEY},
            "headers": {
                "RequestId": {
                    "description": "The id of the request: the caller's X-Request-Id, or one made for it.",
                    "schema": {"type": "string"},
                },
                "IdempotentReplay": {
                    "description": "`true`: the same request came before, this is its answer, and nothing was done now.",
                    "schema": {"const": "true"},
                },
                "StoreRevision": {
                    "description": "The revision that holds what the request did or saw; 0 when unknown.",
                    "schema": {"type": "integer"},
                },
                "ReplicasConfirmed": {
                    "description": "With `store.wait-replicas`: how many replicas have what was committed.",
                    "schema": {"type": "integer", "minimum": 0},
                },
                "DurabilityWarning": {
                    "description": "Committed, but on fewer replicas than `store.wait-replicas`: a failover now may lose it.",
                    "schema": {"type": "string"},
                },
            },
            "securitySchemes": {
                "basicAuth": {"type": "http", "scheme": "basic"},
                "bearerAuth": {"type": "http", "scheme": "bearer", "bearerFormat": "JWT"},
            },
        },
    }


def _names_inside(names: set[str], schemas: dict[str, Any]) -> set[str]:
    """Give these schemas and all that they are made of."""
    found: set[str] = set()
    waiting = list(names)
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            text = json.dumps(schemas[name])
            waiting += [other for other in schemas if f'"#/components/schemas/{other}"' in text]
    return found


def _path_parameter(name: str) -> dict[str, Any]:
    schema = {"type": "string", "minLength": 1, "maxLength": NAME_LENGTH_MAX}
    return {"name": name, "in": "path", "required": True, "description": _PARAMETERS[name], "schema": schema}


def _path_item(route: Route) -> dict[str, Any]:
    item: dict[str, Any] = {method.lower(): _operation(route, operation) for method, operation in route.operations.items()}
    if route.parameters:
        item["parameters"] = [{"$ref": f"#/components/parameters/{name}"} for name in route.parameters]
    return item


def _operation(route: Route, operation: Operation) -> dict[str, Any]:
    told: dict[str, Any] = {"operationId": operation.id, "tags": [operation.tag], "summary": operation.summary}
    if operation.role:
        told["description"] = _ROLES[operation.role]
    if operation.role is None:
        told["security"] = []
    if operation.role == "MEMBER":
        told["security"] = [{}, {"bearerAuth": []}, {"basicAuth": []}]
    parameters = [{"name": name, "in": "query", **_QUERIES[name]} for name in operation.query]
    if operation.body:
        told["requestBody"] = {
            "required": operation.body_required and not operation.body_in_query,
            "content": {_JSON: {"schema": {"$ref": f"#/components/schemas/{operation.body.__name__}"}}},
        }
        if operation.body_in_query:
            told["requestBody"]["description"] = "The same fields may come as query parameters instead."
            parameters += _fields_as_query(operation.body)
    if operation.action:
        parameters.append({"$ref": "#/components/parameters/IdempotencyKey"})
    if parameters:
        told["parameters"] = parameters
    told["responses"] = _responses(route, operation)
    return told


def _fields_as_query(body: type[msgspec.Struct]) -> list[dict[str, Any]]:
    schema = msgspec.json.schema_components([body])[1][body.__name__]
    return [
        {
            "name": name,
            "in": "query",
            "description": "Instead of the body's field.",
            "schema": {key: value for key, value in inner.items() if key != "default"},
        }
        for name, inner in schema["properties"].items()
    ]


def _responses(route: Route, operation: Operation) -> dict[str, Any]:
    headers = {"X-Request-Id": {"$ref": "#/components/headers/RequestId"}}
    revision = {"X-Store-Revision": {"$ref": "#/components/headers/StoreRevision"}} if operation.tells_revision else {}
    if operation.action:
        revision["Idempotent-Replay"] = {"$ref": "#/components/headers/IdempotentReplay"}
        revision[REPLICAS_HEADER] = {"$ref": "#/components/headers/ReplicasConfirmed"}
        revision[DURABILITY_WARNING_HEADER] = {"$ref": "#/components/headers/DurabilityWarning"}
    schema: dict[str, Any] = {"type": "string"} if operation.media_type != _JSON else {"type": "object"}
    if operation.reply:
        schema = {"$ref": f"#/components/schemas/{operation.reply.__name__}"}
    content = {operation.media_type: {"schema": schema}} | {also: {"schema": {"type": "string"}} for also in operation.also}
    told: dict[str, Any] = {
        str(operation.success): {"description": "Done.", "headers": {**headers, **revision}, "content": content}
    }
    for status, text in operation.statuses.items():
        told[str(status)] = {"description": text, "headers": headers}
        if status != 304:  # noqa: PLR2004  Not Modified has no body
            told[str(status)]["content"] = content
    by_status: dict[int, list[Code]] = defaultdict(list)
    for code in codes_of(operation, route.path):
        by_status[STATUS_OF[code]].append(code)
    for status, codes in by_status.items():
        told[str(status)] = {
            "description": ", ".join(f"`{code}`" for code in codes),
            "headers": {**headers, **_headers_of(status)},
            "content": {_JSON: {"schema": _ERROR_REF}},
        }
    return {status: told[status] for status in sorted(told)}


def _headers_of(status: int) -> dict[str, Any]:
    if status in {429, 503}:
        return {"Retry-After": {"description": "Seconds to wait.", "schema": {"type": "integer", "minimum": 1}}}
    if status == 401:  # noqa: PLR2004  Unauthorized
        return {"WWW-Authenticate": {"description": f"`{CHALLENGE}`", "schema": {"type": "string"}}}
    return {}
