"""Large blocks go back to the system when they are freed, also after larger ones were."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

PROGRAM = """
import ctypes, sys
from coord.runtime.allocation import return_large_blocks
from tests.fuzz.sockets import resident_kib
import os

libc = ctypes.CDLL(None)
libc.malloc.restype = ctypes.c_void_p
libc.free.argtypes = [ctypes.c_void_p]


def taken(size):
    block = libc.malloc(ctypes.c_size_t(size))
    ctypes.memset(block, 1, size)
    return block


if sys.argv[1] == "fixed":
    assert return_large_blocks()
libc.free(taken(30 << 20))  # which teaches glibc to keep blocks of up to this size
before = resident_kib(os.getpid())
block, pin = taken(8 << 20), taken(1 << 10)
libc.free(block)
print(resident_kib(os.getpid()) - before)
"""


def kept_kib(how: str) -> int:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, how], capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3]
    )
    return int(done.stdout)


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's allocator")
def test_a_large_block_that_is_freed_is_kept_no_longer() -> None:
    assert kept_kib("fixed") < 1024
    assert kept_kib("plain") > 7 * 1024  # the fault is there without it: else this could go
