"""`fewfed data`: what is here, where it looked, and how to get what is not."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.table import Table

from fewfed.cli.printing import err, out, say, shown
from fewfed.data import download
from fewfed.data.sources import available, search_path

data_app = typer.Typer(
    help="Data sets on this machine, and how to get more.\n\nExample: fewfed data --json", invoke_without_command=True
)


@data_app.callback()
def show(
    context: typer.Context,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list.")] = False,
) -> None:
    """List the data sets that are present and where they were looked for."""
    if context.invoked_subcommand is not None:
        return
    found = available()
    if as_json:
        print(
            json.dumps(
                [
                    {"name": item.name, "present": item.present, "where": str(item.where or ""), "what": item.what}
                    for item in found
                ]
            )
        )
        return
    table = Table(caption=escape("looked in: " + ", ".join(str(folder) for folder in search_path())))
    for column in ("data", "what", "present", "where, or how to get it"):
        table.add_column(column, overflow="fold")
    for item in found:
        place = "inside the package" if item.present and item.where is None else str(item.where)
        table.add_row(item.name, item.what, "yes" if item.present else "no", place if item.present else item.obtain)
    out.print(table)
    out.print(
        "your own: a path to a table (.csv, .tsv, .parquet), .npz, a folder of images, or a saved Hugging Face data set"
    )


@data_app.command()
def get(
    name: str,
    to: Annotated[Path | None, typer.Option("--to", help="Folder; default: the user's cache folder.")] = None,
) -> None:
    """Download a data set from its official source, unless it is on this machine; print where it is.

    Example: fewfed data get har
    """
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        DownloadColumn(),
        TransferSpeedColumn(),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=err, disable=not err.is_terminal)
    with shown(bar):
        task = bar.add_task(name, total=None)
        place = download.get(name, to, lambda done, total: bar.update(task, completed=done, total=total))
    say(f"{name}: {place}")
