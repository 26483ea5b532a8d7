"""Mutations that come again under their key: answered as the first time, done once, whatever happened in between."""

from __future__ import annotations

import json
import os
import signal
import threading
import zlib
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import pytest
from falcon import testing
from msgspec import structs

from coord.bootstrap import wire
from coord.http.app import create_app
from coord.names import AggregateKey, GroupKey, StreamKey
from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.settings import RedisSettings
from coord.runtime.embedded import EmbeddedRedis
from coord.runtime.idempotency import CLAIM_LEASE_MS, Answer, Claim, digest
from coord.store.answers import Swapped
from coord.store.base import OutcomeUnknown, StoreUnavailable
from coord.store.memory_answers import MemoryAnswers
from coord.store.redis.store import RedisStore
from coord.streams.provisioning import Provisioned, ProvisioningFailed, ShardStreams
from tests.http.face import Face, FaultyStore, configuration, error_of, heartbeat
from tests.http.served import BASE, serving
from tests.http.test_requests import TRACE, audited
from tests.servers import private_redis, wait_until

WHO = {"requestedBy": "ada", "reason": "because"}
MUTATIONS: Mapping[str, tuple[str, str, dict[str, Any]]] = {
    "CREATE_STREAM": ("POST", "/streams/fresh", {"initialShardCount": 2, **WHO}),
    "CREATE_GROUP": ("POST", "/streams/orders/groups/fresh", {"initialShardCount": 4, **WHO}),
    "CREATE_GROUP with its stream": ("POST", "/streams/fresh/groups/fresh", {"initialShardCount": 3, **WHO}),
    "SCALE_STREAM": ("POST", "/streams/orders/scale", {"targetShardCount": 6, **WHO}),
    "SCALE_GROUP": ("POST", "/streams/orders/groups/g/scale", {"targetShardCount": 6, **WHO}),
    "SCALE_STREAM to the same": ("POST", "/streams/orders/scale", {"targetShardCount": 4, **WHO}),
    "DELETE_GROUP": ("DELETE", "/streams/orders/groups/g", WHO),
    "DELETE_STREAM": ("DELETE", "/streams/lone", WHO),
}


def keyed(face: Face, action: str, *, key: str = "k-1", header: str = "Idempotency-Key", **options: Any) -> testing.Result:
    """Send a mutation of the table under a key."""
    method, path, body = MUTATIONS[action]
    return face.ask(method, path, options.pop("body", body), headers={header: key} | options.pop("headers", {}), **options)


def shown(answer: testing.Result) -> tuple[int, Any, str | None]:
    return answer.status_code, answer.json, answer.headers.get("x-store-revision")


@pytest.fixture
def ready(world: Face) -> Face:
    """The world with one more stream, which has no groups."""
    world.make_stream("lone")
    return world


def log_of(face: Face, action: str) -> dict[AggregateKey, int]:
    """How many entries other than audit entries each log has."""
    keys: tuple[AggregateKey, ...] = (
        StreamKey("orders"),
        StreamKey("fresh"),
        StreamKey("lone"),
        GroupKey("orders", "g"),
        GroupKey("orders", "fresh"),
        GroupKey("fresh", "fresh"),
    )
    return {key: len(face.store.tail(key, after=(0, 0), limit=1000)) - len(audited(face, key)) for key in keys}


@pytest.mark.parametrize("header", ["Idempotency-Key", "X-Request-Id"])
@pytest.mark.parametrize("action", MUTATIONS)
def test_the_same_again_is_answered_as_the_first_time_and_done_once(ready: Face, action: str, header: str) -> None:
    first = keyed(ready, action, header=header)
    assert first.status_code < 300
    assert "idempotent-replay" not in first.headers
    before = log_of(ready, action)
    for _ in range(2):
        again = keyed(ready, action, header=header)
        assert shown(again) == shown(first)
        assert again.headers["idempotent-replay"] == "true"
    assert log_of(ready, action) == before


@pytest.mark.parametrize("action", ["ROLLBACK", "COMPLETE"])
def test_a_resharding_is_turned_back_or_completed_once(ready: Face, action: str) -> None:
    resharding_id = ready.scale(2 if action == "COMPLETE" else 6)
    path = f"/streams/orders/groups/g/migrations/{resharding_id}/{action.lower()}"
    body: dict[str, object] = {**WHO, "force": True} if action == "COMPLETE" else {**WHO}
    first = ready.ask("POST", path, body, headers={"Idempotency-Key": "k"})
    again = ready.ask("POST", path, body, headers={"Idempotency-Key": "k"})
    if first.status_code < 300:
        assert shown(again) == shown(first)
        assert again.headers["idempotent-replay"] == "true"
    else:
        assert error_of(again) == error_of(first)


def test_a_replay_is_the_first_answer_although_the_world_has_moved_on(ready: Face) -> None:
    first = keyed(ready, "CREATE_STREAM")
    assert ready.ask("POST", "/streams/fresh/scale", {"targetShardCount": 5, **WHO}).status_code == 202
    assert shown(keyed(ready, "CREATE_STREAM")) == shown(first)
    assert ready.ask("GET", "/monitoring/streams/fresh").json["shardCount"] == 5


def test_a_replay_is_audited_as_retried(ready: Face) -> None:
    keyed(ready, "SCALE_STREAM")
    keyed(ready, "SCALE_STREAM", headers={"X-Request-Id": "second try"})
    first, second = (entry for entry in audited(ready, StreamKey("orders")) if entry.action == "SCALE_STREAM")
    assert first.request_summary == "targetShardCount=6"
    assert second.request_summary.startswith("retried, answered as at revision ")
    assert second.request_summary.endswith(": targetShardCount=6")
    assert (second.outcome, second.status, second.request_id) == ("SUCCESS", 202, "second try")
    assert (second.requested_by, second.reason, second.principal) == ("ada", "because", "writer")
    assert second.request_body_sha256 == first.request_body_sha256


def test_a_key_with_another_body_is_refused(ready: Face) -> None:
    keyed(ready, "SCALE_STREAM")
    answer = keyed(ready, "SCALE_STREAM", body={"targetShardCount": 8, **WHO})
    assert error_of(answer) == (409, "IDEMPOTENCY_KEY_REUSED")
    assert ready.ask("GET", "/monitoring/streams/orders").json["shardCount"] == 6
    assert audited(ready, StreamKey("orders"))[-1].error_code == "IDEMPOTENCY_KEY_REUSED"


def test_fields_in_the_query_are_part_of_what_is_asked(ready: Face) -> None:
    ready.ask("POST", "/streams/orders/groups/g/members/m/heartbeat", heartbeat())
    key = {"Idempotency-Key": "k"}
    first = ready.ask("DELETE", "/streams/orders/groups/g", query="requestedBy=t&reason=r&force=true", headers=key)
    assert first.status_code == 200
    again = ready.ask("DELETE", "/streams/orders/groups/g", query="requestedBy=t&reason=r&force=true", headers=key)
    assert shown(again) == shown(first)
    other = ready.ask("DELETE", "/streams/orders/groups/g", query="requestedBy=t&reason=r", headers=key)
    assert error_of(other) == (409, "IDEMPOTENCY_KEY_REUSED")


def test_a_request_id_with_another_body_is_simply_another_request(ready: Face) -> None:
    assert keyed(ready, "SCALE_STREAM", header="X-Request-Id").status_code == 202
    other = keyed(ready, "SCALE_STREAM", header="X-Request-Id", body={"targetShardCount": 6, **WHO, "reason": "another"})
    assert error_of(other) == (409, "ACTIVE_MIGRATION_EXISTS")


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"X-Correlation-Id": "same"},
        {"X-Amzn-Trace-Id": TRACE},
        {"X-Request-Id": "x" * 256},
        {"X-Request-Id": ""},
        {"X-Request-Id": "na\u00efve"},
    ],
)
def test_no_other_header_makes_a_repeat(ready: Face, headers: dict[str, str]) -> None:
    method, path, body = MUTATIONS["CREATE_STREAM"]
    assert ready.ask(method, path, body, headers=headers).status_code == 201
    assert error_of(ready.ask(method, path, body, headers=headers)) == (409, "STREAM_PREFIX_ALREADY_EXISTS")


def test_the_key_counts_before_the_request_id(ready: Face) -> None:
    keyed(ready, "CREATE_STREAM", headers={"X-Request-Id": "r"})
    assert keyed(ready, "CREATE_STREAM", key="k-2", headers={"X-Request-Id": "r"}).status_code == 409


@pytest.mark.parametrize("key", ["", " ", "x" * 256, "a\tb", "na\u00efve"])
def test_an_illegal_key_is_a_400(ready: Face, key: str) -> None:
    answer = keyed(ready, "CREATE_STREAM", key=key)
    assert error_of(answer) == (400, "INVALID_REQUEST")
    assert answer.json["details"] == ["Idempotency-Key: must be 1 to 255 printable ASCII characters"]
    assert ready.ask("GET", "/monitoring/streams/fresh").status_code == 404


def test_a_key_is_one_callers_for_one_path_and_method(ready: Face) -> None:
    assert keyed(ready, "SCALE_STREAM").status_code == 202
    assert "idempotent-replay" not in keyed(ready, "SCALE_STREAM", user="scoped").headers
    assert "idempotent-replay" not in keyed(ready, "SCALE_GROUP").headers
    assert "idempotent-replay" not in keyed(ready, "CREATE_STREAM").headers
    assert "idempotent-replay" in keyed(ready, "SCALE_STREAM").headers


def test_however_a_path_is_encoded_it_is_the_same_path(ready: Face) -> None:
    method, path, body = MUTATIONS["SCALE_STREAM"]
    assert ready.ask(method, path, body, headers={"Idempotency-Key": "k"}).status_code == 202
    again = ready.ask(method, "/streams/%6Frders/scale", body, headers={"Idempotency-Key": "k"})
    assert again.headers["idempotent-replay"] == "true"


def test_who_may_not_do_it_is_not_told_what_was_answered(ready: Face) -> None:
    keyed(ready, "SCALE_STREAM")
    assert keyed(ready, "SCALE_STREAM", user="reader").status_code == 403
    assert keyed(ready, "SCALE_STREAM", user=None).status_code == 401


def test_a_refusal_is_not_remembered(ready: Face) -> None:
    """What failed may be tried again under its key once it can work."""
    wanted = {"initialShardCount": 4, **WHO}
    headers = {"Idempotency-Key": "k"}
    assert ready.ask("POST", "/streams/lone/scale", {"targetShardCount": 99999, **WHO}, headers=headers).status_code == 400
    assert ready.ask("POST", "/streams/orders", wanted, headers=headers).status_code == 409
    assert ready.ask("DELETE", "/streams/orders/groups/g", WHO).status_code == 200
    assert ready.ask("DELETE", "/streams/orders", WHO).status_code == 200
    made = ready.ask("POST", "/streams/orders", wanted, headers=headers)
    assert (made.status_code, "idempotent-replay" in made.headers) == (201, False)


def test_a_deletion_forgets_the_rest_and_is_itself_remembered(ready: Face) -> None:
    """So that a stream of the same name, made later under the same key, is made."""
    assert keyed(ready, "CREATE_STREAM").status_code == 201
    gone = ready.ask("DELETE", "/streams/fresh", WHO, headers={"Idempotency-Key": "d"})
    assert gone.status_code == 200
    again = keyed(ready, "CREATE_STREAM")
    assert (again.status_code, "idempotent-replay" in again.headers) == (201, False)
    assert shown(ready.ask("DELETE", "/streams/fresh", WHO, headers={"Idempotency-Key": "d"})) == shown(gone)


def test_reads_and_heartbeats_take_no_key(ready: Face) -> None:
    headers = {"Idempotency-Key": "k"}
    path = "/streams/orders/groups/g/members/m/heartbeat"
    first = ready.ask("POST", path, heartbeat(), headers=headers).json
    again = ready.ask("POST", path, heartbeat(memberEpoch=first["memberEpoch"]), headers=headers)
    assert "idempotent-replay" not in again.headers
    assert ready.ask("GET", "/monitoring/session", headers=headers).status_code == 200
    assert len(ready.store.answers._kept) == 0


def test_of_many_at_once_one_is_carried_out(ready: Face) -> None:
    gate = threading.Barrier(8)

    def send(_: int) -> testing.Result:
        gate.wait(30)
        return keyed(ready, "SCALE_STREAM")

    before = len(audited(ready, StreamKey("orders")))
    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(send, range(8)))
    assert len({json.dumps(shown(answer)) for answer in answers}) == 1
    assert ["idempotent-replay" in answer.headers for answer in answers].count(False) == 1
    assert len(audited(ready, StreamKey("orders"))) == before + 8


# -- what falls between the commit and the answer


class LossyAnswers(MemoryAnswers):
    """Answers that a crash loses: `lose` says which swaps raise instead of being done."""

    lose: Callable[[bytes | None], bool] = staticmethod(lambda put: False)

    def swap(self, key: AggregateKey, name: str, *, seen: bytes | None, put: bytes | None, alone: bool = False) -> Swapped:
        if self.lose(put):
            raise StoreUnavailable("away")
        return super().swap(key, name, seen=seen, put=put, alone=alone)


@pytest.fixture
def crashing(ready: Face) -> Face:
    """A world whose clock can be moved and whose answers can be lost."""
    now = [1_700_000_000_000]
    ready.store._clock = lambda: now[0]
    answers = LossyAnswers(lambda: now[0])
    ready.store.answers = answers
    ready.services.idempotency._answers = answers
    ready.services.idempotency._pause = lambda _: now.__setitem__(0, now[0] + CLAIM_LEASE_MS)
    ready.now = now  # type: ignore[attr-defined]  # a test's own
    return ready


def is_answer(put: bytes | None) -> bool:
    return put is not None and isinstance(msgspec.msgpack.decode(put, type=Claim | Answer), Answer)


@pytest.mark.parametrize("action", [action for action in MUTATIONS if action != "SCALE_STREAM to the same"])
def test_what_was_committed_before_a_crash_is_answered_from_the_log(crashing: Face, action: str) -> None:
    """The answer was never put down: after the claim's lease the log tells it, the same to the byte."""
    answers = crashing.store.answers
    assert isinstance(answers, LossyAnswers)
    answers.lose = is_answer
    first = keyed(crashing, action)
    assert first.status_code < 300
    before = log_of(crashing, action)
    answers.lose = lambda put: False
    again = keyed(crashing, action)
    assert shown(again) == shown(first)
    assert again.headers["idempotent-replay"] == "true"
    assert log_of(crashing, action) == before
    third = keyed(crashing, action)
    assert shown(third) == shown(first)


def test_what_was_not_committed_before_a_crash_is_carried_out_by_the_next(crashing: Face) -> None:
    """Only the claim is there: its lease runs out, the log knows nothing, so it is done now."""
    answers = crashing.store.answers
    assert isinstance(answers, LossyAnswers)
    written: list[bytes | None] = []

    def after_the_claim(put: bytes | None) -> bool:
        written.append(put)
        return len(written) > 2  # a look, the claim, and then nothing more

    answers.lose = after_the_claim
    crashing.services.admin.terminating = True
    assert keyed(crashing, "SCALE_STREAM").status_code == 503
    answers.lose = lambda put: False
    crashing.services.admin.terminating = False
    done = keyed(crashing, "SCALE_STREAM")
    assert (done.status_code, "idempotent-replay" in done.headers) == (202, False)


def test_a_claim_that_is_worked_on_makes_others_wait_and_then_tells_them(crashing: Face) -> None:
    crashing.services.idempotency._pause = lambda _: None
    key, answers = StreamKey("orders"), crashing.store.answers
    method, path, body = MUTATIONS["SCALE_STREAM"]
    sent = json.dumps(body).encode()
    name = digest("key", "k-1", "writer", method, f"{BASE}/streams/{{streamPrefix}}/scale", "orders")
    claim = Claim(
        fingerprint=digest(sent, ""),
        token="t",
        request_id="r",
        deadline=1_700_000_000_000 + 1,
        stream_revision=0,
        group_revision=0,
    )
    assert answers.swap(key, name, seen=None, put=msgspec.msgpack.encode(claim)).done
    answer = crashing.ask(method, path, raw=sent, headers={"Idempotency-Key": "k-1"})
    assert error_of(answer) == (409, "STATE_VERSION_CONFLICT")
    assert answer.headers["retry-after"] == "1"
    assert error_of(crashing.ask(method, path, raw=sent + b" ", headers={"Idempotency-Key": "k-1"})) == (
        409,
        "IDEMPOTENCY_KEY_REUSED",
    )
    crashing.now[0] += 2  # type: ignore[attr-defined]  # see the fixture
    assert crashing.ask(method, path, raw=sent, headers={"Idempotency-Key": "k-1"}).status_code == 202


@pytest.mark.parametrize("committed", [False, True])
def test_d1_a_503_of_unknown_outcome_is_settled_by_a_retry(ready: Face, committed: bool) -> None:
    """The store said nothing about a commit: the retry finds it in the log, or does it; at once, without waiting for a lease."""
    real = ready.store.commit

    def silent(commit: Any) -> Any:
        if committed:
            real(commit)
        ready.store.commit = real  # type: ignore[method-assign]  # once
        raise OutcomeUnknown("no answer")

    ready.store.commit = silent  # type: ignore[method-assign]  # a store that loses one answer
    assert error_of(keyed(ready, "CREATE_STREAM")) == (503, "STORE_UNAVAILABLE")
    again = keyed(ready, "CREATE_STREAM")
    assert again.status_code == 201
    assert ("idempotent-replay" in again.headers) == committed
    assert again.json == {"streamPrefix": "fresh", "shardCount": 2, "metadataVersion": 1}
    assert again.headers["x-store-revision"] == "1"


def test_a_store_that_is_away_before_the_claim_is_a_503(crashing: Face) -> None:
    answers = crashing.store.answers
    assert isinstance(answers, LossyAnswers)
    answers.lose = lambda put: True
    assert error_of(keyed(crashing, "SCALE_STREAM")) == (503, "STORE_UNAVAILABLE")
    assert crashing.ask("GET", "/monitoring/streams/orders").json["shardCount"] == 4


def test_an_answer_is_kept_deflated(ready: Face) -> None:
    first = keyed(ready, "CREATE_GROUP")
    ((_, kept),) = ready.store.answers._kept.values()
    (stored,) = kept.values()
    answer = msgspec.msgpack.decode(stored, type=Claim | Answer)
    assert isinstance(answer, Answer)
    assert zlib.decompress(answer.body) == first.content


class CrashError(BaseException):
    """The process dies: nothing in it handles this."""


@pytest.mark.parametrize("action", ["CREATE_STREAM", "SCALE_STREAM", "SCALE_GROUP"])
def test_what_was_claimed_before_a_crash_and_is_completed_by_the_tick_is_answered(
    tmp_path: Path, redis_url: str, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch, action: str
) -> None:
    """With provisioning: it is on record, its shards are not made yet, and no audit entry tells of it."""
    config = configuration(tmp_path)
    config = structs.replace(config, streams=structs.replace(config.streams, provisioning_enabled=True))
    commands = RedisCommands(RedisSettings(host="127.0.0.1", port=redis_server.port))
    shards = ShardStreams(commands)
    services = wire(config, RedisStore(commands), shards)
    face = Face(services=services, app=create_app(services), store=FaultyStore(lambda: 0))
    face.make_stream()
    face.make_group()

    def dies(*_: object) -> Provisioned:
        raise CrashError

    with monkeypatch.context() as dying:
        dying.setattr("coord.runtime.idempotency.CLAIM_LEASE_MS", 0)
        dying.setattr(shards, "provision", dies)
        with pytest.raises(CrashError):
            keyed(face, action)
    told = keyed(face, action)
    assert told.status_code == (201 if action == "CREATE_STREAM" else 202)
    assert told.headers["idempotent-replay"] == "true"
    if action == "CREATE_STREAM":
        assert told.json == {"streamPrefix": "fresh", "shardCount": 2, "metadataVersion": 1}
    else:
        listed = face.ask("GET", "/monitoring/streams/orders/migrations").json["migrations"]
        migration = told.json if action == "SCALE_GROUP" else told.json["migrations"][0]
        assert [each["reshardingId"] for each in listed] == [migration["reshardingId"]]
        assert migration["state"] == "PREPARING"
    services.store.close()


def test_a_stream_that_was_taken_back_is_made_again(
    tmp_path: Path, redis_url: str, redis_server: EmbeddedRedis, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its provisioning failed, so nothing stayed behind: the retry makes it."""
    config = configuration(tmp_path)
    config = structs.replace(config, streams=structs.replace(config.streams, provisioning_enabled=True))
    commands = RedisCommands(RedisSettings(host="127.0.0.1", port=redis_server.port))
    shards = ShardStreams(commands)
    services = wire(config, RedisStore(commands), shards)
    face = Face(services=services, app=create_app(services), store=FaultyStore(lambda: 0))

    def fails(*_: object) -> Provisioned:
        raise ProvisioningFailed("fresh:0", "no")

    with monkeypatch.context() as failing:
        failing.setattr(shards, "provision", fails)
        assert error_of(keyed(face, "CREATE_STREAM")) == (503, "REDIS_STREAM_PROVISIONING_FAILED")
    made = keyed(face, "CREATE_STREAM")
    assert (made.status_code, "idempotent-replay" in made.headers) == (201, False)
    services.store.close()


@pytest.mark.e2e
def test_an_answer_is_known_to_every_worker_and_instance_and_after_a_restart(tmp_path: Path) -> None:
    """Also when the worker that made it is killed."""
    headers = ("Idempotency-Key: k-1",)
    body = {"targetShardCount": 6, **WHO}
    with private_redis(append_fsync="always", state_dir=tmp_path / "redis") as redis:
        environ = {"REDIS_URL": redis.url}
        with serving(tmp_path / "a", "--workers", "2", environ=environ) as first:
            assert first.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 4, **WHO}).status == 201
            done = first.ask("POST", f"{BASE}/streams/orders/scale", body, headers=headers)
            assert done.status == 202
            for pid in first.workers():
                os.kill(pid, signal.SIGKILL)
            wait_until(first.lives, what="new workers answer", timeout_s=20)
        with serving(tmp_path / "b", "--workers", "2", environ=environ) as second:
            for _ in range(6):
                again = second.ask("POST", f"{BASE}/streams/orders/scale", body, headers=headers)
                assert (again.status, again.json) == (202, done.json)
                assert again.headers["idempotent-replay"] == "true"
