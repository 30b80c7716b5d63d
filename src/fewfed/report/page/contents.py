"""What a page says: plain data made from run folders, without a word about how it looks."""

from __future__ import annotations

import dataclasses
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewfed.data.splits import SHOWN_CLASSES
from fewfed.errors import RunError
from fewfed.metric import metric_of
from fewfed.report.overview import overview
from fewfed.report.page import beside_part, charts, privacy_part, result_part, words
from fewfed.report.page.charts import Chart
from fewfed.report.page.detail import Counts, Detail, detail_of
from fewfed.report.page.figures import lines_figure, map_figure, split_figure
from fewfed.report.page.repeat import commands, without_command
from fewfed.report.page.setting import Labelled, Setting, settings_of
from fewfed.report.page.sheets import Cell, Sheet, begun
from fewfed.report.rendering import printable
from fewfed.report.survey import Found
from fewfed.version import __version__

MOST_TASKS = 12
"""Tasks with charts and pictures of their own; further ones have their tables."""
MOST_MARKS, _DOT = 20_000, 2
"""Cells of splits and points of features in all pictures of a page together: half a megabyte. A point takes more."""
MOST_ATTACKS, _FEWEST_ATTACKS = 400, 12
"""Numbers of attacks on a page, and of each task where there are many."""
_MACHINE = ("system", "processor", "cores", "gpu", "python", "torch", "numpy", "fewfed")


@dataclass(frozen=True)
class Figure:
    """A picture that needs no script."""

    name: str
    caption: str
    svg: str


@dataclass(frozen=True)
class Task:
    """All about rows that can be compared."""

    name: str
    """What its files begin with; empty where there is one task."""
    title: str
    described: tuple[str, ...]
    results: Sheet
    sentences: tuple[str, ...] = ()
    """Each method against the baseline."""
    differences: Sheet | None = None
    beside: Sheet | None = None
    """Other models of the same runs."""
    intervals: Figure | None = None
    curves: Chart | None = None
    traffic: Chart | None = None
    stills: tuple[Figure, ...] = ()
    """Both charts where no script runs."""
    classes: Sheet | None = None
    sites: Sheet | None = None
    split: Figure | None = None
    leaving: Sheet | None = None
    leak: Sheet | None = None
    epsilon: tuple[str, ...] = ()
    attacks: Sheet | None = None
    idle: tuple[str, ...] = ()
    attackers: tuple[str, ...] = ()
    separation: Sheet | None = None
    maps: tuple[Figure, ...] = ()
    left_out: tuple[str, ...] = ()
    """Clients whose turns were left out."""
    commands: tuple[str, ...] = ()
    without_command: tuple[str, ...] = ()
    """Rows that cannot be had again by a command, and why."""

    @property
    def sheets(self) -> list[Sheet]:
        """All tables, in the order of the page."""
        found = (self.results, self.differences, self.beside, self.classes, self.sites, self.leaving, self.leak,
                 self.attacks, self.separation)  # fmt: skip
        return [sheet for sheet in found if sheet is not None]

    @property
    def figures(self) -> list[Figure]:
        found = (*self.stills, self.intervals, self.split, *self.maps)
        return [figure for figure in found if figure is not None]

    @property
    def charts(self) -> list[Chart]:
        return [chart for chart in (self.curves, self.traffic) if chart is not None]


@dataclass(frozen=True)
class Contents:
    """A page."""

    title: str
    lead: tuple[str, ...]
    tasks: tuple[Task, ...]
    runs: Sheet
    """Every run, also what is unfinished or damaged."""
    machines: Sheet | None = None
    problems: tuple[str, ...] = ()
    """What is damaged, unfinished or left out."""
    fewfed: str = field(default=__version__)

    def as_json(self) -> dict[str, Any]:
        """Plain data; None for what is no number."""
        found: dict[str, Any] = plain(dataclasses.asdict(self))
        return found


@dataclass
class _Room:
    """What pictures may still hold, on a page that is to stay small."""

    marks: int = MOST_MARKS
    is_full: bool = False

    def takes(self, marks: int) -> bool:
        fits = marks <= self.marks
        self.marks -= marks if fits else 0
        self.is_full = self.is_full or not fits
        return fits


def contents(found: Sequence[Found], *, baseline: str = "", read: Callable[[Found], Detail] = detail_of) -> Contents:
    """The page of some runs. `baseline`: the method that others are compared with. `read`: reads a run's folder, for
    somebody who keeps what was read."""
    if not found:
        raise RunError("there are no runs to report: expected at least one run folder")
    seen = overview(found, unfinished_together=True)
    details = {str(run.folder): read(run) for run in found}
    settings = settings_of(seen, details, baseline)
    most = charts.points_a_curve(len(found))
    several = len(settings) > 1
    room, attacks = _Room(), max(_FEWEST_ATTACKS, MOST_ATTACKS // max(1, len(settings)))
    tasks = tuple(
        _task(setting, f"task{number}-" if several else "", most, room, attacks, pictured=number <= MOST_TASKS)
        for number, setting in enumerate(settings, 1)
    )
    problems = [*seen.remarks, *(problem for run in found for problem in details[str(run.folder)].problems)]
    if len(settings) > MOST_TASKS:
        problems.append(f"only the first {MOST_TASKS} tasks have pictures: name fewer folders to see those of others")
    if room.is_full:
        problems.append("not all pictures of splits and of features have room: name fewer folders to see the others")
    return Contents(
        words.title(settings, found),
        tuple(words.lead(settings, found, len(seen.repeated))),
        tasks,
        _runs(found),
        _machines([details[str(run.folder)] for run in found]),
        tuple(dict.fromkeys(printable(problem, 1000) for problem in problems)),
    )


def plain(value: Any) -> Any:
    """The same for JSON, which knows no infinity and no NaN."""
    if isinstance(value, dict):
        return {str(name): plain(one) for name, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _task(setting: Setting, name: str, most: int, room: _Room, attacks: int, *, pictured: bool) -> Task:
    rows = setting.rows
    sheet, sentences, intervals = result_part.differences(setting)
    curves, traffic = _charts(setting, name, most) if pictured else (None, None)
    stills = [Figure(chart.name, chart.title, lines_figure(chart)) for chart in (curves, traffic) if chart]
    return Task(
        name,
        setting.title,
        tuple(printable(line, 1000) for line in words.described(setting)),
        result_part.results(setting),
        sentences,
        sheet,
        beside_part.beside(setting),
        Figure(f"{name}differences", sheet.caption, intervals) if sheet and intervals else None,
        curves,
        traffic,
        tuple(stills),
        result_part.by_class(setting),
        result_part.by_site(setting),
        _split(rows, name, room) if pictured else None,
        privacy_part.leaving(rows),
        privacy_part.leaks(rows),
        tuple(privacy_part.budgets(rows)),
        privacy_part.attacked(rows, attacks),
        tuple(privacy_part.idle(rows)),
        tuple(words.attackers(rows)),
        _separation(rows),
        tuple(_maps(rows, name, room)) if pictured else (),
        tuple(_left_out(rows)),
        tuple(commands(rows)),
        tuple(without_command(rows)),
    )


def _charts(setting: Setting, name: str, most: int) -> tuple[Chart | None, Chart | None]:
    metric = metric_of(setting.rows[0].group.first.metric)
    lines = charts.round_lines(setting.rows, metric, most)
    if not lines:
        return None, None
    asked = max(len({place for place, _ in run.curve}) for row in setting.rows for run in row.group.runs)
    thinned = f"Of {asked} evaluated rounds {most} are drawn." if asked > most else ""
    fewer = "Not all seeds have a number in every round: means are over those that do." if _ended(lines) else ""
    note = " ".join(filter(None, (thinned, fewer)))
    several = any(line.low for line in lines)
    named = begun(metric.title)
    what = f"{named} on the test part by round{', mean over seeds' if several else ''}."
    curves = Chart(f"{name}curves", f"{named} by round", charts.ROUND, charts.axis(metric),
                   charts.told(lines, metric, what), lines, note)  # fmt: skip
    sent = charts.traffic_lines(setting.rows, lines)
    if not sent:
        return curves, None
    what = f"{named} by the megabytes sent until then, up and down together, by all clients."
    traffic = Chart(f"{name}traffic", f"{named} by traffic", charts.TRAFFIC, charts.axis(metric),
                    charts.told(sent, metric, what), sent, note)  # fmt: skip
    return curves, traffic


def _ended(lines: Sequence[charts.Line]) -> bool:
    """Whether a mean is over fewer runs at one place than at another, so that it may jump there."""
    return any(None in values for line in lines for values in (line.single or {}).values())


def _split(rows: Sequence[Labelled], name: str, room: _Room) -> Figure | None:
    """Of the first run that has it; other seeds have other splits of the same kind."""
    for row in rows:
        for run, detail in zip(row.group.runs, row.details, strict=True):
            if detail.counts and detail.counts.clients and detail.counts.classes:
                if not room.takes(sum(count > 0 for row in detail.counts.clients for count in row)):
                    return None
                told = _split_told(detail.counts, detail, run)
                return Figure(f"{name}split", told, split_figure(detail.counts, told))
    return None


def _split_told(counts: Counts, detail: Detail, run: Found) -> str:
    shown, there = len(counts.clients), run.clients or len(counts.clients)
    all_of_them = f"all {there} clients" if there > 1 else "the client"
    which = f"the first {shown} of {there} clients" if shown < there else all_of_them
    most = max((count for row in counts.clients for count in row), default=0)
    empty = detail.split.get("sparsity")
    sparse = f" {100 * empty:.0f} % of all pairs of client and class are empty." if isinstance(empty, float) else ""
    what = _classes_told(len(counts.classes), len(detail.per_class))
    rows = words.count(most, "row")
    return f"Rows of {what} on {which}, seed {run.seed}; the fullest cell holds {rows}.{sparse}"


def _classes_told(shown: int, there: int) -> str:
    """Of many classes the first are in the picture. How many there are is known of what was scored."""
    if shown < there:
        return f"the first {shown} of {there} classes"
    return f"the first {shown} classes" if shown >= SHOWN_CLASSES and not there else "each class"


def _separation(rows: Sequence[Labelled]) -> Sheet | None:
    """Davies-Bouldin scores of the last round they were taken in."""
    cells = []
    for row in rows:
        for run, detail in zip(row.group.runs, row.details, strict=True):
            if detail.separation:
                last, scores = detail.separation[-1]
                numbers = [Cell("" if score is None else f"{score:.2f}", score) for score in scores.values()]
                cells.append((Cell(f"{row.label}, seed {run.seed}"), Cell(str(last), last), *numbers))
    if not cells:
        return None
    said = "Davies-Bouldin score of penultimate features on test rows; lower is better separated"
    columns = ("run", "round", "before local training", "after it", "after aggregation")
    return Sheet("separation", said, columns, tuple(cells))


def _maps(rows: Sequence[Labelled], name: str, room: _Room) -> list[Figure]:
    found: list[Figure] = []
    for row in rows:
        for detail in row.details[:1]:
            # Models of one run are looked at side by side.
            if detail.panels and not room.takes(_DOT * len(detail.panels) * len(detail.labels)):
                continue
            for number, panel in enumerate(detail.panels):
                score = "" if panel.score is None else f", Davies-Bouldin {panel.score:.2f}"
                told = f"t-SNE of features, {row.label}, {panel.name}{score}"
                svg = map_figure(panel, detail.labels, told)
                found.append(Figure(f"{name}features-{len(found)}-{number}", told, svg))
    return found


def _left_out(rows: Sequence[Labelled]) -> list[str]:
    found = []
    for row in rows:
        causes: dict[str, int] = {}
        for detail in row.details:
            for cause, number in detail.failed.items():
                causes[cause] = causes.get(cause, 0) + number
        if causes:
            told = ", ".join(f"{number} by cause '{cause}'" for cause, number in causes.items())
            found.append(f"{row.label}: {told}")
    return found


def _runs(found: Sequence[Found]) -> Sheet:
    """Folders by the part of their names in which they differ: comparisons call their runs alike."""
    places = [Path(os.path.abspath(run.folder)) for run in found]
    above = Path(os.path.commonpath([place.parent for place in places]))
    cells = tuple(
        (
            Cell(printable(place.relative_to(above))), Cell(run.method),
            Cell("" if run.seed is None else str(run.seed), run.seed),
            Cell(f"{run.done} of {run.rounds if run.rounds is not None else '?'}", run.done),
            Cell(run.state),
        )
        for run, place in zip(found, places, strict=True)
    )  # fmt: skip
    plain_rows = tuple(
        {"folder": printable(run.folder, 1000), "method": run.method, "seed": run.seed, "done": run.done,
         "rounds": run.rounds, "state": run.state, "problem": run.problem}
        for run in found
    )  # fmt: skip
    return Sheet("runs", "Every run", ("folder", "method", "seed", "rounds", "state"), cells, plain_rows, words=2)


def _machines(details: Sequence[Detail]) -> Sheet | None:
    """The machines and versions that runs were computed with, each once."""
    different: dict[tuple[str, ...], int] = {}
    for detail in details:
        if detail.environment:
            key = tuple(detail.environment.get(name, "") for name in _MACHINE)
            different[key] = different.get(key, 0) + 1
    if not different:
        return None
    there = [place for place in range(len(_MACHINE)) if any(key[place] for key in different)]
    cells = tuple(
        (*(Cell(key[place]) for place in there), Cell(str(number), number)) for key, number in different.items()
    )
    columns = (*(_MACHINE[place] for place in there), "runs")
    return Sheet("machines", "Hardware and versions", columns, cells, words=len(there))
