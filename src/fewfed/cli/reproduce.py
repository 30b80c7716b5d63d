"""`fewfed reproduce`."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fewfed.cli import options as opt
from fewfed.cli.faults import explained_in_run, failed_runs
from fewfed.cli.printing import out, progress, say, warn
from fewfed.engine import storage
from fewfed.engine.own_folder import OwnFolder
from fewfed.errors import ConfigError, DataError
from fewfed.report.progress import cell_reporter
from fewfed.reproduction.choice import chosen_runs
from fewfed.reproduction.comparison import as_json as row_as_json
from fewfed.reproduction.comparison import compared, curve_checks, rich_table, to_csv
from fewfed.reproduction.curve import CurveCheck
from fewfed.reproduction.kept import FOLDER, Kept
from fewfed.reproduction.library import Library
from fewfed.reproduction.outcome import Outcome
from fewfed.reproduction.page import page as make_page
from fewfed.reproduction.progress import is_finished, missing_data, rounds_done, with_rounds
from fewfed.reproduction.session import Session
from fewfed.reproduction.study import Planned, Study
from fewfed.runs.cells import Cell, Update
from fewfed.runs.executors import packing_for
from fewfed.runs.naming import DEFAULT_OUT


def reproduce(
    name: Annotated[str | None, typer.Argument(help="Table or figure; none: show all there are.")] = None,
    cells: Annotated[
        str, typer.Option("--cells", help='Only these, as in "data=har,method=fedavg,flea,seed=0..2".')
    ] = "",
    show: Annotated[bool, typer.Option("--list", help="Show the cells and run nothing.")] = False,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    rounds: Annotated[int | None, typer.Option("--rounds", min=1, help="Other than the paper's, for a trial.")] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Keep a record of each finished cell in reproduce/results.")
    ] = False,
    from_kept: Annotated[bool, typer.Option("--from-kept", help="Show kept records; run nothing.")] = False,
    minutes: Annotated[
        float | None, typer.Option("--minutes", min=0, help="Run the next unfinished cells for so long, and keep them.")
    ] = None,
    page: Annotated[
        Path | None, typer.Option("--page", help="Write a Markdown page of all tables from kept records, and stop.")
    ] = None,
    folder: opt.Out = None,
    source: Annotated[Path | None, typer.Option("--from", help="The folder 'reproduce' of a clone.")] = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run what a table or figure of a paper is made of, and show it beside the published numbers.

    Finished cells are kept and unfinished ones continued: the same command goes on where it was stopped.

    Example: fewfed reproduce flea-table1 --list
    """
    library = Library.at(source)
    kept = Kept(library.folder / FOLDER)
    for_table = keep or from_kept or minutes is not None
    if name is None:
        if cells or show or for_table:
            raise ConfigError("which table or figure? 'fewfed reproduce' alone shows their names")
        _all_studies(library, kept, page, as_json)
        return
    if page is not None:
        raise ConfigError("--page shows all tables: leave the name out")
    if rounds is not None and for_table:
        raise ConfigError("--rounds is for a trial, which is no cell of the table: leave --keep and the like out")
    if minutes is not None and not math.isfinite(minutes):
        raise ConfigError(f"--minutes {minutes}: expected a number of minutes")
    study = library.study(name)
    runs = [with_rounds(run, rounds) for run in chosen_runs(study, cells)]
    # A trial with fewer rounds must not stand in the way of the real thing.
    root = folder or DEFAULT_OUT / "reproduce" / (name if rounds is None else f"{name}-{rounds}-rounds")
    if show:
        _show_cells(study, runs, root, missing_data(runs), as_json)
    elif from_kept:
        _report(study, _kept_cells(kept, study, runs), root, as_json, {}, {})
    else:
        at_hand, missing = _at_hand(runs)
        session = Session(study, at_hand, root, kept if for_table else None)
        endings = _run(session, jobs, minutes)
        failed = {update.cell.name: update.error for update in endings if update.error}
        _report(study, session.finished(), root, as_json, missing, failed)
        if error := failed_runs(endings, "cells"):
            raise error


def _all_studies(library: Library, kept: Kept, page: Path | None, as_json: bool) -> None:
    if page is None:
        _show_names(library, as_json)
    else:
        storage.write(page, make_page(library, kept).encode())
        say(f"written: {page}")


def _kept_cells(kept: Kept, study: Study, runs: Sequence[Planned]) -> list[tuple[Planned, Outcome]]:
    records = kept.fitting(study)
    _tell_stale(kept, study)
    finished = [(run, records[run.name].outcome) for run in runs if run.name in records]
    if not finished:
        raise DataError(f"none of these cells is kept in '{kept.folder}': run some with --keep or --minutes")
    return finished


def _at_hand(runs: Sequence[Planned]) -> tuple[list[Planned], dict[str, str]]:
    """Runs whose data is on this machine, and what is missing for the others."""
    missing = missing_data(runs)
    for data, obtain in missing.items():
        left_out = sum(run.resolved.experiment.data == data for run in runs)
        warn(f"left out: {left_out} cells, because data '{data}' is not on this machine: {obtain}")
    at_hand = [run for run in runs if run.resolved.experiment.data not in missing]
    if not at_hand:
        raise DataError(f"none of the {len(runs)} cells can be run: {', '.join(missing)} not on this machine")
    return at_hand, missing


def _run(session: Session, jobs: int, minutes: float | None) -> list[Update]:
    cells = session.cells(minutes)
    if not cells:
        say("all of these cells are finished")
        return []
    longest = max(cell.resolved.experiment.rounds for cell in cells)
    packing = packing_for(jobs)
    with progress(f"{len(cells)} runs", len(cells) * longest) as display:
        endings = session.work(cells, packing, cell_reporter(display, longest), explained_in_run, minutes)
    if packing.why:
        say(packing.why)
    if session.kept is not None:
        _tell_stale(session.kept, session.study)
    if len(endings) < len(cells):
        say(f"{len(cells) - len(endings)} cells are left; the same command goes on with them")
    return endings


def _tell_stale(kept: Kept, study: Study) -> None:
    if stale := len(kept.stale(study)):
        warn(
            f"{stale} kept records of {study.name} were made with other settings, or compare another metric, than it "
            "has now: they do not count"
        )


def _report(
    study: Study,
    finished: Sequence[tuple[Planned, Outcome]],
    root: Path,
    as_json: bool,
    missing: dict[str, str],
    failed: dict[str, str],
) -> None:
    rows = compared(study, finished)
    checks = curve_checks(study, finished)
    if rows:
        folder = OwnFolder(root)
        folder.make()  # Kept records make a table where nothing was ever run.
        folder.write("table.csv", to_csv(study, rows).encode())
        out.print(rich_table(study, rows))
        if checks:
            out.print(_curve_table(checks))
        for data, note in dict.fromkeys((str(row.at["data"]), row.note) for row in rows if row.note):
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
