"""Stand-ins for what answers a heartbeat, behind the same server, app, gate, decoding and encoding as the real one.

`floor`: the answer is made without coordinator and store, so what is left is the price of HTTP.
`baseline`: the plain design, which the fast path is compared with (see `ops.bench.baseline`).

A stand-in says its name in a header of each answer: without that header a measurement would be of the real thing.
"""

from __future__ import annotations

import os
from typing import Final

VARIABLE: Final = "COORD_BENCH_STANDIN"
HEADER: Final = "X-Bench-Standin"


def install() -> None:
    """Put the stand-in that the environment names into the place of the heartbeat resource, in this process."""
    name = os.environ.get(VARIABLE)
    if name is None:
        return
    from coord.http import app  # noqa: PLC0415  a Python that serves nothing need not load the server
    from ops.bench.baseline import PlainResource  # noqa: PLC0415  as above
    from ops.bench.floor import FloorResource  # noqa: PLC0415  as above

    setattr(app, "HeartbeatResource", {"floor": FloorResource, "baseline": PlainResource}[name])  # noqa: B010  no type fits a stand-in
