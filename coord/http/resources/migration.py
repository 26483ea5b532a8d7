"""A11, A12, A12b: one resharding as a group sees it."""

from __future__ import annotations

import falcon

from coord.http.inputs import check_names, read
from coord.http.request import ApiRequest
from coord.http.resources.base import answer_result
from coord.names import GroupKey
from coord.runtime.admin import Admin
from coord.runtime.views import Views
from coord.wire import CompleteMigrationRequest, RollbackMigrationRequest


class MigrationResource:
    """`…/migrations/{reshardingId}`, its rollback and its completion."""

    def __init__(self, admin: Admin, views: Views, *, max_body_bytes: int) -> None:
        self._admin = admin
        self._views = views
        self._max_body_bytes = max_body_bytes

    def on_get(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str, resharding_id: str) -> None:
        """Show it."""
        check_names(req)
        answer_result(req, resp, self._views.migration(GroupKey(stream_prefix, consumer_group), resharding_id))

    def on_post_rollback(
        self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str, resharding_id: str
    ) -> None:
        """Turn it back."""
        read(req, RollbackMigrationRequest, max_body_bytes=self._max_body_bytes)
        key = GroupKey(stream_prefix, consumer_group)
        answer_result(req, resp, self._admin.rollback(key, resharding_id, info=req.info()))

    def on_post_complete(
        self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, consumer_group: str, resharding_id: str
    ) -> None:
        """End a drain that cannot be proved."""
        request = read(req, CompleteMigrationRequest, max_body_bytes=self._max_body_bytes)
        key = GroupKey(stream_prefix, consumer_group)
        completed = self._admin.complete(key, resharding_id, force=bool(request.force), info=req.info())
        answer_result(req, resp, completed)
