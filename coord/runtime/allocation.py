"""What large blocks of memory do when they are freed: they go back to the system, whatever came before.

glibc raises the size from which it maps a block by itself each time that such a block is freed; from then on tables of some
megabytes come out of the heap of whichever thread made them grow, and each of a dozen heaps keeps what is freed in it. Seen
here: a bounded table of 50,000 times, in a process of 64 threads, took 7 MiB more every 100,000 requests.
"""

from __future__ import annotations

import ctypes
import sys
from typing import Final

_M_MMAP_THRESHOLD: Final = -3
MAPPED_FROM_BYTES: Final = 1024 * 1024


def return_large_blocks() -> bool:
    """Fix that size for this process; False where the C library knows no such thing (then nothing changes)."""
    if sys.platform != "linux":
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(_M_MMAP_THRESHOLD, MAPPED_FROM_BYTES))
