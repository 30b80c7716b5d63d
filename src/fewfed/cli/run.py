"""`fewfed run` and `fewfed resume`."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from fewfed.cli import options as opt
from fewfed.cli.show import RoundProgress, err, out, progress
from fewfed.config_file import ConfigFile
from fewfed.errors import ConfigError
from fewfed.experiment import Resolved, resolve
from fewfed.folder import RunFolder
from fewfed.results import Result
from fewfed.run import default_folder, execute, prepare, refuse_existing
from fewfed.run import resume as resume_run


def run(
    method: Annotated[str | None, typer.Argument(help="Method, method:preset, wrapper(method) or file.py.")] = None,
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
    executor: opt.ExecutorName = None,
    network: opt.NetworkName = None,
    sets: opt.Sets = None,
    config: opt.Config = None,
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run one method."""
    given = opt.gather(
        config, sets, data=data, split=split, clients=clients, cohort=cohort, rounds=rounds, epochs=epochs, batch=batch,
        optimizer=optimizer, lr=lr, seed=seed, executor=executor, network=network,
    )  # fmt: skip
    if method is None:
        if given.file is None or len(given.file.methods) != 1:
            raise ConfigError("which method? Name one, as in 'fewfed run flea', or give it in the TOML file")
        method = given.file.methods[0]
    resolved = resolved_with_lines(method, given.values, given.file)
    prepared = prepare(resolved)
    path = folder or default_folder(resolved)
    refuse_existing(path)
    with progress() as bar:
        task = bar.add_task(method, total=resolved.experiment.rounds, info="")
        result = execute(prepared, path, [RoundProgress(bar, task)])
    _tell(result, as_json)


def resume(folder: Path, as_json: opt.AsJson = False) -> None:
    """Continue a run that was stopped."""
    _, config = RunFolder.open(folder)
    with progress() as bar:
        task = bar.add_task(str(config["method"]), total=config["experiment"]["rounds"], info="")
        result = resume_run(folder, observers=[RoundProgress(bar, task)])
    _tell(result, as_json)


def resolved_with_lines(method: str, values: dict[str, Any], file: ConfigFile | None) -> Resolved:
    try:
        return resolve(method, values)
    except ConfigError as error:
        raise (file.explain(error) if file else error) from None


def _tell(result: Result, as_json: bool) -> None:
    accuracy = result.accuracy
    out.print(
        f"{result.method} ({result.preset}) on {result.data}, {result.split}, {result.clients} clients, "
        f"seed {result.seed}: "
        f"best {100 * accuracy.best:.2f} %, last {100 * accuracy.last:.2f} %, last 10 {100 * accuracy.last10:.2f} %"
    )
    out.print(
        f"{result.bytes['up'] / 1e6:.1f} MB up, {result.bytes['down'] / 1e6:.1f} MB down, {result.steps} steps, "
        f"{result.seconds:.1f} s; folder {result.folder}"
    )
    if result.note:
        out.print(f"data: {result.note}")
    if result.failed:
        err.print(f"{result.failed} turns of clients were left out: metrics.jsonl says which and why")
    if as_json:
        sys.stdout.flush()
        print(json.dumps(result.as_json()))
