"""`fewfed doctor`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say
from fewfed.errors import RunError


def show_health(
    everything: Annotated[bool, typer.Option("--all", help="Also try executors that start a cluster first.")] = False,
    as_json: opt.AsJson = False,
) -> None:
    """What this machine can do, and what to install for more; every executor really runs a round. Nothing is sent.

    Exit code 2 where fewfed itself does not work here. What is absent is optional.

    Example: fewfed doctor
    """
    from fewfed.doctor.examination import examine, is_well  # Every executor comes with it.

    found = []
    section = ""
    for each in examine(slow_too=everything):
        found.append(each)
        if each.section != section:
            section = each.section
            say(section)
        say(f"  {each.state:7}  {each.topic:13}  {each.says}")
        if each.advice:
            say(f"  {'':7}  {'':13}  -> {each.advice}")
    if as_json:
        print(json.dumps({"well": is_well(found), "findings": [each.as_json() for each in found]}))
    if not is_well(found):
        broken = [each.topic for each in found if each.state == "broken"]
        raise RunError(f"fewfed does not work as it should here: see what is broken above ({', '.join(broken)})")
