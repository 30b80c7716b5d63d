"""`fewfed verify`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say
from fewfed.errors import RunError
from fewfed.runs.verify import verify


def show_verdict(
    folder: Annotated[Path, typer.Argument(help="A run folder.")],
    as_json: opt.AsJson = False,
) -> None:
    """Check every file of a run folder against its digest.

    Example: fewfed verify runs/flea-digits-qua-2-seed0
    """
    found = verify(folder)
    for finding in found:
        say(f"{'damaged' if finding.problem else 'good   '}  {finding.name}")
    if as_json:
        print(json.dumps({finding.name: finding.problem or "good" for finding in found}))
    bad = [finding for finding in found if finding.problem]
    if bad:
        more = f"; and {len(bad) - 1} more" if len(bad) > 1 else ""
        raise RunError(f"{len(bad)} of {len(found)} files are damaged: {bad[0].name}: {bad[0].problem}{more}")
    say(f"all {len(found)} files of '{folder}' are as they were written")
