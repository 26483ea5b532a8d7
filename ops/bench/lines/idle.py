"""200 idle connections and 50 clients that send a byte a second: how long does a heartbeat wait beside them?"""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from typing import Final

from ops.bench.bench import Bench
from ops.bench.idle import run
from ops.bench.lines.line import Line
from ops.bench.results import Bound, Measured, Scalar
from ops.bench.servers import Engine

SECONDS: Final = 20.0
SECONDS_QUICK: Final = 4.0
ENGINES: Final[Sequence[Engine]] = ("gunicorn", "granian")


def idle(bench: Bench) -> Measured:
    """Measure each engine that is there; the value is the longest delay on the default one."""
    seconds = SECONDS_QUICK if bench.effort.quick else SECONDS
    fields: dict[str, Scalar] = {}
    for engine in ENGINES:
        if engine == "granian" and importlib.util.find_spec("granian") is None:
            fields["granian_reason"] = "granian is not installed"
            continue
        bench.progress.step(f"{engine}, {seconds:g} s")
        try:
            told = run(engine, seconds=seconds)
        except RuntimeError as error:
            if engine == "gunicorn":
                raise
            fields["granian_reason"] = str(error).strip()[-300:]
            continue
        fields |= {f"{engine}_max_ms": told.max_ms, f"{engine}_p99_ms": told.p99_ms, f"{engine}_median_ms": told.median_ms}
    return Measured(value=float(fields["gunicorn_max_ms"]), fields=fields)


LINES: Final[Sequence[Line]] = (
    Line(name="idle_connections", unit="ms (longest)", measure=idle, goal=(Bound("value", "<", 1000),)),
)
