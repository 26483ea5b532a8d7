"""Failed logins slow down whoever makes them, and nobody else; memory stays bounded."""

from __future__ import annotations

import pytest

from coord.http.throttle import (
    COUNTS_MAX,
    FORGOTTEN_AFTER_S,
    FREE_FAILURES,
    KNOWN_FOR_S,
    SHARED_COUNTS,
    WAIT_MAX_S,
    LoginThrottle,
    origin_of,
)
from tests.http.face import Face, basic, error_of


class Clock:
    """A clock that stands still until it is moved."""

    now_s = 1_000.0

    def __call__(self) -> float:
        return self.now_s


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def throttle(clock: Clock) -> LoginThrottle:
    return LoginThrottle(clock)


def fail(throttle: LoginThrottle, times: int, address: str = "192.0.2.1", username: str = "ada") -> None:
    for _ in range(times):
        throttle.failed(address, username)


def test_the_first_failures_are_free_and_then_each_doubles_the_wait(throttle: LoginThrottle, clock: Clock) -> None:
    fail(throttle, FREE_FAILURES - 1)
    assert throttle.wait_s("192.0.2.1", "ada") == 0
    waits = []
    for _ in range(9):
        fail(throttle, 1)
        wait_s = throttle.wait_s("192.0.2.1", "ada")
        waits.append(wait_s)
        clock.now_s += wait_s
        assert throttle.wait_s("192.0.2.1", "ada") == 0
    assert waits == [1, 2, 4, 8, 16, 32, WAIT_MAX_S, WAIT_MAX_S, WAIT_MAX_S]


def test_an_address_is_slowed_whatever_the_user_and_a_user_whatever_the_address(throttle: LoginThrottle) -> None:
    fail(throttle, FREE_FAILURES)
    assert throttle.wait_s("192.0.2.1", "bob") == 1
    assert throttle.wait_s("198.51.100.7", "ada") == 1
    assert throttle.wait_s("198.51.100.7", "bob") == 0


def test_who_logged_in_from_an_address_is_not_locked_out_by_others(throttle: LoginThrottle, clock: Clock) -> None:
    """Neither by guesses about the user from elsewhere, nor by a neighbour behind the same proxy; own failures do count."""
    throttle.succeeded("192.0.2.1", "ada")
    fail(throttle, 20, username="eve")
    fail(throttle, 20, address="198.51.100.7")
    assert throttle.wait_s("192.0.2.1", "ada") == 0
    fail(throttle, FREE_FAILURES)
    assert throttle.wait_s("192.0.2.1", "ada") == 1
    throttle.succeeded("192.0.2.1", "ada")
    assert throttle.wait_s("192.0.2.1", "ada") == 0
    clock.now_s += KNOWN_FOR_S
    fail(throttle, 20, username="eve")
    assert throttle.wait_s("192.0.2.1", "ada") > 0


def test_a_success_gives_an_address_no_new_guesses_about_others(throttle: LoginThrottle) -> None:
    fail(throttle, FREE_FAILURES, username="victim")
    throttle.succeeded("192.0.2.1", "attacker's own")
    assert throttle.wait_s("192.0.2.1", "victim") == 1


def test_failures_are_forgotten_after_a_while(throttle: LoginThrottle, clock: Clock) -> None:
    fail(throttle, 50)
    clock.now_s += FORGOTTEN_AFTER_S
    fail(throttle, 1)
    assert throttle.wait_s("192.0.2.1", "ada") == 0


def test_l1_a_full_table_forgets_nobody_and_takes_no_more_memory(throttle: LoginThrottle, clock: Clock) -> None:
    """A spent count is still spent after a flood of made-up users and addresses; newcomers share what is left."""
    fail(throttle, 12)
    before = throttle.wait_s("192.0.2.1", "ada")
    assert before == WAIT_MAX_S
    for index in range(COUNTS_MAX * 2):
        throttle.failed(f"127.{index >> 16}.{index >> 8 & 255}.{index & 255}", f"stranger {index}")
    counts = throttle._counts
    assert (len(counts.own), len(counts.shared)) == (COUNTS_MAX, SHARED_COUNTS)
    assert throttle.wait_s("192.0.2.1", "ada") == before
    assert throttle.wait_s("127.255.0.1", "another stranger") > 0
    throttle.succeeded("192.0.2.9", "known")
    assert throttle.wait_s("192.0.2.9", "known") > 0  # a newcomer's own count is a shared one by now
    clock.now_s += FORGOTTEN_AFTER_S
    throttle.failed("192.0.2.1", "ada")
    assert len(counts.own) == 2
    assert throttle.wait_s("127.255.0.1", "another stranger") == 0


def test_names_are_kept_at_one_size(throttle: LoginThrottle) -> None:
    throttle.failed("192.0.2.1", "x" * 1_000_000)
    assert {len(key) for key in throttle._counts.own} == {16}


@pytest.mark.parametrize(
    ("address", "origin"),
    [
        ("192.0.2.1", "192.0.2.1"),
        ("2001:db8:1:2:3:4:5:6", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:ffff::1", "2001:db8:1:2::/64"),
        (None, ""),
        ("", ""),
        ("nonsense", ""),
    ],
)
def test_what_an_address_is_counted_as(address: str | None, origin: str) -> None:
    assert origin_of(address) == origin


@pytest.mark.parametrize("how", ["login", "basic"])
def test_l3_failed_logins_are_limited_and_cost_nobody_else_anything(face: Face, how: str) -> None:
    """Basic counts like a login: 401 at first, then 429 with Retry-After; a wrong guess is not even looked at then."""

    def attempt(password: str, address: str = "192.0.2.1") -> tuple[int, str]:
        if how == "login":
            body = {"username": "writer", "password": password}
            answer = face.ask("POST", "/auth/login", body, user=None, address=address)
        else:
            answer = face.ask("GET", "/monitoring/session", user=None, headers=basic("writer", password), address=address)
        if answer.status_code == 429:
            assert int(answer.headers["retry-after"]) >= 1
        return (answer.status_code, "") if answer.status_code == 200 else error_of(answer)

    assert attempt("w-pass", "198.51.100.7") == (200, "")  # so that this address has a count of its own
    assert [attempt("no") for _ in range(FREE_FAILURES)] == [(401, "UNAUTHORIZED")] * FREE_FAILURES
    assert attempt("no") == (429, "RATE_LIMIT_EXCEEDED")
    assert attempt("w-pass", "198.51.100.7") == (200, "")
    other = face.ask("GET", "/monitoring/session", user=None, headers=basic("reader"), address="198.51.100.8")
    assert other.status_code == 200


def test_k4_a_token_is_judged_however_many_logins_failed(face: Face) -> None:
    token = face.ask("POST", "/auth/login", user="writer").json["accessToken"]
    for index in range(20):
        face.ask("GET", "/monitoring/session", user=None, headers=basic(f"stranger {index}", "no"))
    bearer = {"Authorization": f"Bearer {token}"}
    assert face.ask("GET", "/monitoring/session", user=None, headers=bearer).status_code == 200
    assert error_of(face.ask("GET", "/monitoring/session", user=None, headers=basic("reader"))) == (429, "RATE_LIMIT_EXCEEDED")


def test_l3_a_throttled_mutation_is_audited(face: Face) -> None:
    from tests.http.test_requests import audited

    for _ in range(FREE_FAILURES + 1):
        face.ask("POST", "/streams/orders", {"requestedBy": "t"}, user=None, headers=basic("eve", "no"))
    told = [(entry.status, entry.outcome, entry.error_code, entry.principal) for entry in audited(face)]
    assert told[-2:] == [(401, "UNAUTHORIZED", "UNAUTHORIZED", None), (429, "FAILED", "RATE_LIMIT_EXCEEDED", None)]
