"""A whole coordinator, a producer and consumers, each as its documented user: nothing is refused until a right is taken away."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

import msgspec
import pytest
import urllib3

from coord.client import Consumer, Credentials, Entry, Producer
from coord.wire import MigrationsResponse
from tests.access.users import Owned
from tests.chaos.coordinators import CoordinatorProcess, login
from tests.servers import free_port, wait_until

pytestmark = pytest.mark.e2e
GROUP_PATH = "/streams/orders/groups/billing"
ADMIN = Credentials(username="admin", password="password")
WAIT_S = 30


@pytest.fixture
def serving(owned: Owned, tmp_path: Path) -> Iterator[CoordinatorProcess]:
    owned.call("ACL", "LOG", "RESET")
    process = CoordinatorProcess("as-user", free_port(), owned.url_of("coordinator"), tmp_path, workers=1, lease_ms=2_000)
    try:
        process.start()
        yield process
    finally:
        process.stop()


def ask(
    serving: CoordinatorProcess, method: str, path: str, body: Mapping[str, object] | None = None
) -> urllib3.BaseHTTPResponse:
    headers = {"Authorization": login(serving.url)}
    sent = {"requestedBy": "me", "reason": "rights", **body} if body is not None else None
    return urllib3.request(method, f"{serving.url}{path}", json=sent, headers=headers, timeout=10, retries=False)


def scale(serving: CoordinatorProcess, count: int) -> None:
    """Scale, and wait until the old shards are proved drained and gone."""
    scaled = ask(serving, "POST", "/streams/orders/scale", {"targetShardCount": count})
    assert scaled.status == 202, scaled.data

    def is_over() -> bool:
        told = ask(serving, "GET", f"/monitoring{GROUP_PATH}/migrations")
        return msgspec.json.decode(told.data, type=MigrationsResponse).active_resharding_id is None

    wait_until(is_over, timeout_s=WAIT_S, what=f"the stream has {count} shards", poll_s=0.2)


def denials(owned: Owned) -> list[tuple[str, str]]:
    """Give what Redis refused: user, and command or key."""
    entries = [dict(zip(entry[::2], entry[1::2], strict=True)) for entry in owned.call("ACL", "LOG", 100)]
    return [(entry[b"username"].decode(), entry[b"object"].decode()) for entry in entries]


def test_a_whole_system_runs_on_the_documented_lines(owned: Owned, serving: CoordinatorProcess) -> None:
    made = ask(serving, "POST", GROUP_PATH, {"initialShardCount": 3})
    assert made.status == 201, made.data
    handled: list[bytes] = []

    def handle(entry: Entry) -> None:
        assert entry.fields is not None
        handled.append(entry.fields[b"number"])

    consumers = [
        Consumer(
            serving.url,
            owned.url_of("consumer"),
            stream_prefix="orders",
            consumer_group="billing",
            member_id=name,
            handler=handle,
        )
        for name in ("m1", "m2")
    ]
    producer = Producer(serving.url, owned.url_of("producer"), stream_prefix="orders", credentials=ADMIN)
    for consumer in consumers:
        consumer.start()
    published = 0
    for count in (5, 2):
        for _ in range(20):
            producer.publish(f"customer-{published}", {"number": str(published)})
            published += 1
        scale(serving, count)
    wait_until(lambda: len(set(handled)) == published, timeout_s=WAIT_S, what="every record is handled")
    offsets = ask(serving, "GET", f"/monitoring{GROUP_PATH}/consumption")
    assert offsets.status == 200, offsets.data
    producer.close()
    for consumer in consumers:
        consumer.stop()
    for consumer in consumers:
        consumer.wait(10)
    health = ask(serving, "GET", "/monitoring/health")
    assert msgspec.json.decode(health.data)["status"] == "UP", health.data
    deleted = ask(serving, "DELETE", f"{GROUP_PATH}?requestedBy=me&reason=done&force=true&destroyConsumerGroups=true")
    assert deleted.status == 200, deleted.data
    assert {denial for denial in denials(owned) if denial[0] == "coordinator"} <= {("coordinator", "config|get")}
    assert {told for name, told in denials(owned) if name != "coordinator"} <= {"client|setinfo"}, "redis-py's, and ignored by it"
    assert "NOPERM" not in serving.log_tail()


def test_a_right_that_is_taken_away_is_a_503_that_names_it(owned: Owned, serving: CoordinatorProcess) -> None:
    owned.call("ACL", "SETUSER", "coordinator", "-hset")
    refused = ask(serving, "POST", GROUP_PATH, {"initialShardCount": 3})
    assert refused.status == 503, refused.data
    assert msgspec.json.decode(refused.data)["errorCode"] == "STORE_UNAVAILABLE"
    assert "NOPERM the user of this connection may not run HSET redis-stream:coord:{orders}" in serving.log_tail()
    owned.call("ACL", "SETUSER", "coordinator", "+hset")
    again = ask(serving, "POST", GROUP_PATH, {"initialShardCount": 3})
    assert again.status == 201, again.data
    owned.call("ACL", "SETUSER", "coordinator", "clearselectors", "(~orders:* +eval +evalsha +exists +type +xinfo|groups)")
    scaled = ask(serving, "POST", "/streams/orders/scale", {"targetShardCount": 5})
    assert scaled.status == 503, scaled.data
    body = msgspec.json.decode(scaled.data)
    assert body["errorCode"] == "REDIS_STREAM_PROVISIONING_FAILED"
    assert "may not run XGROUP CREATE orders:" in body["message"]
