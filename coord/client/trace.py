"""The trace of a data-plane process: what it did to shards, and by which lease; the verdict is computed from it alone.

One JSON object a line, one `write` a line before the next call to Redis, so that SIGKILL at any moment leaves at most
one torn last line. All times are `CLOCK_MONOTONIC` nanoseconds, which processes of one Linux machine share; `begin` is
taken before a call to Redis and `end` after it. Every line carries `kind`; the first line of a file is `process`.

| kind        | further fields                                        | written                                            |
|-------------|-------------------------------------------------------|----------------------------------------------------|
| `process`   | role, member, nonce, pid, at                          | once, first                                        |
| `lease`     | at, sent, until, epoch                                | before an accepted heartbeat's lease is used       |
| `start`     | shard, tenancy, at                                    | before the first call to Redis of a tenancy        |
| `stop`      | shard, tenancy, at, why (`drained`, `lost`)           | when no call to Redis may begin any more           |
| `claim`     | shard, tenancy, begin, end, ids                       | pending entries taken over                         |
| `read`      | shard, tenancy, begin, end, ids, kept                 | a batch; `kept` false: thrown away, lease was over |
| `ack-begin` | shard, tenancy, begin, ids                            | the handler has finished; XACK follows             |
| `ack`       | shard, tenancy, begin, end, ids                       | XACK was answered                                  |
| `xadd`      | shard, id, begin, end                                 | a producer's record has an id                      |

A tenancy is a number of the process: it rises each time a shard is assigned to it.
"""

from __future__ import annotations

import os
import threading
import time
import uuid
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import msgspec


class Trace:
    """Appends lines to one file of this process. Thread-safe."""

    def __init__(self, directory: str | Path, *, role: str, member: str) -> None:
        self.nonce = uuid.uuid4().hex[:12]
        Path(directory).mkdir(parents=True, exist_ok=True)
        self.path = Path(directory) / f"{role}-{quote(member, safe='')[:120]}-{self.nonce}.jsonl"
        self._descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        self._lock = threading.Lock()
        self._encoder = msgspec.json.Encoder()
        self._write({"kind": "process", "role": role, "member": member, "nonce": self.nonce, "pid": os.getpid(), "at": now_ns()})

    def close(self) -> None:
        """Close the file; lines written later are lost."""
        with self._lock:
            if self._descriptor >= 0:
                os.close(self._descriptor)
                self._descriptor = -1

    def lease(self, *, sent: int, until: int, epoch: int) -> None:
        """A heartbeat was accepted: its lease is used from now on, and ends at `until`."""
        self._write({"kind": "lease", "at": now_ns(), "sent": sent, "until": until, "epoch": epoch})

    def start(self, shard: int, tenancy: int, at: int) -> None:
        """A tenancy begins: calls to Redis begin after `at`."""
        self._write({"kind": "start", "shard": shard, "tenancy": tenancy, "at": at})

    def stop(self, shard: int, tenancy: int, at: int, why: str) -> None:
        """A tenancy ends: no call to Redis begins after `at`; one that hangs may be written later."""
        self._write({"kind": "stop", "shard": shard, "tenancy": tenancy, "at": at, "why": why})

    def claim(self, shard: int, tenancy: int, begin: int, ids: Sequence[str]) -> None:
        """Pending entries of others were taken over."""
        self._write({"kind": "claim", "shard": shard, "tenancy": tenancy, "begin": begin, "end": now_ns(), "ids": ids})

    def read(self, shard: int, tenancy: int, begin: int, ids: Sequence[str], *, kept: bool) -> None:
        """A batch was read, and is handled only when `kept`."""
        self._write(
            {"kind": "read", "shard": shard, "tenancy": tenancy, "begin": begin, "end": now_ns(), "ids": ids, "kept": kept}
        )

    def ack_begin(self, shard: int, tenancy: int, begin: int, ids: Sequence[str]) -> None:
        """The handler finished these entries; the process may die before it learns what became of the XACK."""
        self._write({"kind": "ack-begin", "shard": shard, "tenancy": tenancy, "begin": begin, "ids": ids})

    def ack(self, shard: int, tenancy: int, begin: int, ids: Sequence[str]) -> None:
        """Redis answered the XACK."""
        self._write({"kind": "ack", "shard": shard, "tenancy": tenancy, "begin": begin, "end": now_ns(), "ids": ids})

    def xadd(self, shard: int, record_id: str, begin: int) -> None:
        """A record was published."""
        self._write({"kind": "xadd", "shard": shard, "id": record_id, "begin": begin, "end": now_ns()})

    def _write(self, line: dict[str, object]) -> None:
        data = self._encoder.encode(line) + b"\n"
        with self._lock:
            if self._descriptor < 0:
                return
            while data:
                data = data[os.write(self._descriptor, data) :]


def now_ns() -> int:
    """CLOCK_MONOTONIC, nanoseconds: comparable between the processes of one machine."""
    return time.clock_gettime_ns(time.CLOCK_MONOTONIC)
