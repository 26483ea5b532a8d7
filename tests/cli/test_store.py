"""`coord store migrate`: exit codes, what is told, and that it changes nothing with --check."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Run


@pytest.fixture
def config(tmp_path: Path) -> str:
    """A configuration with a SQLite store."""
    file = tmp_path / "coordinator.yaml"
    url = f"jdbc:sqlite:{tmp_path / 'coord.db'}"
    file.write_text(json.dumps({"coordinator": {"store": {"type": "sql", "url": url, "jdbc": {"migrate": False}}}}))
    return str(file)


def test_tables_are_made_once_and_told(run: Run, config: str) -> None:
    """Pending is exit code 1 with --check; done is 0, and nothing is left then."""
    for _ in range(2):
        check = run("store", "migrate", "--check", "--config", config, "--output", "json")
        assert check.exit_code == 1
        told = json.loads(check.stdout)
        assert (told["current"], told["pending"], told["migrated"], told["asNeeded"]) == (None, ["0001", "0002"], False, False)
    assert "no tables" in run("store", "migrate", "--check", "--config", config).stdout
    done = run("store", "migrate", "--config", config, "--output", "json")
    assert done.exit_code == 0, done.output
    assert json.loads(done.stdout) == {
        "current": "0002", "before": None, "newest": "0002", "pending": [], "migrated": True, "asNeeded": True,
    }  # fmt: skip
    check = run("store", "migrate", "--check", "--config", config)
    assert (check.exit_code, check.stdout) == (0, "nothing to do: version 0002\n")
    assert run("store", "migrate", "--config", config).stdout == "nothing to do: version 0002\n"


def test_verify_says_what_is_missing_and_makes_nothing(run: Run, config: str) -> None:
    for _ in range(2):
        verify = run("verify", "--config", config)
        assert verify.exit_code == 3
        assert "coord store migrate" in verify.stderr
    assert run("store", "migrate", "--config", config).exit_code == 0
    assert run("verify", "--config", config).exit_code == 0


def test_a_store_without_tables_is_wrong_usage(run: Run) -> None:
    refused = run("store", "migrate", environ={"COORDINATOR_STORE_TYPE": "memory"})
    assert refused.exit_code == 2
    assert "only a SQL store" in refused.stderr
    refused = run("store", "migrate", environ={"COORDINATOR_STORE_TYPE": "jdbc"})
    assert refused.exit_code == 2
    assert "store.url" in refused.stderr


def test_a_database_that_is_not_there_is_exit_3_and_shows_no_password(run: Run) -> None:
    url = "jdbc:postgresql://127.0.0.1:1/coord?user=me&password=marker"
    for options in ((), ("--check",)):
        failed = run("store", "migrate", *options, environ={"COORDINATOR_STORE_TYPE": "jdbc", "COORDINATOR_STORE_URL": url})
        assert failed.exit_code == 3
        assert "127.0.0.1" in failed.stderr
        assert "marker" not in failed.output
