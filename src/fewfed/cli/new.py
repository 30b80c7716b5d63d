"""`fewfed new`."""

from __future__ import annotations

import json
import shlex
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say
from fewfed.errors import ConfigError
from fewfed.scaffold.naming import checked_name
from fewfed.scaffold.writing import Kind, Written, write_method
from fewfed.spelling import spelled


def new_method(
    name: Annotated[
        str, typer.Argument(metavar="METHOD", help="What it is called: small letters, digits and hyphens.")
    ],
    wrapper: Annotated[bool, typer.Option("--wrapper", help="It goes around any other method.")] = False,
    two_phases: Annotated[bool, typer.Option("--two-phases", help="It has two exchanges a round.")] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for the files; by default this one.")] = Path("."),
    as_json: opt.AsJson = False,
) -> None:
    """Begin a method of your own: a short file that works, its test and its page. Nothing is overwritten.

    Example: fewfed new my-method
    """
    if wrapper and two_phases:
        raise ConfigError(
            "--wrapper and --two-phases: expected one of them; a wrapper has the phases of what is inside"
        )
    kind: Kind = "wrapper" if wrapper else "phases" if two_phases else "plain"
    files = write_method(checked_name(name), kind, out)
    say(f"{files.method}: the method; {files.test}: its test; {files.page}: its page")
    for command in _next(files, wrapper):
        say(f"  {shlex.join(command)}")
    if as_json:
        print(json.dumps({name: str(path) for name, path in vars(files).items()}))


def _next(files: Written, wrapper: bool) -> list[tuple[str, ...]]:
    """What to type next. A folder whose name would be taken apart (`p (1)`), or for an option, is entered first."""
    method, test, folder = str(files.method), str(files.test), str(files.method.parent)
    commands: list[tuple[str, ...]] = []
    if spelled(f"{method}(flea)").name != method or folder.startswith("-"):
        commands.append(("cd", "--", folder))
        method, test = files.method.name, files.test.name
    run = f"{method}(flea)" if wrapper else method
    return [*commands, ("fewfed", "check", method), ("pytest", test), ("fewfed", "run", run)]
