"""`fewfed frontier`."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.faults import explained_in_run, failed_runs
from fewfed.cli.printing import out, progress, say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.errors import ConfigError
from fewfed.report.frontier import Point, as_json, costs_of, rich_table, write
from fewfed.report.progress import cell_reporter
from fewfed.report.table import Spread
from fewfed.runs.executors import packing_for
from fewfed.runs.frontier import DEFAULT_FOLDER, frontier
from fewfed.runs.results import Result, joined_notes
from fewfed.runs.tuning import Trial, axes_of

_COUNTED = re.compile(r" among [0-9 ]+(, .*)?")
"""Among how many rows one is found differs from setting to setting, and who looks in two ways takes the better."""
Costs = dict[str, tuple[float, bool]]
"""What a run costs by each measure, and whether larger is worse."""


@opt.of_experiments(*(name for name in opt.FLAGS if name not in ("executor", "precision")))
def show_frontier(
    given: opt.Given,
    method: Annotated[str, typer.Argument(help="One method, with its defences: grouped(flea).")],
    vary: Annotated[
        list[str] | None, typer.Option("--vary", help="Settings to vary, as in grouped.k=1,2,5. Repeatable.")
    ] = None,
    attacks: Annotated[
        str, typer.Option("--attacks", help="Attacks on every run, as in reconstruct,membership; none = leak alone.")
    ] = "",
    effort: Annotated[float, typer.Option(help="Rows and steps of an attack grow with it; 1 is the usual.")] = 1.0,
    seeds: Annotated[int | None, typer.Option("--seeds", min=1, help="Seeds of every setting, from --seed on.")] = None,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    folder: opt.Out = None,
    as_json_too: opt.AsJson = False,
) -> None:
    """Run one method at many settings: accuracy against everything that leaks, and against bytes.

    Finished runs, and what attacks found in them, are kept: the same command goes on where it was stopped.

    Example: fewfed frontier "grouped(flea)" --vary grouped.k=1,2,5 --seeds 3
    """
    kinds = [kind.strip() for kind in attacks.split(",") if kind.strip()]
    measure = _measuring(kinds, effort)
    root, values = folder or DEFAULT_FOLDER, dict(given.values)
    if kinds:
        values.setdefault("record", "packets")
    count = seeds if seeds is not None else (given.file.seeds if given.file else 1)
    with lines_of(given.file):
        planned = frontier(method, values, axes_of(vary or [], "--vary"), seeds=count, root=root)
        reading = planned.refuse_unready()
    tell_reading(reading)
    rounds = planned.cells[0].resolved.experiment.rounds
    with progress(f"{len(planned.cells)} runs", len(planned.cells) * rounds) as display:
        endings = planned.run(packing_for(jobs), cell_reporter(display, rounds), explained_in_run)
    finished = [(trial, results) for trial, results in planned.results(endings) if results]
    points, idle = _measured(finished, measure, kinds)
    if points:
        metric = finished[0][1][0].metric
        title = f"{method}, {count} seed{'s' if count > 1 else ''}"
        picture = write(points, root, title, metric)
        out.print(rich_table(points, title, metric))
        if notes := joined_notes(result.note for _, results in finished for result in results):
            say(f"data: {notes}")
        say(f"runs and frontier.csv: {root}" + (f"; picture: {picture}" if picture else "; no picture: fewfed[plot]"))
        if idle:
            say(f"attacks found nothing to work on in {len(idle)} runs, such as '{idle[0]}': 'fewfed attack' says why")
        if as_json_too:
            print(json.dumps({"folder": str(root), "points": as_json(points, metric)}))
    if error := failed_runs(endings, "runs"):
        raise error


def _measured(
    finished: Sequence[tuple[Trial, Sequence[Result]]], measure: Callable[[Result], Costs], kinds: Sequence[str]
) -> tuple[list[Point], list[str]]:
    """Every setting with its costs, and the folders of runs in which attacks found nothing to work on."""
    points: list[Point] = []
    idle: list[str] = []
    runs = sum(len(results) for _, results in finished)
    with progress("leaks", runs) as display:
        done = 0
        for trial, results in finished:
            costs = []
            for result in results:
                costs.append(measure(result))
                if kinds and costs[-1].keys() <= _cheap(result).keys():
                    idle.append(result.folder)
                done += 1
                display.show(done, Path(result.folder).name)
            score = Spread.of([result.chosen.last10 for result in results])
            points.append(Point(trial.values, score, costs_of(costs)))
    if idle and len(idle) == runs:
        raise ConfigError(
            f"attacks {', '.join(kinds)} found nothing to work on in '{idle[0]}', nor in any other run: "
            "'fewfed attack' says why"
        )
    return points, idle


def _measuring(kinds: Sequence[str], effort: float) -> Callable[[Result], Costs]:
    """What is measured of every run. Names of attacks that are none are refused before anything is run."""
    if not kinds:
        return _cheap
    from fewfed.privacy.attacks.opening import Effort
    from fewfed.privacy.attacks.registry import chosen

    chosen(kinds)
    Effort(effort)
    return lambda result: {**_cheap(result), **_attacked(result, kinds, effort)}


def _cheap(result: Result) -> Costs:
    """What every run says of itself."""
    traffic: Costs = {"MB up and down": ((result.bytes["up"] + result.bytes["down"]) / 1e6, True)}
    if result.leak is None:
        return traffic
    return {"leak: R2": (result.leak.r2, True), "leak: re-identified": (result.leak.reidentified, True), **traffic}


def _attacked(result: Result, kinds: Sequence[str], effort: float) -> Costs:
    """The strongest of each attack's variants, in any recorded round, by every measure that can be above chance."""
    from fewfed.privacy.attacks.remembered import findings_of

    found: Costs = {}
    for finding in findings_of(Path(result.folder), kinds, effort):
        for measure in finding["measures"]:
            if measure["chance"] is None:
                continue
            name = f"{finding['attack']}: {_COUNTED.sub('', measure['what'])}"
            value, larger = measure["value"], measure["larger_leaks"]
            before = found.get(name)
            if before is None or (value > before[0]) == larger:
                found[name] = (value, larger)
    return found
