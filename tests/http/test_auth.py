"""Who may do what: every route against every kind of caller, forged tokens, tokens that outlive their reason."""

from __future__ import annotations

import base64
import hmac
import json
import re
import time
from pathlib import Path
from typing import Any

import jwt
import pytest

from coord.http.auth import ALGORITHM, ISSUER, LEEWAY_S, Authenticator, Key
from coord.http.request import Principal
from coord.http.routes import ROUTES, Operation, Route
from tests.http.face import OLD_SECRET, PASSWORDS, SECRET, USERS, Face, basic, configuration, error_of, make_face
from tests.http.served import BASE, ENGINES, serving
from tests.http.test_requests import audited

CALLERS = (None, "wrong", "reader", "writer", "member", "legacy", "monitor", "nobody")
ROLES = {
    "reader": {"READ"},
    "writer": {"READ", "WRITE"},
    "member": {"MEMBER"},
    "legacy": {"READ", "WRITE", "MEMBER"},
    "monitor": {"READ"},
    "nobody": set[str](),
}
EACH_OPERATION = [(route, method, op) for route in ROUTES for method, op in route.operations.items()]


def path_of(route: Route) -> str:
    filled = re.sub(r"\{\w+\}", "x", route.path)
    return filled if route.under_base else f"/{filled}"


def headers_of(caller: str | None, index: int) -> dict[str, str]:
    if caller is None:
        return {}
    return basic(f"stranger {index}", "not the password") if caller == "wrong" else basic(caller)


@pytest.mark.parametrize("members_authenticate", [False, True])
@pytest.mark.parametrize("caller", CALLERS)
def test_k6_k7_every_route_against_every_kind_of_caller(tmp_path: Path, caller: str | None, members_authenticate: bool) -> None:
    face = make_face(configuration(tmp_path, members_authenticate=members_authenticate))
    for index, (route, method, operation) in enumerate(EACH_OPERATION):
        address = f"127.{index}.0.1"  # from one address, wrong passwords would soon be a 429
        answer = face.ask(method, path_of(route), user=None, headers=headers_of(caller, index), address=address)
        told = (route.path, method, answer.status_code, answer.text)
        if is_open(operation, members_authenticate) or operation.id == "loginCoordinatorApi":
            assert answer.status_code != 403, told
            assert answer.status_code != 401 or operation.id == "loginCoordinatorApi", told
        elif caller in {None, "wrong"}:
            assert error_of(answer) == (401, "UNAUTHORIZED"), told
            assert 'Basic realm="redis-stream-coordinator"' in answer.headers["www-authenticate"]
            assert "Bearer" in answer.headers["www-authenticate"]
        elif operation.role not in ROLES[str(caller)]:
            assert error_of(answer) == (403, "FORBIDDEN"), told
        else:
            assert answer.status_code not in {401, 403}, told


def is_open(operation: Operation, members_authenticate: bool) -> bool:
    return operation.role is None or (operation.role == "MEMBER" and not members_authenticate)


@pytest.mark.parametrize("path", ["/nothing", "/streams/orders/nothing", "/monitoring/streams/orders/groups/g/nothing", "/", ""])
@pytest.mark.parametrize("method", ["GET", "POST", "DELETE", "PUT", "OPTIONS"])
def test_k6_strangers_do_not_learn_which_paths_exist(world: Face, path: str, method: str) -> None:
    assert error_of(world.ask(method, path, user=None)) == (401, "UNAUTHORIZED")
    assert error_of(world.ask(method, path)) == (404, "NOT_FOUND")


def test_what_is_open_outside_the_base_path_is_a_list(face: Face) -> None:
    for path in ("/console", "/metrics", "/actuator/prometheus", "/actuator", "/", "/coord", "/coord/v2/streams/x"):
        assert error_of(face.ask("GET", f"/{path}", user=None)) == (404, "NOT_FOUND")


@pytest.mark.parametrize("user", [name for name in PASSWORDS if name != "nobody"])
def test_a_login_gives_a_token_that_says_who_and_what(face: Face, user: str) -> None:
    answer = face.ask("POST", "/auth/login", {"username": user, "password": PASSWORDS[user]}, user=None)
    assert answer.status_code == 200
    body = answer.json
    assert set(body) == {"accessToken", "tokenType", "expiresAt", "expiresInSeconds", "roles"}
    assert body["tokenType"] == "Bearer"
    assert body["expiresInSeconds"] == 7 * 24 * 3600
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", body["expiresAt"])
    bearer = {"Authorization": f"bearer {body['accessToken']}"}
    session = face.ask("GET", "/monitoring/session", user=None, headers=bearer)
    if "READ" in body["roles"]:
        assert session.json == {"authenticated": True, "username": user, "roles": body["roles"]}
    else:
        assert session.status_code == 403


@pytest.mark.parametrize(
    ("body", "headers", "expected"),
    [
        ({"username": "writer", "password": "no"}, {}, 401),
        ({"username": "", "password": ""}, {}, 401),
        ({"username": "blank", "password": "   "}, {}, 401),
        ({"username": "nobody at all", "password": "w-pass"}, {}, 401),
        ({"username": "writer"}, {}, 400),
        ({"username": "writer", "password": 1}, {}, 400),
        ({"username": "writer", "password": None}, {}, 400),
        ([], {}, 400),
        (None, {}, 401),
        (None, basic("writer"), 200),
        (None, basic("writer", "no"), 401),
        (None, {"Authorization": "Basic ***"}, 401),
        (None, {"Authorization": "Basic d3JpdGVy"}, 401),
        ({"username": "writer", "password": "no"}, basic("writer"), 401),
    ],
)
def test_a_login_is_judged_by_the_body_and_else_by_basic(face: Face, body: Any, headers: dict[str, str], expected: int) -> None:
    answer = face.ask("POST", "/auth/login", body, user=None, headers=headers)
    assert answer.status_code == expected
    if expected != 200:
        error_of(answer)


def claims_of(user: str = "writer", secret: str = SECRET, **changes: Any) -> dict[str, Any]:
    """Give the claims of a good token, with changes; a change to `...` leaves a claim out."""
    from coord.config import Secret, User

    now = int(time.time())
    pwd = Key(secret.encode()).fingerprint(User(username=user, password=Secret(PASSWORDS[user])))
    claims = {"iss": ISSUER, "sub": user, "roles": ["READ", "WRITE"], "iat": now, "exp": now + 600, "pwd": pwd, **changes}
    return {name: value for name, value in claims.items() if value is not ...}


def signed(
    claims: dict[str, Any], *, secret: str = SECRET, algorithm: str = ALGORITHM, headers: dict[str, Any] | None = None
) -> str:
    return jwt.encode(claims, secret, algorithm=algorithm, headers=headers)


def handmade(header: dict[str, Any], claims: dict[str, Any], signature: str = "") -> str:
    def part(value: dict[str, Any]) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).decode().rstrip("=")

    return f"{part(header)}.{part(claims)}.{signature}"


def keyed(key: bytes, **header: Any) -> str:
    """Sign with a key that no library would take."""
    head, body, _ = handmade({"alg": "HS256", "typ": "JWT", **header}, claims_of()).split(".")
    signature = hmac.digest(key, f"{head}.{body}".encode(), "sha256")
    return f"{head}.{body}.{base64.urlsafe_b64encode(signature).decode().rstrip('=')}"


def tampered(token: str) -> str:
    head, _, signature = token.split(".")
    body = handmade({}, claims_of(roles=["READ", "WRITE", "MEMBER"])).split(".")[1]
    return f"{head}.{body}.{signature}"


NOW = int(time.time())
FORGED = {
    "alg none": handmade({"alg": "none", "typ": "JWT"}, claims_of()),
    "alg None": handmade({"alg": "None", "typ": "JWT"}, claims_of()),
    "alg NONE": handmade({"alg": "NONE", "typ": "JWT"}, claims_of()),
    "empty signature": signed(claims_of()).rpartition(".")[0] + ".",
    "HS256, empty key": keyed(b""),
    "HS256, empty key, kid a file": keyed(b"", kid="../../dev/null"),
    "HS256, a NUL byte": keyed(b"\0", kid="/dev/zero"),
    "right key, kid a file": keyed(SECRET.encode(), kid="../../dev/null"),
    "right key, kid empty": keyed(SECRET.encode(), kid=""),
    "right key, unknown extension": keyed(SECRET.encode(), crit=["x"], x=1),
    "no alg": handmade({"typ": "JWT"}, claims_of()),
    "HS512": signed(claims_of(), secret=SECRET * 2, algorithm="HS512"),
    "HS512, same key": signed(claims_of(), secret=SECRET + " and sixty-four bytes long at least", algorithm="HS512"),
    "RS256 header": handmade({"alg": "RS256", "typ": "JWT"}, claims_of(), "AAAA"),
    "other secret": signed(claims_of(), secret="another secret of thirty-two bytes and more"),
    "odd kid, other secret": signed(claims_of(), secret="x" * 32, headers={"kid": "../../dev/null"}),
    "kid a number": handmade({"alg": "HS256", "typ": "JWT", "kid": 1}, claims_of(), "AAAA"),
    "tampered": tampered(signed(claims_of())),
    "other issuer": signed(claims_of(iss="somebody else")),
    "no issuer": signed(claims_of(iss=...)),
    "no exp": signed(claims_of(exp=...)),
    "no iat": signed(claims_of(iat=...)),
    "no sub": signed(claims_of(sub=...)),
    "no roles": signed(claims_of(roles=...)),
    "roles a text": signed(claims_of(roles="WRITE")),
    "no fingerprint": signed(claims_of(pwd=...)),
    "other fingerprint": signed(claims_of(pwd="0" * 32)),
    "expired": signed(claims_of(exp=NOW - 60)),
    "exp a text": signed(claims_of(exp=str(NOW + 600))),
    "exp true": signed(claims_of(exp=True)),
    "exp a float": signed(claims_of(exp=NOW + 600.5)),
    "exp huge": signed(claims_of(exp=10**400)),
    "exp NaN": signed(claims_of(exp=float("nan"))),
    "exp infinite": signed(claims_of(exp=float("inf"))),
    "exp null": signed(claims_of(exp=None)),
    "exp now, no leeway left": signed(claims_of(exp=NOW - LEEWAY_S - 1)),
    "iat a text": signed(claims_of(iat=str(NOW))),
    "not yet": signed(claims_of(nbf=NOW + 86_400)),
    "for others": signed(claims_of(aud="others")),
    "issued tomorrow": signed(claims_of(iat=NOW + 86_400, exp=NOW + 2 * 86_400)),
    "unknown user": signed({**claims_of(), "sub": "removed"}),
    "not even close": "abc",
    "empty": "",
    "three dots": "...",
    "deep": handmade({"alg": "HS256"}, {}) + "x" * 100,
    "huge": "a" * 1_000_000,
}


@pytest.mark.parametrize("kind", FORGED)
def test_k1_a_token_that_is_not_ours_is_no_token(face: Face, kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    """401 of one shape; that it was tried is audited, and the token itself is in neither answer, audit nor log."""
    bearer = {"Authorization": f"Bearer {FORGED[kind]}"}
    answers = [face.ask("GET", "/monitoring/session", user=None, headers=bearer)]
    answers.append(face.ask("POST", "/streams/orders", {"requestedBy": "t"}, user=None, headers=bearer))
    for answer in answers:
        assert error_of(answer) == (401, "UNAUTHORIZED")
        assert answer.json["message"] == "valid credentials are needed: a Bearer token, or Basic"
        assert answer.json["details"] == []
    (entry,) = audited(face)
    assert (entry.action, entry.outcome, entry.status, entry.principal) == ("CREATE_STREAM", "UNAUTHORIZED", 401, None)
    told = "".join([repr(entry), capsys.readouterr().out, *(answer.text + repr(dict(answer.headers)) for answer in answers)])
    assert not leaked(FORGED[kind], told)


def leaked(token: str, text: str) -> list[str]:
    """Give the parts of a token that a text holds; the header, which is the same in all, is none."""
    return [part for part in token.split(".")[1:] or [token] if len(part) > 16 and part in text]


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_k1_no_forged_token_gets_past_a_real_server(tmp_path: Path, engine: str) -> None:
    """At log level debug too. A header of a megabyte is what the engine makes of it, and no more than a 401."""
    text = USERS.format(secret=SECRET, old=OLD_SECRET, members="false") + "  store: {type: memory}\n"
    with serving(tmp_path, "--log-level", "debug", config=text, engine=engine) as running:

        def status(*tokens: str) -> int:
            bearers = tuple(f"Authorization: Bearer {token}" for token in tokens)
            try:
                return running.ask(
                    "POST", f"{BASE}/streams/orders", {"requestedBy": "t"}, credentials=False, headers=bearers
                ).status
            except ConnectionError:  # while a megabyte is still being sent
                return 400

        told = {kind: status(token) for kind, token in FORGED.items()}
        assert told.pop("huge") in {400, 401, 431}
        assert set(told.values()) == {401}, told
        assert status(signed(claims_of()), FORGED["alg none"]) == 401
        assert status(FORGED["alg none"], signed(claims_of())) == 401
        assert status(signed(claims_of())) == 201
        log = running.text()
        assert [kind for kind, token in FORGED.items() if leaked(token, log)] == []


def test_a_token_names_its_key_and_only_that_one_is_tried(face: Face) -> None:
    """`kid` says which secret signed: an older one is found by it, a wrong name is no token, none tries all."""
    issued = face.ask("POST", "/auth/login", user="writer").json["accessToken"]
    assert jwt.get_unverified_header(issued) == {"alg": ALGORITHM, "typ": "JWT", "kid": Key(SECRET.encode()).key_id}
    old = signed(claims_of(secret=OLD_SECRET), secret=OLD_SECRET, headers={"kid": Key(OLD_SECRET.encode()).key_id})
    mixed = signed(claims_of(), headers={"kid": Key(OLD_SECRET.encode()).key_id})
    statuses = []
    for token in (issued, old, mixed, signed(claims_of(), headers={"kid": "unknown"})):
        bearer = {"Authorization": f"Bearer {token}"}
        statuses.append(face.ask("GET", "/monitoring/session", user=None, headers=bearer).status_code)
    assert statuses == [200, 200, 401, 401]


def test_the_good_token_that_the_forged_ones_were_made_from_works(face: Face) -> None:
    for token in (
        signed(claims_of()),
        signed(claims_of(secret=OLD_SECRET), secret=OLD_SECRET),
        signed(claims_of(exp=NOW + 10**9)),
    ):
        answer = face.ask("GET", "/monitoring/session", user=None, headers={"Authorization": f"Bearer {token}"})
        assert answer.json == {"authenticated": True, "username": "writer", "roles": ["READ", "WRITE"]}


@pytest.mark.parametrize(
    "value",
    [
        "Bearer a, Bearer b",
        "Bearer",
        "Basic",
        "Digest x",
        "basic " + "=" * 5,
        "Basic " + base64.b64encode(b"\xff:\xff").decode(),
        "x",
        " ",
    ],
)
def test_an_odd_authorization_header_proves_nobody(face: Face, value: str) -> None:
    assert error_of(face.ask("GET", "/monitoring/session", user=None, headers={"Authorization": value})) == (401, "UNAUTHORIZED")


def test_a_token_never_holds_more_than_it_names(face: Face) -> None:
    """A writer's token for reading only cannot write."""
    token = {"Authorization": f"Bearer {signed(claims_of(roles=['READ']))}"}
    assert error_of(face.ask("POST", "/streams/orders", {"requestedBy": "t"}, user=None, headers=token)) == (403, "FORBIDDEN")
    assert face.ask("GET", "/monitoring/streams", user=None, headers=token).status_code == 200


def test_k4_a_token_does_not_outlive_what_it_rests_on(tmp_path: Path) -> None:
    """Removed, lowered, password changed, secret dropped: 401 or 403 from the next configuration on; rotation overlaps."""
    token = signed(claims_of())
    before = USERS.format(secret=SECRET, old=OLD_SECRET, members="false")
    writer = "- {username: writer, password: w-pass, roles: [WRITE]}"
    assert writer in before

    def status(text: str, method: str = "POST") -> int:
        face = make_face(configuration(tmp_path, text=text))
        headers = {"Authorization": f"Bearer {token}"}
        path = "/streams/orders" if method == "POST" else "/monitoring/session"
        return face.ask(method, path, {"requestedBy": "t"} if method == "POST" else None, user=None, headers=headers).status_code

    assert status(before) == 201
    assert status(before.replace(writer, "")) == 401
    lowered = before.replace(writer, writer.replace("WRITE", "READ"))
    assert (status(lowered), status(lowered, "GET")) == (403, 200)
    assert status(before.replace("w-pass", "another")) == 401
    new = "a brand-new secret, which signs from now on, long enough"
    assert status(before.replace(SECRET, new).replace(OLD_SECRET, SECRET)) == 201
    assert status(before.replace(SECRET, new)) == 401


def test_without_users_the_admin_may_do_everything_and_workers_agree_on_the_key(tmp_path: Path) -> None:
    config = configuration(tmp_path, text="coordinator: {}")
    first, second = Authenticator(config.api), Authenticator(config.api)
    admin = first.login("admin", "password")
    assert isinstance(admin, Principal)
    assert admin.roles == ("READ", "WRITE", "MEMBER")
    issued = first.issue(admin)
    assert issued is not None
    token = issued.access_token
    assert second.authenticate(f"Bearer {token}") == admin
    other = configuration(tmp_path, text="coordinator: {api: {admin-password: another}}")
    assert Authenticator(other.api).authenticate(f"Bearer {token}") is None


def test_a_user_sees_the_streams_of_its_scope_only(face: Face) -> None:
    """`orders*` means all that begin so."""
    for name in ("orders", "orders-eu", "exact", "exactly", "other"):
        face.make_stream(name)
        face.make_group(name)
    seen = face.ask("GET", "/monitoring/streams", user="scoped").json["streams"]
    assert [stream["streamPrefix"] for stream in seen] == ["exact", "orders", "orders-eu"]
    groups = face.ask("GET", "/monitoring/groups", user="scoped").json["groups"]
    assert sorted({group["streamPrefix"] for group in groups}) == ["exact", "orders", "orders-eu"]
    for name, status in (("orders-eu", 200), ("exact", 200), ("exactly", 403), ("other", 403), ("nowhere", 403)):
        assert face.ask("GET", f"/streams/{name}/producer-routing", user="scoped").status_code == status
        assert face.ask("GET", f"/monitoring/streams/{name}", user="scoped").status_code == status
    assert error_of(face.ask("POST", "/streams/other/scale", {}, user="scoped")) == (403, "FORBIDDEN")


def test_no_secret_is_in_any_repr(tmp_path: Path) -> None:
    authenticator = Authenticator(configuration(tmp_path).api)
    assert "secret" not in repr(Key(SECRET.encode()))
    assert not any(word in repr(vars(authenticator)) for word in (*PASSWORDS.values(), SECRET, OLD_SECRET))


def test_checks_are_made_in_order(world: Face) -> None:
    """Size before authentication, authentication before role, role before validation."""
    huge = b"x" * 70_000
    assert error_of(world.ask("POST", "/streams/a%7B", raw=huge, user=None)) == (413, "PAYLOAD_TOO_LARGE")
    assert error_of(world.ask("POST", "/streams/a%7B", raw=b"{", user=None)) == (401, "UNAUTHORIZED")
    assert error_of(world.ask("POST", "/streams/a%7B", raw=b"{", user="reader")) == (403, "FORBIDDEN")
    assert error_of(world.ask("POST", "/streams/a%7B", raw=b"{")) == (400, "INVALID_REQUEST")
