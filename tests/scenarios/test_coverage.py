"""The gate: every row, state, crash point and code is told by some story, in what it expects to be printed."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Final, get_args

import pytest

from coord.core.heartbeat import STATUS
from coord.events.codec import NAMES
from coord.projections.stream import ReshardingState
from coord.refusals import Code
from coord.wire import HeartbeatStatus
from tests.scenarios.script import parse

STORIES: Final = sorted(Path(__file__).parent.glob("*.txt"))
SHOWN: Final = "\n".join(line for story in STORIES for block in parse(story.read_text()) for line in block.expected)

CRASH_POINTS: Final = (
    # a scale-out, in order
    "ReshardingRequested",
    "made orders:2",
    "made orders:3",
    "TopologyActivated",
    "TopologyFollowed ACTIVE",
    "DrainStarted",
    "TopologyFollowed DRAINING",
    # a scale-in
    "DrainProved DRAINING",
    "DrainProved forced",
    "ReshardingEnded DEPRECATED",
    "TopologyFollowed at rest",
    # a way back
    "RollbackRequested ROLLED_BACK",
    "RollbackRequested ROLLING_BACK",
    "TopologyFollowed ROLLING_BACK",
    "DrainProved ROLLING_BACK",
    "ReshardingEnded ROLLED_BACK",
    # retired shards
    "ShardReopened",
    "DrainProved reopened",
    "RetiredShardDeleted",
    # streams and groups come and go
    "StreamCreated",
    "made orders:5",
    "StreamDeleted",
    "GroupRegistered",
    "made orders:0",
    "GroupCreated",
    "MemberJoined",
    "GroupDeleted",
    "GroupRemoved",
)
"""Every place between two commits of a saga, and between two shards that it makes."""

SEVERAL_WAYS: Final = {
    "row 5, a newer epoch": r"^heartbeat .*epoch=9",
    "row 5, a newer version": r"^heartbeat .*mv=[89]",
    "row 8, a join": "MemberJoined",
    "row 8, a rejoin": "MemberRejoined .*elder-until=[+]",
    "row 8, a rejoin after a lapse": "MemberRejoined .*elder-until=none",
    "row 8, in a round": "row 8 REVOKE_PENDING",
    "row 6, in a round": "row 6 REVOKE_PENDING",
    "row 17, in a round": "row 17 REVOKE_PENDING",
    "row 14, with foreign shards": r"row 14 .*\n.*CorrectionAcknowledged .*foreign=\d",
    "row 14, without": r"row 14 .*\n(.*CorrectionStarted.*\n)?.*CorrectionAcknowledged .*foreign=-",
    "a round by report": "CorrectionStarted .*by-report",
    "a round by identity": "CorrectionStarted .*store identity changed",
    "a round's end": "CorrectionEnded",
}

LATER: Final = {
    Code.RATE_LIMIT_EXCEEDED: "the rate limit and login throttling",
    Code.IDEMPOTENCY_KEY_REUSED: "idempotency keys",
    Code.HISTORY_TRIMMED: "the history endpoints",
    Code.REVISION_NOT_FOUND: "the history endpoints",
    Code.SHARD_NOT_FOUND: "the message pages of a shard",
}
"""Codes whose feature is not built yet, and which it is."""

NEVER_YET: Final = {
    "GroupAdopted": "begins in the place of another coordinator's hash, in Redis only: see tests/moving/test_adopt.py",
    "AdminRequestsSuppressed": "counts refusals by the minute of a real clock: see tests/unit/runtime/test_audit.py",
}
"""Event types that no story can show, and why."""


@pytest.mark.parametrize("row", range(18))
def test_every_row_of_the_heartbeat_table_is_told(row: int) -> None:
    assert re.search(rf"^row {row} ", SHOWN, re.MULTILINE)


def test_a_row_answers_with_its_status_everywhere() -> None:
    for row, status in re.findall(r"^row (\d+) (\w+)", SHOWN, re.MULTILINE):
        assert status == STATUS[int(row)] or (status == "REVOKE_PENDING" and int(row) in {6, 8, 17}), (row, status)


@pytest.mark.parametrize("way", SEVERAL_WAYS)
def test_rows_with_several_ways_are_told_each_way(way: str) -> None:
    text = "\n".join(story.read_text() for story in STORIES)
    assert re.search(SEVERAL_WAYS[way], text, re.MULTILINE)


@pytest.mark.parametrize("status", get_args(HeartbeatStatus))
def test_every_status_is_told(status: str) -> None:
    assert re.search(rf"^row \d+ {status} ", SHOWN, re.MULTILINE)


@pytest.mark.parametrize("state", get_args(ReshardingState))
def test_every_state_of_a_migration_is_told(state: str) -> None:
    assert re.search(rf"(migration )?r\d+ \d+->\d+ {state}\b", SHOWN)


@pytest.mark.parametrize("point", CRASH_POINTS)
def test_every_crash_point_is_told(point: str) -> None:
    assert f"crashed after {point}" in SHOWN.splitlines()


def test_no_crash_is_told_that_the_list_does_not_have() -> None:
    told = {line.removeprefix("crashed after ") for line in SHOWN.splitlines() if line.startswith("crashed")}
    assert told - set(CRASH_POINTS) <= {"made orders:1"}


def shows(code: Code) -> bool:
    return bool(re.search(rf"\b{code}:", SHOWN))


@pytest.mark.parametrize("code", [code for code in Code if code not in LATER])
def test_every_error_code_is_told(code: Code) -> None:
    assert shows(code)


@pytest.mark.parametrize("code", LATER)
def test_a_code_that_is_told_waits_for_nothing(code: Code) -> None:
    assert not shows(code), f"{code} is told by a story now: take it off the list"


@pytest.mark.parametrize("name", [name for name in NAMES if name not in NEVER_YET])
def test_every_event_is_told(name: str) -> None:
    assert re.search(rf"@\d+ {name}\b", SHOWN)


@pytest.mark.parametrize("name", NEVER_YET)
def test_an_event_that_is_told_is_not_excused(name: str) -> None:
    assert not re.search(rf"@\d+ {name}\b", SHOWN)
