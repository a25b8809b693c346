"""``completion``: the shell learns the commands and their options."""

import click

__all__ = ["completion"]

WHERE = {
    "bash": "resourcelease completion bash > ~/.local/share/bash-completion/completions/resourcelease",
    "zsh": "resourcelease completion zsh > ~/.zfunc/_resourcelease   (with ~/.zfunc in $fpath)",
    "fish": "resourcelease completion fish > ~/.config/fish/completions/resourcelease.fish",
}


@click.command(epilog="\b\n" + "\n".join(WHERE.values()))
@click.argument("shell", type=click.Choice(list(WHERE)))
def completion(shell: str) -> None:
    """Print the completion script for your shell."""
    from click.shell_completion import get_completion_class

    from resourcelease.cli.app import app

    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(app, {}, "resourcelease", "_RESOURCELEASE_COMPLETE")
    click.echo(script.source_template % script.source_vars())
