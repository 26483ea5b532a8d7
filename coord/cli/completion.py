"""`coord completion`: what a shell needs to complete `coord …`."""

from __future__ import annotations

import click
from click.shell_completion import get_completion_class

VARIABLE = "_COORD_COMPLETE"


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
@click.pass_context
def completion(context: click.Context, shell: str) -> None:
    r"""Print the completion script of a shell.

    \b
    bash:  coord completion bash > ~/.local/share/bash-completion/completions/coord
    zsh:   coord completion zsh  > "${fpath[1]}/_coord"
    fish:  coord completion fish > ~/.config/fish/completions/coord.fish
    """
    shells = get_completion_class(shell)
    assert shells is not None, "each choice is one of click's shells"
    click.echo(shells(context.find_root().command, {}, "coord", VARIABLE).source())
