"""Every endpoint for every role with every kind of credentials: exactly the status, and the audit entry that must follow.

K6 and K7 as one table. What a role may do is written down here and nowhere taken from the code.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import msgspec
import pytest

from coord.config import Secret, User
from coord.events import codec
from coord.events.catalog import AdminRequest
from coord.http.auth import ISSUER, Key
from coord.http.routes import ROUTES
from coord.names import AggregateKey
from coord.runtime.auditsinks import AuditDelivery
from coord.wire import AuditEntry
from tests.http.face import PASSWORDS, SECRET, Face, basic, configuration, heartbeat, make_face
from tests.http.test_auth import handmade, signed

WHO: Final = {"requestedBy": "tester", "reason": "a test"}
SCALE: Final = {"targetShardCount": 6, **WHO}
GROUP: Final = "/streams/orders/groups/g"
SHOWN: Final = "/monitoring/streams/orders"
USERS: Final[Mapping[str, frozenset[str]]] = {
    "reader": frozenset({"READ"}),
    "writer": frozenset({"READ", "WRITE"}),
    "member": frozenset({"MEMBER"}),
    "legacy": frozenset({"READ", "WRITE", "MEMBER"}),
    "monitor": frozenset({"READ"}),
    "nobody": frozenset(),
    "scoped": frozenset({"READ", "WRITE", "MEMBER"}),
}
"""What each user of the tests' configuration may do; `scoped` only with streams whose names begin with `orders`."""


@dataclass(frozen=True, kw_only=True)
class Row:
    """One operation, and how the right request is answered. `role` None: open. `action`: of its audit entry, if it has one."""

    method: str
    path: str
    role: str | None
    status: int = 200
    body: object = None
    action: str | None = None


TABLE: Final[Mapping[str, Row]] = {
    "loginCoordinatorApi": Row(method="POST", path="/auth/login", role=None, body={"username": "reader", "password": "r-pass"}),
    "createStreamGroup": Row(
        method="POST", path="/streams/orders-new", role="WRITE", status=201, body=WHO, action="CREATE_STREAM"
    ),
    "deleteStream": Row(method="DELETE", path="/streams/orders-lone", role="WRITE", body=WHO, action="DELETE_STREAM"),
    "adoptStream": Row(
        method="POST",
        path="/streams/orders-old/adopt",
        role="WRITE",
        status=503,
        body={"shardCount": 1, **WHO},
        action="ADOPT_STREAM",
    ),
    "scaleStreamShards": Row(
        method="POST", path="/streams/orders/scale", role="WRITE", status=202, body=SCALE, action="SCALE_STREAM"
    ),
    "destroyRedisConsumerGroup": Row(
        method="DELETE",
        path="/streams/orders/consumer-groups/foreign",
        role="WRITE",
        status=503,
        body=WHO,
        action="DESTROY_CONSUMER_GROUP",
    ),
    "getStreamProducerRoutingMetadata": Row(method="GET", path="/streams/orders/producer-routing", role="READ"),
    "getProducerRoutingMetadata": Row(method="GET", path=f"{GROUP}/producer-routing", role="READ"),
    "createCoordinatorGroup": Row(
        method="POST", path="/streams/orders/groups/h", role="WRITE", status=201, body=WHO, action="CREATE_GROUP"
    ),
    "getCoordinatorGroup": Row(method="GET", path=GROUP, role="READ"),
    "deleteCoordinatorGroup": Row(method="DELETE", path=GROUP, role="WRITE", body=WHO, action="DELETE_GROUP"),
    "startGroupResharding": Row(method="POST", path=f"{GROUP}/scale", role="WRITE", status=202, body=SCALE, action="SCALE_GROUP"),
    "getReshardingMigration": Row(method="GET", path=f"{GROUP}/migrations/none", role="READ", status=404),
    "rollbackReshardingMigration": Row(
        method="POST", path=f"{GROUP}/migrations/none/rollback", role="WRITE", status=404, body=WHO, action="ROLLBACK_MIGRATION"
    ),
    "completeReshardingMigration": Row(
        method="POST", path=f"{GROUP}/migrations/none/complete", role="WRITE", status=404, body=WHO, action="COMPLETE_MIGRATION"
    ),
    "sendConsumerHeartbeat": Row(method="POST", path=f"{GROUP}/members/m/heartbeat", role="MEMBER", body=heartbeat()),
    "sendConsumerHeartbeats": Row(method="POST", path=f"{GROUP}/heartbeats", role="MEMBER", body={"heartbeats": [heartbeat()]}),
    "getCoordinatorHealth": Row(method="GET", path="/monitoring/health", role="READ"),
    "getMonitoringSession": Row(method="GET", path="/monitoring/session", role="READ"),
    "getCoordinatorCompatibility": Row(method="GET", path="/monitoring/compatibility", role="READ"),
    "listCoordinatorGroups": Row(method="GET", path="/monitoring/groups", role="READ"),
    "listStreams": Row(method="GET", path="/monitoring/streams", role="READ"),
    "getMonitoringStream": Row(method="GET", path=SHOWN, role="READ"),
    "listStreamMigrations": Row(method="GET", path=f"{SHOWN}/migrations", role="READ"),
    "getMonitoringGroup": Row(method="GET", path=f"{SHOWN}/groups/g", role="READ"),
    "listGroupMembers": Row(method="GET", path=f"{SHOWN}/groups/g/members", role="READ"),
    "getGroupAssignments": Row(method="GET", path=f"{SHOWN}/groups/g/assignments", role="READ"),
    "getConsumptionProgress": Row(method="GET", path=f"{SHOWN}/groups/g/consumption", role="READ"),
    "listReshardingMigrations": Row(method="GET", path=f"{SHOWN}/groups/g/migrations", role="READ"),
    "listStrayAuditEntries": Row(method="GET", path="/monitoring/audit", role="READ"),
    "listStreamAuditEntries": Row(method="GET", path=f"{SHOWN}/audit", role="READ"),
    "listGroupAuditEntries": Row(method="GET", path=f"{SHOWN}/groups/g/audit", role="READ"),
    "getLiveness": Row(method="GET", path="//livez", role=None),
    "getReadiness": Row(method="GET", path="//readyz", role=None),
    "getActuatorHealth": Row(method="GET", path="//actuator/health", role=None),
    "getActuatorInfo": Row(method="GET", path="//actuator/info", role=None),
    "getApiDescription": Row(method="GET", path="//v3/api-docs", role=None),
    "getReferencePage": Row(method="GET", path="//docs", role=None),
    "getScalarPage": Row(method="GET", path="//scalar", role=None),
}
BUILT: Final = {operation.id: (route, operation) for route in ROUTES for operation in route.operations.values()}
PROVING_NOBODY: Final = ("none", "wrong", "expired", "other secret", "alg none", "removed user", "unknown user")


def test_every_operation_is_in_the_table() -> None:
    assert set(BUILT) <= set(TABLE)


@pytest.mark.parametrize("name", BUILT)
def test_the_table_agrees_with_the_routes_about_who_is_audited(name: str) -> None:
    assert BUILT[name][1].action == TABLE[name].action


def headers_of(credentials: str, user: str) -> dict[str, str]:
    """Give the Authorization header of a user with credentials of that kind."""
    now = int(time.time())
    fingerprint = Key(SECRET.encode()).fingerprint(User(username=user, password=Secret(PASSWORDS[user])))
    claims: dict[str, Any] = {
        "iss": ISSUER,
        "sub": user,
        "roles": ["READ", "WRITE", "MEMBER"],
        "iat": now - 600,
        "exp": now + 600,
        "pwd": fingerprint,
    }
    if credentials == "none":
        return {}
    if credentials == "basic":
        return basic(user)
    if credentials == "wrong":
        return basic(user, "not the password")
    if credentials == "unknown user":
        return basic(f"{user} who never was", PASSWORDS[user])
    token = {
        "right": lambda: signed(claims),
        "expired": lambda: signed({**claims, "iat": now - 900, "exp": now - 60}),
        "other secret": lambda: signed(claims, secret="another secret, which signs for somebody else"),
        "alg none": lambda: handmade({"alg": "none", "typ": "JWT"}, claims),
        "removed user": lambda: signed({**claims, "sub": "was removed"}),
    }[credentials]()
    return {"Authorization": f"Bearer {token}"}


def entries(face: Face) -> list[AdminRequest]:
    """Give every audit entry there is."""
    logged = [codec.decode(each.entry).event for record in face.store.state.records.values() for each in record.log]
    kept = [msgspec.json.decode(entry, type=AdminRequest) for entry in face.store.state.requests]
    return [entry for entry in logged if isinstance(entry, AdminRequest)] + kept


def expected(row: Row, credentials: str, user: str, *, members_authenticate: bool) -> int:
    """Say how a request must be answered."""
    if row.role is None or (row.role == "MEMBER" and not members_authenticate):
        return row.status
    if credentials in PROVING_NOBODY:
        return 401
    return row.status if row.role in USERS[user] else 403


def outcome_of(status: int) -> str:
    return (
        "ERROR"
        if status >= 500
        else {401: "UNAUTHORIZED", 403: "FORBIDDEN"}.get(status, "FAILED" if status >= 400 else "SUCCESS")
    )


def world(folder: Path, *, members_authenticate: bool) -> Face:
    face = make_face(configuration(folder, members_authenticate=members_authenticate))
    face.make_stream()
    face.make_group()
    face.make_stream("orders-lone")
    return face


@dataclass
class Sink:
    """Keeps what it is handed."""

    taken: list[AuditEntry] = field(default_factory=list)

    def take(self, entry: AuditEntry, key: AggregateKey | None, *, gone: bool) -> None:
        self.taken.append(entry)


def judge(face: Face, name: str, credentials: str, user: str, address: str, *, members_authenticate: bool) -> None:
    """Send one request and hold it to the table: status, and one audit entry for a mutation, none for anything else."""
    row = TABLE[name]
    before = entries(face)
    sink = Sink()
    face.services.executor.delivery = AuditDelivery(sink)
    answer = face.ask(row.method, row.path, row.body, user=None, headers=headers_of(credentials, user), address=address)
    status = expected(row, credentials, user, members_authenticate=members_authenticate)
    told = (name, credentials, user, answer.text[:300])
    assert answer.status_code == status, told
    new = [entry for entry in entries(face) if entry not in before]
    if row.action is None:
        assert (new, sink.taken) == ([], []), told
        return
    (entry,) = new
    (handed,) = sink.taken
    assert msgspec.convert(msgspec.to_builtins(handed), AdminRequest) == entry, told
    assert handed.stream_prefix == row.path.split("/")[2], told
    of_no_log = [msgspec.json.decode(kept, type=AuditEntry) for kept in face.store.state.requests]
    assert (handed in of_no_log) == (handed.revision is None), told
    knows_who = credentials not in PROVING_NOBODY
    assert (entry.action, entry.status, entry.outcome) == (row.action, status, outcome_of(status)), told
    assert entry.principal == (user if knows_who else None), told
    assert (entry.client_address, entry.method) == (address, row.method), told
    assert (entry.error_code is None) == (status < 400), told
    assert entry.requested_by == ("tester" if knows_who and status != 403 else None), told
    assert PASSWORDS[user] not in msgspec.json.encode(entry).decode(), told


BOTH_WAYS: Final = [(name, switch) for name in BUILT for switch in ((False, True) if TABLE[name].role == "MEMBER" else (True,))]


@pytest.mark.parametrize(("name", "members_authenticate"), BOTH_WAYS)
def test_k6_k7_k10_credentials_that_prove_nobody(tmp_path: Path, name: str, members_authenticate: bool) -> None:
    """For every role that they might have stood for; open endpoints are open to them too."""
    face = world(tmp_path, members_authenticate=members_authenticate)
    for number, user in enumerate(USERS):
        for kind, credentials in enumerate(PROVING_NOBODY):
            address = f"127.1.{number}.{kind + 1}"  # from one address, wrong passwords would soon be a 429
            judge(face, name, credentials, user, address, members_authenticate=members_authenticate)


@pytest.mark.parametrize("credentials", ["right", "basic"])
@pytest.mark.parametrize("user", USERS)
def test_k6_k7_k10_right_credentials_of_every_role(tmp_path: Path, user: str, credentials: str) -> None:
    """A mutation that is allowed is done, on a world of its own; whatever else there is changes nothing, so it shares one."""
    for members_authenticate in (True, False):
        shared = world(tmp_path, members_authenticate=members_authenticate)
        for name, row in TABLE.items():
            if name in BUILT and (members_authenticate or row.role == "MEMBER"):
                changes = row.action is not None and row.role in USERS[user]
                face = world(tmp_path, members_authenticate=members_authenticate) if changes else shared
                judge(face, name, credentials, user, "127.0.0.9", members_authenticate=members_authenticate)


@pytest.mark.parametrize("name", [name for name, (route, _) in BUILT.items() if "streamPrefix" in route.parameters])
def test_k7_a_user_of_other_streams_is_refused_and_that_is_audited(tmp_path: Path, name: str) -> None:
    face = world(tmp_path, members_authenticate=True)
    face.make_stream("payments")
    row = TABLE[name]
    path = row.path.replace("/streams/orders", "/streams/payments", 1)
    before = len(entries(face))
    answer = face.ask(row.method, path, row.body, user="scoped")
    assert (answer.status_code, answer.json["errorCode"]) == (403, "FORBIDDEN")
    assert len(entries(face)) - before == (row.action is not None)
