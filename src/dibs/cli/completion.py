"""`dibs completion`: the script that a shell loads to complete dibs' commands and options."""

from __future__ import annotations

import click


@click.command()
@click.argument("shell", type=click.Choice(["bash", "zsh", "fish"]))
def completion(shell: str) -> None:
    """Print the completion script for SHELL.

    \b
    Examples:
      dibs completion bash > ~/.local/share/bash-completion/completions/dibs
      dibs completion fish > ~/.config/fish/completions/dibs.fish
    """
    from click.shell_completion import get_completion_class

    from dibs.cli.main import dibs

    kind = get_completion_class(shell)
    assert kind is not None  # the three are click's own
    click.echo(kind(dibs, {}, "dibs", "_DIBS_COMPLETE").source())
