"""The command line as a whole: its commands, its exit codes, its shells."""

from __future__ import annotations

import os
import resource
import subprocess
import sys

import click
import pytest

from coord import __version__
from coord.cli.main import COMMANDS, main
from tests.cli.conftest import Run, Served

HELP_S_MAX = 0.5
"""Of a processor's time."""


def cpu_of_children_s() -> float:
    """How long processes have computed that this one has waited for: what others do meanwhile is not in it."""
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def test_help_lists_every_command_and_imports_none() -> None:
    """`coord --help` is quick because it knows the commands by name only."""
    program = (
        "import sys; from coord.cli.main import main; main(['--help'], standalone_mode=False);"
        "print([m for m in sys.modules if m.split('.')[0] in ('redis', 'rich', 'falcon', 'urllib3', 'msgspec')])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"
    for name in COMMANDS:
        assert f"  {name} " in done.stdout


def test_help_is_fast() -> None:
    """Below half a second; the best of three, as the machine is shared."""
    times = []
    for _ in range(3):
        begun = cpu_of_children_s()
        subprocess.run([sys.executable, "-m", "coord", "--help"], capture_output=True, check=True)
        times.append(cpu_of_children_s() - begun)
    assert min(times) < HELP_S_MAX


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_can_be_loaded_and_helps(run: Run, name: str) -> None:
    """A summary in the list is followed by a real command of that name."""
    command = main.get_command(click.Context(main), name)
    assert command is not None
    assert command.name == name
    done = run(name, "--help")
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("Usage: ")


def test_the_version_is_told(run: Run) -> None:
    """Name and version, on stdout."""
    assert run("--version").stdout == f"coord {__version__}\n"


@pytest.mark.parametrize(
    "arguments", [["nonsense"], ["streams", "nonsense"], ["streams", "list", "--nonsense"], ["streams", "describe"]]
)
def test_wrong_usage_is_exit_2(run: Run, arguments: list[str]) -> None:
    """Nothing on stdout, the reason on stderr."""
    done = run(*arguments)
    assert (done.exit_code, done.stdout) == (2, "")
    assert "Usage:" in done.stderr


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(run: Run, shell: str) -> None:
    """It asks the program itself for candidates."""
    done = run("completion", shell)
    assert done.exit_code == 0
    assert f"_COORD_COMPLETE={shell}_complete" in done.stdout


def test_completion_knows_commands_and_choices() -> None:
    """What the bash script would be answered."""
    program = [sys.executable, "-c", "from coord.cli.main import main; main(prog_name='coord')"]
    environ = {**os.environ, "_COORD_COMPLETE": "bash_complete", "COMP_WORDS": "coord streams sc", "COMP_CWORD": "2"}
    done = subprocess.run(program, env=environ, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plain,scale"]


def test_a_closed_pipe_ends_quietly(served: Served) -> None:
    """As any program that SIGPIPE ends: 141 for the shell, no traceback."""
    environ = {**os.environ, "COORD_URL": served.url}
    for output in ("table", "json"):
        reader, writer = os.pipe()
        os.close(reader)
        done = subprocess.run(
            [sys.executable, "-m", "coord", "streams", "list", "--output", output],
            env=environ,
            stdout=writer,
            stderr=subprocess.PIPE,
            check=False,
        )
        os.close(writer)
        assert (done.returncode, done.stderr) == (141, b"")
