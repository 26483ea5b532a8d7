"""`coord config show` and `coord config check`."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import yaml
from click.testing import CliRunner

from coord.cli.config import config_commands

if TYPE_CHECKING:
    from pathlib import Path

    from click.testing import Result

SECRET = "a-token-secret-of-more-than-32-bytes"
GOOD = f"""
coordinator:
  id: c-1
  api:
    admin-password: hunter2
    token-secret: {SECRET}
    users:
      - {{username: anna, password: "pw-of-anna", roles: [READ, WRITE]}}
      - {{username: ben, password: "pw-of-ben", roles: [MEMBER], streams: ["orders*"]}}
  redis: {{url: "redis://u:pw-of-redis@cache:6390/2"}}
"""


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    """Run the commands in an empty directory, without a `coordinator.yaml` unless one is written."""
    monkeypatch.chdir(tmp_path)
    for name in ("COORDINATOR_CONFIG", "REDIS_URL", "REDIS_PASSWORD", "WEB_CONCURRENCY"):
        monkeypatch.delenv(name, raising=False)
    return Run(tmp_path)


class Run:
    """The command line in a directory of its own."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory

    def __call__(self, *arguments: str, text: str | None = None, **environ: str) -> Result:
        """Run `coord config …`, with `text` as the file."""
        if text is not None:
            (self.directory / "coordinator.yaml").write_text(text, encoding="utf-8")
        return CliRunner().invoke(config_commands, list(arguments), env=environ)


def test_show_as_json_has_value_and_origin(run: Run) -> None:
    """For scripts: each key, secrets masked."""
    done = run("show", "--output", "json", text=GOOD, COORDINATOR_LOOP_TICK_INTERVAL="500ms")
    assert done.exit_code == 0, done.output
    values = json.loads(done.stdout)["values"]
    assert values["loop.tick-interval"] == {"value": "500ms", "origin": "environment COORDINATOR_LOOP_TICK_INTERVAL"}
    assert values["id"] == {"value": "c-1", "origin": str(run.directory / "coordinator.yaml")}
    assert values["redis.host"]["value"] == "cache"
    assert values["server.port"] == {"value": 8080, "origin": "default"}
    assert values["api.token-secret"]["value"] == "******"


@pytest.mark.parametrize("output", ["json", "yaml", "table"])
def test_show_shows_no_secret(run: Run, output: str) -> None:
    """In no form, from no source."""
    done = run("show", "--output", output, text=GOOD)
    assert done.exit_code == 0
    for secret in (SECRET, "hunter2", "pw-of"):
        assert secret not in done.output
    assert "redis://******@cache:6390/2" in done.output


def test_show_as_yaml_has_the_shape_of_the_file(run: Run) -> None:
    """What is printed could be read again, were it not for the masked secrets."""
    done = run("show", "--output", "yaml", text=GOOD)
    shown = yaml.safe_load(done.stdout)["coordinator"]
    assert [user["username"] for user in shown["api"]["users"]] == ["anna", "ben"]
    assert shown["api"]["users"][1]["streams"] == ["orders*"]
    assert shown["coordination"]["state-mutex"]["ttl-ms"] == 3000
    assert shown["heartbeat-interval"] == "3s"
    assert "# default" in done.stdout
    for secret in ("token-secret: '******'", "password: '******'"):
        assert secret in done.stdout
    (run.directory / "again.yaml").write_text(done.stdout.replace("'******'", SECRET).replace("******@", ""), encoding="utf-8")
    again = run("show", "--output", "yaml", "--config", "again.yaml")
    assert again.exit_code == 0, again.output
    assert yaml.safe_load(again.stdout)["coordinator"]["resharding"] == shown["resharding"]


def test_show_as_a_table_tells_warnings_apart(run: Run) -> None:
    """The table on stdout, the warnings on stderr."""
    done = run("show")
    assert done.exit_code == 0
    assert done.stdout.splitlines()[0].split() == ["KEY", "VALUE", "FROM"]
    assert "warning: api.token-secret" in done.stderr
    assert "warning" not in done.stdout


def test_show_refuses_what_a_start_would(run: Run) -> None:
    """Every problem on stderr, exit code 2, nothing on stdout."""
    done = run("show", text="coordinator: {stroe: 1, server: {port: 0}}")
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "stroe" in done.stderr
    assert "server.port" in done.stderr


def test_check_is_content_with_what_can_start(run: Run) -> None:
    """Exit code 0; warnings do not change that."""
    done = run("check", text=GOOD)
    assert (done.exit_code, done.stdout) == (0, "the configuration is fine: 0 problem(s), 0 warning(s)\n")
    done = run("check", text="coordinator:")
    assert done.exit_code == 0
    assert "warning  api.token-secret" in done.stdout


def test_check_prints_every_problem(run: Run) -> None:
    """One line each, then the verdict; exit code 2."""
    text = 'coordinator: {"bad\\nkey": 1, member-lease-ttl: 4s, streamPrefix: orders, monitoring: {metrics-auth: true}}'
    done = run("check", text=text)
    assert done.exit_code == 2
    lines = done.stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["refused", "refused", "refused", "warning", "warning", "a"]
    assert "bad\\nkey" in lines[0]
    assert lines[-1] == "a start would be refused: 3 problem(s), 2 warning(s)"


def test_check_as_json(run: Run) -> None:
    """Keys and messages for scripts."""
    done = run("check", "--output", "json", text="coordinator: {server: {port: 0}}")
    assert done.exit_code == 2
    report = json.loads(done.stdout)
    assert [problem["key"] for problem in report["problems"]] == ["server.port"]
    assert [warning["key"] for warning in report["warnings"]] == ["api.token-secret"]


def test_a_file_that_is_not_there(run: Run) -> None:
    """Named by hand or by the environment, it must exist."""
    assert run("check", "--config", "gone.yaml").exit_code == 2
    done = run("show", COORDINATOR_CONFIG="gone.yaml")
    assert done.exit_code == 2
    assert "gone.yaml" in done.stderr


def test_o3_web_concurrency_with_the_memory_store(run: Run) -> None:
    """Gunicorn's own variable cannot smuggle a second worker in."""
    done = run("check", WEB_CONCURRENCY="4", COORDINATOR_STORE_TYPE="memory")
    assert done.exit_code == 2
    assert "WEB_CONCURRENCY" in done.stdout
