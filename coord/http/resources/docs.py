"""The API description and the page that shows it, both from the package: no address outside is ever asked."""

from __future__ import annotations

from importlib import resources
from typing import Final

import falcon

from coord.http.request import ApiRequest

_POLICY: Final = (
    "default-src 'none'; script-src 'self' 'unsafe-inline'; style-src 'self' 'unsafe-inline'; connect-src 'self'; img-src data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)


class DocsResource:
    """`/v3/api-docs` (JSON) and `/docs`."""

    def __init__(self, description: bytes) -> None:
        self._description = description
        self._page = resources.files("coord.http").joinpath("static/docs.html").read_bytes()

    def on_get_description(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Give the OpenAPI document."""
        resp.content_type = falcon.MEDIA_JSON
        resp.data = self._description

    def on_get_page(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Give the page."""
        resp.content_type = "text/html; charset=utf-8"
        resp.set_header("Content-Security-Policy", _POLICY)
        resp.set_header("X-Content-Type-Options", "nosniff")
        resp.data = self._page
