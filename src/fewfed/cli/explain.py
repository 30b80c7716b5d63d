"""`fewfed explain`: what leaves a site, in plain words, before anything is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.engine import storage
from fewfed.errors import ConfigError
from fewfed.privacy.statement_text import page, plain
from fewfed.runs.experiment import resolve
from fewfed.runs.explained import explained
from fewfed.runs.prepare import prepare


@opt.of_experiments()
def explain(
    given: opt.Given,
    method: Annotated[str | None, typer.Argument(help="Method, method:preset, wrapper(method) or file.py.")] = None,
    out: Annotated[Path | None, typer.Option("--out", help="Write a Markdown page to sign into this file.")] = None,
    force: opt.Force = False,
    as_json: opt.AsJson = False,
) -> None:
    """What leaves a site: what, how much, who sees it, for how long, and what is not sent. Nothing is run.

    Example: fewfed explain flea --data digits --clients 20 --rounds 50 --out statement.md
    """
    if method is None:
        if given.file is None or len(given.file.methods) != 1:
            raise ConfigError("which method? Name one, as in 'fewfed explain flea', or give it in the TOML file")
        method = given.file.methods[0]
    if out is not None and out.exists() and not force:
        raise ConfigError(f"'{out}' is there already: choose another --out, or --force to replace it")
    with lines_of(given.file):
        prepared = prepare(resolve(method, given.values))
    tell_reading(prepared.reading)
    statement = explained(prepared)
    say(plain(statement).rstrip())
    if out is not None:
        storage.write(out, page(statement).encode())
        say(f"\npage to sign: {out}")
    if as_json:
        print(json.dumps(statement.as_json()))
