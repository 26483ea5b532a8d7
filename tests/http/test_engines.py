"""The same face behind the real servers: raw bytes on a socket, keep-alive, a store that goes away, an orderly end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis

from tests.http.face import heartbeat
from tests.http.odd_names import ILLEGAL, LEGAL, Ask, illegal_names_reach_nothing, legal_names_round_trip
from tests.http.served import ADMIN, BASE, ENGINES, Served, Wire, serving
from tests.servers import private_redis, wait_until

pytestmark = pytest.mark.e2e

WHO = {"requestedBy": "tester", "reason": "a test"}
CREATE = {"initialShardCount": 4, **WHO}
MEMORY = "coordinator: {store: {type: memory}}"


@pytest.fixture(scope="module", params=ENGINES)
def served(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Iterator[Served]:
    """A coordinator with two workers and a private Redis, with the stream `orders` and its group `g`; on each engine."""
    folder = tmp_path_factory.mktemp("served")
    with serving(folder, "--embedded-redis", "--workers", "2", engine=request.param) as running:
        assert running.ask("POST", f"{BASE}/streams/orders", CREATE).status == 201
        assert running.ask("POST", f"{BASE}/streams/orders/groups/g", CREATE).status == 201
        yield running


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/streams/a%2Fb/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%2fb/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%00b/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/a%zz/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/%FF/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams//producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/./producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/%2e%2e/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/" + "x" * 1000 + "/producer-routing", (400, "INVALID_REQUEST")),
        ("/streams/orders/producer-routing/", (404, "NOT_FOUND")),
        ("/streams/a%252Fb/producer-routing", (404, "STREAM_NOT_FOUND")),
        ("/streams/pod:1;x=1/producer-routing", (404, "STREAM_NOT_FOUND")),
        ("/streams/a%20b/producer-routing", (404, "STREAM_NOT_FOUND")),
        ("/streams/%E5%90%8D/producer-routing", (404, "STREAM_NOT_FOUND")),
    ],
)
def test_j1_paths_are_judged_as_they_came(served: Served, path: str, expected: tuple[int, str]) -> None:
    """Granian shows the app no raw path: what is odd there may be told as something that does not exist."""
    answer = served.ask("GET", BASE + path)
    assert answer.code == expected or (served.engine == "granian" and answer.status == 404)
    assert served.ask("GET", BASE + path, credentials=False).code == (401, "UNAUTHORIZED")


@pytest.mark.parametrize("member", ["a%2Fb", "m/x", "a%2Fheartbeat", "%00"])
def test_j1_an_odd_member_id_reaches_no_other_handler(served: Served, member: str) -> None:
    answer = served.ask("POST", f"{BASE}/streams/orders/groups/g/members/{member}/heartbeat", heartbeat(), credentials=False)
    assert answer.code in {(400, "INVALID_REQUEST"), (401, "UNAUTHORIZED"), (404, "NOT_FOUND")}
    assert served.ask("GET", f"{BASE}/monitoring/streams/orders/groups/g/members").json == {"members": []}


def asking(served: Served) -> Ask:
    def ask(method: str, path: str, body: object) -> tuple[int, Any]:
        answer = served.ask(method, BASE + path, body)
        return answer.status, answer.json

    return ask


@pytest.mark.parametrize("written", LEGAL)
def test_j1_a_legal_name_is_shown_as_it_was_sent(served: Served, written: str) -> None:
    legal_names_round_trip(asking(served), written, LEGAL[written])


@pytest.mark.parametrize("written", ILLEGAL)
def test_j1_an_illegal_name_reaches_nothing(served: Served, written: str) -> None:
    illegal_names_reach_nothing(asking(served), written, shows_raw_path=served.engine == "gunicorn")


def chunked(*chunks: bytes, path: str = "/streams/orders/scale", end: bytes = b"0\r\n\r\n") -> bytes:
    lines = [f"POST {BASE}{path} HTTP/1.1", "Host: t", ADMIN, "Transfer-Encoding: chunked", "Content-Type: application/json"]
    return "\r\n".join([*lines, "", ""]).encode() + b"".join(b"%x\r\n%b\r\n" % (len(chunk), chunk) for chunk in chunks) + end


def test_a_chunked_body_is_read_and_bounded(served: Served) -> None:
    body = json.dumps({"targetShardCount": 4, **WHO}).encode()
    assert served.raw(chunked(body[:10], body[10:])).json["migrations"][0]["reshardingId"] == "noop"
    assert served.raw(chunked(*[b" " * 65_536] * 17)).code == (413, "PAYLOAD_TOO_LARGE")
    if served.engine == "gunicorn":  # granian tells the app of no torn end, so the JSON itself must be whole
        assert served.raw(chunked(body, end=b"zz\r\n\r\n")).code == (400, "INVALID_REQUEST")
    assert served.raw(chunked(body[:-1], end=b"zz\r\n\r\n")).code == (400, "INVALID_REQUEST")
    assert served.raw(chunked(b"{")).code == (400, "INVALID_REQUEST")


@pytest.mark.parametrize(
    ("data", "granian_says"),
    [
        (b"nonsense\r\n\r\n", 400),
        (b"GET /coord/v1/streams/\xe5\x90\x8d HTTP/1.1\r\nHost: t\r\n\r\n", 401),
        (b"GET /livez HTTP/9.9\r\nHost: t\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: t\r\nContent-Length: abc\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: t\r\nContent-Length: -1\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: t\r\nbad header\r\n\r\n", 400),
        (b"GET /livez HTTP/1.1\r\nHost: t\r\nX: a\x00b\r\n\r\n", 400),
        (b"GET /" + b"x" * 9000 + b" HTTP/1.1\r\nHost: t\r\n\r\n", 404),
        (b"GET /livez HTTP/1.1\r\nHost: t\r\nX: " + b"x" * 9000 + b"\r\n\r\n", 200),
        (b"POST /livez HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: gzip\r\n\r\n", 400),
        (b"POST /livez HTTP/1.1\r\nHost: t\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\n0\r\n\r\n", 405),
    ],
)
def test_j4_what_is_no_http_is_told_so_in_our_json(served: Served, data: bytes, granian_says: int) -> None:
    """Granian's parser takes longer lines and unencoded UTF-8, and its 400, which no app stands behind, has no body."""
    answer = served.raw(data)
    if served.engine == "gunicorn":
        assert answer.code == (400, "INVALID_REQUEST")
    else:
        assert answer.status == granian_says
        assert answer.status != 400 or answer.body == b""


@pytest.mark.parametrize(
    "data", [b"GET /livez HTTP/1.1\nHost: t\n\n", b"GET /livez HTTP/1.1\r\nHost: t\n", b"GET /" + b"x" * 9000]
)
def test_j4_what_can_be_no_http_any_more_is_not_waited_for(served: Served, data: bytes) -> None:
    """Granian takes bare line feeds, and longer lines."""
    if served.engine == "gunicorn":
        assert served.raw(data).code == (400, "INVALID_REQUEST")


def test_a_get_ignores_its_body_and_the_connection_goes_on(served: Served) -> None:
    """J3, J8: also after answers that left a body unread."""
    with Wire(served.port) as connection:
        for _ in range(3):
            connection.send(b"GET /livez HTTP/1.1\r\nHost: t\r\nContent-Type: application/json\r\nContent-Length: 4\r\n\r\n{[}]")
            assert connection.receive().status == 200
        big = b"x" * 9_000
        connection.send(f"POST {BASE}/nothing HTTP/1.1\r\nHost: t\r\nContent-Length: {len(big)}\r\n\r\n".encode() + big)
        assert connection.receive().code == (401, "UNAUTHORIZED")
        connection.send(b"GET /readyz HTTP/1.1\r\nHost: t\r\n\r\n")
        assert connection.receive().json == {"status": "UP"}


def test_a_body_beyond_the_limit_is_refused_by_its_announced_length(served: Served) -> None:
    with Wire(served.port) as connection:
        connection.send(f"POST {BASE}/auth/login HTTP/1.1\r\nHost: t\r\nContent-Length: 1048577\r\n\r\n".encode())
        assert connection.receive().code == (413, "PAYLOAD_TOO_LARGE")


def test_head_options_and_405_over_the_wire(served: Served) -> None:
    head = served.ask("HEAD", f"{BASE}/streams/orders/groups/g")
    get = served.ask("GET", f"{BASE}/streams/orders/groups/g")
    assert (head.status, head.headers["content-length"]) == (200, get.headers["content-length"])
    options = served.ask("OPTIONS", f"{BASE}/streams/orders")
    assert (options.status, options.headers["allow"]) == (204, "DELETE, OPTIONS, POST")
    for method in ("PUT", "FOO", "WEBSOCKET"):
        refused = served.ask(method, f"{BASE}/streams/orders")
        assert refused.code == (405, "METHOD_NOT_ALLOWED")
        assert refused.headers["allow"] == "DELETE, OPTIONS, POST"


def test_two_authorization_headers_prove_nobody(served: Served) -> None:
    assert served.ask("GET", f"{BASE}/monitoring/session", headers=(ADMIN,)).code == (401, "UNAUTHORIZED")


def test_any_worker_takes_a_token_of_any_other(served: Served) -> None:
    token = served.ask("POST", f"{BASE}/auth/login", {"username": "admin", "password": "password"}).json["accessToken"]
    for _ in range(12):
        answer = served.ask("GET", f"{BASE}/monitoring/session", credentials=False, headers=(f"Authorization: Bearer {token}",))
        assert answer.json["username"] == "admin"


def test_o1_the_tick_goes_on_when_workers_are_killed(served: Served) -> None:
    """Each worker has a ticker of its own; who dies is replaced."""
    before = served.workers()
    assert len(before) == 2
    for pid in before:
        os.kill(pid, signal.SIGKILL)

    def ticks_again() -> bool:
        try:
            health = served.ask("GET", f"{BASE}/monitoring/health").json
        except OSError:
            return False
        return bool(health["loop"] == "UP" and health["loopAgeMs"] < 3_000 and not served.workers() & before)

    wait_until(ticks_again, timeout_s=60, what="new workers tick", poll_s=0.2)
    assert len(served.workers()) == 2


@pytest.mark.parametrize("engine", ENGINES)
def test_o1_a_silent_member_expires_without_any_request_whatever_happened_to_the_workers(tmp_path: Path, engine: str) -> None:
    """After a start, after every worker was killed, after SIGHUP, and after Redis was away: seen in the log in Redis."""
    config = (
        "coordinator: {heartbeat-interval: 200ms, member-lease-ttl: 2s, loop: {tick-interval: 100ms}, redis: {timeout-ms: 500}}"
    )
    with (
        private_redis() as server,
        redis.Redis(port=server.port) as client,
        serving(tmp_path, "--workers", "2", config=config, environ={"REDIS_URL": server.url}, engine=engine) as running,
    ):
        assert running.ask("POST", f"{BASE}/streams/orders/groups/g", CREATE).status == 201
        (log,) = client.scan_iter(match="*{orders:g}*events*")

        def expires(member: str) -> None:
            """Beat once, then be silent; nobody asks the coordinator anything."""
            beat = f"{BASE}/streams/orders/groups/g/members/{member}/heartbeat"
            wait_until(lambda: accepted(running, beat), timeout_s=60, what="the member is in")

            def is_told() -> bool:
                bodies = [b"".join(fields.values()) for _, fields in client.xrange(log)]
                return any(b"Expired" in body and f'"{member}"'.encode() in body for body in bodies)

            wait_until(is_told, timeout_s=60, what=f"{member} expires", poll_s=0.1)

        expires("first")
        before = running.workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        expires("after-a-kill")
        before = running.workers()
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: not running.workers() & before, timeout_s=60, what="new workers")
        expires("after-a-hup")
        os.kill(server.pid, signal.SIGSTOP)
        wait_until(lambda: "the store is away" in running.text(), timeout_s=60, what="a tick without Redis")
        os.kill(server.pid, signal.SIGCONT)
        expires("after-an-outage")


def accepted(running: Served, path: str) -> bool:
    try:
        answer = running.ask("POST", path, heartbeat(memberId=path.split("/")[-2]))
    except OSError:
        return False
    return answer.status == 200 and answer.json["memberEpoch"] > 0


@pytest.mark.parametrize("engine", ENGINES)
def test_r21_workers_end_with_their_master(tmp_path: Path, engine: str) -> None:
    """Nobody would replace them, and the port could not be had again."""
    with serving(tmp_path, config=MEMORY, engine=engine) as running:
        (worker,) = running.workers()
        running.process.kill()
        running.process.wait(60)
        wait_until(lambda: not Path(f"/proc/{worker}").exists(), what="the worker ends")
        assert not running.lives()


def test_adopting_and_destroying_touch_the_real_redis(tmp_path: Path) -> None:
    with private_redis() as server, serving(tmp_path, environ={"REDIS_URL": server.url}) as running:
        data = redis.Redis(port=server.port)
        data.xadd("old:0", {"a": "1"})
        missing = running.ask("POST", f"{BASE}/streams/old/adopt", {"shardCount": 3, **WHO})
        assert missing.code == (400, "INVALID_REQUEST")
        assert "old:1" in missing.json["message"]
        assert "old:2" in missing.json["message"]
        adopted = running.ask("POST", f"{BASE}/streams/old/adopt", {"shardCount": 1, **WHO})
        assert (adopted.status, adopted.json["shardCount"]) == (201, 1)
        data.xgroup_create("old:0", "foreign", "0")
        data.xreadgroup("foreign", "c", {"old:0": ">"})
        gone = running.ask("DELETE", f"{BASE}/streams/old/consumer-groups/foreign?requestedBy=t&reason=r")
        assert (gone.status, gone.json["pendingCounts"]) == (200, {"old:0": 1})
        assert running.ask("DELETE", f"{BASE}/streams/old/consumer-groups/foreign", WHO).code == (404, "NOT_FOUND")
        assert running.ask("POST", f"{BASE}/streams/old/groups/g", {"requestedBy": "t", "initialShardCount": 1}).status == 201
        ours = running.ask("DELETE", f"{BASE}/streams/old/consumer-groups/g", WHO)
        assert ours.code == (409, "CONSUMER_GROUP_COORDINATED")
        data.close()


def test_a_store_that_goes_away_is_a_503_and_comes_back_by_itself(tmp_path: Path) -> None:
    """Heartbeats RETRY, health DOWN, nothing half-written; no restart."""
    config = "coordinator: {redis: {timeout-ms: 500}, coordination: {state-mutex: {ttl-ms: 3000}}}"
    with (
        private_redis(append_fsync="always", state_dir=tmp_path / "redis") as server,
        serving(tmp_path / "serve", config=config, environ={"REDIS_URL": server.url}) as running,
    ):
        beat = f"{BASE}/streams/orders/groups/g/members/m/heartbeat"
        assert running.ask("POST", f"{BASE}/streams/orders", CREATE).status == 201
        assert running.ask("POST", f"{BASE}/streams/orders/groups/g", CREATE).status == 201
        epoch = running.ask("POST", beat, heartbeat()).json["memberEpoch"]
        server.kill()
        for _ in range(3):
            refused = running.ask("POST", f"{BASE}/streams/orders/scale", {"targetShardCount": 6, **WHO})
            assert refused.code == (503, "STORE_UNAVAILABLE")
            assert int(refused.headers["retry-after"]) >= 1
            assert running.ask("GET", f"{BASE}/monitoring/streams").code == (503, "STORE_UNAVAILABLE")
            told = running.ask("POST", beat, heartbeat(memberEpoch=epoch))
            assert (told.status, told.json["status"], told.json["memberEpoch"]) == (200, "RETRY", epoch)
        wait_until(
            lambda: running.ask("GET", f"{BASE}/monitoring/health").json["status"] == "DOWN",
            timeout_s=60,
            what="health is DOWN",
        )
        assert running.ask("GET", "/readyz").status == 200
        wait_until(  # each worker looks for itself, at most once a second
            lambda: running.ask("GET", "/actuator/health").status == 503, timeout_s=60, what="every worker sees it"
        )
        with private_redis(append_fsync="always", state_dir=tmp_path / "redis", port=server.port):
            wait_until(
                lambda: running.ask("GET", f"{BASE}/monitoring/streams").status == 200, timeout_s=60, what="the store is back"
            )
            listed = running.ask("GET", f"{BASE}/monitoring/streams").json["streams"]
            assert [(each["streamPrefix"], each["shardCount"], each["activeReshardingId"]) for each in listed] == [
                ("orders", 4, None)
            ]
            wait_until(
                lambda: running.ask("GET", f"{BASE}/monitoring/health").json["status"] != "DOWN", timeout_s=60, what="health"
            )


def test_a_store_that_hangs_costs_no_more_than_its_time_bound(tmp_path: Path) -> None:
    """Connected, but silent: the same answers as when it is gone, in bounded time, probes at once."""
    config = "coordinator: {redis: {timeout-ms: 300}}"
    with private_redis() as server, serving(tmp_path, config=config, environ={"REDIS_URL": server.url}) as running:
        beat = f"{BASE}/streams/orders/groups/g/members/m/heartbeat"
        assert running.ask("POST", f"{BASE}/streams/orders", CREATE).status == 201
        epoch = running.ask("POST", beat, heartbeat()).json["memberEpoch"]
        os.kill(server.pid, signal.SIGSTOP)
        try:
            for method, path, body, expected in (
                ("POST", beat, heartbeat(memberEpoch=epoch), 200),
                ("POST", f"{BASE}/streams/orders/scale", {"targetShardCount": 6, **WHO}, 503),
                ("GET", f"{BASE}/streams/orders/producer-routing", None, 503),
                ("GET", f"{BASE}/monitoring/health", None, 200),
                ("GET", "/readyz", None, 200),
                ("GET", "/livez", None, 200),
            ):
                began_s = time.monotonic()
                answer = running.ask(method, path, body)
                assert answer.status == expected, answer.body
                assert time.monotonic() - began_s < 10, path
            assert running.ask("GET", f"{BASE}/monitoring/health").json["status"] == "DOWN"
        finally:
            os.kill(server.pid, signal.SIGCONT)
        wait_until(lambda: running.ask("GET", f"{BASE}/monitoring/streams").status == 200, what="the store is back")
        stream = running.ask("GET", f"{BASE}/monitoring/streams/orders").json
        assert (stream["shardCount"], stream["activeReshardingId"]) in {(4, None), (6, stream["activeReshardingId"])}


@pytest.mark.parametrize("engine", ENGINES)
def test_j10_what_was_accepted_is_answered_and_then_it_ends(tmp_path: Path, engine: str) -> None:
    """A request half sent when SIGTERM comes is answered as by a process that stops; exit code 0."""
    with serving(tmp_path, "--embedded-redis", "--workers", "1", engine=engine) as running:
        assert running.ask("POST", f"{BASE}/streams/orders", CREATE).status == 201
        body = json.dumps({"targetShardCount": 6, **WHO}).encode()
        head = f"POST {BASE}/streams/orders/scale HTTP/1.1\r\nHost: t\r\n{ADMIN}\r\nContent-Type: application/json\r\n"
        with Wire(running.port) as connection:
            connection.send(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body[:5])
            wait_until(lambda: running.ask("GET", "/readyz").status == 200, what="the half request is under way")
            running.process.send_signal(signal.SIGTERM)
            wait_until(lambda: not running.lives(), what="no new connection is served")
            connection.send(body[5:])
            answer = connection.receive()
            assert answer.code == (503, "COORDINATOR_TERMINATING")
            assert answer.headers["connection"] == "close"
        assert running.process.wait(60) == 0
        assert "Traceback" not in running.text()
