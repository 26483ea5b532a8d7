"""The parts of `coord demo`, and what it refuses; the whole of it runs in `tests/e2e/test_demo.py`."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from coord.cli.demo_counts import Counts
from coord.cli.demo_processes import Programs, environment, wait_for
from coord.cli.demo_report import Report, as_json, as_text
from coord.cli.demo_story import SECONDS_MIN, TIMINGS, configuration, timeline
from coord.client.trace import Trace, now_ns
from coord.config import load
from tests.cli.conftest import Run
from tests.servers import wait_until


def test_too_short_a_demo_is_refused(run: Run) -> None:
    """With the reason; nothing is started."""
    done = run("demo", "--seconds", str(SECONDS_MIN - 1))
    assert (done.exit_code, done.stdout) == (2, "")
    assert "19 is too short" in done.stderr
    assert "--seconds" in done.stderr


def test_a_directory_with_traces_is_refused(run: Run, tmp_path: Path) -> None:
    """The verdict would judge two runs as one."""
    (tmp_path / "old.jsonl").write_text("{}\n")
    done = run("demo", "--trace", str(tmp_path))
    assert (done.exit_code, "holds traces already" in done.stderr) == (2, True)


def test_a_taken_port_is_refused(run: Run) -> None:
    """At once, by its number."""
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        done = run("demo", "--port", str(port))
    assert (done.exit_code, str(port) in done.stderr) == (2, True)


def test_counts_follow_the_traces(tmp_path: Path) -> None:
    """Records wait from their XADD to their XACK, whichever file is read first; a half line waits for its end."""
    producer = Trace(tmp_path, role="producer", member="orders")
    first, second = Trace(tmp_path, role="consumer", member="a"), Trace(tmp_path, role="consumer", member="b")
    counts = Counts(tmp_path)
    for number in range(3):
        producer.xadd(number % 2, f"{number}-0", now_ns())
    counts.look()
    assert (counts.produced, counts.consumed, counts.pending) == (3, 0, 3)
    first.start(0, 1, 10)
    first.ack(0, 1, now_ns(), ["0-0", "2-0", "9-0"])
    counts.look()
    assert (counts.consumed, counts.pending, counts.moves) == (2, 1, 0)
    producer.xadd(0, "9-0", now_ns())
    second.start(0, 1, 20)
    first.start(1, 2, 15)
    first.start(0, 3, 30)
    counts.look()
    assert (counts.produced, counts.consumed, counts.pending, counts.moves) == (4, 3, 1, 2)
    assert counts.consumed_by_member == {"a": 3}
    with first.path.open("a") as torn:
        torn.write('{"kind":"ack","shard":1,')
    counts.look()
    assert counts.pending == 1
    with first.path.open("a") as torn:
        torn.write('"tenancy":2,"begin":1,"end":2,"ids":["1-0"]}\n')
    counts.look()
    assert counts.pending == 0
    for each in (producer, first, second):
        each.close()


@pytest.mark.parametrize("seconds", [SECONDS_MIN, 40, 3600])
def test_the_story_fits_into_its_time(seconds: int) -> None:
    """In order, a lease between the kill and what follows the next step, and time left after the last."""
    steps = timeline(seconds)
    at = [step.at_s for step in steps]
    assert at == sorted(at)
    assert [step.shards for step in steps if step.kind == "scale"] == [12, 6]
    assert at[2] - at[0] > TIMINGS["memberLeaseTtlMs"] / 1000
    assert seconds - at[-1] > 3 * TIMINGS["routingGraceMs"] / 1000


def test_its_configuration_is_one_of_ours(tmp_path: Path) -> None:
    """Loaded without a warning, with the timings that are printed."""
    text = configuration(port=8081, redis={"url": "redis://127.0.0.1:6379/0"}, password="p" * 20, token_secret="s" * 40)
    assert yaml.safe_load(text) == json.loads(text)
    (tmp_path / "c.yaml").write_text(text)
    config = load(tmp_path / "c.yaml", environ={}, secrets_directory=tmp_path)
    assert config.warnings == ()
    assert config.streams.provisioning_enabled
    assert config.heartbeat_interval_ms == TIMINGS["heartbeatIntervalMs"]
    assert config.member_lease_ttl_ms == TIMINGS["memberLeaseTtlMs"]
    assert config.resharding.routing_grace_ms == TIMINGS["routingGraceMs"]
    assert config.loop.tick_interval_ms == TIMINGS["tickIntervalMs"]
    assert config.rebalance_timeout_ms == TIMINGS["rebalanceTimeoutMs"]


def test_the_caller_cannot_configure_it_by_accident(monkeypatch: pytest.MonkeyPatch) -> None:
    """Variables of a coordinator that the caller runs elsewhere stay outside."""
    for name in ("COORDINATOR_STORE_TYPE", "REDIS_URL", "COORD_TOKEN", "WEB_CONCURRENCY", "GUNICORN_CMD_ARGS"):
        monkeypatch.setenv(name, "x")
    monkeypatch.setenv("COORD_REDIS_SERVER", "/bin/true")
    kept = environment({"COORD_URL": "u"})
    assert {name for name in kept if name.startswith(("COORD", "REDIS", "WEB_", "GUNICORN"))} == {
        "COORD_REDIS_SERVER",
        "COORD_URL",
    }
    assert kept["PATH"] == os.environ["PATH"]


def test_programs_end_with_their_owner(tmp_path: Path) -> None:
    """Told to, by themselves, and when the owner is killed."""
    programs = Programs(tmp_path, dict(os.environ))
    program = programs.start("refused", ["demo", "--seconds", "1"])
    assert wait_for(program, 20)
    assert program.process.returncode == 2
    assert programs.ended_by_themselves() == [program]
    assert "too short" in program.last_words()
    programs.end_all()
    assert programs.running == []


def test_programs_end_when_the_owner_is_killed(tmp_path: Path) -> None:
    """SIGKILL of the demo leaves nothing behind."""
    owner = (
        "import os, sys, time; from pathlib import Path; from coord.cli.demo_processes import Programs;"
        "p = Programs(Path(sys.argv[1]), dict(os.environ)).start("
        "'consumer', ['consume', '--url', 'http://127.0.0.1:9/coord/v1', '--redis-url', 'redis://127.0.0.1:9/0',"
        " '--stream', 's', '--group', 'g', '--member-id', 'm', '--quiet']);"
        "print(p.process.pid, flush=True); time.sleep(60)"
    )
    with subprocess.Popen([sys.executable, "-c", owner, str(tmp_path)], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        pid = int(process.stdout.readline())
        wait_until(lambda: b"consume" in Path(f"/proc/{pid}/cmdline").read_bytes(), what="the consumer runs")
        process.send_signal(signal.SIGKILL)
        process.wait(60)
    wait_until(lambda: not _lives(pid), what="the consumer has ended")


def _lives(pid: int) -> bool:
    """Whether a process runs; a zombie that waits for init does not."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_the_report_has_both_forms() -> None:
    """One line of JSON; for people the problems too."""
    report = Report(seconds=20, url="u", stream="s", timings=TIMINGS, problems=["consumer-1 ended by itself"])
    line = as_json(report)
    assert "\n" not in line
    assert json.loads(line)["ok"] is False
    assert "verdict      FALSE" in as_text(report)
    assert "consumer-1 ended by itself" in as_text(report)
