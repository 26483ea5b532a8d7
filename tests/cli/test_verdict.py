"""The verdict on traces: planted faults are found, honest traces pass, and nothing of `coord` is imported for it."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from coord.cli.verdict import UnreadableTraceError, Verdict, judge, main

LEASE = 1_000
Line = dict[str, Any]


class Story:
    """Writes traces by hand; times are small numbers."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def process(self, member: str, *lines: Line, nonce: str = "n1", role: str = "consumer", torn: str = "") -> Story:
        first = {"kind": "process", "role": role, "member": member, "nonce": nonce, "pid": 1, "at": 0}
        text = "".join(json.dumps(line) + "\n" for line in (first, *lines))
        (self.directory / f"{role}-{member}-{nonce}.jsonl").write_text(text + torn)
        return self

    def produced(self, *ids: str, shard: int = 0) -> Story:
        return self.process(
            "orders", *({"kind": "xadd", "shard": shard, "id": i, "begin": 1, "end": 2} for i in ids), role="producer"
        )

    def verdict(self) -> Verdict:
        return judge(self.directory)


@pytest.fixture
def story(tmp_path: Path) -> Story:
    return Story(tmp_path)


def lease(sent: int, until: int | None = None) -> Line:
    return {"kind": "lease", "at": sent, "sent": sent, "until": sent + LEASE if until is None else until, "epoch": 1}


def start(at: int, tenancy: int = 1, shard: int = 0) -> Line:
    return {"kind": "start", "shard": shard, "tenancy": tenancy, "at": at}


def stop(at: int, tenancy: int = 1, why: str = "drained") -> Line:
    return {"kind": "stop", "shard": 0, "tenancy": tenancy, "at": at, "why": why}


def read(begin: int, *ids: str, end: int | None = None, tenancy: int = 1, kept: bool = True) -> Line:
    return {
        "kind": "read",
        "shard": 0,
        "tenancy": tenancy,
        "begin": begin,
        "end": begin + 5 if end is None else end,
        "ids": ids,
        "kept": kept,
    }


def ack_begin(begin: int, *ids: str, tenancy: int = 1) -> Line:
    return {"kind": "ack-begin", "shard": 0, "tenancy": tenancy, "begin": begin, "ids": ids}


def ack(begin: int, *ids: str, tenancy: int = 1) -> list[Line]:
    return [
        ack_begin(begin, *ids, tenancy=tenancy),
        {"kind": "ack", "shard": 0, "tenancy": tenancy, "begin": begin, "end": begin + 1, "ids": ids},
    ]


def test_an_honest_hand_over_is_true(story: Story) -> None:
    story.produced("1-0", "2-0")
    story.process("a", lease(10), start(20), read(20, "1-0"), *ack(30, "1-0"), stop(40))
    story.process("b", lease(15), start(50), read(50, "2-0"), *ack(60, "2-0"), stop(70))
    verdict = story.verdict()
    assert verdict.verdict
    assert (verdict.produced, verdict.consumed, verdict.reads, verdict.lost, verdict.violations, verdict.duplicates) == (
        2,
        2,
        2,
        0,
        0,
        0,
    )
    assert verdict.consumedByMember == {"a": 1, "b": 1}


def test_a_lost_record_is_found(story: Story) -> None:
    story.produced("1-0", "2-0").process("a", lease(10), start(20), read(20, "1-0", "2-0"), *ack(30, "1-0"), stop(40))
    verdict = story.verdict()
    assert not verdict.verdict
    assert (verdict.lost, verdict.lostRecords) == (1, ["shard 0: 2-0"])


def test_the_same_id_on_another_shard_is_another_record(story: Story) -> None:
    story.produced("1-0", shard=3).process("a", lease(10), start(20), read(20, "1-0"), *ack(30, "1-0"), stop(40))
    assert story.verdict().lostRecords == ["shard 3: 1-0"]


DOUBLE_READERS: dict[str, Callable[[Story], object]] = {
    "A, B, A": lambda s: (
        s.process("a", lease(10), start(20), read(20), read(60), stop(70)),
        s.process("b", lease(10), start(40), read(40), stop(90)),
    ),
    "A, B, A acknowledges": lambda s: (
        s.process("a", lease(10), start(20), read(20, "1-0"), *ack(60, "1-0"), stop(70)),
        s.process("b", lease(10), start(40), read(40), stop(50)),
    ),
    "B reads before A has let go": lambda s: (
        s.process("a", lease(10), start(20), read(20), stop(60)),
        s.process("b", lease(10), start(40), read(40), stop(90)),
    ),
    "B reads while the killed A had a lease": lambda s: (
        s.process("a", lease(10), start(20), read(20)),
        s.process("b", lease(900), start(900), read(900), stop(950)),
    ),
    "B reads inside A's read": lambda s: (
        s.process("a", lease(10), start(20), read(20, end=300), stop(301)),
        s.process("b", lease(10), start(40), read(40, end=41), stop(42)),
    ),
    "A, B, A with the middle one hidden in B's one call": lambda s: (
        s.process("a", lease(10), start(20), read(20), stop(30), start(45, 2), read(45, tenancy=2), stop(60, 2)),
        s.process("b", lease(10), start(40), read(40, end=50), stop(51)),
    ),
}


@pytest.mark.parametrize("name", DOUBLE_READERS)
def test_a_double_reader_is_found(story: Story, name: str) -> None:
    elsewhere = [{**line, "shard": 5} for line in (start(1), read(1, "9-0"), *ack(2, "9-0"))]
    story.produced("9-0", shard=5).process("c", lease(0), *elsewhere)
    assert story.verdict().verdict
    DOUBLE_READERS[name](story)
    verdict = story.verdict()
    assert not verdict.verdict
    assert verdict.violationList[0].startswith("overlap: shard 0: ")


HONEST: dict[str, Callable[[Story], object]] = {
    "after the killed one's lease": lambda s: (
        s.process("a", lease(10), start(20), read(20)),
        s.process("b", lease(1_005), start(1_010), read(1_010), stop(1_020)),
    ),
    "a stopped process wakes up in its read": lambda s: (
        s.process("a", lease(10), start(20), read(900, "1-0", end=3_000, kept=False), stop(3_001, why="lost")),
        s.process("b", lease(1_100), start(1_100), read(1_100), stop(1_200)),
    ),
    "a stopped process throws away what it read without a lease": lambda s: (
        s.process("a", lease(10), start(20), read(20), read(3_000, end=3_001, kept=False), stop(3_002, why="lost")),
        s.process("b", lease(1_100), start(1_100), read(1_100), stop(1_200)),
    ),
    "fenced during a read that ends later": lambda s: (
        s.process("a", lease(10), start(20), stop(50, why="lost"), lease(60), read(40, end=80), start(1_300, 2)),
        s.process("b", lease(1_100), start(1_100), read(1_100), stop(1_200)),
    ),
    "there and back again": lambda s: (
        s.process("a", lease(10), start(20), read(20), stop(30), start(70, 2), read(70, tenancy=2), stop(80, 2)),
        s.process("b", lease(10), start(40), read(40), stop(60)),
    ),
}


@pytest.mark.parametrize("name", HONEST)
def test_what_only_looks_like_a_double_reader_is_none(story: Story, name: str) -> None:
    story.produced("9-0").process("c", lease(0), start(1, shard=5))
    HONEST[name](story)
    assert story.verdict().violationList == []


def test_calls_without_a_lease_are_found(story: Story) -> None:
    story.produced("1-0").process("a", lease(10), start(20), read(20, "1-0"), *ack(2_000, "1-0"), stop(2_001))
    verdict = story.verdict()
    assert not verdict.verdict
    assert {v.split(":")[0] for v in verdict.violationList} == {"outside-lease"}


def test_a_call_after_the_shard_was_let_go_is_found(story: Story) -> None:
    story.produced("1-0").process("a", lease(10), start(20), read(20, "1-0"), *ack(30, "1-0"), stop(40), read(50))
    assert story.verdict().violationList[0].startswith("outside-tenancy: a (n1) did read on shard 0")


def test_two_processes_under_one_id_are_told_apart_and_counted(story: Story) -> None:
    """The lease of one does not stretch the other's, and their overlap is the one that the coordinator allows."""
    story.produced("1-0")
    story.process("a", lease(10), start(20), read(20, "1-0"), nonce="elder")
    story.process("a", lease(40), start(50), read(50, "1-0"), *ack(60, "1-0"), stop(70), nonce="younger")
    verdict = story.verdict()
    assert verdict.verdict
    assert verdict.twinOverlaps == 1
    story.process("a", start(500), read(500), nonce="without lease")
    assert [v.split(":")[0] for v in story.verdict().violationList] == ["outside-lease"]


def test_a_record_whose_xack_was_on_its_way_at_the_kill_is_consumed_in_doubt(story: Story) -> None:
    story.produced("1-0").process("a", lease(10), start(20), read(20, "1-0"), ack_begin(30, "1-0"), torn='{"kind":"ack","sha')
    verdict = story.verdict()
    assert verdict.verdict
    assert (verdict.acksInDoubt, verdict.tornLines) == (1, 1)


def test_records_consumed_again_are_duplicates_and_no_fault(story: Story) -> None:
    story.produced("1-0")
    story.process("a", lease(10), start(20), read(20, "1-0"), *ack(30, "1-0"), stop(40))
    story.process("b", lease(15), start(50), read(50, "1-0"), *ack(60, "1-0"), stop(70))
    verdict = story.verdict()
    assert (verdict.verdict, verdict.duplicates) == (True, 1)


def test_nothing_produced_is_no_success(story: Story) -> None:
    assert not story.process("a", lease(10)).verdict().verdict


@pytest.mark.parametrize(
    "text",
    [
        "",
        "{}\n",
        "[]\n",
        "nonsense\n",
        '{"kind":"read"}\n',
        '{"kind":"odd"}\n',
        '{"kind":"process","member":"a","nonce":"b"}\n{"kind":"lease"}\n',
    ],
)
def test_an_unreadable_trace_is_neither_true_nor_false(tmp_path: Path, text: str) -> None:
    """An empty file is what a process killed at once leaves; anything else that is whole must be a trace line."""
    (tmp_path / "x.jsonl").write_text(text)
    assert main([str(tmp_path)]) == (1 if not text else 2)


def test_a_torn_line_in_the_middle_is_unreadable(story: Story) -> None:
    story.process("a", lease(10), torn='{"kind":"re\n{"kind":"lease","at":1,"sent":1,"until":2,"epoch":1}\n')
    with pytest.raises(UnreadableTraceError, match="line 3"):
        story.verdict()


def test_no_directory_and_bad_usage_exit_2(tmp_path: Path) -> None:
    assert main([str(tmp_path / "missing")]) == 2
    assert main([str(tmp_path)]) == 2
    with pytest.raises(SystemExit) as caught:
        main(["--frobnicate"])
    assert caught.value.code == 2


def test_lists_are_bounded_and_counts_are_not(story: Story) -> None:
    story.produced(*(f"{i}-0" for i in range(100)))
    verdict = story.verdict()
    assert (verdict.lost, len(verdict.lostRecords)) == (100, 20)


def test_the_command_prints_counts_and_verdict(story: Story, capsys: pytest.CaptureFixture[str]) -> None:
    story.produced("1-0").process("a", lease(10), start(20), read(20, "1-0"), *ack(30, "1-0"), stop(40))
    assert main([str(story.directory)]) == 0
    assert "verdict            true" in capsys.readouterr().out
    assert main([str(story.directory), "--json"]) == 0
    document = json.loads(capsys.readouterr().out)
    assert (document["verdict"], document["produced"], document["consumed"]) == (True, 1, 1)


def test_the_module_imports_nothing_of_coord_but_itself(tmp_path: Path) -> None:
    code = (
        "import sys, coord.cli.verdict; print(sorted(m for m in sys.modules if m.split('.')[0] in ('coord', 'msgspec', 'redis')))"
    )
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
    assert out.strip() == "['coord', 'coord.cli', 'coord.cli.verdict']"
    run = subprocess.run([sys.executable, "-m", "coord.cli.verdict", tmp_path], capture_output=True, text=True, check=False)
    assert run.returncode == 2
    assert "no *.jsonl files" in run.stderr
