"""Records under failover: written with and without a confirmation by a replica, read by real consumers, looked up afterwards."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path

import redis

from coord.names import GroupKey
from tests.chaos.coordinators import ROOT, CoordinatorProcess
from tests.chaos.run import KEY
from tests.failover.places import Place, shard_key
from tests.topologies.servers import HOST

READERS = GroupKey(KEY.stream_prefix, "readers")
RECORDS_AT_ONCE = 2
PAUSE_S = 0.03
WAIT_MS = 100
END_S_MAX = 40.0
WORK_MS = 100
CONCURRENCY = 8
"""Enough for what is written, and slow enough that some of it is lost before it was consumed."""

Record = tuple[int, str]


class Writer:
    """Appends to one shard after the other on the server that holds it, then asks with WAIT whether a replica has it.

    It does not use the product's producer: record and WAIT must go over one connection.
    """

    def __init__(self, place: Place, shards: int) -> None:
        self._place = place
        self._shards = shards
        self._done = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.confirmed: set[Record] = set()
        self.acknowledged: set[Record] = set()
        self.failures: list[BaseException] = []

    def start(self) -> None:
        """Write from now on."""
        self._thread.start()

    def stop(self) -> None:
        """Write no more."""
        self._done.set()
        if self._thread.is_alive():
            self._thread.join(END_S_MAX)

    def _run(self) -> None:
        clients: dict[int, redis.Redis] = {}
        number = 0
        try:
            while not self._done.is_set():
                shard = number % self._shards
                number += 1
                try:
                    if shard not in clients:
                        port = self._place.holder(shard_key(shard)).port
                        clients[shard] = redis.Redis(host=HOST, port=port, socket_timeout=1, socket_connect_timeout=1)
                    self._write(clients[shard], shard, number)
                except (redis.RedisError, AssertionError):
                    # Not served now; it is looked for again.
                    if (client := clients.pop(shard, None)) is not None:
                        client.close()
                self._done.wait(PAUSE_S)
        except BaseException as error:
            self.failures.append(error)
            raise

    def _write(self, client: redis.Redis, shard: int, number: int) -> None:
        pipeline = client.pipeline(transaction=False)
        for place in range(RECORDS_AT_ONCE):
            pipeline.xadd(shard_key(shard), {"number": f"{number}.{place}"}, nomkstream=True)
        pipeline.wait(1, WAIT_MS)
        *ids, replicas = pipeline.execute(raise_on_error=False)
        written = {(shard, record.decode()) for record in ids if isinstance(record, bytes)}
        self.acknowledged |= written
        if isinstance(replicas, int) and replicas >= 1:
            self.confirmed |= written
        for reply in (*ids, replicas):
            if isinstance(reply, Exception):
                raise redis.RedisError(str(reply))


@dataclass(slots=True)
class Readers:
    """`coord consume` processes with traces."""

    traces: Path
    processes: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _offsets: dict[Path, int] = field(default_factory=dict)
    consumed: set[Record] = field(default_factory=set)

    def start(self, coordinators: list[CoordinatorProcess], url: str, *, count: int) -> None:
        """Start them."""
        urls = [word for coordinator in coordinators for word in ("--url", coordinator.url)]
        for number in range(count):
            command = [
                sys.executable, "-m", "coord", "consume", *urls, "--redis-url", url, "--stream", READERS.stream_prefix,
                "--group", READERS.consumer_group, "--member-id", f"reader-{number}", "--trace", str(self.traces),
                "--block-ms", "250", "--work-ms", str(WORK_MS), "--concurrency", str(CONCURRENCY), "--quiet",
            ]  # fmt: skip
            with (self.traces.parent / f"reader-{number}.log").open("ab") as log:
                self.processes.append(subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log))

    def look(self) -> None:
        """Read on in the traces: a record whose handler has finished was consumed, whatever became of its XACK."""
        for path in self.traces.glob("consumer-*.jsonl"):
            with path.open("rb") as trace:
                trace.seek(self._offsets.get(path, 0))
                data = trace.read()
            whole = data[: data.rfind(b"\n") + 1]
            self._offsets[path] = self._offsets.get(path, 0) + len(whole)
            for row in whole.splitlines():
                line = json.loads(row)
                if line["kind"] in {"ack-begin", "ack"}:
                    self.consumed.update((line["shard"], record) for record in line["ids"])

    def wait_for(self, records: set[Record]) -> float:
        """Wait until all are consumed, or for long enough; gives how long, s."""
        begun = time.monotonic()
        while time.monotonic() - begun < END_S_MAX:
            self.look()
            if records <= self.consumed:
                break
            time.sleep(0.25)
        return time.monotonic() - begun

    def stop(self) -> list[str]:
        """End them in order; gives what did not go well."""
        for process in self.processes:
            process.terminate()
        problems = []
        for number, process in enumerate(self.processes):
            try:
                if (code := process.wait(20)) != 0:
                    log = (self.traces.parent / f"reader-{number}.log").read_text(errors="replace")[-1500:]
                    problems.append(f"reader-{number} ended with {code}: {log}")
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                problems.append(f"reader-{number} did not end")
        self.processes.clear()
        return problems


def still_there(place: Place, shards: int) -> set[Record]:
    """Give all records that Redis has."""
    found: set[Record] = set()
    for shard in range(shards):
        key = shard_key(shard)
        with redis.Redis(host=HOST, port=place.holder(key).port, socket_timeout=10) as client:
            found.update((shard, record.decode()) for record, _ in client.xrange(key))
    return found
