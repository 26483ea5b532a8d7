"""etcd, to compare with: what it makes of keeping leases alive through its JSON gateway, which is our heartbeat in its words."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

import msgspec
import urllib3

from coord.runtime.embedded import free_port
from ops.bench.load_wrk import Request, tool
from ops.bench.results import AbsentError
from ops.bench.servers import Serving, end

EXPECTED: Final = '"TTL"'
"""Stands in each answer to a keep-alive of a lease that is alive."""
TTL_S: Final = 36_000
READY_TIMEOUT_S: Final = 20.0
POLL_S: Final = 0.05


@contextmanager
def etcd(folder: Path) -> Iterator[Serving]:
    """Run a single etcd until the block ends. Raises AbsentError saying why there is none."""
    program = tool("etcd")
    folder.mkdir(parents=True, exist_ok=True)
    port = free_port()
    origin, peer = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{free_port()}"
    command = [str(program), "--data-dir", str(folder / "data"), "--log-level", "error", "--initial-cluster", f"default={peer}"]
    for option, url in (
        ("listen-client-urls", origin),
        ("advertise-client-urls", origin),
        ("listen-peer-urls", peer),
        ("initial-advertise-peer-urls", peer),
    ):
        command += [f"--{option}", url]
    with (folder / "etcd.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=folder, stdout=log, stderr=log)
    try:
        _await_ready(process, origin, folder / "etcd.log")
        yield Serving(port=port, pid=process.pid)
    finally:
        end(process)


def keep_alives(origin: str, leases: int) -> list[Request]:
    """Grant leases, and give the request that keeps each alive."""
    with urllib3.PoolManager(retries=False, timeout=10.0) as http:
        granted = [_granted(http, origin) for _ in range(leases)]
    return [Request("/v3/lease/keepalive", msgspec.json.encode({"ID": lease})) for lease in granted]


def _granted(http: urllib3.PoolManager, origin: str) -> str:
    answer = http.request("POST", f"{origin}/v3/lease/grant", body=msgspec.json.encode({"TTL": TTL_S}))
    return str(msgspec.json.decode(answer.data, type=dict[str, object])["ID"])


def _await_ready(process: subprocess.Popen[bytes], origin: str, log: Path) -> None:
    deadline_s = time.monotonic() + READY_TIMEOUT_S
    with urllib3.PoolManager(retries=False, timeout=1.0) as http:
        while time.monotonic() < deadline_s and process.poll() is None:
            with suppress(urllib3.exceptions.HTTPError):
                if b'"true"' in http.request("GET", f"{origin}/health").data:
                    return
            time.sleep(POLL_S)
    raise AbsentError(f"etcd did not start: {log.read_text(encoding='utf-8', errors='replace')[-300:]}")
