"""`fewfed advise`: which method fits some data, with the evidence."""

from __future__ import annotations

import json
import shlex
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Annotated

import typer

from fewfed.cli import options as opt
from fewfed.cli.faults import explained_in_run
from fewfed.cli.printing import out, progress, say
from fewfed.cli.reading import tell_reading
from fewfed.cli.run import lines_of
from fewfed.privacy.sharing import Share, share_of
from fewfed.report.advice import Advice, advised, rich_table
from fewfed.report.look import sentences
from fewfed.report.progress import cell_reporter
from fewfed.runs.advice import Bakeoff
from fewfed.runs.cells import Cell, LoadedData, Update
from fewfed.runs.considered import considered
from fewfed.runs.executors import packing_for
from fewfed.runs.question import DEFAULT_FOLDER, MINUTES, MOST_MINUTES, asked_of
from fewfed.runs.time_plan import MOST_SEEDS
from fewfed.runs.tuning import VALIDATION

_LONGER = 5
"""So many times the minutes, and twice the seeds."""
_NARROWEST = 80
_LEVELS = ", ".join(share.word for share in Share if share)


@opt.of_experiments(*(name for name in opt.FLAGS if name not in ("executor", "precision")))
def advise(
    given: opt.Given,
    methods: Annotated[
        list[str] | None, typer.Argument(help="Methods to try beside local and fedavg; none = what the data call for.")
    ] = None,
    minutes: Annotated[float, typer.Option("--minutes", help="Time that may be spent, in all.")] = MINUTES,
    share: Annotated[
        str, typer.Option("--share", help=f"What may leave a site at most: {_LEVELS}.")
    ] = Share.FEATURES.word,
    judge: Annotated[
        str, typer.Option("--judge", help="Rows a site's model must be good at: own, all; auto = own if known.")
    ] = "auto",
    seeds: Annotated[int, typer.Option("--seeds", min=1, help="Seeds of each method at most.")] = MOST_SEEDS,
    jobs: Annotated[int, typer.Option("--jobs", min=0, help="Runs at once; 0 = what the machine has room for.")] = 0,
    folder: opt.Out = None,
    as_json: opt.AsJson = False,
) -> None:
    """Look at the data, try a few methods on them for some minutes, and recommend one, with the evidence.

    Methods are judged on rows that every site holds back; each is shown with what leaves a site, bytes and leak. Says
    so where every site is better off alone. Finished runs are kept: the same command goes on.

    Example: fewfed advise --data patients.csv --label diagnosis --site hospital --minutes 10
    """
    names = tuple(methods or ()) or (given.file.methods if given.file else ())
    with lines_of(given.file):
        asked = asked_of(
            given.values,
            allowed=share,
            methods=names,
            judge=judge,
            seeds=seeds,
            minutes=minutes,
            root=folder or DEFAULT_FOLDER,
        )
        data = LoadedData()
        found = considered({**asked.values, "validation": asked.validation}, share_of(share), names, data)
        own = asked.judges_own(found.look)
    tell_reading(found.reading)
    for line in sentences(found.look):
        say(line)
    bakeoff = Bakeoff(asked, found, own, data, lambda: packing_for(jobs), _watch, explained_in_run)
    advice = advised(asked, found, bakeoff.run(), own, data)
    _show(advice)
    if as_json:
        print(json.dumps({**advice.as_json(), "commands": commands(advice)}))


def _show(advice: Advice) -> None:
    # In less room the table would leave out the names of methods first; a terminal breaks lines instead.
    out.width = max(out.width, _NARROWEST)
    out.print(rich_table(advice))
    for line in advice.reasons:
        say(line)
    say("")
    for what, command in commands(advice).items():
        say(f"{what}: {command}")
    say("")
    for line in advice.lines():
        say(line)
    say(f"runs and advice.json: {advice.asked.root}")


def commands(advice: Advice) -> dict[str, str]:
    """What to type next: train it, read what would leave a site, compare at length."""
    spec, settings = advice.recommended, advice.settings
    return {
        "train it": shlex.join(["fewfed", "run", spec, *opt.written(settings)]),
        "what leaves a site": shlex.join(["fewfed", "explain", spec, *opt.written(settings)]),
        "look longer": shlex.join(["fewfed", *_longer(advice)]),
    }


def _longer(advice: Advice) -> list[str]:
    """The recommended method against two others, with what was asked for: the rate and the cohort that were found for
    one method are not those of the others."""
    asked, spec = advice.asked, advice.recommended
    against = [each.spec for each in advice.evidence if not each.is_reference and each.spec != spec][:2]
    if not advice.own:
        rounds = {"rounds": advice.settings["rounds"]}
        return ["compare", spec, *against, "--seeds", "5", *opt.written({**asked.values, **rounds})]
    # A table of `compare` is of the rows of all sites: there a model that is best at home may look poor.
    share = [] if asked.allowed == Share.FEATURES.word else ["--share", asked.allowed]
    judge = [] if asked.judge == "auto" else ["--judge", asked.judge]
    held = [] if asked.validation == VALIDATION else ["--set", f"validation={asked.validation:g}"]
    minutes = min(MOST_MINUTES, max(MINUTES, _LONGER * asked.minutes))
    times = ["--minutes", f"{minutes:g}", "--seeds", str(2 * asked.seeds), "--out", f"{asked.root}-longer"]
    named = {} if asked.rounds is None else {"rounds": asked.rounds}
    return ["advise", spec, *against, *times, *share, *judge, *held, *opt.written({**asked.values, **named})]


@contextmanager
def _watch(title: str, cells: Sequence[Cell]) -> Iterator[Callable[[Update], None]]:
    rounds = max(cell.resolved.experiment.rounds for cell in cells)
    with progress(title, len(cells) * rounds) as display:
        yield cell_reporter(display, rounds)
