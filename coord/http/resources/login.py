"""A1: exchange a user name and a password for a Bearer token."""

from __future__ import annotations

import falcon

from coord.http.auth import Authenticator, basic_credentials
from coord.http.gate import proved, unauthorized
from coord.http.inputs import read_optional
from coord.http.request import ApiRequest
from coord.http.resources.base import answer
from coord.wire import LoginRequest


class LoginResource:
    """`POST /auth/login`. The body counts before the Basic header."""

    def __init__(self, authenticator: Authenticator, *, max_body_bytes: int) -> None:
        self._authenticator = authenticator
        self._max_body_bytes = max_body_bytes

    def on_post(self, req: ApiRequest, resp: falcon.Response) -> None:
        """Log in."""
        request = read_optional(req, LoginRequest, max_body_bytes=self._max_body_bytes)
        pair = (request.username, request.password) if request else _basic(req)
        principal = proved(self._authenticator.login(*pair, address=req.call.client_address) if pair else None)
        token = self._authenticator.issue(principal)
        if token is None:
            raise unauthorized()
        req.call.principal = principal
        resp.set_header("Cache-Control", "no-store")
        answer(resp, token)


def _basic(req: ApiRequest) -> tuple[str, str] | None:
    scheme, _, encoded = (req.env.get("HTTP_AUTHORIZATION") or "").strip().partition(" ")
    return basic_credentials(encoded.strip()) if scheme.lower() == "basic" else None
