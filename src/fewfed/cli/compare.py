"""`fewfed compare`."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path
from typing import Annotated, Any

import typer

from fewfed.cells import Cell, run_cells
from fewfed.cli import options as opt
from fewfed.cli.run import resolved_with_lines
from fewfed.cli.show import cell_reporter, out, progress
from fewfed.config_file import ConfigFile
from fewfed.errors import ConfigError, RunError
from fewfed.experiment import Resolved, accepts, resolve
from fewfed.folder import CONFIG, RunFolder
from fewfed.report.curves import plot_curves
from fewfed.report.table import rich_table, rows, to_csv
from fewfed.results import Result
from fewfed.run import DEFAULT_OUT, prepare


def compare(
    methods: Annotated[list[str] | None, typer.Argument(help="Methods to compare.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Seeds for each method, from --seed on.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = one a core.")] = 0,
    plot: Annotated[bool, typer.Option("--plot", help="Draw accuracy by round into the result folder.")] = False,
    data: opt.Data = None,
    split: opt.Split = None,
    clients: opt.Clients = None,
    cohort: opt.Cohort = None,
    rounds: opt.Rounds = None,
    epochs: opt.Epochs = None,
    batch: opt.BatchSize = None,
    optimizer: opt.OptimizerName = None,
    lr: opt.Rate = None,
    seed: opt.Seed = None,
    network: opt.NetworkName = None,
    sets: opt.Sets = None,
    config: opt.Config = None,
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run several methods over several seeds on the same splits and cohorts, and show them side by side.

    Finished runs in the result folder are kept: the same command continues an interrupted comparison.
    """
    given = opt.gather(
        config, sets, data=data, split=split, clients=clients, cohort=cohort, rounds=rounds, epochs=epochs, batch=batch,
        optimizer=optimizer, lr=lr, network=network,
    )  # fmt: skip
    names = tuple(methods or ()) or (given.file.methods if given.file else ())
    if not names:
        raise ConfigError("which methods? Name them, as in 'fewfed compare fedavg flea', or give them in the TOML file")
    if len(set(names)) < len(names):
        raise ConfigError("a method is named twice: expected each once")
    _refuse_unused(names, given.values)
    first = seed if seed is not None else int(given.values.pop("seed", 0))
    count = seeds if seeds is not None else (given.file.seeds if given.file else 1)
    root = folder or DEFAULT_OUT / "compare"
    cells = [
        _cell(root, name, {**_own(name, given.values), "seed": first + offset}, given.file)
        for name in names
        for offset in range(count)
    ]
    _check_recorded(cells)
    for name in names:  # Everything that can be wrong is found before anything is written.
        prepare(next(cell.resolved for cell in cells if cell.resolved.spec == name))
    plan = cells[0].resolved.experiment
    with progress() as bar:
        report = cell_reporter(bar, len(cells), plan.rounds)
        endings = run_cells(cells, jobs or len(os.sched_getaffinity(0)), report)
    results = [(update.cell.resolved.spec, update.result) for update in endings if update.result is not None]
    failed = [update for update in endings if update.error]
    if results:
        _show_comparison(results, root, plot)
    if as_json:
        print(json.dumps({"folder": str(root), "runs": [result.as_json() for _, result in results],
                          "failed": {update.cell.name: update.error for update in failed}}))  # fmt: skip
    if failed:
        raise RunError(
            f"{len(failed)} of {len(cells)} runs failed; the first, {failed[0].cell.name}: {failed[0].error}"
        )


def _cell(root: Path, method: str, values: dict[str, Any], file: ConfigFile | None) -> Cell:
    resolved = resolved_with_lines(method, values, file)
    name = f"{re.sub(r'[^A-Za-z0-9_.]+', '-', method).strip('-')}-seed{resolved.experiment.seed}"
    return Cell(name, resolved, root / name)


def _own(method: str, values: dict[str, Any]) -> dict[str, Any]:
    """The values that concern one of several methods: common ones, its own fields, and `method.field` ones."""
    base = method.split(":")[0]
    mine: dict[str, Any] = {}
    for name, value in values.items():
        owner, _, field = name.partition(".")
        if owner == base and field:
            mine[f"method.{field}"] = value
        elif owner == "method":
            if accepts(method, field):
                mine[name] = value
        elif owner in ("training", "data_options", "inner") or accepts(method, name):
            mine[name] = value
    return mine


def _refuse_unused(methods: tuple[str, ...], values: dict[str, Any]) -> None:
    bases = {method.split(":")[0] for method in methods}
    for name in values:
        owner, _, field = name.partition(".")
        if field and owner not in (*bases, "method", "training", "data_options", "inner"):
            raise ConfigError(f"--set {name}: expected one of the compared methods before the dot, not '{owner}'")
        if not field and not any(accepts(method, name) for method in methods):
            resolve(methods[0], {name: values[name]})  # Raises with a suggestion.


def _check_recorded(cells: list[Cell]) -> None:
    for cell in cells:
        if (cell.folder / CONFIG).exists():
            _, config = RunFolder.open(cell.folder)
            if Resolved.from_json(config) != cell.resolved:
                raise RunError(f"'{cell.folder}' holds a run with other settings: choose another --out or remove it")


def _show_comparison(results: list[tuple[str, Result]], root: Path, plot: bool) -> None:
    table = rows(results)
    first = results[0][1]
    title = f"{first.data}, {first.split}, {first.clients} clients, {first.rounds} rounds"
    root.mkdir(parents=True, exist_ok=True)
    (root / "table.csv").write_text(to_csv(table))
    out.print(rich_table(table, title))
    if first.note:
        out.print(f"data: {first.note}")
    out.print(f"runs and table.csv: {root}")
    if plot:
        folders: dict[str, list[Path]] = {}
        for name, result in results:
            folders.setdefault(name, []).append(Path(result.folder))
        plot_curves(folders, root / "curves.png", title)
        out.print(f"picture: {root / 'curves.png'}")
