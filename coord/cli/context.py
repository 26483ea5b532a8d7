"""How commands reach a coordinator: the options they share, one bounded request at a time, and how a failure ends them."""

from __future__ import annotations

import functools
import getpass
import ipaddress
from collections.abc import Callable
from dataclasses import dataclass
from http import HTTPStatus
from typing import Any, Final, Literal, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import click
import msgspec
import urllib3
from urllib3.exceptions import HTTPError

from coord.cli.output import no_color_option, note, output_option, print_json, printable
from coord.config.schema import DEFAULT_PASSWORD
from coord.names import TEXT_LENGTH_MAX, name_fault, text_fault
from coord.wire import ErrorResponse, LoginRequest, LoginResponse

DEFAULT_URL: Final = "http://127.0.0.1:8080/coord/v1"
DEFAULT_USERNAME: Final = "admin"
TIMEOUT_MS: Final = 15_000

Output = Literal["table", "json"]
_Answer = TypeVar("_Answer")


class RequestRefused(click.ClickException):
    """The coordinator said no; `code` is its errorCode."""

    exit_code = 1

    def __init__(self, code: str, message: str) -> None:
        super().__init__(f"{code}: {message}")
        self.code = code


class NotReachable(click.ClickException):
    """Nobody answered, or who answered could not serve."""

    exit_code = 3


def name(value: str) -> str:
    """Give a streamPrefix or consumerGroup; raises BadParameter for one that is not legal."""
    if fault := name_fault(value):
        raise click.BadParameter(f"{printable(repr(value))} {fault}")
    return value


def text(value: str) -> str:
    """Give a text of a request; raises BadParameter for one that is not legal."""
    if fault := text_fault(value, length_max=TEXT_LENGTH_MAX):
        raise click.BadParameter(fault)
    return value


NAME: Final = name
TEXT: Final = text


class Api:
    """Calls one coordinator; logs in before the first call. `url` includes the base path. One thread only."""

    def __init__(
        self,
        url: str,
        *,
        token: str | None = None,
        username: str | None = None,
        password: str | None = None,
        timeout_ms: int = TIMEOUT_MS,
    ) -> None:
        self.url = url.rstrip("/")
        self._token = token
        self._username = username
        self._password = password
        self._timeout = urllib3.Timeout(total=timeout_ms / 1000)
        self._pool = urllib3.PoolManager(num_pools=1, maxsize=1, retries=False)

    def close(self) -> None:
        """Close the connection."""
        self._pool.clear()

    def get(self, *segments: str) -> bytes:
        """GET a path; gives the body. Raises RequestRefused or NotReachable, as all calls do."""
        return self._call("GET", segments, None)

    def post(self, *segments: str, body: msgspec.Struct) -> bytes:
        """POST a request body."""
        return self._call("POST", segments, msgspec.json.encode(body))

    def delete(self, *segments: str, **fields: str | None) -> bytes:
        """DELETE with the request's fields as query parameters: proxies drop the bodies of a DELETE."""
        given = {name: value for name, value in fields.items() if value is not None}
        return self._call("DELETE", segments, None, query=f"?{urlencode(given)}")

    def _call(self, method: str, segments: tuple[str, ...], body: bytes | None, *, query: str = "") -> bytes:
        if self._token is None and self._username is not None and self._password is not None:
            self._token = self._login(self._username, self._password)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token is not None else {}
        path = "".join(f"/{quote(segment, safe='')}" for segment in segments)
        return self._send(method, f"{self.url}{path}{query}", body, headers)

    def _login(self, username: str, password: str) -> str:
        body = msgspec.json.encode(LoginRequest(username=username, password=password))
        return decoded(self._send("POST", f"{self.url}/auth/login", body, {}), LoginResponse).access_token

    def _send(self, method: str, url: str, body: bytes | None, headers: dict[str, str]) -> bytes:
        sent = {"Accept": "application/json", **headers} | ({"Content-Type": "application/json"} if body is not None else {})
        try:
            reply = self._pool.request(method, url, body=body, headers=sent, timeout=self._timeout, redirect=False)
        except (HTTPError, OSError, ValueError) as error:
            raise NotReachable(f"no coordinator answers at {printable(self.url)} ({_reason(error)})") from None
        if warning := reply.headers.get("X-Durability-Warning"):
            note(f"warning: {warning}")
        if HTTPStatus.OK <= reply.status < HTTPStatus.MULTIPLE_CHOICES:
            return reply.data
        try:
            refusal = msgspec.json.decode(reply.data, type=ErrorResponse)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            raise NotReachable(f"what answers at {printable(self.url)} is no coordinator (HTTP {reply.status})") from None
        message = printable("; ".join((refusal.message, *(each for each in refusal.details if each not in refusal.message))))
        if reply.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            request = f" (request {printable(refusal.request_id)})" if refusal.request_id else ""
            raise NotReachable(f"{printable(refusal.error_code)}: {message}{request}")
        raise RequestRefused(printable(refusal.error_code), message)


def decoded(body: bytes, answer: type[_Answer]) -> _Answer:
    """Read a body; raises NotReachable for one that no coordinator sends."""
    try:
        return msgspec.json.decode(body, type=answer)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise NotReachable(f"the answer is no {answer.__name__}: {printable(str(error))}") from None


@dataclass(slots=True, kw_only=True)
class Session:
    """What a command works with: the coordinator, and how to print."""

    api: Api
    output: Output

    @property
    def as_json(self) -> bool:
        """Whether a script reads the result."""
        return self.output == "json"

    def show(self, body: bytes, show: Callable[[], None]) -> None:
        """Print a body for scripts, or what people are shown of it."""
        if self.as_json:
            print_json(body)
        else:
            show()


def with_session(function: Callable[..., None]) -> Callable[..., None]:
    """Give a command the options by which a coordinator is reached, and a `session` made of them."""

    @click.option(
        "--url", envvar="COORD_URL", default=DEFAULT_URL, show_default=True, show_envvar=True, help="Coordinator and base path."
    )
    @click.option("--token", envvar="COORD_TOKEN", show_envvar=True, help="Bearer token.")
    @click.option("--username", envvar="COORD_USERNAME", show_envvar=True, help="User to log in as; default admin.")
    @click.option(
        "--password",
        envvar="COORD_PASSWORD",
        show_envvar=True,
        help="Its password, better given by the variable; on loopback the one of local development is tried.",
    )
    @output_option
    @no_color_option
    @functools.wraps(function)
    def command(
        *,
        url: str,
        token: str | None,
        username: str | None,
        password: str | None,
        output: Output,
        **options: Any,
    ) -> None:
        session = Session(api=reach(url, token=token, username=username, password=password), output=output)
        try:
            function(session=session, **options)
        finally:
            session.api.close()

    return command


def with_reason(*, required: bool) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Give a command the options that say who asks for a change, and why; both go into the log."""

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        who = click.option("--requested-by", type=TEXT, default=os_user, help="Who asks for it; default the user of this system.")
        return who(click.option("--reason", type=TEXT, required=required, help="Why; kept in the log.")(function))

    return decorate


def reach(url: str, *, token: str | None, username: str | None, password: str | None) -> Api:
    """Judge how a coordinator is to be reached; raises UsageError for what cannot work."""
    parts = urlsplit(url)
    if parts.scheme not in {"http", "https"} or not parts.hostname or parts.username or parts.password:
        raise click.UsageError("--url: must be http(s)://host[:port]/path, without a user or password in it")
    if token is not None:
        return Api(url, token=token)
    if username is not None and password is None:
        raise click.UsageError("--username needs a --password (or COORD_PASSWORD)")
    if password is None and is_loopback(parts.hostname):
        password = DEFAULT_PASSWORD
    if password is None:
        raise click.UsageError("give --token, or --username and --password: the development password is for loopback only")
    return Api(url, username=username or DEFAULT_USERNAME, password=password)


def is_loopback(host: str) -> bool:
    """Tell whether a host is this machine, as its name or address alone says."""
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False


def confirm_by_name(name: str, *, what: str, yes: bool) -> None:
    """Have the name typed before something is destroyed; raises UsageError when there is nobody to type it."""
    if yes:
        return
    try:
        typed = click.prompt(f"{what}. Type {printable(name)!r} to go on", err=True, default="", show_default=False)
    except click.Abort:
        raise click.UsageError("not confirmed: type the name when asked, or give --yes") from None
    if typed != name:
        raise click.ClickException("not confirmed: nothing was done")


def os_user() -> str:
    """Give the name of the user whom this process runs as."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return "unknown"


def _reason(error: Exception) -> str:
    """Say in a few words why nobody answered."""
    if isinstance(error, urllib3.exceptions.NameResolutionError):
        return "its host name does not resolve"
    if isinstance(error, urllib3.exceptions.NewConnectionError):
        return "the connection was refused"
    if isinstance(error, urllib3.exceptions.TimeoutError):
        return f"nothing within {TIMEOUT_MS // 1000} s"
    return type(error).__name__
