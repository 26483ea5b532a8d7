"""Scenarios of the face that are no one endpoint's: odd numbers and texts, large bodies, health, secrets, what the audit says."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager, suppress
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest
import redis
from falcon import testing

from coord.events.catalog import AdminRequest
from coord.names import GroupKey, StreamKey
from coord.refusals import Code, Refused
from coord.store.base import CorruptAggregate, OutcomeUnknown, StoreUnavailable
from coord.store.sql import tables
from tests.http.face import OLD_SECRET, SECRET, USERS, Face, basic, configuration, error_of, heartbeat, make_face
from tests.http.served import ADMIN, BASE, ENGINES, Served, Wire, serving
from tests.http.test_auth import leaked
from tests.http.test_endpoints import BODIES, WITH_BODY, path_of
from tests.http.test_requests import audited
from tests.servers import private_redis, wait_until
from tests.store.sql_servers import PASSWORD, PostgresqlServer
from tests.tap import Tap

WHO: Final = {"requestedBy": "tester", "reason": "a test"}
SCALE: Final = {"targetShardCount": 6, **WHO}
BEAT: Final = "/streams/orders/groups/g/members/m/heartbeat"


# -- J5, J6: what JSON cannot carry safely


def strictly(answer: testing.Result) -> Any:
    """Read an answer as a reader would that knows neither NaN nor lone surrogates."""

    def refuse(constant: str) -> Any:
        raise AssertionError(f"{constant} in an answer")

    answer.text.encode("utf-8")
    return json.loads(answer.text, parse_constant=refuse)


@pytest.mark.parametrize("number", ["NaN", "-NaN", "Infinity", "-Infinity", "1e999", "-1e999", "1e400", "0x10", "01", "1_000"])
def test_j5_a_number_that_is_none_is_refused_at_the_door(world: Face, number: str) -> None:
    for path, body, field in (
        ("/streams/orders/scale", SCALE, "targetShardCount"),
        (BEAT, heartbeat(), "memberEpoch"),
        (BEAT, heartbeat(), "metadataVersion"),
    ):
        raw = json.dumps({**body, field: "HERE"}).replace('"HERE"', number).encode()
        answer = world.ask("POST", path, raw=raw)
        assert error_of(answer) == (400, "INVALID_REQUEST")
        strictly(answer)
    world.services.ticker.tick()
    assert strictly(world.ask("GET", "/monitoring/streams/orders"))["shardCount"] == 4


def test_j5_minus_zero_is_zero(world: Face) -> None:
    raw = json.dumps({**SCALE, "targetShardCount": "HERE"}).replace('"HERE"', "-0").encode()
    answer = world.ask("POST", "/streams/orders/scale", raw=raw)
    assert (answer.status_code, strictly(answer)["targetShardCount"]) == (202, 0)


@pytest.mark.parametrize("text", ["\\ud800", "a\\udfffb", "\\ud800\\ud800", "\\u0000", "a\\u0000b", "\\u001b[31m", "\\u2028"])
def test_j5_a_text_that_utf8_or_a_log_cannot_carry_is_refused(world: Face, text: str) -> None:
    for path, body, field in (
        ("/streams/orders/scale", SCALE, "requestedBy"),
        ("/streams/orders/scale", SCALE, "reason"),
        (BEAT, heartbeat(), "memberName"),
        (BEAT, heartbeat(), "requestId"),
        (BEAT, heartbeat(), "memberId"),
    ):
        raw = json.dumps({**body, field: "HERE"}).replace("HERE", text).encode()
        answer = world.ask("POST", path, raw=raw)
        assert error_of(answer) == (400, "INVALID_REQUEST")
        strictly(answer)
    world.services.ticker.tick()


def test_j5_what_is_legal_comes_back_as_it_was(world: Face) -> None:
    """A pair of surrogates is one letter, quotes and escapes are texts like others: in the answer, the log and the audit."""
    reason = '名 \U0001f600 "quoted" \\ </script> \n second line'
    assert world.ask("POST", "/streams/orders/scale", {**SCALE, "reason": reason}).status_code == 202
    assert strictly(world.ask("GET", "/monitoring/streams/orders/migrations"))["migrations"][0]["reason"] == reason
    assert audited(world, StreamKey("orders"))[-1].reason == reason


@pytest.mark.parametrize("value", ["\ud800", "a\x00b", "na\u00efve", "a\r\nX: y"])
def test_j5_a_request_id_that_a_header_cannot_carry_is_replaced(world: Face, value: str) -> None:
    environ_value = value.encode("utf-8", "surrogatepass").decode("latin-1")
    client = world.client
    answer = client.simulate_get("/livez", extras={"HTTP_X_REQUEST_ID": environ_value})
    assert answer.headers["x-request-id"] != environ_value
    assert len(answer.headers["x-request-id"]) == 36


@pytest.mark.parametrize("depth", [1_000, 30_000])
@pytest.mark.parametrize("opening", ["[", '{"a":'])
def test_j6_bottomless_nesting_is_a_400(still: Face, depth: int, opening: str) -> None:
    """In a field that is ignored too, and closed or not."""
    nested = opening * (depth // len(opening))
    for raw in (nested, f'{{"unknown": {nested}', f'{{"requestedBy": {nested}'):
        assert error_of(still.ask("POST", "/streams/orders/scale", raw=raw.encode())) == (400, "INVALID_REQUEST")
        assert error_of(still.ask("POST", BEAT, raw=raw.encode())) == (400, "INVALID_REQUEST")


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_j6_nothing_of_that_hurts_a_worker(tmp_path: Path, engine: str) -> None:
    """A hundred thousand brackets, and numbers of five thousand digits: the same process answers the next request."""
    with serving(tmp_path, "--embedded-redis", "--workers", "1", engine=engine) as running:
        before = running.workers()
        deep = b"[" * 100_000
        for raw in (deep, b'{"x":' * 100_000, b'{"x":' + deep + b"]" * 100_000 + b"}", b'{"memberEpoch":' + b"9" * 5_000 + b"}"):
            for path in ("/auth/login", "/streams/orders", "/streams/orders/groups/g/members/m/heartbeat"):
                head = f"POST {BASE}{path} HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\nContent-Type: application/json\r\n"
                answer = running.raw(f"{head}Content-Length: {len(raw)}\r\n\r\n".encode() + raw)
                assert answer.code == (400, "INVALID_REQUEST")
        assert running.workers() == before
        assert "Traceback" not in running.text()


@pytest.mark.parametrize("number", ["9" * 5_000, str(2**63), str(2**64), str(-(2**63) - 1), "9" * 400 + ".5", "1" + "0" * 5_000])
def test_j6_a_giant_number_is_a_400_in_every_field_that_takes_one(still: Face, number: str) -> None:
    for route, method, operation in WITH_BODY:
        body = BODIES[operation.id]
        for field in [name for name, value in body.items() if type(value) is int]:
            raw = json.dumps({**body, field: "HERE"}).replace('"HERE"', number).encode()
            assert error_of(still.ask(method, path_of(route), raw=raw)) == (400, "INVALID_REQUEST"), (operation.id, field)
    shard = {"shardIndex": "HERE"}
    for inside in (
        {"runtimeConsumerCapacity": {"runtimeMaxConcurrency": "HERE", "availableConcurrency": 0}},
        {"runtimeConsumerCapacity": {"runtimeMaxConcurrency": 1, "availableConcurrency": "HERE"}},
        {"ownedShards": [shard]},
        {"revokingShards": [{"shard": shard, "state": "REVOKED", "inFlight": 0}]},
        {"revokingShards": [{"shard": {"shardIndex": 1}, "state": "REVOKED", "inFlight": "HERE"}]},
        {"shardProgress": [{"shard": shard}]},
        {"shardProgress": [{"shard": {"shardIndex": 1}, "pendingCount": "HERE"}]},
    ):
        raw = json.dumps(heartbeat(**inside)).replace('"HERE"', number).encode()
        assert error_of(still.ask("POST", BEAT, raw=raw)) == (400, "INVALID_REQUEST"), inside
        listed = still.ask("POST", "/streams/orders/groups/g/heartbeats", raw=b'{"heartbeats": [' + raw + b"]}")
        assert listed.status_code in {200, 400}
        assert listed.status_code == 400 or [each["status"] for each in listed.json["responses"]] == ["INVALID_REQUEST"], inside


# -- J8: large bodies of requests that are refused


@contextmanager
def probed(running: Served) -> Iterator[list[float]]:
    """Ask for health all the time, on connections of its own; gives how long each answer took, in s."""
    took_s: list[float] = []
    stop = threading.Event()

    def ask() -> None:
        while not stop.is_set():
            began_s = time.monotonic()
            if running.ask("GET", "/actuator/health").status == 200:
                took_s.append(time.monotonic() - began_s)

    with ThreadPoolExecutor(1) as pool:
        asking = pool.submit(ask)
        try:
            yield took_s
        finally:
            stop.set()
            asking.result()


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_j8_a_refused_request_with_a_large_body_costs_no_worker(tmp_path: Path, engine: str) -> None:
    """Whole bodies and dribbled ones, on twice as many connections as threads: each answer comes, and health meanwhile."""
    threads = 4
    limit = "rate-limit: {enabled: true, admin-mutations-per-minute: 1}"
    config = f"coordinator: {{server: {{threads: {threads}}}, api: {{{limit}}}}}"
    scale = f"POST {BASE}/streams/orders/scale HTTP/1.1\r\nHost: t\r\n"
    heads = [
        (scale, {401}),
        (f"POST {BASE}/nothing HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\n", {404}),
        (f"PUT {BASE}/streams/orders HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\n", {405}),
        (f"{scale}{ADMIN}\r\n", {400, 429}),  # the body is no JSON; once a minute's mutations are spent, nobody looks
    ]
    sizes = (9_000, 65_536, 5 * 1024 * 1024)

    def send(index: int) -> int:
        size, (head, expected) = sizes[index % 3], heads[index // 3 % 4]
        with Wire(running.port, timeout_s=30) as connection:
            connection.send(f"{head}Content-Type: application/json\r\nContent-Length: {size}\r\n\r\n".encode())
            try:
                connection.send(b"x" * size)
            except OSError:  # granian ends the connection once it has answered, however much is still to come
                assert (engine, size) == ("granian", sizes[2])
            answer = connection.receive()
            assert answer.status in (expected if size < sizes[2] else {413}), (head, size, answer.body)
            return answer.status

    with serving(tmp_path, "--embedded-redis", "--workers", "1", config=config, engine=engine) as running, ExitStack() as crowd:
        assert running.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 4, **WHO}).status == 201
        slow = [crowd.enter_context(Wire(running.port)) for _ in range(2 * threads)]
        for index, connection in enumerate(slow):
            connection.send(f"{heads[index % 3][0]}Content-Length: 9000\r\n\r\n".encode())
        with probed(running) as took_s, ThreadPoolExecutor(2 * threads) as pool:
            statuses: list[int] = []
            for _ in range(3):
                statuses += pool.map(send, range(24))
                for connection in slow:
                    with suppress(OSError):  # answered, and ended
                        connection.send(b"x")
        assert len(took_s) > 3
        assert max(took_s) < 1.4  # a second, and what a busy machine adds
        assert {401, 404, 405, 413, 429} == set(statuses)


# -- J11: health


def test_j11_many_probes_cost_the_store_one_look_a_second(world: Face, monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    real = world.store.last_tick

    def counted() -> tuple[int, int]:
        looks.append(time.monotonic())
        return real()

    monkeypatch.setattr(world.store, "last_tick", counted)
    began_s = time.monotonic()
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda _: world.ask("GET", "//actuator/health", user=None), range(200)))
    assert len(looks) <= time.monotonic() - began_s + 1
    assert all(after - before >= 0.99 for before, after in itertools.pairwise(looks))


def test_j11_without_a_redis_none_is_missed(world: Face) -> None:
    told = world.ask("GET", "/monitoring/health").json
    assert (told["redis"], told["store"]) == ("NOT_CONFIGURED", "UP")


@pytest.mark.e2e
@pytest.mark.parametrize("fault", ["read-only", "blackholed", "slow", "gone"])
def test_j11_probes_are_answered_whatever_redis_does(tmp_path: Path, fault: str) -> None:
    """Each within a second, Redis's own time-out being far longer: liveness and readiness stay, health says DOWN.

    A Redis that takes no writes is one that answers, and what writes fails by itself.
    """
    config = "coordinator: {redis: {timeout-ms: 4000}, coordination: {state-mutex: {ttl-ms: 5000}}}"
    with (
        private_redis() as server,
        Tap(server.port) as tap,
        serving(tmp_path, "--workers", "1", config=config, environ={"REDIS_URL": f"redis://127.0.0.1:{tap.port}/0"}) as running,
    ):

        def probe(path: str) -> int:
            began_s = time.monotonic()
            status = running.ask("GET", path, timeout_s=10).status
            assert time.monotonic() - began_s < 3, path  # a second, and what a busy machine adds
            return status

        wait_until(lambda: probe("/actuator/health") == 200, what="health is not DOWN")
        if fault == "read-only":
            with redis.Redis(port=server.port) as client:
                client.config_set("min-replicas-to-write", 3)
        elif fault == "blackholed":
            tap.blackhole()
        elif fault == "slow":
            tap.delay(10)
        else:
            server.kill()
        if fault != "read-only":
            wait_until(lambda: probe("/actuator/health") == 503, what="health is DOWN")
        for _ in range(4):
            for path in ("/livez", "/readyz", f"{BASE}/monitoring/health"):
                assert probe(path) == 200
            assert probe("/actuator/health") == (200 if fault == "read-only" else 503)
            time.sleep(0.6)  # so that the store is asked again
        health = running.ask("GET", f"{BASE}/monitoring/health").json
        assert (health["redis"], health["store"]) == (("UP", "UP") if fault == "read-only" else ("DOWN", "DOWN"))
        refused = running.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 4, **WHO}, timeout_s=60)
        assert refused.code == (503, "STORE_UNAVAILABLE")
        if fault in {"blackholed", "slow"}:
            tap.cut()
            tap.pass_through()
            wait_until(lambda: probe("/actuator/health") == 200, timeout_s=20, what="health is back")


@pytest.mark.e2e
def test_j11_a_loop_that_has_died_is_told_and_the_probes_stay(tmp_path: Path) -> None:
    """The only worker's ticker ends by what no loop catches: health says so, and the probes give nobody a reason to restart."""
    dies = """
import os
from coord.runtime.ticker import Ticker

def tick(self, real=Ticker.tick):
    if os.path.exists("die"):
        raise SystemExit
    return real(self)

Ticker.tick = tick
"""
    config = "coordinator: {heartbeat-interval: 200ms, member-lease-ttl: 2s, loop: {tick-interval: 100ms}}"
    with serving(tmp_path, "--embedded-redis", "--workers", "1", config=config, changed=dies) as running:

        def loop() -> str:
            return str(running.ask("GET", f"{BASE}/monitoring/health").json["loop"])

        wait_until(lambda: loop() == "UP", what="the loop runs")
        (tmp_path / "die").touch()
        wait_until(lambda: loop() == "DOWN", timeout_s=60, what="the loop is late")
        assert running.ask("GET", f"{BASE}/monitoring/health").json["status"] != "UP"
        for path in ("/livez", "/readyz"):
            assert running.ask("GET", path).status == 200


# -- K8: secrets


MARKER: Final = PASSWORD
"""The test databases' own password, so that all secrets of a run are one text."""
SECRETS: Final = f"""
  api:
    token-secret: "{MARKER}{MARKER}{MARKER}{MARKER}"
    users: [{{username: admin, password: "{MARKER}", roles: [ADMIN]}}, {{username: other, password: "{MARKER}2", roles: [READ]}}]
"""
HOLDER: Final = "Authorization: " + basic("admin", MARKER)["Authorization"]


def provoked(running: Served) -> list[bytes]:
    """Send the marker wherever a secret may stand, right and wrong; gives all that was answered."""
    answers: list[bytes] = []

    def send(method: str, path: str, body: object = None, *headers: str) -> None:
        answer = running.ask(method, path, body, credentials=False, headers=headers)
        answers.append(answer.body)
        answers.extend(value.encode() for value in answer.headers.values())

    login = {"username": "admin", "password": MARKER}
    token = running.ask("POST", f"{BASE}/auth/login", login, credentials=False).json["accessToken"]
    send("POST", f"{BASE}/auth/login", {**login, "password": f"{MARKER}wrong"})
    send("POST", f"{BASE}/auth/login", {"username": "admin", "password": [MARKER]})
    send("POST", f"{BASE}/auth/login", {"username": "admin", "password": f"{MARKER}\u0000"})
    for credentials in (
        HOLDER,
        f"Authorization: Bearer {token}",
        f"Authorization: Bearer {token}{MARKER}",
        f"Authorization: Bearer {MARKER}.{MARKER}.{MARKER}",
        f"Authorization: {MARKER}",
        "Authorization: " + basic("admin", f"{MARKER}x")["Authorization"],
    ):
        send("GET", f"{BASE}/monitoring/session?access_token={MARKER}", None, credentials)
        send("POST", f"{BASE}/streams/orders?token={MARKER}", {**WHO, "password": MARKER}, credentials)
        send("DELETE", f"{BASE}/streams/none?requestedBy=t&reason=r&token={MARKER}&{MARKER}", None, credentials)
        send("POST", f"{BASE}/streams/orders/scale", {"targetShardCount": MARKER, "requestedBy": [MARKER]}, credentials)
    send("GET", "/v3/api-docs")
    running.raw(f"GET /livez HTTP/1.1\r\nAuthorization: Basic {MARKER}\r\nbad header {MARKER}\r\n\r\n".encode())
    assert token.encode() not in b"".join(answers)
    assert not leaked(token, running.text())
    return answers


def nothing_leaks(**texts: bytes) -> None:
    """Hold each text to being free of the marker, plain or as a Basic header carries it."""
    encoded = HOLDER.rpartition(" ")[2].encode()
    for where, text in texts.items():
        for secret in (MARKER.encode(), encoded):
            assert secret not in text, f"in {where}: {text[max(0, text.find(secret) - 300) :][:600]!r}"


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_k8_no_secret_comes_out_anywhere(tmp_path: Path, engine: str) -> None:
    """In passwords, tokens, queries, bodies and the Redis URL, right and wrong, at log level debug, with errors provoked."""
    arguments = ("--workers", "1", "--log-level", "debug")
    with private_redis() as server:
        with redis.Redis(port=server.port) as plain:
            plain.config_set("requirepass", MARKER)
        wrong, right = ({"REDIS_URL": f"redis://:{secret}@127.0.0.1:{server.port}/0"} for secret in (f"{MARKER}x", MARKER))
        config = f"coordinator:\n  redis: {{timeout-ms: 500}}{SECRETS}"
        with serving(tmp_path, *arguments, config=config, environ=wrong, engine=engine) as running:
            refused = running.ask("POST", f"{BASE}/streams/orders", WHO, credentials=False, headers=(HOLDER,))
            assert refused.code == (503, "STORE_UNAVAILABLE")
        with serving(tmp_path, *arguments, config=config, environ=right, engine=engine) as running:
            answers = [refused.body, *provoked(running)]
            with redis.Redis(port=server.port, password=MARKER) as client:
                kept = b"".join(dumped(client, key) for key in client.keys("*"))
            server.kill()
            answers.append(running.ask("POST", f"{BASE}/streams/orders/scale", SCALE, credentials=False, headers=(HOLDER,)).body)
        log = running.text()
    assert b"requestedBy=t" in kept  # what the operation knows is told
    nothing_leaks(log=log.encode(), redis=kept, answers=b"".join(answers))


@pytest.mark.e2e
def test_k8_no_secret_of_a_sql_store_comes_out_anywhere(tmp_path: Path) -> None:
    """The password in its URL, right and wrong, and all of the above. What the drivers log is looked at beside the stores."""
    if not PostgresqlServer.is_there():
        pytest.skip("PostgreSQL is not there: ops/setup/postgresql.sh")
    arguments = ("--workers", "1", "--log-level", "debug")
    with closing(PostgresqlServer()) as server:
        database = server.new_database()

        def config(url: str) -> str:
            return f"coordinator:\n  store: {{type: jdbc, url: '{url}'}}{SECRETS}"

        right = server.url(database)
        with serving(tmp_path, *arguments, config=config(right)) as running:
            answers = provoked(running)
            kept = [repr(server.execute(database, f"SELECT * FROM {table}")) for table in tables.schema.tables]
            server.kill()
            answers.append(running.ask("POST", f"{BASE}/streams/orders/scale", SCALE, credentials=False, headers=(HOLDER,)).body)
        server.start()
        with serving(tmp_path, *arguments, config=config(right + "x"), ready=False) as running:
            wait_until(
                lambda: "password authentication failed" in running.text(), timeout_s=60, what="the database refuses the password"
            )
        log = running.text()
    assert "requestedBy=t" in "".join(kept)
    nothing_leaks(log=log.encode(), tables="".join(kept).encode(), answers=b"".join(answers))


def dumped(client: redis.Redis, key: bytes) -> bytes:
    """Give all that a key holds."""
    kind = client.type(key)
    if kind == b"stream":
        return repr(client.xrange(key)).encode()
    if kind == b"hash":
        return repr(client.hgetall(key)).encode()
    if kind == b"zset":
        return repr(client.zrange(key, 0, -1)).encode()
    if kind == b"set":
        return repr(client.smembers(key)).encode()
    return repr(client.get(key)).encode()


# -- K10: the audit shows what was answered


def one_entry(face: Face, before: dict[object, int]) -> AdminRequest:
    new = [entry for key in before for entry in audited(face, key)[before[key] :]]  # type: ignore[arg-type]  # keys and None
    (entry,) = new
    return entry


def counts(face: Face) -> dict[object, int]:
    keys = (None, StreamKey("orders"), StreamKey("fresh"), GroupKey("orders", "g"))
    return {key: len(audited(face, key)) for key in keys}


OUTCOMES: Final[dict[int, tuple[str, str, str, object, str | None]]] = {
    201: ("POST", "/streams/fresh", "SUCCESS", WHO, "writer"),
    202: ("POST", "/streams/orders/scale", "SUCCESS", SCALE, "writer"),
    200: ("DELETE", "/streams/orders/groups/g", "SUCCESS", WHO, "writer"),
    400: ("POST", "/streams/orders/scale", "FAILED", {}, "writer"),
    401: ("POST", "/streams/orders/scale", "UNAUTHORIZED", SCALE, None),
    403: ("POST", "/streams/orders/scale", "FORBIDDEN", SCALE, "reader"),
    404: ("POST", "/streams/none/scale", "FAILED", SCALE, "writer"),
    409: ("POST", "/streams/orders", "FAILED", WHO, "writer"),
    413: ("POST", "/streams/orders", "FAILED", {**WHO, "x": "y" * 70_000}, "writer"),
    415: ("POST", "/streams/orders", "FAILED", WHO, "writer"),
    422: ("POST", "/streams/orders/groups/g/migrations/ID/complete", "FAILED", WHO, "writer"),
    429: ("POST", "/streams/orders/scale", "FAILED", SCALE, "writer"),
    500: ("POST", "/streams/orders/scale", "ERROR", SCALE, "writer"),
    503: ("POST", "/streams/orders/scale", "ERROR", SCALE, "writer"),
}


@pytest.mark.parametrize("status", OUTCOMES)
def test_k10_status_and_outcome_are_those_that_were_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, status: int
) -> None:
    limit = "    rate-limit: {enabled: true, admin-mutations-per-minute: 50}\n"
    face = make_face(configuration(tmp_path, text=USERS.format(secret=SECRET, old=OLD_SECRET, members="false") + limit))
    face.make_stream()
    face.make_group()
    method, path, outcome, body, user = OUTCOMES[status]
    if status == 422:
        path = path.replace("ID", face.scale(6))
    if status == 429:
        monkeypatch.setattr(face.store.windows, "take", lambda *_, **__: 5_000)
    if status == 500:
        monkeypatch.setattr(face.services.admin, "scale_stream", lambda *_, **__: 1 / 0)
    if status == 503:
        refused = Refused(Code.COORDINATOR_STATE_MUTEX_UNAVAILABLE, "held")
        monkeypatch.setattr(face.services.admin, "scale_stream", lambda *_, **__: refused)
    before = counts(face)
    headers = {"X-Request-Id": "r-1", **({"Content-Type": "text/plain"} if status == 415 else {})}
    answer = face.ask(method, path, raw=json.dumps(body).encode(), user=user, headers=headers)
    entry = one_entry(face, before)
    assert (answer.status_code, entry.status, entry.outcome, entry.request_id) == (status, status, outcome, "r-1")
    assert entry.error_code == (answer.json["errorCode"] if status >= 400 else None)
    assert entry.principal == (user if status not in {401, 413} else None)


@pytest.mark.parametrize(
    "error", [StoreUnavailable("away"), OutcomeUnknown("silent"), CorruptAggregate(StreamKey("orders"), "x")]
)
def test_k10_an_entry_that_no_store_takes_goes_to_the_log(
    world: Face, capsys: pytest.CaptureFixture[str], error: Exception
) -> None:
    """The answer is what it would have been."""
    world.store.fault = error
    world.store.append_request = lambda entry: world.store._fail()  # type: ignore[method-assign]  # away, all of it
    answer = world.ask("POST", "/streams/orders/scale", SCALE, headers={"X-Request-Id": "lost-1"})
    world.store.fault = None
    assert answer.status_code == (409 if isinstance(error, CorruptAggregate) else 503)
    (line,) = [line for line in capsys.readouterr().out.splitlines() if "audit entry could not be stored" in line]
    assert "lost-1" in line
    assert f"'status': {answer.status_code}" in line or f'"status": {answer.status_code}' in line


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """One worker with a private Redis."""
    with serving(tmp_path_factory.mktemp("one"), "--embedded-redis", "--workers", "1") as running:
        yield running


@pytest.mark.e2e
def test_k10_a_caller_that_hangs_up_before_the_answer_is_audited_all_the_same(served: Served) -> None:
    body = json.dumps({"initialShardCount": 2, **WHO}).encode()
    with Wire(served.port) as connection:
        connection.send(
            f"POST {BASE}/streams/hung-up HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\nX-Request-Id: hung-up-1\r\n"
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
    wait_until(lambda: served.ask("GET", f"{BASE}/monitoring/streams/hung-up").status == 200, what="the stream is made")
    with redis.Redis(port=embedded_port(served)) as client:
        log = wait_until(
            lambda: [
                json.loads(fields[b"event"])["data"]
                for _, fields in client.xrange("redis-stream:coord:{hung-up}:stream:events")
                if json.loads(fields[b"event"])["type"] == "AdminRequest"
            ],
            what="the audit entry is there",
        )
    (entry,) = [msgspec.convert(each, AdminRequest) for each in log]
    assert (entry.action, entry.outcome, entry.status, entry.request_id) == ("CREATE_STREAM", "SUCCESS", 201, "hung-up-1")


def embedded_port(served: Served) -> int:
    """Give the port of the private Redis of a coordinator."""
    (line,) = [json.loads(line) for line in served.text().splitlines() if "private redis is running" in line]
    return int(str(line["url"]).rsplit(":", 1)[1].split("/")[0])
