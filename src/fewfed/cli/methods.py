"""`fewfed methods`: all of them in a table, or one in full."""

from __future__ import annotations

import json
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fewfed.cli.printing import out
from fewfed.methods.registry import choose, registered
from fewfed.report.catalogue import catalogue, entry, entry_of, phase_text


def show_methods(
    name: Annotated[
        str | None, typer.Argument(help="One method in full: NAME, NAME:PRESET, file.py, OUTER(INNER).")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="A JSON list (or one object).")] = False,
) -> None:
    """What methods there are, what leaves each client and how it is combined.

    Example: fewfed methods flea
    """
    if name is None:
        entries = catalogue()
        if as_json:
            print(json.dumps(entries))
        else:
            out.print(_table(entries))
        return
    known = registered()
    item = entry(known[name]) if name in known else entry_of(name)
    if as_json:
        print(json.dumps(item, default=str))
    else:
        _one(item, type(choose(name).method).__doc__ or "")


def _table(entries: list[dict[str, Any]]) -> Table:
    table = Table(caption="mean, sum: may go through secure aggregation; concat, keep: seen raw by the server")
    for column in ("method", "family", "paper", "leaves the client", "client state", "parameters"):
        table.add_column(column, overflow="fold")
    for item in entries:
        label = f"{item['name']}(METHOD)" if item["wraps"] else item["name"]
        state = "kept" if any(phase["state"] for phase in item["phases"]) else "none"
        parameters = ", ".join(f"{p['name']}={p['default']}" for p in item["parameters"])
        cells = (label, item["family"], item["paper"], _uploads(item), state, parameters)
        table.add_row(*(escape(text) for text in cells))
    return table


def _uploads(item: dict[str, Any]) -> str:
    return "\n".join(map(phase_text, item["phases"]))


def _one(item: dict[str, Any], text: str) -> None:
    out.print(f"[bold]{escape(item['name'])}[/]" + (f"  ({escape(item['family'])})" if item["family"] else ""))
    out.print(escape(item["paper"] or "no paper is named"))
    out.print()
    out.print(escape("\n".join(line.strip() for line in text.strip().splitlines())))
    out.print()
    out.print(f"presets: {', '.join(item['presets'])}")
    out.print(escape("leaves the client:\n  " + _uploads(item).replace("\n", "\n  ")))
    kept = any(phase["state"] for phase in item["phases"])
    out.print(f"client state: {'kept between participations' if kept else 'none'}")
    table = Table(title="parameters")
    for column in ("name", "type", "default", "range", "meaning"):
        table.add_column(column, overflow="fold")
    for p in item["parameters"]:
        table.add_row(*(escape(str(p[key])) for key in ("name", "type", "default", "range", "help")))
    out.print(table if item["parameters"] else "no parameters")
