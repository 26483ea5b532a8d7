"""ARCHITECTURE names every field of both aggregates, in the order in which they are stored."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from msgspec import Struct
from msgspec.structs import fields

from coord.projections.stored import StoredGroup, StoredMember
from coord.projections.stream import Stream

TEXT = (Path(__file__).parents[2] / "ARCHITECTURE.md").read_text()


@pytest.mark.parametrize(
    ("heading", "struct"), [("### Group", StoredGroup), ("### Member", StoredMember), ("### Stream", Stream)]
)
def test_the_table_of_an_aggregate_is_its_struct(heading: str, struct: type[Struct]) -> None:
    """A field that is added, renamed or moved shows in the table."""
    section = TEXT.split(heading, 1)[1].split("###", 1)[0]
    rows = re.findall(r"^\| (`[^|]*`) \|", section, flags=re.MULTILINE)
    named = [name for row in rows for name in re.findall(r"`(\w+)`", row)]
    assert named == [field.encode_name for field in fields(struct)]


def test_the_walks_name_files_that_exist() -> None:
    """Every module that the walks mention is there."""
    root = Path(__file__).parents[2] / "coord"
    named = set(re.findall(r"`((?:http|runtime|core|events|projections|cli)/[\w/]+\.py)", TEXT))
    assert named
    assert [name for name in sorted(named) if not (root / name).is_file()] == []
