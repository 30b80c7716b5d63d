"""`fewfed serve`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say, warn


def serve(
    config: Annotated[Path, typer.Argument(help="TOML file: a method, its settings, and a table [federation].")],
    folder: Annotated[Path, typer.Option("--out", help="Folder for the results.")],
    resume: Annotated[bool, typer.Option("--resume", help="Go on with the run that this folder holds.")] = False,
    secure: Annotated[
        bool, typer.Option("--secure", help="Sums under masks: the coordinator sees no single site's model.")
    ] = False,
    as_json: opt.AsJson = False,
) -> None:
    """Coordinate a run between real sites: wait for them, train, and keep the model.

    Example: fewfed serve federation.toml --out runs/hospitals
    """
    from fewfed.deploy.flower.installed import require_flower

    require_flower()  # Before what it brings along is imported.
    from fewfed.deploy.coordinator.start import start

    result = start(config, folder, resume=resume, secure=secure)
    found = result.chosen
    reached = f"best {found.best:.4f}, last {found.last:.4f}, last 10 {found.last10:.4f}"
    say(
        f"{result.method} ({result.preset}) between {result.clients} sites: "
        f"{reached if found.measured else 'no scores'}; folder {result.folder}"
    )
    if not found.measured:
        say(result.note)
    for row in result.per_site if found.measured else ():
        accuracy = "no answer" if row["accuracy"] is None else f"{row['accuracy']:.4f}"
        say(f"  {row['site']}: {accuracy} on {row['test_rows']} test rows")
    if result.failed:
        warn(f"{result.failed} turns of sites were left out: metrics.jsonl says which and why")
    if as_json:
        sys.stdout.flush()
        print(json.dumps(result.as_json()))
