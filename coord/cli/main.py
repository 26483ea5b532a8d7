"""The command line: `coord COMMAND …`.

Exit codes of every command: 0 all is well · 1 the check found something, or the request was refused · 2 wrong usage ·
3 the coordinator or its store cannot be reached, or failed · 130 and 143 ended by Ctrl-C or SIGTERM. Results go to stdout,
progress and errors to stderr.
"""

from __future__ import annotations

import errno
import importlib
import os
import sys
from typing import Any, Final

import click

from coord import __version__

EXIT_INTERRUPTED: Final = 130
EXIT_PIPE_CLOSED: Final = 141
"""What a shell reports of a program that SIGPIPE ended."""

COMMANDS: Final[dict[str, tuple[str, str, str]]] = {
    "serve": ("coord.cli.serve", "serve", "Run a coordinator."),
    "demo": ("coord.cli.demo", "demo", "Watch members share shards, lose one, and carry on."),
    "consume": ("coord.cli.consume", "consume", "Join a group and read its shards."),
    "produce": ("coord.cli.produce", "produce", "Publish numbered records to a stream."),
    "streams": ("coord.cli.streams", "streams", "List, create, adopt, scale and delete streams."),
    "groups": ("coord.cli.groups", "groups", "List, describe, create and delete groups."),
    "migrations": ("coord.cli.migrations", "migrations", "List, roll back and complete reshardings."),
    "store": ("coord.cli.store", "store_commands", "Copy a store to another one; make the tables of a SQL store."),
    "adopt": ("coord.cli.adopt", "adopt_command", "Take over a Kotlin coordinator's streams and groups."),
    "verify": ("coord.cli.verify", "verify", "Check the logs in the store against what is stored."),
    "audit": ("coord.cli.audit", "audit_commands", "Export audit entries, verify the chain, sign checkpoints."),
    "doctor": ("coord.cli.doctor", "doctor", "Say what is wrong with the configuration and the store, and what to do."),
    "config": ("coord.cli.config", "config_commands", "Show and check the configuration."),
    "completion": ("coord.cli.completion", "completion", "Print the completion script of a shell."),
}
"""Name -> module, attribute, summary. A command's module is imported when it runs, so that `coord --help` is quick."""


class LazyCommands(click.Group):
    """Knows its commands by name, and imports one when it is asked for."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  click's signature
        """Give the names in the order in which they are told."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002  click's signature
        """Import and give a command; None for a name that is none."""
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        command = getattr(importlib.import_module(module), attribute)
        if not isinstance(command, click.Command):
            raise TypeError(f"{module}.{attribute} is no command")
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002  click's signature
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl([(name, summary) for name, (_, _, summary) in COMMANDS.items()])

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; who stops listening to its output, or presses Ctrl-C, gets the exit code that shells expect."""
        try:
            return super().invoke(ctx)
        except OSError as error:
            if error.errno != errno.EPIPE:
                raise
            # Whatever is still buffered has no reader; without this the interpreter would complain about it at its end.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise SystemExit(EXIT_PIPE_CLOSED) from None
        except KeyboardInterrupt:
            raise SystemExit(EXIT_INTERRUPTED) from None


@click.group(
    cls=LazyCommands,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    epilog="Exit codes: 0 fine, 1 a check found something or the request was refused, 2 wrong usage, "
    "3 coordinator or store not reachable.",
)
@click.version_option(__version__, prog_name="coord", message="%(prog)s %(version)s")
@click.option("--no-color", is_flag=True, help="No colours; the environment variable NO_COLOR does the same.")
@click.pass_context
def main(context: click.Context, *, no_color: bool) -> None:
    """Share the shards of Redis Streams among the members of a group."""
    if no_color:
        context.meta["coord.no_color"] = True
