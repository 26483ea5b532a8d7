"""A9c: a foreign Redis consumer group that blocks a drain."""

from __future__ import annotations

import falcon

from coord.http.inputs import read
from coord.http.request import ApiRequest
from coord.http.resources.base import answer_result
from coord.names import StreamKey
from coord.runtime.admin import Admin
from coord.wire import DeleteGroupRequest


class RedisConsumerGroupResource:
    """`/streams/{streamPrefix}/consumer-groups/{name}`."""

    def __init__(self, admin: Admin, *, max_body_bytes: int) -> None:
        self._admin = admin
        self._max_body_bytes = max_body_bytes

    def on_delete(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str, name: str) -> None:
        """Destroy it on every shard."""
        read(req, DeleteGroupRequest, max_body_bytes=self._max_body_bytes)
        answer_result(req, resp, self._admin.destroy_consumer_group(StreamKey(stream_prefix), name, info=req.info()))
