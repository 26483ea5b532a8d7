"""A7 to A10: groups as operators see and change them."""

from __future__ import annotations

import falcon

from coord.http.inputs import check_names, read
from coord.http.request import ApiRequest
from coord.http.resources.base import answer_result
from coord.names import GroupKey
from coord.runtime.admin import Admin
from coord.runtime.views import Views
from coord.wire import CreateGroupRequest, DeleteGroupRequest, ScaleRequest


class GroupResource:
    """`/streams/{streamPrefix}/groups/{consumerGroup}`, and scaling by it."""

    def __init__(self, admin: Admin, views: Views, *, max_body_bytes: int) -> None:
        self._admin = admin
        self._views = views
        self._max_body_bytes = max_body_bytes

    def on_get(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Show the group."""
        check_names(req)
        answer_result(req, resp, self._views.group(GroupKey(stream_prefix, consumer_group)))

    def on_post(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Create the group, and its stream when there is none."""
        request = read(req, CreateGroupRequest, max_body_bytes=self._max_body_bytes)
        created = self._admin.create_group(
            GroupKey(stream_prefix, consumer_group),
            shard_count=request.initial_shard_count,
            start_from=request.start_from,
            info=req.info(),
        )
        answer_result(req, resp, created)

    def on_delete(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Delete the group."""
        request = read(req, DeleteGroupRequest, max_body_bytes=self._max_body_bytes)
        deleted = self._admin.delete_group(
            GroupKey(stream_prefix, consumer_group),
            force=bool(request.force),
            destroy_consumer_groups=bool(request.destroy_consumer_groups),
            info=req.info(),
        )
        answer_result(req, resp, deleted)

    def on_post_scale(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str) -> None:
        """Scale the stream, answering with this group's migration."""
        request = read(req, ScaleRequest, max_body_bytes=self._max_body_bytes)
        scaled = self._admin.scale_group(
            GroupKey(stream_prefix, consumer_group), target_shard_count=request.target_shard_count, info=req.info()
        )
        answer_result(req, resp, scaled)
