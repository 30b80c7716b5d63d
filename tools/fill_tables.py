"""Run the next unfinished cells of a table and keep them, on a machine without the command line's packages.

A GPU machine may have torch, numpy and safetensors alone; elsewhere `fewfed reproduce NAME --minutes M` does the same.

    python tools/fill_tables.py flea-table1 --minutes 9 --cells "data=har" --executor cuda --results OUT --commit abc123
"""

from __future__ import annotations

import argparse
import dataclasses
import sys
import time
from pathlib import Path

from fewfed.errors import FewfedError
from fewfed.reproduction.choice import chosen_runs
from fewfed.reproduction.comparison import compared, to_csv
from fewfed.reproduction.kept import FOLDER, Kept
from fewfed.reproduction.library import Library
from fewfed.reproduction.progress import missing_data
from fewfed.reproduction.session import Session
from fewfed.reproduction.study import Planned
from fewfed.runs.cells import Update, explained_plainly
from fewfed.runs.executors import packing_for


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("study")
    parser.add_argument("--minutes", type=float, required=True)
    parser.add_argument("--cells", default="")
    parser.add_argument("--executor", default="auto")
    parser.add_argument("--precision", default="", choices=("", "tf32", "bf16"), help="of a GPU; records say so")
    parser.add_argument("--jobs", type=int, default=0)
    parser.add_argument("--library", type=Path, default=Path("reproduce"))
    parser.add_argument("--results", type=Path, help="where records go; default: with the others")
    parser.add_argument("--out", type=Path, default=Path("runs/reproduce"))
    parser.add_argument("--commit", default="")
    given = parser.parse_args()
    library = Library.at(given.library)
    study = library.study(given.study)
    missing = missing_data(study.runs)
    runs = [
        _on(run, given.executor, given.precision)
        for run in chosen_runs(study, given.cells)
        if run.resolved.experiment.data not in missing
    ]
    for data, obtain in missing.items():
        print(f"data '{data}' is not on this machine: {obtain}")
    kept = Kept(given.results or library.folder / FOLDER)
    session = Session(study, runs, given.out / study.name, kept, given.commit, given.precision)
    began = time.monotonic()

    def report(update: Update) -> None:
        if update.result is not None or update.error:
            said = f"{100 * update.result.accuracy.best:.1f}" if update.result else f"failed: {update.error}"
            print(f"{time.monotonic() - began:6.0f} s  {update.cell.name}: {said}", flush=True)

    cells = session.cells(given.minutes)
    print(f"{len(cells)} cells to do", flush=True)
    packing = packing_for(given.jobs)
    session.work(cells, packing, report, explained_plainly, given.minutes)
    print(packing.why)
    print(to_csv(study, compared(study, session.finished())))


def _on(run: Planned, executor: str, precision: str) -> Planned:
    experiment = dataclasses.replace(run.resolved.experiment, executor=executor)
    executors = {"cuda": {"precision": precision}} if precision else {}
    return dataclasses.replace(
        run, resolved=dataclasses.replace(run.resolved, experiment=experiment, executors=executors)
    )


if __name__ == "__main__":
    try:
        main()
    except FewfedError as error:
        sys.exit(f"error: {error}")
