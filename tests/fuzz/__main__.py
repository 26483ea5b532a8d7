"""See the package: `python -m tests.fuzz --cases 10000 --seed 1 --pieces 2000`."""

from __future__ import annotations

import argparse
import tempfile
import time
from pathlib import Path

import structlog

from tests.fuzz.api import fuzz
from tests.fuzz.sockets import memory_kib, throw
from tests.http.served import ENGINES, serving

CRITICAL = 50


def main() -> None:
    """Run both, and say what was answered; ends with a traceback at the first wrong answer."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz")
    parser.add_argument("--cases", type=int, default=10_000, help="requests generated from the API description")
    parser.add_argument("--pieces", type=int, default=2_000, help="pieces of raw bytes on sockets")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--engine", choices=ENGINES, default=ENGINES[0], help="the server that the pieces are sent to")
    chosen = parser.parse_args()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(CRITICAL))
    with tempfile.TemporaryDirectory() as name:
        folder, began_s = Path(name), time.monotonic()
        statuses = fuzz(folder, cases=chosen.cases, seed=chosen.seed, told=lambda line: print(line, flush=True))
        print(f"{statuses.total()} requests in {time.monotonic() - began_s:.0f} s: {dict(sorted(statuses.items()))}")
        with serving(folder / "served", "--embedded-redis", "--workers", "2", engine=chosen.engine) as served:
            throw(served, cases=min(200, chosen.pieces), seed=chosen.seed + 1)
            before_kib, workers = memory_kib(served), served.workers()
            told = throw(served, cases=chosen.pieces, seed=chosen.seed)
            assert served.lives(), "the server is gone"
            assert served.workers() == workers, "a worker was replaced"
            print(f"{chosen.pieces} pieces: {dict(sorted(told.items()))}")
            print(f"memory of the workers: {before_kib} KiB before, {memory_kib(served)} KiB after")


if __name__ == "__main__":
    main()
