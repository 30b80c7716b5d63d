"""`fewfed tune`."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.compare import show_comparison
from fewfed.cli.faults import explained_in_run, failed_runs
from fewfed.cli.printing import out, progress, say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.errors import ConfigError
from fewfed.report.comparison import compared
from fewfed.report.progress import cell_reporter
from fewfed.report.tuned import Tuned, search_table, told, write
from fewfed.runs.executors import packing_for
from fewfed.runs.tuning import DEFAULT_FOLDER, VALIDATION, axes_of, by_of, search


@opt.of_experiments(*(name for name in opt.FLAGS if name not in ("executor", "precision")))
def tune(
    given: opt.Given,
    methods: Annotated[list[str] | None, typer.Argument(help="Methods to search settings for.")] = None,
    over: Annotated[
        list[str] | None, typer.Option("--over", help="What is searched, as in lr=0.001,0.01,epochs=1,5. Repeatable.")
    ] = None,
    on: Annotated[str, typer.Option("--on", help="Rows that settings are judged by: validation.")] = "validation",
    by: Annotated[str, typer.Option("--by", help="best, last or last10 of a run on these rows.")] = "last10",
    trials: Annotated[int, typer.Option("--trials", min=0, help="Settings of each method at most; 0 = all.")] = 0,
    search_seeds: Annotated[int, typer.Option("--search-seeds", min=1, help="Seeds of every setting.")] = 1,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Seeds of what is chosen, from --seed.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Search settings for several methods with the same budget, then compare what was chosen on the test part.

    Settings are judged on rows that every client holds back (--set validation=0.2 is a fifth of them). Finished runs
    in the result folder are kept: the same command continues an interrupted search.

    Example: fewfed tune fedavg flea --over lr=0.001,0.01,epochs=1,5 --seeds 3 --split dir:0.1
    """
    if on != "validation":
        raise ConfigError(f"--on {on}: expected validation; who searches on test rows has no test any more")
    names = tuple(methods or ()) or (given.file.methods if given.file else ())
    count = seeds if seeds is not None else (given.file.seeds if given.file else 1)
    root = folder or DEFAULT_FOLDER
    values = dict(given.values)
    part = opt.number("validation", values.pop("validation", VALIDATION))
    with lines_of(given.file):
        planned = search(
            names,
            values,
            axes_of(over or []),
            seeds=search_seeds,
            most=trials,
            validation=part,
            by=by_of(by),
            root=root,
        )
        reading = planned.refuse_unready()
    tell_reading(reading)
    say(told(planned))
    packing = packing_for(jobs)
    rounds = planned.cells[0].resolved.experiment.rounds
    with progress(f"{len(planned.cells)} runs of the search", len(planned.cells) * rounds) as display:
        endings = planned.run(packing, cell_reporter(display, rounds), explained_in_run)
    tried = planned.judged(endings)
    runs = planned.final(tried, count)
    write(planned, tried)
    out.print(search_table(planned, tried))
    with progress(f"{len(runs.cells)} runs of what is chosen", len(runs.cells) * runs.rounds) as display:
        ended = runs.run(packing, cell_reporter(display, runs.rounds), explained_in_run)
    tuned = Tuned(planned, tuple(tried), compared(runs, ended))
    if tuned.comparison.named:
        show_comparison(tuned.comparison, plot=False)
    if as_json:
        found = {"folder": str(root), "trials": tuned.trials, "chosen": tuned.chosen}
        print(json.dumps({**found, "runs": [each.as_json() for each in tuned.comparison.results]}))
    if error := failed_runs([*endings, *ended], "runs"):
        raise error
