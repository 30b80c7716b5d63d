"""`fewfed reproduce`."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fewfed.cli import options as opt
from fewfed.cli.faults import explained_in_run, failed_runs
from fewfed.cli.show import cell_reporter, out, progress, say, warn
from fewfed.engine import storage
from fewfed.errors import ConfigError, DataError
from fewfed.reproduction.choice import chosen_runs
from fewfed.reproduction.comparison import as_json as row_as_json
from fewfed.reproduction.comparison import compared, curve_checks, rich_table, to_csv
from fewfed.reproduction.curve import CurveCheck
from fewfed.reproduction.library import Library
from fewfed.reproduction.progress import (
    in_reading_order,
    is_finished,
    missing_data,
    refuse_other_settings,
    rounds_done,
    with_rounds,
)
from fewfed.reproduction.study import Planned, Study
from fewfed.runs.cells import Cell, Update, run_cells
from fewfed.runs.executors import packing_for
from fewfed.runs.naming import DEFAULT_OUT
from fewfed.runs.results import Result


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Table or figure; none: show all there are.")] = None,
    cells: Annotated[
        str, typer.Option("--cells", help='Only these, as in "data=har,method=fedavg,flea,seed=0..2".')
    ] = "",
    show: Annotated[bool, typer.Option("--list", help="Show the cells and run nothing.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Other than the paper's, for a trial.")] = None,
    folder: opt.Out = None,
    source: Annotated[Path | None, typer.Option("--from", help="The folder 'reproduce' of a clone.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run what a table or figure of a paper is made of, and show it beside the published numbers.

    Finished cells are kept and unfinished ones continued: the same command goes on where it was stopped.
    """
    library = Library.at(source)
    if name is None:
        if cells or show:
            raise ConfigError("which table or figure? 'fewfed reproduce' alone shows their names")
        _show_names(library, as_json)
        return
    study = library.study(name)
    runs = [with_rounds(run, rounds) for run in chosen_runs(study, cells)]
    # A trial with fewer rounds must not stand in the way of the real thing.
    root = folder or DEFAULT_OUT / "reproduce" / (name if rounds is None else f"{name}-{rounds}-rounds")
    missing = missing_data(runs)
    if show:
        _show_cells(study, runs, root, missing, as_json)
        return
    at_hand = [run for run in runs if run.resolved.experiment.data not in missing]
    for data, obtain in missing.items():
        left_out = sum(run.resolved.experiment.data == data for run in runs)
        warn(f"left out: {left_out} cells, because data '{data}' is not on this machine: {obtain}")
    if not at_hand:
        raise DataError(f"none of the {len(runs)} cells can be run: {', '.join(missing)} not on this machine")
    finished, endings = _run(at_hand, root, jobs)
    failed = {update.cell.name: update.error for update in endings if update.error}
    _report(study, finished, root, as_json, missing, failed)
    if error := failed_runs(endings, "cells"):
        raise error


def _run(runs: Sequence[Planned], root: Path, jobs: int) -> tuple[list[tuple[Planned, Result]], list[Update]]:
    by_name = {run.name: run for run in runs}
    cells: list[Cell] = in_reading_order([run.cell(root) for run in runs])
    refuse_other_settings(cells)
    with progress() as bar:
        longest = max(cell.resolved.experiment.rounds for cell in cells)
        report = cell_reporter(bar, len(cells), longest)
        packing = packing_for(jobs)
        endings = run_cells(cells, packing, report, explained_in_run)
    if packing.why:
        say(packing.why)
    results = {update.cell.name: update.result for update in endings if update.result is not None}
    finished = [(run, results[name]) for name, run in by_name.items() if name in results]
    return finished, endings


def _report(
    study: Study,
    finished: Sequence[tuple[Planned, Result]],
    root: Path,
    as_json: bool,
    missing: dict[str, str],
    failed: dict[str, str],
) -> None:
    rows = compared(study, finished)
    checks = curve_checks(study, finished)
    if rows:
        storage.write(root / "table.csv", to_csv(study, rows).encode())
        out.print(rich_table(study, rows))
        if checks:
            out.print(_curve_table(checks))
        for data, note in {str(row.at["data"]): row.note for row in rows if row.note}.items():
            say(f"data {data}: {note}")
        if study.note:
            say(f"note: {study.note}")
        planned = max(run.resolved.experiment.rounds for run in study.runs)
        if study.published and max(row.rounds for row in rows) < planned:
            say(f"a trial: the published numbers are those of {planned} rounds")
        say(f"runs and table.csv: {root}")
    if as_json:
        curve = [
            {"what": check.point.label, "published": check.point.value, "band": check.point.band,
             "measured": check.measured, "inside": check.inside}
            for check in checks
        ]  # fmt: skip
        rest = {"missing_data": missing, "failed": failed}
        table = [row_as_json(row) for row in rows]
        print(json.dumps({"name": study.name, "folder": str(root), "rows": table, "curve": curve, **rest}))


def _show_names(library: Library, as_json: bool) -> None:
    names = library.names()
    if as_json:
        print(json.dumps([{"name": name, "what": what} for name, what in names.items()]))
        return
    table = Table("name", "what")
    for name, what in names.items():
        table.add_row(name, escape(what))
    out.print(table)


def _show_cells(study: Study, runs: Sequence[Planned], root: Path, missing: dict[str, str], as_json: bool) -> None:
    states = [_state(run, run.cell(root), missing) for run in runs]
    say(f"{study.name}: {study.what} ({study.paper})")
    for state in dict.fromkeys(state["state"] for state in states):
        say(f"{sum(other['state'] == state for other in states)} cells {state}")
    table = Table(*study.axes, "seed", "state")
    for run, state in zip(runs, states, strict=True):
        values = (run.at.get(axis, "") for axis in (*study.axes, "seed"))
        done = f", round {state['rounds']}" if state["state"] == "begun" else ""
        table.add_row(*(escape(str(value)) for value in values), state["state"] + done)
    out.print(table)
    for data, obtain in missing.items():
        say(f"data '{data}' is not on this machine: {obtain}")
    if as_json:
        print(json.dumps([{**run.at, **state} for run, state in zip(runs, states, strict=True)]))


def _state(run: Planned, cell: Cell, missing: dict[str, str]) -> dict[str, Any]:
    done = rounds_done(cell)
    if is_finished(cell):
        state = "finished"
    elif run.resolved.experiment.data in missing:
        state = "without data"
    else:
        state = "begun" if done else "to do"
    return {"state": state, "rounds": done, "folder": str(cell.folder)}


def _curve_table(checks: Sequence[CurveCheck]) -> Table:
    table = Table(title="the published curve", caption="percent; ours: mean over seeds")
    table.add_column("what")
    for column in ("published", "band", "ours", "inside"):
        table.add_column(column, justify="right")
    verdicts = {True: "yes", False: "no", None: "run too short"}
    for check in checks:
        measured = "" if check.measured is None else f"{check.measured:.1f}"
        point = check.point
        table.add_row(point.label, f"{point.value:.1f}", f"±{point.band:g}", measured, verdicts[check.inside])
    return table
