"""A build of the next release: this tree with one event type more, which it records when a member joins."""

from __future__ import annotations

import shutil
from pathlib import Path

ROOT = Path(__file__).parents[2]
NEW_EVENT = '''class MemberNoted(Fact, frozen=True, kw_only=True):
    """New."""

    member_id: str


'''

NEW_RULE = """    course.wants_target(f"{command.member_id} joined")
    if course.moment.level >= 2:
        course.record(MemberNoted(member_id=command.member_id))
"""

EDITS = {
    "events/catalog.py": [
        ("class MemberPruned(Fact", f"{NEW_EVENT}class MemberPruned(Fact"),
        ("    | MemberPruned\n", "    | MemberPruned\n    | MemberNoted\n"),
    ],
    "events/codec.py": [
        ("LEVEL: Final = 1\n", "LEVEL: Final = 2\n"),
        (
            "_INTRODUCED: Final[Mapping[type[Event], int]] = {}\n",
            "_INTRODUCED: Final[Mapping[type[Event], int]] = {catalog.MemberNoted: 2}\n",
        ),
        ("        catalog.MemberPruned,\n", "        catalog.MemberPruned,\n        catalog.MemberNoted,\n"),
    ],
    "projections/group_facts.py": [
        (
            "        case fact.MemberPruned():\n",
            "        case fact.MemberNoted():\n            pass\n        case fact.MemberPruned():\n",
        ),
    ],
    "core/membership.py": [
        ("    MemberPruned,\n", "    MemberNoted,\n    MemberPruned,\n"),
        (
            '    course.wants_target(f"{command.member_id} joined")\n',
            NEW_RULE,
        ),
    ],
}


def make(folder: Path) -> Path:
    """Copy `coord` into the folder, with the edits; gives the folder to put on PYTHONPATH."""
    shutil.copytree(ROOT / "coord", folder / "coord", ignore=shutil.ignore_patterns("__pycache__"))
    for name, edits in EDITS.items():
        path = folder / "coord" / name
        text = path.read_text()
        for old, new in edits:
            if text.count(old) != 1:
                raise AssertionError(f"{name}: {old!r} is there {text.count(old)} times")
            text = text.replace(old, new)
        path.write_text(text)
    return folder
