"""The API description is valid, and says of every route what the app does."""

from __future__ import annotations

import json
import re
from importlib import resources

import pytest
from openapi_spec_validator import validate

from coord.http.app import create_app
from coord.http.errors import STATUS_OF
from coord.http.openapi import description
from coord.http.routes import ROUTES, Route, codes_of
from tests.http.face import BASE, Face, heartbeat

DESCRIPTION = description(BASE)
OPERATIONS = [
    (path, method, op) for path, item in DESCRIPTION["paths"].items() for method, op in item.items() if method != "parameters"
]


def test_the_description_is_valid_openapi() -> None:
    assert DESCRIPTION["openapi"].startswith("3.1.")
    validate(DESCRIPTION)


def test_every_route_is_described_and_everything_described_is_a_route(face: Face) -> None:
    """Falcon answers each described operation, and has no route that is not described."""
    described = {(path, method.upper()) for path, method, _ in OPERATIONS}
    assert described == {(route.template(BASE), method) for route in ROUTES for method in route.operations}
    for route in ROUTES:
        filled = re.sub(r"\{\w+\}", "x", route.template(BASE))
        found = face.app._router.find(filled)
        assert found is not None
        _, responders, _, template = found
        assert template == route.falcon_template(BASE)
        assert set(route.operations) <= set(responders)


def test_the_served_document_is_the_described_one(face: Face) -> None:
    answer = face.ask("GET", "//v3/api-docs", user=None)
    assert answer.headers["content-type"] == "application/json"
    assert answer.json == DESCRIPTION


def test_operation_ids_are_one_of_a_kind_and_stable() -> None:
    """The names that existing clients were generated from."""
    ids = [op["operationId"] for _, _, op in OPERATIONS]
    assert len(ids) == len(set(ids))
    assert {
        "loginCoordinatorApi",
        "createStreamGroup",
        "getStreamProducerRoutingMetadata",
        "scaleStreamShards",
        "createCoordinatorGroup",
        "getCoordinatorGroup",
        "deleteCoordinatorGroup",
        "startGroupResharding",
        "getReshardingMigration",
        "rollbackReshardingMigration",
        "sendConsumerHeartbeat",
        "getMonitoringSession",
        "getCoordinatorHealth",
        "getCoordinatorCompatibility",
        "listCoordinatorGroups",
        "getMonitoringGroup",
        "listGroupMembers",
        "getGroupAssignments",
        "getConsumptionProgress",
        "listReshardingMigrations",
    } <= set(ids)
    tags = {tag["name"] for tag in DESCRIPTION["tags"]}
    assert {tag for _, _, op in OPERATIONS for tag in op["tags"]} == tags


@pytest.mark.parametrize("route", ROUTES, ids=lambda route: route.path)
def test_every_code_of_an_operation_is_among_its_responses(route: Route) -> None:
    item = DESCRIPTION["paths"][route.template(BASE)]
    for method, operation in route.operations.items():
        responses = item[method.lower()]["responses"]
        assert str(operation.success) in responses
        for code in codes_of(operation, route.path):
            assert f"`{code}`" in responses[str(STATUS_OF[code])]["description"]


def test_replies_always_have_all_their_fields() -> None:
    schemas = DESCRIPTION["components"]["schemas"]
    for name in ("HeartbeatResponse", "HeartbeatsResponse", "GroupResponse", "Migration", "ErrorResponse", "MembersResponse"):
        assert set(schemas[name]["required"]) == set(schemas[name]["properties"])
    assert set(schemas["HeartbeatRequest"]["required"]) == set(heartbeat())


def test_a_list_of_heartbeats_is_described_with_its_bounds() -> None:
    listed = DESCRIPTION["components"]["schemas"]["HeartbeatsRequest"]["properties"]["heartbeats"]
    assert (listed["minItems"], listed["maxItems"]) == (1, 256)
    assert listed["items"] == {"$ref": "#/components/schemas/HeartbeatRequest"}


def test_the_path_prefix_is_the_configured_one() -> None:
    paths = description("/other/v2")["paths"]
    assert "/other/v2/auth/login" in paths
    assert "/livez" in paths


@pytest.mark.parametrize("path", ["//docs", "//scalar"])
def test_the_reference_page_asks_no_address_outside(face: Face, path: str) -> None:
    answer = face.ask("GET", path, user=None)
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    page = resources.files("coord.http").joinpath("static/docs.html").read_text(encoding="utf-8")
    assert answer.text == page
    assert not re.search(r"(https?:)?//[a-z0-9-]+\.[a-z]", page)
    assert not re.search(r"<(script|link|img|iframe)[^>]*\b(src|href)=\"(?!data:)", page)
    assert "innerHTML" not in page


def test_the_document_is_ordinary_json(face: Face) -> None:
    assert json.loads(json.dumps(DESCRIPTION)) == DESCRIPTION
    assert create_app(face.services) is not face.app
