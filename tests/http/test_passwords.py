"""Argon2 hashes, what a check costs, and what is remembered of it."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import argon2
import pytest

from coord.config import Secret, User
from coord.config.loading import cores
from coord.http import passwords
from coord.http.passwords import VERIFIED_FOR_S, VERIFIED_MAX, Passwords, Verified
from coord.http.slots import Slots
from tests.http.face import OLD_SECRET, SECRET, USERS, Face, basic, configuration, error_of, make_face
from tests.http.served import BASE, ENGINES, ROOT, serving
from tests.http.test_throttle import Clock
from tests.servers import wait_until

CHEAP = argon2.PasswordHasher(time_cost=1, memory_cost=8, parallelism=1)
HASHED = CHEAP.hash("w-pass")


def of(*users: User, runs: int = 1, clock: Clock | None = None) -> Passwords:
    return Passwords({user.username: user for user in users}, Slots(runs), clock=clock or Clock())


@pytest.fixture
def counted(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The hashes that argon2 was run on, in order."""
    ran: list[str] = []
    real: Callable[[str, str], bool] = passwords._fits

    def counting(hashed: str, password: str) -> bool:
        ran.append(hashed)
        return real(hashed, password)

    monkeypatch.setattr(passwords, "_fits", counting)
    return ran


HASH_USER = User(username="ada", password=Secret(HASHED))
PLAIN_USER = User(username="bob", password=Secret("b-pass"))
BLANK_USER = User(username="blank", password=Secret("  "))


@pytest.mark.parametrize(
    ("username", "password", "verdict"),
    [
        ("ada", "w-pass", "right"),
        ("ada", "wrong", "wrong"),
        pytest.param("ada", HASHED, "wrong", id="ada-her hash-wrong"),  # salted anew in each process
        ("ada", "", "wrong"),
        ("bob", "b-pass", "right"),
        ("bob", "w-pass", "wrong"),
        ("blank", "  ", "wrong"),
        ("nobody", "w-pass", "wrong"),
        ("", "", "wrong"),
        ("nobody", "\ud800", "wrong"),
    ],
)
def test_each_check_costs_one_argon2_run_whoever_it_is_about(
    counted: list[str], username: str, password: str, verdict: str
) -> None:
    checked = of(HASH_USER, PLAIN_USER, BLANK_USER)
    assert checked.check(username, password) == verdict
    assert counted == [HASHED]


def test_without_hashes_no_check_costs_a_run(counted: list[str]) -> None:
    checked = of(PLAIN_USER)
    assert [checked.check("bob", "b-pass"), checked.check("nobody", "b-pass")] == ["right", "wrong"]
    assert counted == []


def test_only_so_many_run_at_once(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The one beyond is told so and costs nothing; its turn comes when another ended."""
    started, may_end = threading.Event(), threading.Event()

    def slow(hashed: str, password: str) -> bool:
        started.set()
        assert may_end.wait(30)
        return True

    monkeypatch.setattr(passwords, "_fits", slow)
    checked = of(HASH_USER, PLAIN_USER)
    verdicts: list[str] = []
    thread = threading.Thread(target=lambda: verdicts.append(checked.check("ada", "w-pass")))
    thread.start()
    assert started.wait(30)
    assert [checked.check("ada", "w-pass"), checked.check("bob", "b-pass"), checked.check("x", "y")] == ["busy"] * 3
    may_end.set()
    thread.join(30)
    assert verdicts == ["right"]
    assert checked.check("bob", "b-pass") == "right"


def test_who_was_verified_is_remembered_for_a_minute_and_only_with_that_password(counted: list[str]) -> None:
    clock = Clock()
    checked = of(HASH_USER, clock=clock)
    assert not checked.is_remembered("ada", "w-pass")
    assert checked.check("ada", "w-pass") == "right"
    assert checked.is_remembered("ada", "w-pass")
    assert not checked.is_remembered("ada", "other")
    assert not checked.is_remembered("ad", "aw-pass")
    clock.now_s += VERIFIED_FOR_S
    assert not checked.is_remembered("ada", "w-pass")
    assert checked.check("ada", "wrong") == "wrong"
    assert not checked.is_remembered("ada", "wrong")


def test_what_is_remembered_is_bounded_and_holds_no_password() -> None:
    remembered = Verified(Clock())
    for index in range(VERIFIED_MAX + 10):
        remembered.add("ada", f"password {index}")
    assert len(remembered._until_s) == VERIFIED_MAX
    assert remembered.left_s("ada", "password 0") <= 0
    assert remembered.left_s("ada", f"password {VERIFIED_MAX + 9}") == VERIFIED_FOR_S
    assert b"password" not in b"".join(remembered._until_s)
    assert Verified(Clock()).left_s("ada", "password 100") <= 0  # each has its own key


def test_who_comes_all_the_time_is_never_told_to_wait(counted: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """Before the minute is over one of them verifies the pair anew; whoever finds the permits taken goes on as before."""
    clock = Clock()
    checked = of(HASH_USER, clock=clock)
    assert checked.check("ada", "w-pass") == "right"
    for _ in range(40):
        clock.now_s += 10
        assert checked.is_remembered("ada", "w-pass")
    assert len(counted) == 1 + 40 // 5
    clock.now_s += VERIFIED_FOR_S - 1
    with checked._runs.one():
        assert checked.is_remembered("ada", "w-pass")
    clock.now_s += 1
    assert not checked.is_remembered("ada", "w-pass")


@pytest.fixture
def hashed(tmp_path: Path) -> Face:
    """An app whose writer has a hash for a password."""
    text = USERS.format(secret=SECRET, old=OLD_SECRET, members="false").replace("password: w-pass", f'password: "{HASHED}"')
    return make_face(configuration(tmp_path, text=text))


def test_a_user_with_a_hash_logs_in_with_the_password_and_never_with_the_hash(hashed: Face, counted: list[str]) -> None:
    assert hashed.ask("GET", "/monitoring/session", user=None, headers=basic("writer", HASHED)).status_code == 401
    for _ in range(3):
        assert hashed.ask("GET", "/monitoring/session", user="writer").json["username"] == "writer"
    assert counted == [HASHED] * 2  # the second and third time it was remembered
    token = hashed.ask("POST", "/auth/login", user="writer").json["accessToken"]
    bearer = {"Authorization": f"Bearer {token}"}
    assert hashed.ask("GET", "/monitoring/session", user=None, headers=bearer).json["username"] == "writer"
    assert len(counted) == 2


def test_while_others_are_verified_a_login_is_told_to_come_back(hashed: Face) -> None:
    from coord.http.app import authenticator_of, create_app

    runs = Slots(1)
    hashed.app = create_app(hashed.services, authenticator_of(hashed.services.config, runs))
    with runs.one():
        answer = hashed.ask("POST", "/auth/login", user="writer")
    assert error_of(answer) == (429, "RATE_LIMIT_EXCEEDED")
    assert answer.headers["retry-after"] == "1"
    assert hashed.ask("POST", "/auth/login", user="writer").status_code == 200


HOLDS = """
import sys
from coord.http.slots import Slots
import os, time
slots = Slots(2)
ready, ends = os.pipe()
pids = []
for _ in range(4):
    pid = os.fork()
    if pid == 0:
        with slots.one() as has_one:
            os.write(ends, b"1" if has_one else b"0")
            time.sleep(60)
    pids.append(pid)
print(sorted(os.read(ready, 1) for _ in pids))
with slots.one() as has_one:
    print(has_one)
for pid in pids:
    os.kill(pid, 9)
    os.waitpid(pid, 0)
with slots.one() as first, slots.one() as second, slots.one() as third:
    print(first, second, third)
"""


def test_workers_share_their_permits_and_a_killed_one_leaves_none_behind() -> None:
    """Two for four processes; the dead give back what they held."""
    done = subprocess.run([sys.executable, "-c", HOLDS], capture_output=True, text=True, timeout=60, check=True, cwd=ROOT)
    assert done.stdout.splitlines() == ["[b'0', b'0', b'1', b'1']", "False", "True True False"]


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_an_instance_verifies_one_password_a_core_however_many_workers_it_has(tmp_path: Path, engine: str) -> None:
    """Each verification is held until all have been asked: so many are let in, the others are told to come back."""
    changed = """
import os, time
from coord.http import passwords
def held(hashed, password):
    open(f"run-{password}", "w").close()
    while not os.path.exists("go"):
        time.sleep(0.02)
    return False
passwords._fits = held
"""
    config = f"coordinator: {{api: {{users: [{{username: ada, password: '{HASHED}', roles: [READ]}}]}}}}"
    workers, attempts = cores() + 2, 24
    with serving(
        tmp_path, "--embedded-redis", "--workers", str(workers), config=config, engine=engine, changed=changed
    ) as running:
        wait_until(lambda: len(running.workers()) == workers, what="all workers are there")

        def attempt(index: int) -> int:
            body = {"username": "ada", "password": str(index)}
            return running.ask("POST", f"{BASE}/auth/login", body, credentials=False, timeout_s=60).status

        with ThreadPoolExecutor(attempts) as pool:
            asked = [pool.submit(attempt, index) for index in range(attempts)]
            try:
                wait_until(lambda: sum(each.done() for each in asked) == attempts - cores(), what="all others are turned away")
                assert len(list(tmp_path.glob("run-*"))) == cores()
            finally:
                (tmp_path / "go").touch()
        assert sorted(each.result() for each in asked) == [401] * cores() + [429] * (attempts - cores())
