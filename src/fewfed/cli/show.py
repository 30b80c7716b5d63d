"""`fewfed show`: runs that lie on the disk, as one table."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import out, say, warn
from fewfed.engine import storage
from fewfed.report.curves import require_matplotlib
from fewfed.report.overview import overview
from fewfed.report.survey import survey
from fewfed.runs.naming import DEFAULT_OUT


def show(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders with runs below them; none: 'runs'.")
    ] = None,
    file: Annotated[Path | None, typer.Option("--csv", help="Write the table into this file.")] = None,
    plot: Annotated[Path | None, typer.Option("--plot", help="Draw accuracy by round into this file.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Join runs, comparisons and reproduced tables into one table, finished or not.

    Runs that differ in their seeds alone are one row; settings that differ between rows have a column.

    Example: fewfed show runs/compare --csv table.csv
    """
    if plot is not None:
        require_matplotlib()
    found = overview(survey(folders or [DEFAULT_OUT]))
    out.print(found.rich_table())
    for line in found.remarks:
        warn(line)
    if file is not None:
        storage.write(file, found.to_csv().encode())
        say(f"table: {file}")
    if plot is not None:
        found.plot(plot)
        say(f"picture: {plot}")
    if as_json:
        print(json.dumps(found.as_json(), default=str))
