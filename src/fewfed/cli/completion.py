"""`fewfed completion`."""

from __future__ import annotations

from typing import Annotated

import typer

from fewfed.cli.printing import say


def show_completion(
    shell: Annotated[str | None, typer.Argument(help="bash, zsh or fish; by default yours.")] = None,
    install: Annotated[bool, typer.Option("--install", help="Write it where the shell looks for it.")] = False,
) -> None:
    """Print the script by which your shell completes commands, options and names; nothing runs when you press TAB.

    Write it again after an upgrade: the names are in the script.

    Example: fewfed completion bash --install
    """
    from fewfed.cli.app import app  # Which has this command.
    from fewfed.completion import scripts, values
    from fewfed.completion.grammar import commands_of

    chosen = scripts.shell_of(shell)
    text = scripts.script(chosen, commands_of(app, values.kinds()), values.values())
    if not install:
        print(text, end="")
        return
    place, rest = scripts.install(chosen, text)
    say(f"{place}: {rest}")
