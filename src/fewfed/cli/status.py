"""`fewfed status`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from fewfed.cli import options as opt
from fewfed.cli.printing import out, say


def show_status(
    folder: Annotated[Path, typer.Argument(help="The run folder of a coordinator.")],
    as_json: opt.AsJson = False,
) -> None:
    """Show how a federation is doing: sites, round, bytes, accuracy, strikes.

    Example: fewfed status runs/hospitals
    """
    from fewfed.deploy.status import read_status, remarks_on

    found = read_status(folder)
    say(f"{found['state']}, round {found['round']} of {found['rounds']}" + _told(found))
    table = Table()
    for title in ("site", "there", "rows", "MB to it", "MB from it", "accuracy", "strikes", "remarks"):
        table.add_column(title)
    for name, site in found["sites"].items():
        table.add_row(
            name,
            "yes" if site["present"] else "no",
            _shown(site["rows"]),
            f"{site['sent_bytes'] / 1e6:.2f}",
            f"{site['received_bytes'] / 1e6:.2f}",
            "" if site["accuracy"] is None else f"{site['accuracy']:.4f}",
            _shown(site.get("strikes", 0)),
            remarks_on(site),
        )
    out.print(table)
    if as_json:
        print(json.dumps(found))


def _told(found: dict[str, Any]) -> str:
    accuracy = found.get("accuracy")
    age = f", as of {found['age']:.0f} s ago"
    unscored = found["round"] and accuracy is None
    return (", no scores" if unscored else f", accuracy {accuracy:.4f}" if accuracy is not None else "") + age


def _shown(value: object) -> str:
    return "" if value is None else str(value)
