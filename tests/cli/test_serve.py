"""`coord serve`: exit codes, a private Redis that keeps its state, reading the configuration again, one worker for memory."""

from __future__ import annotations

import json
import os
import signal
import socket
import sys
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from coord.cli.serve import serve
from tests.http.served import BASE, ENGINES, Served, serving
from tests.servers import wait_until

WHO = {"requestedBy": "tester", "reason": "a test"}


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["--port", "x"], "--port"),
        (["--port", "0"], "--port"),
        (["--workers", "0"], "--workers"),
        (["--log-format", "xml"], "--log-format"),
        (["--state-dir", "somewhere"], "--embedded-redis"),
        (["--unknown"], "--unknown"),
        (["--config", "missing.yaml"], "missing.yaml"),
    ],
)
def test_wrong_usage_is_exit_2_and_names_what_is_wrong(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], told: str
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(serve, arguments)
    assert result.exit_code == 2
    assert told in result.output


def test_a_wrong_configuration_is_exit_2_with_every_problem(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    file = tmp_path / "bad.yaml"
    file.write_text("coordinator: {server: {port: 99999}, member-lease-ttl: 1s, hearbeat-interval: 3s}", encoding="utf-8")
    result = CliRunner().invoke(serve, ["--config", str(file)])
    assert result.exit_code == 2
    for key in ("server.port", "member-lease-ttl", "heartbeat-interval"):
        assert key in result.output


def test_beyond_loopback_the_default_password_stops_the_start(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(serve, ["--host", "0.0.0.0"])
    assert result.exit_code == 2
    assert "api.token-secret" in result.output


def test_a_taken_port_is_exit_1_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        result = CliRunner().invoke(serve, ["--port", str(port)], env={"COORDINATOR_STORE_TYPE": "memory"})
    assert result.exit_code == 1
    assert f"port {port}" in result.output


def test_granian_without_its_package_is_exit_2_and_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, "granian", None)
    result = CliRunner().invoke(serve, env={"COORDINATOR_STORE_TYPE": "memory", "COORDINATOR_SERVER_ENGINE": "granian"})
    assert result.exit_code == 2
    assert "redis-stream-coordinator[granian]" in result.output


@pytest.mark.parametrize("engine", ENGINES)
def test_a_certificate_of_no_use_is_exit_2(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, engine: str) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty.pem").touch()
    files = {"COORDINATOR_SERVER_TLS_CERT_FILE": "empty.pem", "COORDINATOR_SERVER_TLS_KEY_FILE": "missing.pem"}
    result = CliRunner().invoke(serve, env={"COORDINATOR_STORE_TYPE": "memory", "COORDINATOR_SERVER_ENGINE": engine, **files})
    assert result.exit_code == 2
    assert "server.tls" in result.output


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_a_private_redis_keeps_its_state_over_a_restart(tmp_path: Path, engine: str) -> None:
    """The start line tells where everything is; the end is orderly: exit code 0."""
    arguments = ("--embedded-redis", "--state-dir", str(tmp_path / "state"), "--workers", "1")
    for start in range(2):
        with serving(tmp_path, *arguments, environ={"REDIS_PASSWORD": "of another redis"}, engine=engine) as running:
            if start == 0:
                made = running.ask("POST", f"{BASE}/streams/orders", {"initialShardCount": 4, **WHO})
                assert made.status == 201
            listed = running.ask("GET", f"{BASE}/monitoring/streams").json["streams"]
            assert [stream["streamPrefix"] for stream in listed] == ["orders"]
            lines = [json.loads(line) for line in running.text().splitlines()]
            (line,) = [each for each in lines if each["event"] == "coordinator is listening"][start:]
            assert line["url"] == f"http://127.0.0.1:{running.port}"
            assert (line["workers"], line["provisioning"], line["engine"]) == (1, True, engine)
            assert line["store"].startswith("redis://127.0.0.1:")
            running.process.send_signal(signal.SIGTERM)
            assert running.process.wait(60) == 0


@pytest.mark.e2e
def test_a_store_that_is_not_there_is_no_reason_to_stop(tmp_path: Path) -> None:
    with serving(tmp_path, "--workers", "1", environ={"REDIS_URL": "redis://127.0.0.1:1/0"}) as running:
        health = running.ask("GET", f"{BASE}/monitoring/health")
        assert (health.status, health.json["status"], health.json["redis"]) == (200, "DOWN", "DOWN")
        assert running.process.poll() is None


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_sighup_reads_users_again_and_a_refused_file_changes_nothing(tmp_path: Path, engine: str) -> None:
    """O3: and SIGTTIN makes no second worker where the state is in the first."""
    text = "coordinator: {{store: {{type: memory}}, api: {{users: [{{username: admin, password: {}, roles: [ADMIN]}}]}}}}"
    with serving(tmp_path, config=text.format("password"), engine=engine) as running:
        file = tmp_path / "coordinator.yaml"

        def status() -> int:
            try:
                return running.ask("GET", f"{BASE}/monitoring/session").status
            except OSError:
                return 0

        assert status() == 200
        running.process.send_signal(signal.SIGTTIN)
        if engine == "gunicorn":
            wait_until(lambda: "no second worker is started" in running.text(), what="SIGTTIN is refused")
        file.write_text("coordinator: {nonsense: 1}", encoding="utf-8")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: "the configuration is refused" in running.text(), what="the bad file is refused")
        wait_until(lambda: status() == 200, what="the old configuration still serves")
        file.write_text(text.format("another"), encoding="utf-8")
        running.process.send_signal(signal.SIGHUP)
        wait_until(lambda: status() == 401, timeout_s=60, what="the new password counts")
        wait_until(lambda: len(running.workers()) == 1, what="the old worker is gone")
        running.process.send_signal(signal.SIGTERM)
        assert running.process.wait(60) == 0


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_j10_sighup_loses_no_request(tmp_path: Path, engine: str) -> None:
    """Workers are replaced while others ask, each on a connection of its own; none is turned away."""
    with serving(tmp_path, "--embedded-redis", "--workers", "2", engine=engine) as running:
        before = running.workers()
        running.process.send_signal(signal.SIGHUP)
        asked = 0
        while running.workers() & before or asked < 50:
            assert running.ask("GET", "/livez").status == 200
            asked += 1
        wait_until(lambda: len(running.workers()) == 2, what="two workers again")


@pytest.mark.e2e
@pytest.mark.parametrize("engine", ENGINES)
def test_a_worker_that_cannot_start_is_exit_1(tmp_path: Path, engine: str) -> None:
    """Another one could not either."""
    broken = "import coord.bootstrap as b\ndef build(config): raise RuntimeError('a bug')\nb.build = build"
    config = "coordinator: {store: {type: memory}}"
    with serving(tmp_path, config=config, engine=engine, changed=broken, ready=False) as running:
        assert running.process.wait(60) == 1
        assert "a bug" in running.text()


def serves_anew(running: Served, before: set[int]) -> bool:
    return bool(running.workers() - before) and running.lives()


@pytest.mark.e2e
def test_o1_a_worker_that_dies_again_and_again_is_replaced_each_time(tmp_path: Path) -> None:
    """Granian itself would give up at the second death within six seconds."""
    with serving(tmp_path, config="coordinator: {store: {type: memory}}", engine="granian") as running:
        for _ in range(3):
            before = running.workers()
            for worker in before:
                os.kill(worker, signal.SIGKILL)
            wait_until(partial(serves_anew, running, before), what="a new worker serves")
        assert running.process.poll() is None
