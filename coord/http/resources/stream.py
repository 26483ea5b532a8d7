"""A2, A3, A6, A9b: streams as operators change them."""

from __future__ import annotations

import falcon

from coord.http.inputs import read
from coord.http.request import ApiRequest
from coord.http.resources.base import answer_result
from coord.names import StreamKey
from coord.runtime.admin import Admin
from coord.wire import AdoptStreamRequest, CreateStreamRequest, DeleteGroupRequest, ScaleRequest


class StreamResource:
    """`/streams/{streamPrefix}`, and what is done to it."""

    def __init__(self, admin: Admin, *, max_body_bytes: int) -> None:
        self._admin = admin
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Create the stream."""
        request = read(req, CreateStreamRequest, max_body_bytes=self._max_body_bytes)
        created = self._admin.create_stream(
            StreamKey(stream_prefix),
            shard_count=request.initial_shard_count,
            start_from=request.start_from,
            info=req.info(),
        )
        answer_result(req, resp, created)

    def on_delete(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Delete the stream."""
        read(req, DeleteGroupRequest, max_body_bytes=self._max_body_bytes)
        answer_result(req, resp, self._admin.delete_stream(StreamKey(stream_prefix), info=req.info()))

    def on_post_adopt(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Take over existing shard keys."""
        request = read(req, AdoptStreamRequest, max_body_bytes=self._max_body_bytes)
        adopted = self._admin.adopt_stream(StreamKey(stream_prefix), shard_count=request.shard_count, info=req.info())
        answer_result(req, resp, adopted)

    def on_post_scale(self, req: ApiRequest, resp: falcon.Response, stream_prefix: str) -> None:
        """Change the shard count."""
        request = read(req, ScaleRequest, max_body_bytes=self._max_body_bytes)
        scaled = self._admin.scale_stream(
            StreamKey(stream_prefix), target_shard_count=request.target_shard_count, info=req.info()
        )
        answer_result(req, resp, scaled)
