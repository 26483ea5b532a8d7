"""`/monitoring`: what there is and how it is. Never changes state; a user sees the streams of its scope only."""

from __future__ import annotations

import falcon
from msgspec import structs

from coord.bootstrap import Services
from coord.http.inputs import check_names, read_page
from coord.http.request import ApiRequest, Principal
from coord.http.resources.base import answer, answer_result, granted
from coord.names import GroupKey, StreamKey
from coord.wire import MonitoringSessionResponse


class MonitoringResource:
    """One responder a path, named by its suffix."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._views = services.views

    def on_get_health(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Show the health, 200 whatever it is."""
        health = self._services.health()
        seen = tuple(name for name in health.unhealthy_groups if _caller(req).may_touch(name.partition("/")[0]))
        answer(resp, structs.replace(health, unhealthy_groups=seen))

    def on_get_session(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Tell the caller who it is."""
        caller = _caller(req)
        answer(resp, MonitoringSessionResponse(authenticated=True, username=caller.name, roles=caller.roles))

    def on_get_compatibility(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Tell the protocol versions."""
        answer(resp, self._services.compatibility())

    def on_get_groups(self, req: ApiRequest, resp: falcon.Response) -> None:
        """List groups."""
        page = granted(self._views.groups(*read_page(req))).value
        seen = tuple(group for group in page.groups if _caller(req).may_touch(group.stream_prefix))
        answer(resp, structs.replace(page, groups=seen))

    def on_get_streams(self, req: ApiRequest, resp: falcon.Response) -> None:
        """List streams."""
        page = granted(self._views.streams(*read_page(req))).value
        seen = tuple(stream for stream in page.streams if _caller(req).may_touch(stream.stream_prefix))
        answer(resp, structs.replace(page, streams=seen))

    def on_get_stream(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Show a stream."""
        check_names(req)
        answer_result(req, resp, self._views.stream(StreamKey(stream_prefix)))

    def on_get_stream_migrations(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """List a stream's reshardings."""
        check_names(req)
        answer_result(req, resp, self._views.migrations(StreamKey(stream_prefix)))

    def on_get_group(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Show a group."""
        check_names(req)
        answer_result(req, resp, self._views.group(GroupKey(stream_prefix, consumer_group)))

    def on_get_members(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """List a group's members."""
        check_names(req)
        answer_result(req, resp, self._views.members(GroupKey(stream_prefix, consumer_group)))

    def on_get_assignments(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Show target and ownership."""
        check_names(req)
        answer_result(req, resp, self._views.assignments(GroupKey(stream_prefix, consumer_group)))

    def on_get_consumption(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Show what members said of their progress."""
        check_names(req)
        answer_result(req, resp, self._views.consumption(GroupKey(stream_prefix, consumer_group)))

    def on_get_migrations(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """List a group's reshardings."""
        check_names(req)
        answer_result(req, resp, self._views.migrations(GroupKey(stream_prefix, consumer_group)))


def _caller(req: ApiRequest) -> Principal:
    principal = req.call.principal
    assert principal is not None, "the gate lets nobody in unnamed"
    return principal
