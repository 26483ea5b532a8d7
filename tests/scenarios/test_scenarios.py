"""Each story prints what it is expected to print."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.scenarios.script import play

STORIES = sorted(Path(__file__).parent.glob("*.txt"))


@pytest.mark.parametrize("story", STORIES, ids=lambda path: path.stem)
def test_a_story_reads_as_told(story: Path, rewrite: bool) -> None:
    play(story, rewrite=rewrite)
