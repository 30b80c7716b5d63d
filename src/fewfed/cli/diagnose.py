"""`fewfed diagnose`: what a run shows beside its accuracy."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from fewfed.cli import options as opt
from fewfed.cli.printing import out, progress, say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.diagnostics.exposure import expected_exposure, exposure_curve
from fewfed.diagnostics.feature_map import FILE as FEATURE_MAP
from fewfed.diagnostics.feature_map import feature_map, plot_features
from fewfed.diagnostics.feature_quality import FeatureQuality, RoundSeparation, spread_rows
from fewfed.diagnostics.mixing import Mixing, MixingWatch
from fewfed.diagnostics.replay import model_upload, refuse_unrepeatable, repeat, training_of
from fewfed.diagnostics.rounds_to_target import rounds_to
from fewfed.engine import storage
from fewfed.engine.loop import Observer, RoundView
from fewfed.errors import ConfigError
from fewfed.report.curves import require_matplotlib
from fewfed.report.progress import RoundProgress
from fewfed.runs.execute import execute
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.folder import RunFolder, refuse_existing
from fewfed.runs.naming import default_folder
from fewfed.runs.prepare import Prepared, prepare
from fewfed.runs.user_code import refuse_unknown

diagnose_app = typer.Typer(
    no_args_is_help=True,
    help="Feature separation, mixing, exposure, rounds to a target.\n\n"
    "Example: fewfed diagnose rounds runs/compare/flea-seed0 --target 0.8",
)

_SHORT = 5
"""Rounds of an experiment that is made for its features."""
Folders = Annotated[list[Path], typer.Argument(help="Run folders.")]


@diagnose_app.command()
def rounds(
    folders: Folders,
    target: Annotated[list[float], typer.Option("--target", min=0, max=1, help="Accuracy, 0 to 1. Repeatable.")],
    as_json: opt.AsJson = False,
) -> None:
    """The first round in which each run reached an accuracy.

    Example: fewfed diagnose rounds runs/flea-digits-qua-2-seed0 --target 0.8
    """
    found = []
    for folder in folders:
        run, config = RunFolder.open(folder)
        records = run.metrics()
        reached = {f"{wanted:g}": rounds_to(wanted, records) for wanted in target}
        found.append({"folder": str(folder), "method": config["method"], "rounds": len(records), "reached": reached})
    table = Table("run", "method", "rounds", *(f"to {100 * wanted:g} %" for wanted in target))
    for item in found:
        cells = [str(round) if round else "not reached" for round in item["reached"].values()]
        table.add_row(escape(item["folder"]), escape(item["method"]), str(item["rounds"]), *cells)
    out.print(table)
    if as_json:
        print(json.dumps(found))


@diagnose_app.command()
def exposure(folder: Path, as_json: opt.AsJson = False) -> None:
    """The part of all client pairs (i, j) of which j has received rows of i, after each round of a run.

    Example: fewfed diagnose exposure runs/flea-digits-qua-2-seed0
    """
    run, config = RunFolder.open(folder)
    resolved = Resolved.from_json(config)
    refuse_unknown(resolved, folder)
    prepared = prepare(resolved)
    # A run that is still going on has come as far as its metrics; one without any is shown as it is planned.
    count = len(run.metrics()) or resolved.experiment.rounds
    curve = exposure_curve(prepared.job, prepared.cohort, count)
    participation = prepared.cohort / len(prepared.split)
    table = Table("round", "exposure", "expected if passed from cohort to cohort")
    for number in sorted({1, 2, 5, 10, 20, 50, 100, 200, 500, count}):
        if number <= count:
            expected = expected_exposure(participation, number)
            table.add_row(str(number), f"{curve[number - 1]:.3f}", f"{expected:.3f}")
    say(f"{resolved.spec}, {len(prepared.split)} clients, {prepared.cohort} a round")
    out.print(table)
    if as_json:
        print(json.dumps({"folder": str(folder), "method": resolved.spec, "exposure": curve}))


_FLAGS = (*opt.DATA_FLAGS, "split", "clients", "cohort", "rounds", "epochs", "batch", "seed", "network")


@diagnose_app.command()
@opt.of_experiments(*_FLAGS)
def features(
    given: opt.Given,
    method: Annotated[str, typer.Argument(help="A method without client state.")],
    watched: Annotated[int, typer.Option("--watch", min=1, help="Clients of a cohort that are looked at.")] = 5,
    plot: Annotated[Path | None, typer.Option("--plot", help="t-SNE picture of the last round.")] = None,
    mapped: Annotated[bool, typer.Option("--map", help="Keep t-SNE of the last round for 'fewfed report'.")] = False,
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """How well classes separate in penultimate features before, after local training, and after aggregation.

    Example: fewfed diagnose features flea --split qua:2 --plot features.png
    """
    if plot is not None:
        require_matplotlib()
    quality, laid_out = FeatureQuality(clients=watched), _Map()
    place = _run(method, given, folder, [quality, *([laid_out] if mapped or plot is not None else [])])
    if laid_out.found:
        storage.write(place / FEATURE_MAP, (json.dumps(laid_out.found) + "\n").encode())
    if plot is not None:
        plot_features(laid_out.found, plot)
    out.print(_separation_table(quality.rounds))
    say("Davies-Bouldin score of penultimate features, lower is better; train: the watched clients' own rows")
    if plot is not None:
        say(f"picture: {plot}")
    _keep("features.json", [round.as_json() for round in quality.rounds], place, as_json)


@diagnose_app.command()
@opt.of_experiments(*_FLAGS)
def mixing(
    given: opt.Given,
    method: Annotated[str, typer.Argument(help="A method that mixes shared rows into its batches.")],
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Classes of the shared buffer, of a client's rows and of its mixed batches, and the mixing weights drawn.

    Example: fewfed diagnose mixing flea --data digits --split qua:2
    """
    watch = MixingWatch()
    place = _run(method, given, folder, [watch])
    if not watch.seen:
        raise ConfigError(f"method '{method}' mixed nothing in these rounds: expected one that shares labelled rows")
    out.print(_mixing_table(watch.seen))
    weights = ", ".join(f"{weight:.2f}" for weight in sorted(watch.seen[-1].weights))
    say(f"weights of the local rows, first batch of round {watch.seen[-1].round}: {weights}")
    _keep("mixing.json", [mixing.as_json() for mixing in watch.seen], place, as_json)


class _Map:
    """Lays out the last round: the model sent out, one client's own, and the aggregate, on test rows."""

    def __init__(self, rows: int = 500) -> None:
        self.found: dict[str, Any] = {}
        self._rows = rows

    def after_round(self, view: RoundView) -> None:
        if not view.clock.last:
            return
        result = training_of(view)
        client, name = result.combined.clients[0], model_upload(result.phase)
        models = {
            "before": result.shared[name],
            f"client {client}": repeat(view, client).model,
            "aggregated": result.combined.values[name],
        }
        test = spread_rows(view.job.federation.test, self._rows)
        self.found = feature_map(view.job.net, models, test, view.job.plan.seed)


def _run(method: str, given: opt.Given, folder: Path | None, observers: list[Observer]) -> Path:
    with lines_of(given.file):
        prepared: Prepared = prepare(resolve(method, {"experiment.rounds": _SHORT, **given.values}))
        refuse_unrepeatable(prepared.job)
    resolved = prepared.resolved
    place = folder or default_folder(resolved)
    refuse_existing(place)
    tell_reading(prepared.reading)
    with progress(method, resolved.experiment.rounds) as display:
        execute(prepared, place, [*observers, RoundProgress(display)])
    return place


def _keep(name: str, content: list[dict[str, Any]], folder: Path, as_json: bool) -> None:
    storage.write(folder / name, (json.dumps(content, indent=1) + "\n").encode())
    say(f"run and {name}: {folder}")
    if as_json:
        print(json.dumps({"folder": str(folder), "rounds": content}))


def _separation_table(rounds: list[RoundSeparation]) -> Table:
    table = Table("round")
    stages = ("before", "local", "aggregated")
    for stage in stages:
        table.add_column(f"{stage}, train", justify="right")
        table.add_column(f"{stage}, test", justify="right")
    for found in rounds:
        numbers = [getattr(getattr(found, stage), part) for stage in stages for part in ("train", "test")]
        table.add_row(str(found.round), *(f"{number:.2f}" for number in numbers))
    return table


def _mixing_table(seen: list[Mixing]) -> Table:
    table = Table("round", "client", "share of each class in")
    for number in range(len(seen[0].buffer)):
        table.add_column(str(number), justify="right")
    for found in seen:
        for name in ("buffer", "local", "mixed"):
            shares = [f"{share:.2f}" if share else "·" for share in getattr(found, name)]
            table.add_row(str(found.round), str(found.client), name, *shares)
    return table
