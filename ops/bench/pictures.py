"""Pictures of the results, PNG, one a subject: what README shows.

Each reads the objects of `build/bench.json`, so a picture can be drawn again from a stored run:
`python -m ops.bench.pictures build/bench.json ops/bench/pictures`. Needs matplotlib (the `bench` extra).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeAlias

import msgspec

from ops.bench.results import Scalar

Row: TypeAlias = Mapping[str, Scalar | None]
OURS: Final = "#2f6f9f"
OTHERS: Final = "#b8b8b8"
GOAL: Final = "#b03a2e"
DPI: Final = 130


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """A bar: what it is called, how long it is, and whether it is ours."""

    label: str
    value: float
    ours: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Chart:
    """A picture: bars, one below the other, and a line where a goal is."""

    title: str
    unit: str
    bars: Sequence[Bar]
    goal: float | None = None


def draw(results: Sequence[Row], folder: Path) -> list[Path]:
    """Draw what there are valid values for; gives the files. Raises ImportError without matplotlib."""
    rows = {str(row["name"]): row for row in results if row.get("value") is not None and row.get("valid", True)}
    folder.mkdir(parents=True, exist_ok=True)
    files: list[Path] = []
    for name, chart_of in CHARTS.items():
        if (chart := chart_of(rows)) is not None and chart.bars:
            _save(chart, file := folder / f"{name}.png")
            files.append(file)
    return files


def _save(chart: Chart, file: Path) -> None:
    import matplotlib as mpl  # noqa: PLC0415  an extra: everything else of the bench runs without it

    mpl.use("agg")
    from matplotlib import pyplot as plt  # noqa: PLC0415  as above

    figure, axes = plt.subplots(figsize=(8, 0.9 + 0.34 * len(chart.bars)), layout="constrained")
    labels = [bar.label for bar in chart.bars]
    values = [bar.value for bar in chart.bars]
    drawn = axes.barh(labels, values, color=[OURS if bar.ours else OTHERS for bar in chart.bars], height=0.7)
    axes.bar_label(drawn, labels=[f"{value:,.3g}" if value < 100 else f"{value:,.0f}" for value in values], padding=3, fontsize=8)  # noqa: PLR2004  where decimals stop telling
    axes.invert_yaxis()
    axes.set_title(chart.title, loc="left", fontsize=10)
    axes.set_xlabel(chart.unit, fontsize=8)
    axes.tick_params(labelsize=8)
    axes.margins(x=0.12)
    if chart.goal is not None:
        axes.axvline(chart.goal, color=GOAL, linewidth=1)
        axes.annotate(
            "goal", (chart.goal, 1), xycoords=("data", "axes fraction"), color=GOAL, fontsize=8, ha="center", va="bottom"
        )
    axes.spines[["top", "right"]].set_visible(False)
    figure.savefig(file, dpi=DPI, metadata={"Software": None})  # the same figures give the same file
    plt.close(figure)


def _heartbeats(rows: Mapping[str, Row]) -> Chart:
    bars: list[Bar] = []
    for ending, engine in (("", "gunicorn"), ("_granian", "granian")):
        for members in (10, 100, 1000):
            row = rows.get(f"heartbeat_steady_{members}{ending}", {})
            bars += _bars(row, {"value": f"{engine}, {members} members"})
            bars += _bars(row, {"floor": f"{engine}: HTTP alone"} if members == 100 else {}, ours=False)  # noqa: PLR2004  the size that all engines are shown at
            bars += _bars(
                row, {"etcd": "etcd, lease keep-alive over JSON", "baseline": f"plain design, {members} members"}, ours=False
            )
    bars += _bars(rows.get("heartbeat_batched_100", {}), {"value": "gunicorn, 16 members a request"})
    return Chart(title="Steady heartbeats a second, at full load", unit="heartbeats per second", bars=bars)


def _costs(rows: Mapping[str, Row]) -> Chart:
    """What bounds the ratios: two cores have two million µs a second to spend."""
    programs = {"us_server": "our workers", "us_store": "Redis"}
    bars: list[Bar] = []
    for engine, ending in (("gunicorn", ""), ("granian", "_granian")):
        row = rows.get(f"heartbeat_steady_100{ending}", {})
        bars += _bars(row, {name: f"{engine}: {text}" for name, text in programs.items()})
        bars += _bars(row, {"floor_us_server": f"{engine}: HTTP alone", "etcd_us_server": "etcd, a keep-alive"}, ours=False)
    return Chart(title="Processor time of one steady heartbeat, 100 members", unit="µs", bars=bars)


def _latency(rows: Mapping[str, Row]) -> Chart:
    bars: list[Bar] = []
    for members in (1000, 3000):
        told = {"p50_ms": "median", "value": "p99", "max_ms": "longest"}
        bars += _bars(rows.get(f"paced_{members}", {}), {name: f"{members} members, {text}" for name, text in told.items()})
    return Chart(title="Time to the answer, each member heartbeating every 3 s", unit="ms", bars=bars)


def _joins(rows: Mapping[str, Row]) -> Chart:
    row = rows.get("heartbeat_churn_1000", {})
    told = {"alone": "nobody joins", "beside_joins": "ten members a second join"}
    return Chart(title="Steady heartbeats of 1000 members", unit="heartbeats per second", bars=_bars(row, told))


def _storm(rows: Mapping[str, Row]) -> Chart:
    bars = _bars(rows.get("join_storm_1000", {}), {"seconds": "until all are members"})
    return Chart(title="A thousand members join one group at once", unit="s", bars=bars, goal=1)


def _assignor(rows: Mapping[str, Row]) -> Chart:
    told = {"first": "first assignment", "join": "one member more", "leave": "one member less"}
    bars = [bar for name, text in told.items() for bar in _bars(rows.get(f"assignor_10000x100000_{name}", {}), {"value": text})]
    return Chart(title="Assigning 100,000 shards to 10,000 members", unit="ms", bars=bars)


def _replay(rows: Mapping[str, Row]) -> Chart:
    bars: list[Bar] = []
    for members in (100, 1000):
        row = rows.get(f"replay_events_per_second_{members}", {})
        told = {"value": "fold", "decode_and_fold_per_second": "decode and fold", "verify_per_second": "verify"}
        bars += _bars(row, {name: f"{text}, {members} members" for name, text in told.items()})
    return Chart(title="Replay of a log", unit="events per second", bars=bars, goal=100_000)


def _handover(rows: Mapping[str, Row]) -> Chart:
    bars: list[Bar] = []
    for members in (10, 50):
        told = {"moved_gap_seconds": "moved", "unmoved_gap_seconds": "that stay"}
        row = rows.get("handover_seconds", {})
        bars += _bars(row, {f"{name}_{members}": f"{members} members, shards {text}" for name, text in told.items()})
    return Chart(title="One member joins at 900 shards: longest time without a reader", unit="s", bars=bars)


def _memory(rows: Mapping[str, Row]) -> Chart:
    bars = _bars(rows.get("worker_rss_mb", {}), {"value": "100 groups of 100 members"})
    row = rows.get("rss_after_2m_heartbeats_mb", {})
    count = row.get("heartbeats")
    after = f"after {count:,} heartbeats" if isinstance(count, int) else "later"
    bars += _bars(row, {"before_mb": "before the load", "value": after})
    return Chart(title="Memory of the largest worker", unit="MB", bars=bars, goal=100)


def _idle(rows: Mapping[str, Row]) -> Chart:
    told = {f"{engine}_max_ms": f"{engine}, longest delay" for engine in ("gunicorn", "granian")}
    bars = _bars(rows.get("idle_connections", {}), told)
    return Chart(title="A heartbeat beside 200 idle connections and 50 slow clients", unit="ms", bars=bars)


def _time(rows: Mapping[str, Row]) -> Chart:
    row = rows.get("tick_10000_groups", {})
    bars = _bars(row, {"value": f"tick over {row.get('groups') or 0:,} idle groups"})
    start = rows.get("start_ready_seconds", {}).get("value")
    if isinstance(start, int | float):
        bars.append(Bar(label="start until ready", value=1000 * start))
    return Chart(title="Ticking and starting", unit="ms", bars=bars)


def _bars(row: Row, told: Mapping[str, str], *, ours: bool = True) -> list[Bar]:
    """Give a bar for each field that is there."""
    found = [(label, row.get(name)) for name, label in told.items()]
    return [Bar(label=label, value=value, ours=ours) for label, value in found if isinstance(value, int | float)]


CHARTS: Final[Mapping[str, Callable[[Mapping[str, Row]], Chart | None]]] = {
    "heartbeats": _heartbeats,
    "costs": _costs,
    "latency": _latency,
    "joins": _joins,
    "join-storm": _storm,
    "assignor": _assignor,
    "replay": _replay,
    "handover": _handover,
    "idle-connections": _idle,
    "memory": _memory,
    "tick-and-start": _time,
}


class _Document(msgspec.Struct):
    results: list[dict[str, Scalar | None]]


def main() -> None:
    """Draw the results of a stored run: first argument its file, second the folder."""
    document = msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=_Document)
    for file in draw(document.results, Path(sys.argv[2])):
        print(file)


if __name__ == "__main__":
    main()
