"""What platforms ask, without credentials: does it live, does it take requests, how is it."""

from __future__ import annotations

from typing import Literal

import falcon

import coord
from coord.bootstrap import Services
from coord.http.request import ApiRequest
from coord.http.resources.base import answer
from coord.wire import ApplicationInfo, InfoResponse, StatusResponse


class ProbeResource:
    """Liveness asks for nothing but an answer; readiness for the store only where that is configured."""

    def __init__(self, services: Services) -> None:
        self._services = services
        self._readyz_needs_store = services.config.server.readyz_needs_store

    def on_get_livez(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Say that the process answers."""
        _tell(resp, "UP")

    def on_get_readyz(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Say whether requests are welcome."""
        ready = not self._services.terminating
        if ready and self._readyz_needs_store:
            ready = self._services.health().store == "UP"
        _tell(resp, "UP" if ready else "DOWN")

    def on_get_health(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Say how it is, in one word."""
        _tell(resp, self._services.health().status)

    def on_get_info(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Say which program this is."""
        answer(resp, InfoResponse(app=ApplicationInfo(name="redis-stream-coordinator", version=coord.__version__)))


def _tell(resp: falcon.Response, status: Literal["UP", "DEGRADED", "DOWN"]) -> None:
    if status == "DOWN":
        resp.status = falcon.HTTP_503
        resp.set_header("Retry-After", "1")
    resp.set_header("Cache-Control", "no-store")
    answer(resp, StatusResponse(status=status))
