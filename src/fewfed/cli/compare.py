"""`fewfed compare`."""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fewfed.cli import options as opt
from fewfed.cli.faults import explained_in_run, failed_runs
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.cli.show import cell_reporter, out, progress, say
from fewfed.engine import storage
from fewfed.engine.executors.registry import plugins
from fewfed.errors import ConfigError, did_you_mean
from fewfed.report.curves import plot_curves, require_matplotlib
from fewfed.report.table import rich_table, rows, to_csv
from fewfed.runs.cells import Cell, LoadedData, run_cells
from fewfed.runs.executors import packing_for, refuse_inexact
from fewfed.runs.experiment import accepts, known_fields, resolve
from fewfed.runs.identity import refuse_other_runs
from fewfed.runs.naming import DEFAULT_OUT
from fewfed.runs.prepare import prepare, settled
from fewfed.runs.results import Result, joined_notes

_PARTS = ("experiment", "training", "data_options")


@opt.of_experiments(*(name for name in opt.FLAGS if name not in ("executor", "precision")))
def compare(
    given: opt.Given,
    methods: Annotated[list[str] | None, typer.Argument(help="Methods to compare.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Seeds for each method, from --seed on.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    plot: Annotated[bool, typer.Option("--plot", help="Draw accuracy by round into the result folder.")] = False,
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run several methods over several seeds on the same splits and cohorts, and show them side by side.

    Finished runs in the result folder are kept: the same command continues an interrupted comparison.
    """
    names = tuple(methods or ()) or (given.file.methods if given.file else ())
    if not names:
        raise ConfigError("which methods? Name them, as in 'fewfed compare fedavg flea', or give them in the TOML file")
    if len(set(names)) < len(names):
        raise ConfigError("a method is named twice: expected each once")
    if plot:
        require_matplotlib()
    count = seeds if seeds is not None else (given.file.seeds if given.file else 1)
    root = folder or DEFAULT_OUT / "compare"
    with lines_of(given.file):
        _refuse_unused(names, given.values)
        loaded = LoadedData()
        cells = [cell for name in names for cell in _cells(root, name, _own(name, given.values), count, loaded)]
        refuse_other_runs((cell.folder, cell.resolved) for cell in cells)
        for name in names:  # Everything that can be wrong is found before anything is written.
            first = next(cell.resolved for cell in cells if cell.resolved.spec == name)
            prepared = prepare(first, loaded=loaded.of(first))
            refuse_inexact(prepared.resolved, prepared.cohort)
    tell_reading(prepared.reading)
    rounds = cells[0].resolved.experiment.rounds
    with progress() as bar:
        report = cell_reporter(bar, len(cells), rounds)
        packing = packing_for(jobs)
        endings = run_cells(cells, packing, report, explained_in_run)
    if packing.why:
        say(packing.why)
    results = [(update.cell.resolved.spec, update.result) for update in endings if update.result is not None]
    failed = [update for update in endings if update.error]
    if results:
        _show_comparison(results, root, plot)
    if as_json:
        print(json.dumps({"folder": str(root), "runs": [result.as_json() for _, result in results],
                          "failed": {update.cell.name: update.error for update in failed},
                          **({"reading": prepared.reading.as_json()} if prepared.reading else {})}))  # fmt: skip
    if error := failed_runs(endings, "runs"):
        raise error


def _cells(root: Path, method: str, values: dict[str, Any], seeds: int, loaded: LoadedData) -> list[Cell]:
    first = resolve(method, values)
    if not first.experiment.is_settled:  # Sites are the same for all seeds.
        first = settled(first, loaded.of(first))
    label = re.sub(r"[^A-Za-z0-9_.]+", "-", method).strip("-")
    made = []
    for seed in range(first.experiment.seed, first.experiment.seed + seeds):
        name = f"{label}-seed{seed}"
        experiment = dataclasses.replace(first.experiment, seed=seed)
        made.append(Cell(name, dataclasses.replace(first, experiment=experiment), root / name))
    return made


def _base(method: str) -> str:
    """What stands before the dot in `--set fedprox.mu=0.1`: a name without preset, a wrapper without what it wraps."""
    return re.split(r"[:(]", method)[0]


def _own(method: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values that concern one of several methods: common ones, its own fields, and `method.field` ones."""
    mine: dict[str, Any] = {}
    for name, value in values.items():
        owner, _, field = name.partition(".")
        if not field or owner == "method":
            if accepts(method, field or name):
                mine[name] = value
        elif owner == _base(method):
            mine[f"method.{field}"] = value
        elif owner in (*_PARTS, *plugins()) or (owner == "inner" and "(" in method):
            mine[name] = value
    return mine


def _refuse_unused(methods: tuple[str, ...], values: dict[str, Any]) -> None:
    bases = {_base(method) for method in methods}
    wrappers = any("(" in method for method in methods)
    for name in values:
        owner, _, field = name.partition(".")
        if field and owner not in (*bases, "method", *_PARTS, *plugins(), *(("inner",) if wrappers else ())):
            known = {*bases, *plugins()}
            raise ConfigError(f"'{name}': {did_you_mean('method of this comparison', owner, known)}", key=name)
        if (not field or owner == "method") and not any(accepts(method, field or name) for method in methods):
            known = set().union(*(known_fields(method) for method in methods))
            raise ConfigError(did_you_mean("field for any of these methods", field or name, known), key=name)


def _show_comparison(results: list[tuple[str, Result]], root: Path, plot: bool) -> None:
    table = rows(results)
    first = results[0][1]
    title = f"{first.data}, {first.split}, {first.clients} clients, {first.rounds} rounds"
    storage.write(root / "table.csv", to_csv(table).encode())
    out.print(rich_table(table, title))
    if notes := joined_notes(result.note for _, result in results):
        say(f"data: {notes}")
    say(f"runs and table.csv: {root}")
    if plot:
        folders: dict[str, list[Path]] = {}
        for name, result in results:
            folders.setdefault(name, []).append(Path(result.folder))
        plot_curves(folders, root / "curves.png", title)
        say(f"picture: {root / 'curves.png'}")
