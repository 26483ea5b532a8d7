"""The programs that the demo starts: each has a log, each is ended by its pid, none outlives the demo."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

LOG_TAIL_BYTES_MAX: Final = 2_000
LOG_TAIL_LINES_MAX: Final = 5
KILL_TIMEOUT_S: Final = 5.0
POLL_S: Final = 0.02
FOREIGN_PREFIXES: Final = ("COORDINATOR_", "COORD_", "REDIS_", "GUNICORN_", "WEB_CONCURRENCY")
"""Variables of the caller that would change what the demo shows."""
KEPT: Final = ("COORD_REDIS_SERVER",)

# Runs between fork and the program: asks the kernel to end the program when the demo is gone, however that came about.
_LAUNCHER: Final = """
import ctypes, os, sys
owner, how = int(sys.argv[1]), int(sys.argv[2])
if sys.platform == "linux":
    ctypes.CDLL(None).prctl(1, how, 0, 0, 0)
    if os.getppid() != owner:
        sys.exit("the demo is gone")
os.execv(sys.argv[3], sys.argv[3:])
"""


def environment(extra: Mapping[str, str]) -> dict[str, str]:
    """Give the environment of the demo's programs: the caller's, without what would configure them, and `extra`."""
    kept = {k: v for k, v in os.environ.items() if k in KEPT or not k.startswith(FOREIGN_PREFIXES)}
    return {**kept, **extra}


@dataclass(slots=True)
class Program:
    """One running `coord …`. `is_expected_to_end`: somebody told it to, so that its end is no news."""

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    is_expected_to_end: bool = False

    @property
    def is_running(self) -> bool:
        """Whether it has not ended."""
        return self.process.poll() is None

    def kill(self) -> None:
        """End it as a power cut would (SIGKILL), and whatever it has forked."""
        self.is_expected_to_end = True
        if self.is_running:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(self.process.pid, signal.SIGKILL)

    def ask_to_end(self) -> None:
        """Send SIGTERM."""
        self.is_expected_to_end = True
        if self.is_running:
            self.process.send_signal(signal.SIGTERM)

    def end(self, timeout_s: float) -> int:
        """Wait for its end, killing it after a time; gives the exit code (negative: the signal)."""
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.kill()
            return self.process.wait(KILL_TIMEOUT_S)

    def last_words(self) -> str:
        """Give the end of its log."""
        try:
            with self.log.open("rb") as log:
                log.seek(0, os.SEEK_END)
                log.seek(max(0, log.tell() - LOG_TAIL_BYTES_MAX))
                lines = log.read().decode("utf-8", "replace").split("\n")
        except OSError:
            return "(it wrote no log)"
        told = [line.strip() for line in lines if line.strip()]
        return " | ".join(told[-LOG_TAIL_LINES_MAX:]) or "(its log is empty)"


@dataclass(slots=True)
class Programs:
    """Starts programs, from the main thread only: the kernel ties them to the thread that starts them."""

    logs: Path
    environ: Mapping[str, str]
    running: list[Program] = field(default_factory=list)

    def start(self, name: str, arguments: Sequence[str], *, dies_by: signal.Signals = signal.SIGKILL) -> Program:
        """Start `coord ARGUMENTS`; `dies_by` is the signal it gets when the demo is killed."""
        log = self.logs / f"{name}.log"
        launcher = [sys.executable, "-I", "-S", "-c", _LAUNCHER, str(os.getpid()), str(int(dies_by))]
        with log.open("ab") as output:
            process = subprocess.Popen(
                [*launcher, sys.executable, "-m", "coord", *arguments],
                env=dict(self.environ),
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,  # Ctrl-C is for the demo, which ends its programs in order
            )
        program = Program(name, process, log)
        self.running.append(program)
        return program

    def ended_by_themselves(self) -> list[Program]:
        """Give those that ended although nobody told them to."""
        return [each for each in self.running if not each.is_expected_to_end and not each.is_running]

    def end_all(self) -> None:
        """End what still runs: members at once, then the coordinator, which needs its store for an orderly end."""
        for program in self.running[1:]:
            program.kill()
        for program in self.running[:1]:
            program.ask_to_end()
        for program in self.running:
            with contextlib.suppress(subprocess.TimeoutExpired):
                program.end(KILL_TIMEOUT_S)
        self.running.clear()


@contextlib.contextmanager
def ended_with(programs: Programs) -> Iterator[Programs]:
    """End all programs at the end of the block, however it is left; signals are left alone meanwhile."""
    try:
        yield programs
    finally:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            signal.signal(number, signal.SIG_IGN)
        programs.end_all()


def wait_for(program: Program, timeout_s: float, *, poll_s: float = POLL_S) -> bool:
    """Wait for a program's end without killing it; False when it has not come."""
    until = time.monotonic() + timeout_s
    while program.is_running:
        if time.monotonic() >= until:
            return False
        time.sleep(poll_s)
    return True
