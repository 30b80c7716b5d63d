"""`fewfed report`: runs that lie on the disk, as one page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import say, warn
from fewfed.report.page.write import write_report
from fewfed.runs.naming import DEFAULT_OUT


def write(
    folders: Annotated[
        list[Path] | None, typer.Argument(help="Run folders, or folders with runs below them; none: 'runs'.")
    ] = None,
    page: Annotated[
        Path | None,
        typer.Option("--out", help="The page; else report.html in the folder, or here if there are several."),
    ] = None,
    tables: Annotated[
        Path | None, typer.Option("--tables", help="Folder for its tables and figures as files; else beside the page.")
    ] = None,
    baseline: Annotated[
        str, typer.Option(help="Method that others are compared with; else fedavg, or the first.")
    ] = "",
    as_json: opt.AsJson = False,
) -> None:
    """Write one page about runs: tables, differences to a baseline, curves, classes, sites, traffic, privacy.

    The page opens anywhere, without a network. Tables lie beside it as Markdown, LaTeX and CSV, figures as SVG.

    Example: fewfed report runs/demo --baseline fedavg
    """
    made = write_report(folders or [DEFAULT_OUT], page, tables, baseline)
    several = len(made.contents.tasks) > 1
    for task in made.contents.tasks:
        for number, line in enumerate(task.sentences):
            if several and not number:
                say(f"{task.title}:")
            say(line)
    for line in made.contents.problems:
        warn(line)
    say(f"tables and figures: {made.tables}")
    say(f"report: {made.page}")
    if as_json:
        print(json.dumps({"page": str(made.page), "tables": str(made.tables), "files": list(made.files),
                          "contents": made.contents.as_json()}))  # fmt: skip
