"""The private Redis: found, started, kept, ended, and never left behind."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import redis

from coord.runtime import embedded
from coord.runtime.embedded import EmbeddedRedis, EmbeddedRedisError, find_redis_server, free_port
from tests.servers import wait_until

OWNER = """
import sys, time
from pathlib import Path
from coord.runtime.embedded import EmbeddedRedis
server = EmbeddedRedis.start(state_dir=Path(sys.argv[1]), append_fsync="always", die_with_parent=sys.argv[2] == "tied")
print(server.pid, server.port, flush=True)
time.sleep(60)
"""


def client_of(server: EmbeddedRedis) -> redis.Redis:
    return redis.Redis.from_url(server.url, socket_timeout=5, decode_responses=True)


def is_alive(pid: int) -> bool:
    """Whether a process runs; a zombie that nobody has waited for does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def run_owner(folder: Path, tie: str) -> tuple[subprocess.Popen[str], int, int]:
    """Start a process that owns a Redis; gives the process, the pid and the port of its server."""
    owner = subprocess.Popen([sys.executable, "-c", OWNER, str(folder), tie], stdout=subprocess.PIPE, text=True)
    assert owner.stdout is not None
    pid, port = map(int, owner.stdout.readline().split())
    return owner, pid, port


def kill(owner: subprocess.Popen[str]) -> None:
    owner.kill()
    owner.wait(10)
    assert owner.stdout is not None
    owner.stdout.close()


def test_it_answers_on_loopback_and_leaves_nothing() -> None:
    with EmbeddedRedis.start() as server, client_of(server) as client:
        assert client.ping()
        assert client.info("server")["process_id"] == server.pid
        assert client.config_get("bind") == {"bind": "127.0.0.1"}
        assert client.config_get("save") == {"save": ""}
        assert server.is_running
        with pytest.raises(redis.ResponseError, match="not allowed"):
            client.execute_command("DEBUG", "JMAP")
    assert not is_alive(server.pid)
    assert not server.is_running
    assert not server.folder.exists()
    server.stop()


@pytest.mark.parametrize("end", ["stop", "kill"])
def test_an_append_only_file_survives_every_kind_of_end(tmp_path: Path, end: str) -> None:
    port = free_port()
    for count in (1, 2, 3):
        server = EmbeddedRedis.start(state_dir=tmp_path, port=port, append_fsync="always")
        with server, client_of(server) as client:
            assert client.incr("k") == count
            getattr(server, end)()
            assert not is_alive(server.pid)


def test_settings_overrule_ours() -> None:
    with (
        EmbeddedRedis.start(settings={"enable-debug-command": "yes", "maxmemory": "50mb"}) as server,
        client_of(server) as client,
    ):
        assert client.execute_command("DEBUG", "SLEEP", "0") == "OK"
        assert client.config_get("maxmemory") == {"maxmemory": "52428800"}


def test_a_bad_setting_is_told_with_what_the_server_said() -> None:
    with pytest.raises(EmbeddedRedisError, match="ended at once"):
        EmbeddedRedis.start(settings={"no-such-directive": "1"})


def test_a_taken_port_is_told() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(EmbeddedRedisError, match=f"port {port}.*Address already in use"):
            EmbeddedRedis.start(port=port)


def test_a_port_lost_to_somebody_else_is_chosen_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        ports = iter([taken.getsockname()[1], free_port()])
        monkeypatch.setattr(embedded, "free_port", lambda: next(ports))
        with EmbeddedRedis.start() as server, client_of(server) as client:
            assert client.ping()


def test_two_servers_never_share_a_folder(tmp_path: Path) -> None:
    with (
        EmbeddedRedis.start(state_dir=tmp_path, append_fsync="always"),
        pytest.raises(EmbeddedRedisError, match="another Redis runs on the state directory"),
    ):
        EmbeddedRedis.start(state_dir=tmp_path, append_fsync="always", timeout_s=0.3)
    with EmbeddedRedis.start(state_dir=tmp_path, append_fsync="always") as server:
        assert server.is_running


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(EmbeddedRedisError, match="cannot be written"):
        EmbeddedRedis.start(state_dir=tmp_path / "file" / "below")


def test_a_tied_server_ends_with_an_owner_that_is_killed(tmp_path: Path) -> None:
    owner, pid, _ = run_owner(tmp_path, "tied")
    assert is_alive(pid)
    kill(owner)
    wait_until(lambda: not is_alive(pid), what="the server ended with its owner")


def test_an_untied_server_outlives_its_owner(tmp_path: Path) -> None:
    owner, pid, port = run_owner(tmp_path, "free")
    try:
        kill(owner)
        with redis.Redis(port=port, socket_timeout=5) as client:
            assert client.ping()
    finally:
        os.kill(pid, signal.SIGTERM)
    wait_until(lambda: not is_alive(pid), what="the server ended")


def test_a_successor_waits_for_the_server_of_a_killed_owner(tmp_path: Path) -> None:
    owner, _, _ = run_owner(tmp_path, "tied")
    kill(owner)
    with EmbeddedRedis.start(state_dir=tmp_path, append_fsync="always") as server, client_of(server) as client:
        assert client.ping()


def test_a_forked_child_cannot_end_the_server() -> None:
    code = """
import os
from coord.runtime.embedded import EmbeddedRedis
with EmbeddedRedis.start() as server:
    child = os.fork()
    if child == 0:
        server.stop()
        os._exit(0)
    os.waitpid(child, 0)
    print(server.is_running, server.folder.exists())
"""
    told = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True, text=True, timeout=60)
    assert told.stdout.split() == ["True", "True"]


def test_only_the_main_thread_may_start_a_tied_server() -> None:
    errors: list[str] = []

    def start() -> None:
        try:
            EmbeddedRedis.start()
        except EmbeddedRedisError as error:
            errors.append(str(error))
        with EmbeddedRedis.start(die_with_parent=False) as server:
            assert server.is_running

    thread = threading.Thread(target=start)
    thread.start()
    thread.join(30)
    assert len(errors) == 1
    assert "only the main thread" in errors[0]


def test_the_binary_named_by_hand_goes_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "redis-server"
    program.write_text("#!/bin/sh\n")
    monkeypatch.setenv("COORD_REDIS_SERVER", str(program))
    with pytest.raises(EmbeddedRedisError, match="COORD_REDIS_SERVER"):
        find_redis_server()
    program.chmod(0o755)
    assert find_redis_server() == program


@pytest.mark.parametrize(("version", "is_taken"), [("6.2.1", False), ("7.0.0", True), ("8.2.1", True)])
def test_a_binary_on_the_path_must_be_new_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, version: str, is_taken: bool
) -> None:
    program = tmp_path / "redis-server"
    program.write_text(f'#!/bin/sh\necho "Redis server v={version} sha=00000000"\n')
    program.chmod(0o755)
    monkeypatch.delenv("COORD_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", f"{tmp_path}:/usr/bin:/bin")
    assert (find_redis_server() == program) is is_taken


def test_without_any_binary_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("COORD_REDIS_SERVER", raising=False)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(EmbeddedRedisError, match=r"'embedded' extra"):
        find_redis_server()
