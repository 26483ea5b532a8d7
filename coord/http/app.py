"""The app factory: it is handed its parts and puts a resource behind every path of the route table."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeAlias

import falcon
import msgspec

from coord.bootstrap import Services
from coord.config import Configuration
from coord.config.loading import cores
from coord.http.addresses import AddressJudge
from coord.http.auth import Authenticator
from coord.http.errors import add_error_handlers
from coord.http.gate import Gate
from coord.http.mutationlimit import MutationLimit
from coord.http.openapi import description
from coord.http.replays import Replays
from coord.http.request import ApiRequest
from coord.http.resources.audit import AuditResource
from coord.http.resources.docs import DocsResource
from coord.http.resources.group import GroupResource
from coord.http.resources.heartbeat import HeartbeatResource
from coord.http.resources.heartbeats import HeartbeatsResource
from coord.http.resources.login import LoginResource
from coord.http.resources.migration import MigrationResource
from coord.http.resources.monitoring import MonitoringResource
from coord.http.resources.probe import ProbeResource
from coord.http.resources.redis_consumer_group import RedisConsumerGroupResource
from coord.http.resources.routing import RoutingResource
from coord.http.resources.stream import StreamResource
from coord.http.routes import ROUTES, Route
from coord.http.routetable import RouteTable
from coord.http.slots import Slots

App: TypeAlias = falcon.App[ApiRequest, falcon.Response]


def authenticator_of(config: Configuration, runs: Slots | None = None) -> Authenticator:
    """Make what judges credentials. `runs`: permits for argon2 runs where other workers share them; else one a core."""
    return Authenticator(config.api, runs=runs or Slots(cores()))


def limit_of(services: Services) -> MutationLimit | None:
    """Make the limit on mutations, where one is configured."""
    limit = services.config.api.rate_limit
    return MutationLimit(services.windows, per_minute=limit.admin_mutations_per_minute) if limit.enabled else None


def create_app(services: Services, authenticator: Authenticator | None = None) -> App:
    """Make the WSGI app around services that are built; makes no connection and starts nothing.

    `authenticator`: given by who means to replace users and secrets while the app runs.
    """
    api = services.config.api
    authenticator = authenticator or authenticator_of(services.config)
    gate = Gate(
        RouteTable(api.base_path),
        authenticator,
        services.admin,
        addresses=AddressJudge(api.trusted_proxies),
        limit=limit_of(services),
        max_body_bytes=api.max_body_bytes,
        members_authenticate=api.authenticate_member_api,
    )
    replays = Replays(services.idempotency, services.admin, max_body_bytes=api.max_body_bytes)
    app: App = falcon.App(request_type=ApiRequest, middleware=[gate, replays])
    add_error_handlers(app)
    resources = _resources(services, authenticator)
    for route in ROUTES:
        resource = resources[route.resource]
        _answer_head(resource, route)
        app.add_route(route.falcon_template(api.base_path), resource, suffix=route.suffix)
    return app


def _resources(services: Services, authenticator: Authenticator) -> Mapping[str, object]:
    api, admin, views = services.config.api, services.admin, services.views
    bound = api.max_body_bytes
    return {
        "login": LoginResource(authenticator, max_body_bytes=bound),
        "stream": StreamResource(admin, max_body_bytes=bound),
        "redis_consumer_group": RedisConsumerGroupResource(admin, max_body_bytes=bound),
        "group": GroupResource(admin, views, max_body_bytes=bound),
        "migration": MigrationResource(admin, views, max_body_bytes=bound),
        "routing": RoutingResource(views),
        "heartbeat": HeartbeatResource(services.coordinator, services.policy, max_body_bytes=bound),
        "heartbeats": HeartbeatsResource(services.coordinator, services.policy, max_body_bytes=bound),
        "monitoring": MonitoringResource(services),
        "audit": AuditResource(services.store),
        "probe": ProbeResource(services),
        "docs": DocsResource(msgspec.json.encode(description(api.base_path))),
    }


def _answer_head(resource: object, route: Route) -> None:
    """Let HEAD run what GET runs; Falcon leaves the body out and keeps its length."""
    ending = f"_{route.suffix}" if route.suffix else ""
    if "GET" in route.operations:
        setattr(resource, f"on_head{ending}", getattr(resource, f"on_get{ending}"))
