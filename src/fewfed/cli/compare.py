"""`fewfed compare`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.faults import explained_in_run, failed_runs
from fewfed.cli.printing import out, progress, say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.report.comparison import Comparison, compared
from fewfed.report.curves import require_matplotlib
from fewfed.report.progress import cell_reporter
from fewfed.report.table import rich_table
from fewfed.runs.comparison import DEFAULT_FOLDER, planned
from fewfed.runs.executors import packing_for
from fewfed.tracking.registry import checked


@opt.of_experiments(*(name for name in opt.FLAGS if name not in ("executor", "precision")))
def compare(
    given: opt.Given,
    methods: Annotated[list[str] | None, typer.Argument(help="Methods to compare.")] = None,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Seeds for each method, from --seed on.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    plot: Annotated[bool, typer.Option("--plot", help="Draw accuracy by round into the result folder.")] = False,
    folder: opt.Out = None,
    track: opt.Track = None,
    as_json: opt.AsJson = False,
) -> None:
    """Run several methods over several seeds on the same splits and cohorts, and show them side by side.

    Finished runs in the result folder are kept: the same command continues an interrupted comparison.

    Example: fewfed compare fedavg flea --seeds 3 --data digits --split dir:0.1 --plot
    """
    trackers = checked(track or ())
    names = tuple(methods or ()) or (given.file.methods if given.file else ())
    if plot:
        require_matplotlib()
    count = seeds if seeds is not None else (given.file.seeds if given.file else 1)
    with lines_of(given.file):
        runs = planned(names, given.values, count, folder or DEFAULT_FOLDER)
        reading = runs.refuse_unready()
    tell_reading(reading)
    packing = packing_for(jobs)
    with progress(f"{len(runs.cells)} runs", len(runs.cells) * runs.rounds) as display:
        endings = runs.run(packing, cell_reporter(display, runs.rounds), explained_in_run, trackers)
    if packing.why:
        say(packing.why)
    comparison = compared(runs, endings)
    if comparison.named:
        show_comparison(comparison, plot)
        say("not tuned: beside what you set, methods have their default settings; 'fewfed tune' searches for all alike")
    if as_json:
        print(json.dumps({"folder": str(comparison.folder), "runs": [each.as_json() for each in comparison.results],
                          "failed": dict(comparison.failed),
                          **({"reading": reading.as_json()} if reading else {})}))  # fmt: skip
    if error := failed_runs(endings, "runs"):
        raise error


def show_comparison(comparison: Comparison, plot: bool) -> None:
    out.print(rich_table(comparison.rows, comparison.title))
    if comparison.notes:
        say(f"data: {comparison.notes}")
    say(f"runs and table.csv: {comparison.folder}")
    if plot:
        say(f"picture: {comparison.plot()}")
