"""`fewfed check`: whether a method keeps what every method promises."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say
from fewfed.errors import RunError

_WIDTH = len("does not apply")


def check(
    method: Annotated[str, typer.Argument(help="Method, method:preset, wrapper(method) or file.py.")],
    sets: Annotated[
        list[str] | None,
        typer.Option("--set", metavar="FIELD=VALUE", help="A field of the method, as in start=1. Repeatable."),
    ] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run a method of your own through the conformance suite: a line for each promise that every method makes.

    Runs are three rounds on eight clients with a few digits: set fields with which the method shows all it does there.

    Example: fewfed check my_method.py
    """
    from fewfed.conformance.suite import (
        examine,  # Every executor comes with it, which other commands need not wait for.
    )

    found = []
    for verdict in examine(method, opt.gather(None, sets, {}).values):
        found.append(verdict)
        reason = f": {' '.join(verdict.reason.split())}" if verdict.reason else ""
        say(f"{verdict.state:{_WIDTH}}  {verdict.name}{reason}")
    if as_json:
        print(json.dumps([{"name": each.name, "state": each.state, "reason": each.reason} for each in found]))
    failed = [verdict for verdict in found if verdict.state == "failed"]
    if failed:
        raise RunError(f"{len(failed)} of {len(found)} promises are not kept; the first: {failed[0].name}")
