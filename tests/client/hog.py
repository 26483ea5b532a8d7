"""A consumer process whose handlers hog the interpreter, each in its own way.

    python -m tests.client.hog COORDINATOR_URL REDIS_URL SECONDS        says `done` per handler; ends when its stdin does

Shard 0 sleeps, shard 1 spins in Python, shard 2 matches a slow expression again and again, shard 3 has nothing to read and
waits in a long XREADGROUP.
"""

from __future__ import annotations

import re
import sys
import time

from coord.client import Consumer, Entry, LoopSettings, ReaderSettings


def main(url: str, redis_url: str, seconds: str) -> None:
    """Run until stdin is closed."""

    def hog(entry: Entry) -> None:
        until = time.monotonic() + float(seconds)
        while time.monotonic() < until:
            if entry.shard == 0:
                time.sleep(0.5)
            elif entry.shard == 1:
                sum(range(1_000))
            else:
                re.match(r"(a|aa)+$", "a" * 22 + "b")  # some milliseconds each, all of them holding the interpreter
        sys.stdout.write("done\n")  # in one piece: three threads say it at about the same time
        sys.stdout.flush()

    consumer = Consumer(
        url,
        redis_url,
        stream_prefix="orders",
        consumer_group="billing",
        member_id="m1",
        handler=hog,
        reader=ReaderSettings(block_ms=10_000),
        loop=LoopSettings(start_spread_ms=0),
    )
    consumer.start()
    sys.stdin.read()
    print(consumer.health().member.lapses, flush=True)
    consumer.stop()
    consumer.wait(5)


if __name__ == "__main__":
    main(*sys.argv[1:])
