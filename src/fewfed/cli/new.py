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
from fewfed.scaffold.writing import Kind, write_method


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
    written = f"{files.method}(flea)" if wrapper else str(files.method)
    for command in (("fewfed", "check", str(files.method)), ("pytest", str(files.test)), ("fewfed", "run", written)):
        say(f"  {shlex.join(command)}")
    if as_json:
        print(json.dumps({name: str(path) for name, path in vars(files).items()}))
