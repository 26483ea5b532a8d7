"""House style that no linter knows: how long things may be, what a Lua script says of itself, names that say nothing."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
COORD = ROOT / "coord"
MODULES = sorted(COORD.rglob("*.py"))
SCRIPTS = sorted(COORD.rglob("*.lua"))

FUNCTION_LINES_MAX = 60
FUNCTION_LINES_MAX_CORE = 40
MODULE_LINES_MAX = 320
CATALOGUES: dict[str, str] = {
    "store/base.py": "one method and value a question: the port is read as one page",
    "events/catalog.py": "one struct an event: the list of all facts is read as one page",
    "wire.py": "one struct a body: the list of all bodies is read as one page",
    "config/schema.py": "one struct a section, one field a key: the list of all settings is read as one page",
    "http/routes.py": "one row an operation: the list of all paths is read as one page",
}
"""Modules that may be longer, each with its reason. A module with behaviour has no place here."""

EMPTY_NAMES = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "shared"})
LEFTOVER = re.compile(r"\b(TODO|FIXME|XXX)\b")


def name_of(path: Path) -> str:
    return str(path.relative_to(COORD))


def long_functions(source: str, *, lines_max: int) -> Iterator[str]:
    """Yield functions whose body, its docstring left out, has more lines than allowed."""
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        body = function.body[1:] if ast.get_docstring(function) is not None else function.body
        if body and (function.end_lineno or 0) - body[0].lineno + 1 > lines_max:
            yield f"line {function.lineno}: {function.name} has more than {lines_max} lines"


def script_faults(source: str, *, is_piece: bool = False) -> Iterator[str]:
    """Yield what is wrong with a Lua script: an incomplete header, `unpack`, `cjson`. A piece of scripts takes no KEYS."""
    lines = [line for line in source.splitlines() if not line.startswith("#!")]
    header_end = next((number for number, line in enumerate(lines) if not line.startswith("--")), len(lines))
    header = "\n".join(lines[:header_end])
    code = "\n".join(line.partition("--")[0] for line in lines)
    if not re.match(r"--[ ]*\w+([^\w\n]+\w+){2}", header):
        yield "the first line does not say the job in a sentence"
    needed = [] if is_piece else [part for part in ("KEYS", "ARGV") if re.search(rf"\b{part}\b", code)] + ["Returns"]
    for part in needed:
        if not re.search(rf"\b{part}\b", header):
            yield f"the header comment does not name {part}"
    if re.search(r"\bunpack\s*\(", code):
        yield "unpack: as many arguments as the caller likes overflow Lua's stack"
    if re.search(r"\bcjson\b", code):
        yield "cjson: numbers and empty lists do not survive it; scripts move bytes"


def test_there_is_something_to_look_at() -> None:
    assert len(MODULES) > 5


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_functions_fit_a_screen(path: Path) -> None:
    in_core = path.is_relative_to(COORD / "core")
    found = list(long_functions(path.read_text(), lines_max=FUNCTION_LINES_MAX_CORE if in_core else FUNCTION_LINES_MAX))
    assert not found


@pytest.mark.parametrize("path", MODULES, ids=name_of)
def test_modules_hold_one_idea(path: Path) -> None:
    lines = len(path.read_text().splitlines())
    assert lines <= MODULE_LINES_MAX or name_of(path) in CATALOGUES, f"{lines} lines: name the second idea, and move it out"


def test_every_exception_still_exists() -> None:
    assert [name for name in CATALOGUES if not (COORD / name).is_file()] == []


@pytest.mark.parametrize(
    "path", [path for path in COORD.rglob("*") if path.suffix in {".py", ".lua", ".js", ".css"}], ids=name_of
)
def test_nothing_is_left_for_later(path: Path) -> None:
    assert LEFTOVER.findall(path.read_text()) == []


def test_every_module_is_named_for_what_it_holds() -> None:
    assert [name_of(path) for path in MODULES if EMPTY_NAMES & {path.stem, *path.relative_to(COORD).parts}] == []


def faults_of(path: Path) -> Iterator[str]:
    return script_faults(path.read_text(), is_piece=path.parent.name == "shared")


def test_every_script_says_what_it_does() -> None:
    faults = [f"{name_of(path)}: {fault}" for path in SCRIPTS for fault in faults_of(path)]
    assert faults == []


# ---- the checks themselves fail where they should


def test_a_long_function_is_found() -> None:
    source = "def f():\n    '''Doc.\n\n    More.\n    '''\n" + "    x = 1\n" * 5
    assert list(long_functions(source, lines_max=5)) == []
    assert list(long_functions(source, lines_max=4)) == ["line 1: f has more than 4 lines"]


GOOD_SCRIPT = """#!lua
-- Renews a lease of one member.
-- KEYS     leases
-- ARGV     1 member
-- Returns  {1}. It needs no unpack(list).
return {redis.call('ZADD', KEYS[1], 1, ARGV[1])}
"""


@pytest.mark.parametrize(
    ("source", "faults"),
    [
        (GOOD_SCRIPT, 0),
        (GOOD_SCRIPT.replace("-- KEYS ", "-- keys "), 1),
        (GOOD_SCRIPT.replace("-- ARGV ", "-- args "), 1),
        (GOOD_SCRIPT.replace("Returns", "Gives"), 1),
        (GOOD_SCRIPT.replace("Renews a lease of one member.", "renews"), 1),
        (GOOD_SCRIPT + "redis.call('DEL', unpack(KEYS))\n", 1),
        (GOOD_SCRIPT + "local x = cjson.decode(ARGV[1])\n", 1),
        ("return {KEYS[1], ARGV[1]}\n", 4),
    ],
)
def test_a_faulty_script_is_found(source: str, faults: int) -> None:
    assert len(list(script_faults(source))) == faults


def test_a_piece_of_scripts_needs_no_more_than_its_job() -> None:
    piece = "-- The server's clock, in ms.\nlocal function now_ms() end\n"
    assert list(script_faults(piece, is_piece=True)) == []
    assert len(list(script_faults(piece.replace("--", "local a"), is_piece=True))) == 1
