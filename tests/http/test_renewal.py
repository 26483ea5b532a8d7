"""SIGHUP: users and token secrets change while requests are served, and no request fails for it."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from msgspec import structs

from coord.config import Secret, User
from coord.http.auth import Authenticator, Wait
from coord.http.renewal import Editions, changes_access_only
from tests.http.face import basic, configuration
from tests.http.served import BASE, ENGINES, Answer, Served, Wire, serving
from tests.servers import wait_until

FIRST = "the first secret of the tests, long enough to sign with"
SECOND = "the second secret of the tests, long enough to sign with"
WHO = {"requestedBy": "tester", "reason": "a test"}
SESSION = f"GET {BASE}/monitoring/session HTTP/1.1\r\nHost: t\r\n{{header}}\r\n\r\n"


def test_what_counts_as_a_change_of_access_only(tmp_path: Path) -> None:
    config = configuration(tmp_path)
    api = config.api

    def changed(**fields: object) -> bool:
        return changes_access_only(config, structs.replace(config, api=structs.replace(api, **fields)))

    assert changed(users=api.users[1:])
    assert changed(users=(*api.users[1:], structs.replace(api.users[0], password=Secret("another"))))
    assert changed(token_secret=Secret(SECOND))
    assert changed(previous_token_secrets=())
    assert changed(admin_password=Secret("another"))
    assert changed(token_ttl_ms=60_000)
    assert not changed()
    assert not changed(users=(), base_path="/other")
    assert not changed(trusted_proxies=("10.0.0.0/8",))
    other = structs.replace(config, api=structs.replace(api, users=()), member_lease_ttl_ms=20_000)
    assert not changes_access_only(config, other)
    told = structs.replace(config, api=structs.replace(api, users=()), origins={"api.users": "elsewhere"}, warnings=())
    assert changes_access_only(config, told)


def test_what_was_verified_under_the_old_users_counts_no_longer(tmp_path: Path) -> None:
    """Not even within the minute that it is remembered for."""
    api = configuration(tmp_path).api
    authenticator = Authenticator(api)
    header = basic("reader")["Authorization"]
    before = authenticator.authenticate(header)
    assert before is not None
    assert not isinstance(before, Wait)
    token = authenticator.issue(before)
    assert token is not None
    bearer = f"Bearer {token.access_token}"
    authenticator.replace(structs.replace(api, users=(User(username="new", password=Secret("n"), roles=("READ",)),)))
    assert [authenticator.authenticate(each) for each in (header, bearer)] == [None, None]
    assert authenticator.authenticate(basic("new", "n")["Authorization"]) is not None
    authenticator.replace(api)
    assert [authenticator.authenticate(each) for each in (header, bearer)] == [before, before]


class Load:
    """Requests one after the other on connections that stay open, each credential its own thread, until stopped."""

    def __init__(self, served: Served, headers: tuple[str, ...]) -> None:
        self.served = served
        self.statuses: dict[str, list[int]] = {header: [] for header in headers}
        self.broken: list[str] = []
        self._stop = threading.Event()
        self._threads = [threading.Thread(target=self._run, args=(header,)) for header in headers for _ in range(2)]

    def _run(self, header: str) -> None:
        try:
            with Wire(self.served.port, timeout_s=30) as connection:
                while not self._stop.is_set():
                    connection.send(SESSION.format(header=header).encode())
                    self.statuses[header].append(connection.receive().status)
        except Exception as error:  # noqa: BLE001  whatever it is, it is a failed request
            self.broken.append(f"{header}: {error!r}")

    def count(self) -> int:
        return sum(map(len, self.statuses.values()))

    @contextmanager
    def running(self) -> Iterator[None]:
        for thread in self._threads:
            thread.start()
        try:
            yield
        finally:
            self._stop.set()
            for thread in self._threads:
                thread.join(60)


def login(served: Served, username: str, password: str) -> Answer:
    return served.ask("POST", f"{BASE}/auth/login", {"username": username, "password": password}, credentials=False)


def bearer_of(served: Served, username: str, password: str) -> str:
    return "Authorization: Bearer " + str(login(served, username, password).json["accessToken"])


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_k4_users_and_secrets_change_under_load_and_no_request_fails(tmp_path: Path, engine: str) -> None:
    """Secrets come from files; after each SIGHUP all workers know, connections and workers stay, nothing is refused wrongly."""
    secrets = tmp_path / "secrets"
    secrets.mkdir()
    (secrets / "token").write_text(FIRST + "\n")
    (secrets / "keeps").write_text("k-pass\n")
    environ = {
        "COORDINATOR_API_TOKEN_SECRET_FILE": str(secrets / "token"),
        "COORDINATOR_API_USERS_0_PASSWORD_FILE": str(secrets / "keeps"),
    }

    def config(*more: str, previous: str = "") -> str:
        users = ["{username: keeps, roles: [READ]}", *more]
        rotated = f', previous-token-secrets: ["{previous}"]' if previous else ""
        return f"coordinator: {{api: {{users: [{', '.join(users)}]{rotated}}}}}"

    leaver = "{username: leaves, password: l-pass, roles: [READ]}"
    newcomer = "{username: comes, password: c-pass, roles: [READ]}"
    arguments = ("--embedded-redis", "--workers", "2")
    with serving(tmp_path / "s", *arguments, config=config(leaver), environ=environ, engine=engine) as running:
        wait_until(lambda: len(running.workers()) == 2, what="both workers are there")
        workers = running.workers()
        kept, gone = bearer_of(running, "keeps", "k-pass"), bearer_of(running, "leaves", "l-pass")
        load = Load(running, (kept, "Authorization: " + basic("keeps", "k-pass")["Authorization"]))

        def hang_up(text: str) -> None:
            """Change the users, and wait until every worker has said that it knows and the load has gone on for a while."""
            hang_up_alone(running, text)
            seen = load.count()
            wait_until(lambda: load.broken or load.count() > seen + 20, timeout_s=60, what="the load goes on")

        def status(header: str) -> set[int]:
            """Ask often enough to meet both workers."""
            told = set()
            for _ in range(8):
                told.add(running.ask("GET", f"{BASE}/monitoring/session", credentials=False, headers=(header,)).status)
            return told

        with load.running():
            assert status(gone) == {200}
            hang_up(config(newcomer))
            assert status(gone) == {401}
            assert status("Authorization: " + basic("comes", "c-pass")["Authorization"]) == {200}
            (secrets / "token").write_text(SECOND)
            hang_up(config(newcomer, previous=FIRST))
            assert status(kept) == {200}
            assert status(bearer_of(running, "keeps", "k-pass")) == {200}
            for _ in range(5):
                hang_up(config(leaver, previous=FIRST))
                hang_up(config(newcomer, previous=FIRST))
        assert load.broken == []
        assert {status for statuses in load.statuses.values() for status in statuses} == {200}
        assert all(len(statuses) > 20 for statuses in load.statuses.values())
        assert running.workers() == workers
        hang_up_alone(running, config(newcomer))
        assert status(kept) == {401}
        assert "Traceback" not in running.text()


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_k4_every_worker_knows_who_was_lowered_changed_or_removed(tmp_path: Path, engine: str) -> None:
    """A WRITE token of seven days, step by step; each worker is asked by itself. One that comes later knows too."""

    def config(*users: str, secret: str = FIRST, previous: str = "") -> str:
        api = {"token-secret": f'"{secret}"', "users": f"[{', '.join(users)}]"}
        api |= {"previous-token-secrets": f'["{previous}"]'} if previous else {}
        return f"coordinator: {{api: {{{', '.join(f'{name}: {value}' for name, value in api.items())}}}}}"

    other = "{username: other, password: o-pass, roles: [READ]}"
    writes = "{username: ada, password: a-pass, roles: [WRITE]}"
    reads, changed = writes.replace("WRITE", "READ"), writes.replace("a-pass", "another")
    with serving(tmp_path / "s", "--embedded-redis", "--workers", "2", config=config(writes, other), engine=engine) as running:
        wait_until(lambda: len(running.workers()) == 2, what="both workers are there")
        token = bearer_of(running, "ada", "a-pass")

        def statuses(header: str) -> list[tuple[int, int]]:
            """Give what each worker says to a read and to a mutation."""
            told = []
            for index in range(2):
                with running.only(index):
                    read = running.ask("GET", f"{BASE}/monitoring/session", credentials=False, headers=(header,))
                    change = running.ask("DELETE", f"{BASE}/streams/none", WHO, credentials=False, headers=(header,))
                    told.append((read.status, change.status))
            return told

        assert statuses(token) == [(200, 404)] * 2
        for text, expected in (
            (config(reads, other), (200, 403)),
            (config(writes, other), (200, 404)),
            (config(changed, other), (401, 401)),
            (config(writes, other, secret=SECOND, previous=FIRST), (200, 404)),
            (config(writes, other, secret=SECOND), (401, 401)),
            (config(writes, other, secret=FIRST), (200, 404)),
            (config(other), (401, 401)),
        ):
            hang_up_alone(running, text)
            assert statuses(token) == [expected] * 2, text
        before = running.workers()
        for pid in before:
            os.kill(pid, signal.SIGKILL)
        wait_until(lambda: len(running.workers()) == 2 and running.lives() and not running.workers() & before, what="new workers")
        assert statuses(token) == [(401, 401)] * 2


def test_an_edition_that_came_after_the_fork_is_seen() -> None:
    editions = Editions()
    editions.next()
    assert not editions.is_outdated()
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:  # the master's part, so that this process may be the worker
        editions.next()
        os.write(writing, b"x")
        os._exit(0)
    os.read(reading, 1)
    os.waitpid(pid, 0)
    os.close(reading)
    os.close(writing)
    assert editions.is_outdated()


SLOW_TO_LISTEN = """
import os, time
import coord.http.engines.{engine} as engine
real = engine.{called}
def slow(*args, **kwargs):
    if os.path.exists("slow"):
        open("starting-" + str(os.getpid()), "w").close()
        time.sleep(1)
    return real(*args, **kwargs)
engine.{called} = slow
"""


@pytest.mark.e2e
@pytest.mark.parametrize(("engine", "called"), [("gunicorn", "CoordinatorServer._hear_of_news"), ("granian", "authenticator_of")])
def test_k4_a_worker_that_is_just_starting_knows_too(tmp_path: Path, engine: str, called: str) -> None:
    """The signal reaches it before it listens for it: who was removed is refused all the same."""
    text = "coordinator: {store: {type: memory}, api: {token-secret: 'SECRET', users: [USERS]}}".replace("SECRET", FIRST)
    leaver, other = (f"{{username: {name}, password: a, roles: [READ]}}" for name in ("leaves", "stays"))
    changed = SLOW_TO_LISTEN.format(engine=engine, called=called)
    with serving(tmp_path, config=text.replace("USERS", f"{leaver}, {other}"), engine=engine, changed=changed) as running:
        (first,) = running.workers()
        gone, stays = (bearer_of(running, name, "a") for name in ("leaves", "stays"))
        (tmp_path / "slow").touch()
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: list(tmp_path.glob("starting-*")), what="its successor is starting")
        (tmp_path / "coordinator.yaml").write_text(text.replace("USERS", other))
        (tmp_path / "slow").unlink()
        running.process.send_signal(signal.SIGHUP)
        wait_until(running.lives, timeout_s=20, what="the successor answers")

        def status(header: str) -> int:
            return running.ask("GET", f"{BASE}/monitoring/session", credentials=False, headers=(header,)).status

        assert (status(gone), status(stays)) == (401, 200)


@pytest.mark.e2e
def test_k2_two_that_sign_with_different_secrets_do_not_take_each_others_tokens(tmp_path: Path) -> None:
    """Nothing falls back on anything: both say 401, and each goes on with its own."""
    text = "coordinator: {{store: {{type: memory}}, api: {{token-secret: '{}'}}}}"
    with (
        serving(tmp_path / "a", config=text.format(FIRST)) as first,
        serving(tmp_path / "b", config=text.format(SECOND)) as second,
    ):
        tokens = [bearer_of(served, "admin", "password") for served in (first, second)]
        told = [
            [served.ask("GET", f"{BASE}/monitoring/session", credentials=False, headers=(token,)).status for token in tokens]
            for served in (first, second)
        ]
        assert told == [[200, 401], [401, 200]]


def hang_up_alone(running: Served, text: str) -> None:
    """Write the configuration, tell the master, and wait until both workers have said that they know."""
    before = running.text().count("users and token secrets read again")
    (running.log.parent / "coordinator.yaml").write_text(text)
    running.process.send_signal(signal.SIGHUP)
    wait_until(
        lambda: running.text().count("users and token secrets read again") >= before + 2, timeout_s=60, what="both workers know"
    )


@pytest.mark.e2e
def test_anything_else_that_changed_comes_with_new_workers(tmp_path: Path) -> None:
    """A refused file changes nothing; another path brings new workers; so does no change at all (a new certificate, say)."""
    file = tmp_path / "s" / "coordinator.yaml"
    with serving(tmp_path / "s", "--embedded-redis", "--workers", "2") as running:
        wait_until(lambda: len(running.workers()) == 2, what="both workers are there")
        workers = running.workers()
        file.write_text("coordinator: {api: {users: 7}}")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the old one stays" in running.text(), what="the refusal is logged")
        assert running.workers() == workers
        assert running.ask("GET", f"{BASE}/monitoring/session").status == 200
        file.write_text("coordinator: {api: {base-path: /other}}")
        for before in (workers, None):
            old = before or running.workers()
            running.process.send_signal(signal.SIGHUP)
            wait_until(lambda old=old: replaced(running, old), timeout_s=60, what="the workers are new")  # type: ignore[misc]  # bound at once
            wait_until(lambda: answers(running, "/other"), timeout_s=60, what="the new path answers")


def replaced(running: Served, old: set[int]) -> bool:
    now = running.workers()
    return len(now) == 2 and not now & old


def answers(running: Served, base_path: str) -> bool:
    try:
        return running.ask("GET", f"{base_path}/monitoring/session").status == 200
    except OSError:
        return False
