"""`coord demo` as a newcomer runs it: all of it true; and false when the rule that it shows is taken out."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.servers import wait_until

ROOT = Path(__file__).parents[2]
BOUND_S = 240

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(300)]

SETTLE_PATCHED_OUT = """
from coord.core import ownership
from coord.events.catalog import ShardsFreed
from coord.projections.stored import by_member


def free_at_once(course):
    # The settle rule without its heart: what is misplaced is free, whoever may still be reading it.
    if course.target_reasons:
        ownership._retarget(course)
    group = course.group
    misplaced = {s: h.member_id for s, h in group.ownership.items() if group.target.get(s) != h.member_id}
    for member_id, shards in sorted(by_member(misplaced).items()):
        course.record(ShardsFreed(member_id=member_id, shards=shards, reason="REPORTED"))


assert callable(ownership.revoke_misplaced)
ownership.revoke_misplaced = free_at_once
"""


def play(tmp_path: Path, *options: str, **extra: str) -> tuple[int, dict[str, Any], str]:
    """Run a short demo; gives exit code, the JSON of its last line, and what it said on the way."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path), **extra}
    done = subprocess.run(
        [sys.executable, "-m", "coord", "demo", "--seconds", "20", "--json", *options],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
        timeout=BOUND_S,
    )
    lines = done.stdout.splitlines()
    assert lines, f"exit {done.returncode}: {done.stderr[-3000:]}"
    return done.returncode, json.loads(lines[-1]), done.stderr


def test_the_demo_holds_its_promise(tmp_path: Path) -> None:
    """Members are killed, join and are resharded; every record is consumed, no shard is read by two, the log is sound."""
    code, result, said = play(tmp_path, "--trace", str(tmp_path / "kept"))
    assert (code, result["problems"]) == (0, []), said
    assert result["ok"] is result["verdict"] is result["verify"] is True
    assert result["produced"] == result["consumed"] > 500
    assert (result["lost"], result["violations"]) == (0, 0)
    assert result["shardCounts"] == [8, 12, 6]
    assert set(result["consumedByMember"]) == {f"consumer-{number}" for number in range(1, 7)}
    assert result["ownershipMoves"] >= 3
    assert result["timings"]["memberLeaseTtlMs"] == 4000
    assert [step["atMs"] for step in result["steps"]] == sorted(step["atMs"] for step in result["steps"])
    assert sum(1 for _ in (tmp_path / "kept").glob("*.jsonl")) == 7
    assert [path.name for path in tmp_path.iterdir()] == ["kept"], "the rest of what it made is gone"


def test_without_the_settle_rule_two_read_one_shard(tmp_path: Path) -> None:
    """The same demo, whose coordinator frees shards that are still being read, ends with 1 and names the overlaps."""
    sabotage = tmp_path / "sabotage"
    sabotage.mkdir()
    (sabotage / "sitecustomize.py").write_text(SETTLE_PATCHED_OUT)
    code, result, said = play(tmp_path, "--work-ms", "20", PYTHONPATH=f"{sabotage}{os.pathsep}{ROOT}")
    assert code == 1, said
    assert (result["ok"], result["verdict"]) == (False, False)
    assert result["violations"] > 0
    assert any(each.startswith("overlap: ") for each in result["verdictDetails"]["violationList"]), said


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_all_ends_with_the_demo(tmp_path: Path, number: signal.Signals) -> None:
    """Every process that it has started, however it ends; its folder too, unless it was killed."""
    environ = {**os.environ, "PYTHONPATH": str(ROOT), "TMPDIR": str(tmp_path)}
    with (tmp_path / "said").open("w+") as said:
        process = subprocess.Popen([sys.executable, "-m", "coord", "demo"], env=environ, stdout=said, stderr=said)
        try:
            wait_until(lambda: "produced" in Path(said.name).read_text(), timeout_s=60, what="the demo plays")
            started = descendants(process.pid)
            assert len(started) >= 8, "Redis, coordinator and its workers, producer, four members"
            process.send_signal(number)
            code = process.wait(60)
        finally:
            process.kill()
            process.wait(60)
    assert code == (-number if number == signal.SIGKILL else 128 + number)
    wait_until(lambda: not [pid for pid in started if lives(pid)], timeout_s=60, what="all have ended")
    if number != signal.SIGKILL:
        assert [path.name for path in tmp_path.iterdir()] == ["said"]


def descendants(pid: int) -> set[int]:
    """Give the ids of all processes that descend from one."""
    parents: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            parents[int(path.parent.name)] = int(path.read_text().rsplit(")", 1)[1].split()[1])
        except (FileNotFoundError, ProcessLookupError):
            continue
    found = {pid}
    while more := {child for child, parent in parents.items() if parent in found} - found:
        found |= more
    return found - {pid}


def lives(pid: int) -> bool:
    """Whether a process runs; a zombie that waits for init does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except (FileNotFoundError, ProcessLookupError):
        return False
