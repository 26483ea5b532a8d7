"""Whose address counts: the peer's, or what a trusted proxy says."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from coord.http.addresses import AddressJudge
from tests.http.face import OLD_SECRET, SECRET, USERS, basic, configuration, make_face
from tests.http.served import BASE, ENGINES, serving
from tests.http.test_requests import audited

PROXIES = ("10.0.0.0/8", "2001:db8:aa::/48", "127.0.0.1/32")


@pytest.mark.parametrize(
    ("peer", "forwarded", "expected"),
    [
        ("192.0.2.1", None, "192.0.2.1"),
        ("192.0.2.1", "203.0.113.9", "192.0.2.1"),
        ("10.1.2.3", None, "10.1.2.3"),
        ("10.1.2.3", "203.0.113.9", "203.0.113.9"),
        ("10.1.2.3", "1.1.1.1, 203.0.113.9", "203.0.113.9"),
        ("10.1.2.3", "1.1.1.1,203.0.113.9 , 10.9.9.9", "203.0.113.9"),
        ("10.1.2.3", "10.9.9.9, 10.8.8.8", "10.9.9.9"),
        ("10.1.2.3", "203.0.113.9, nonsense", "10.1.2.3"),
        ("10.1.2.3", "nonsense, 203.0.113.9", "203.0.113.9"),
        ("10.1.2.3", "nonsense, 10.4.4.4", "10.4.4.4"),
        ("10.1.2.3", "203.0.113.9:4711", "203.0.113.9"),
        ("10.1.2.3", "[2001:db8::9]:4711", "2001:db8::9"),
        ("10.1.2.3", "2001:db8::9", "2001:db8::9"),
        ("10.1.2.3", "::ffff:203.0.113.9", "203.0.113.9"),
        ("::ffff:10.1.2.3", "203.0.113.9", "203.0.113.9"),
        ("2001:db8:aa::1", "203.0.113.9", "203.0.113.9"),
        ("2001:db8:bb::1", "203.0.113.9", "2001:db8:bb::1"),
        ("10.1.2.3", "", "10.1.2.3"),
        ("10.1.2.3", "203.0.113.9, " + ", ".join(["10.0.0.1"] * 40), "10.0.0.1"),
        ("10.1.2.3", "0x7f.1", "10.1.2.3"),
        ("10.1.2.3", "fe80::1%eth0", "fe80::1%eth0"),
        ("", "203.0.113.9", None),
        ("unix:", "203.0.113.9", None),
    ],
)
def test_the_client_is_the_last_that_no_trusted_proxy_speaks_for(peer: str, forwarded: str | None, expected: str | None) -> None:
    env = {"REMOTE_ADDR": peer} | ({} if forwarded is None else {"HTTP_X_FORWARDED_FOR": forwarded})
    assert AddressJudge(PROXIES).client_address(env) == expected


def test_without_trusted_proxies_the_header_is_nobodys_word() -> None:
    assert AddressJudge().client_address({"REMOTE_ADDR": "127.0.0.1", "HTTP_X_FORWARDED_FOR": "203.0.113.9"}) == "127.0.0.1"


@pytest.mark.parametrize("trusted", [False, True])
def test_l1_throttle_and_audit_go_by_the_clients_address(tmp_path: Path, trusted: bool) -> None:
    """A forged header gives no fresh attempts; a proxy's does, for each of its clients."""
    text = USERS.format(secret=SECRET, old=OLD_SECRET, members="false")
    text += "    trusted-proxies: [127.0.0.0/8]\n" if trusted else ""
    face = make_face(configuration(tmp_path, text=text))
    statuses = []
    for index in range(8):
        headers = basic(f"stranger {index}", "no") | {"X-Forwarded-For": f"203.0.113.{index}"}
        statuses.append(face.ask("POST", "/streams/x", {}, user=None, headers=headers, address="127.0.0.9").status_code)
    assert statuses == ([401] * 8 if trusted else [401] * 5 + [429] * 3)
    told = [entry.client_address for entry in audited(face)]
    assert told == ([f"203.0.113.{index}" for index in range(8)] if trusted else ["127.0.0.9"] * 8)


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_l1_a_client_that_sends_the_header_itself_is_not_believed_behind_a_proxy(tmp_path: Path, engine: str) -> None:
    """However a proxy adds the address: to the client's own line, or in a line after it. An underscore makes another header."""
    config = "coordinator: {store: {type: memory}, api: {trusted-proxies: [127.0.0.0/8]}}"
    forged, real = "6.6.6.6", "203.0.113.9"
    ways = [(f"X-Forwarded-For: {forged}, {real}",), (f"X-Forwarded-For: {forged}", f"X-Forwarded-For: {real}")]
    if engine == "gunicorn":  # granian cannot tell, and warns
        ways += [
            (f"X-Forwarded-For: {real}", f"X_Forwarded_For: {forged}"),
            (f"X_Forwarded-For: {forged}", f"X-Forwarded-For: {real}"),
        ]
    with serving(tmp_path, config=config, engine=engine) as running:
        for headers in ways:
            assert running.ask("POST", f"{BASE}/auth/login", {"username": "x", "password": "y"}, headers=headers).status == 401
        lines = [json.loads(line) for line in running.text().splitlines()]
    assert [line["client_address"] for line in lines if line["event"] == "request"] == [real] * len(ways)
    assert any(line.get("key") == "api.trusted-proxies" for line in lines) == (engine == "granian")
