"""`fewfed run` and `fewfed resume`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.printing import progress, say, warn
from fewfed.cli.reading import tell_reading
from fewfed.data.reading import Reading
from fewfed.errors import ConfigError, DataError
from fewfed.methods.registry import label_of
from fewfed.metric import metric_of
from fewfed.privacy.record import FOLDER as PACKETS
from fewfed.privacy.record import Record
from fewfed.report.leak import sentence
from fewfed.report.progress import RoundProgress
from fewfed.runs.api import resume as resume_run
from fewfed.runs.budget import told_privacy
from fewfed.runs.config_file import ConfigFile
from fewfed.runs.execute import execute
from fewfed.runs.experiment import Resolved, resolve
from fewfed.runs.folder import RunFolder, refuse_existing
from fewfed.runs.naming import default_folder
from fewfed.runs.prepare import prepare
from fewfed.runs.results import Result
from fewfed.tracking.registry import checked


@opt.of_experiments()
def run(
    given: opt.Given,
    method: Annotated[str | None, typer.Argument(help="Method, method:preset, wrapper(method) or file.py.")] = None,
    folder: opt.Out = None,
    track: opt.Track = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run one method.

    Example: fewfed run flea --data digits --split qua:2 --clients 40 --cohort 8 --rounds 30
    """
    trackers = checked(track or ())
    if method is None:
        if given.file is None or len(given.file.methods) != 1:
            raise ConfigError("which method? Name one, as in 'fewfed run flea', or give it in the TOML file")
        method = given.file.methods[0]
    with lines_of(given.file):
        prepared = prepare(resolve(method, given.values))
    path = folder or default_folder(prepared.resolved)
    refuse_existing(path)
    tell_reading(prepared.reading)
    with progress(label_of(method), prepared.resolved.experiment.rounds) as display:
        result = execute(prepared, path, [RoundProgress(display)], track=trackers)
    _tell(result, as_json, prepared.reading)


def resume(
    folder: Path,
    method: Annotated[str, typer.Option(help="The run's method again, where it is a file you have not run yet.")] = "",
    network: Annotated[str, typer.Option(help="The run's network again, where it is such a file.")] = "",
    executor: Annotated[str, typer.Option(help="Another executor than the run had.")] = "",
    epsilon: Annotated[float | None, typer.Option(help="A larger privacy budget than the run had.")] = None,
    policy: Annotated[str, typer.Option(help="Another file of what sites allow to leave them.")] = "",
    track: opt.Track = None,
    as_json: opt.AsJson = False,
) -> None:
    """Continue a run that was stopped, also for the trackers that it had.

    Example: fewfed resume runs/flea-digits-qua-2-seed0
    """
    config = RunFolder.open(folder)[1]
    resolved = Resolved.from_json(config)
    with progress(str(config.get("label", resolved.spec)), resolved.experiment.rounds) as display:
        watching = [RoundProgress(display)]
        result = resume_run(
            folder,
            method=method,
            network=network or None,
            executor=executor,
            epsilon=epsilon,
            policy=policy,
            observers=watching,
            track=track,
            progress=False,
        )
    _tell(result, as_json)


@contextmanager
def lines_of(file: ConfigFile | None) -> Iterator[None]:
    """What is wrong with a key of the file is reported with its line."""
    try:
        yield
    except (ConfigError, DataError) as error:
        raise (file.explain(error) if file else error) from None


def _tell(result: Result, as_json: bool, reading: Reading | None = None) -> None:
    found, shown = result.chosen, metric_of(result.metric).shown
    of_which = "" if result.metric == "accuracy" else f"{metric_of(result.metric).title} "
    say(
        f"{result.method} ({result.preset}) on {result.data}, {result.split}, {result.clients} clients, "
        f"seed {result.seed}: {of_which}"
        f"best {shown(found.best)}, last {shown(found.last)}, last 10 {shown(found.last10)}"
        + ("" if found.best_validation is None else f", best validation {shown(found.best_validation)}")
    )
    say(
        f"{result.bytes['up'] / 1e6:.1f} MB up, {result.bytes['down'] / 1e6:.1f} MB down, {result.steps} steps, "
        f"{result.seconds:.1f} s; folder {result.folder}"
    )
    if result.leak:
        say(sentence(result.leak))
    if result.note:
        say(f"data: {result.note}")
    if result.privacy:
        say(told_privacy(result.privacy))
    _tell_record(Path(result.folder))
    if result.failed:
        warn(f"{result.failed} turns of clients were left out: metrics.jsonl says which and why")
    if as_json:
        sys.stdout.flush()
        print(json.dumps({**result.as_json(), **({"reading": reading.as_json()} if reading else {})}))


def _tell_record(folder: Path) -> None:
    """Which packets were kept, where a run was to keep any."""
    if not (folder / PACKETS).is_dir():
        return
    record = Record.open(folder)
    rounds = ", ".join(map(str, record.rounds)) or "no round"
    say(f"packets of round {rounds}: {record.size / 1e6:.1f} MB in {folder / PACKETS}")
    if record.left_out:
        first = record.left_out[0]
        warn(
            f"packets from round {first.round}, phase '{first.phase}' on were left out, since they would take more "
            f"than {record.most_bytes / 1e6:g} MB (record_mb)"
        )
