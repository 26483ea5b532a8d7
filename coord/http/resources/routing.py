"""A4, A5: where producers send records."""

from __future__ import annotations

import falcon

from coord.http.inputs import check_names
from coord.http.request import ApiRequest
from coord.http.resources.base import answer, granted
from coord.names import StreamKey
from coord.runtime.views import Views


class RoutingResource:
    """`…/producer-routing` of a stream, also under the path of any group. `ETag` is the stream's metadataVersion."""

    def __init__(self, views: Views) -> None:
        self._views = views

    def on_get(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Show a stream's routing."""
        self._answer(req, resp, stream_prefix, None)

    def on_get_group(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Show it for a group, which need not exist: producers start before consumers."""
        self._answer(req, resp, stream_prefix, consumer_group)

    def _answer(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str | None) -> None:
        check_names(req)
        routing = granted(self._views.routing(StreamKey(stream_prefix), consumer_group)).value
        tag = str(routing.metadata_version)
        resp.set_header("ETag", f'"{tag}"')
        resp.set_header("Cache-Control", "no-cache")
        if any(known in {tag, "*"} for known in req.if_none_match or ()):
            resp.status = falcon.HTTP_304
            return
        answer(resp, routing)
