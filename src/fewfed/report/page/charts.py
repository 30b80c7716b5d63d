"""Curves of a page: means and deviations over seeds, single runs beside them, thinned to what a screen can show."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from fewfed.metric import Metric
from fewfed.report.page.setting import Labelled

MOST_POINTS = 60_000
"""Of all single curves of a page together: about half a megabyte."""
FEWEST_A_CURVE, MOST_A_CURVE = 40, 400
ROUND, TRAFFIC = "round", "MB sent"
"""What the lines of a chart run along; between rounds there is nothing."""
LINES_AT_FIRST = 8
"""Lines that are drawn before a reader asks for others."""


@dataclass(frozen=True)
class Line:
    """One row of the table as a line: its mean over seeds by round."""

    label: str
    mark: int
    """Which colour and stroke; the same for the same label everywhere."""
    shown: bool
    """Whether it is drawn at first."""
    x: tuple[float, ...]
    mean: tuple[float, ...]
    low: tuple[float, ...] = ()
    high: tuple[float, ...] = ()
    """A standard deviation below and above; nothing with one seed."""
    single: Mapping[str, tuple[float | None, ...]] | None = None
    """Every run by its seed, at the same places; None where a run has no such round."""
    key: str = ""
    """What it is known by while it grows: a label counts the rounds of what is not finished."""


@dataclass(frozen=True)
class Chart:
    """A figure with lines."""

    name: str
    """Of its file, and in the page."""
    title: str
    x: str
    y: str
    told: str
    """What there is to see, for those who do not see it."""
    lines: tuple[Line, ...]
    note: str = ""
    """Whether points are left out."""


def points_a_curve(runs: int) -> int:
    """How many points each of so many curves may have."""
    return max(FEWEST_A_CURVE, min(MOST_A_CURVE, MOST_POINTS // max(1, runs)))


def thinned(places: Sequence[int], most: int) -> list[int]:
    """At most so many of some places, evenly spread, with both ends."""
    if len(places) <= most:
        return list(places)
    step = (len(places) - 1) / (most - 1)
    return [places[round(number * step)] for number in range(most)]


def round_lines(rows: Sequence[Labelled], metric: Metric, most: int) -> tuple[Line, ...]:
    """A line for each row that has evaluated rounds."""
    there = [row for row in rows if any(run.curve for run in row.group.runs)]
    first = {row.label for row in sorted(there, key=lambda row: not row.is_baseline)[:1]}
    best = sorted(there, key=lambda row: row.rank, reverse=True)[: LINES_AT_FIRST - len(first)]
    shown = first | {row.label for row in best}
    return tuple(_line(row, metric, most, row.label in shown) for row in there)


def traffic_lines(rows: Sequence[Labelled], lines: Sequence[Line]) -> tuple[Line, ...]:
    """The same means, by the megabytes that were sent until then instead of by round."""
    found = []
    by_label = {row.label: row for row in rows}
    for line in lines:
        sent = _sent(by_label[line.label], [int(place) for place in line.x])
        # Of rounds in which nothing was sent the last is shown: training alone is a point.
        kept = [place for place, value in enumerate(sent) if value != (*sent, None)[place + 1]]
        if kept:
            x, mean = (tuple(values[place] for place in kept) for values in (sent, line.mean))
            found.append(Line(line.label, line.mark, line.shown, x, mean, key=line.key))
    return tuple(found) if any(any(line.x) for line in found) else ()


def scaled(value: float, metric: Metric) -> float:
    """A number as a chart has it: percent where the metric is a share; no more digits than anybody can see."""
    return round(100 * value, 2) if metric.is_share else float(f"{value:.4g}")


def axis(metric: Metric) -> str:
    return f"{metric.title}, %" if metric.is_share else metric.title


def told(lines: Sequence[Line], metric: Metric, what: str) -> str:
    """The ends of the lines in words."""
    ends = [f"{line.label}{':' if ',' in line.label else ''} {line.mean[-1]:g}" for line in lines if line.shown]
    between = "; " if any("," in line.label for line in lines) else ", "
    unit = " %" if metric.is_share else ""
    more = len(lines) - len(ends)
    others = f"; {more} more lines can be switched on" if more else ""
    return f"{what} At the end, in{unit or ' units of the metric'}: {between.join(ends)}{others}." if ends else what


def _line(row: Labelled, metric: Metric, most: int, shown: bool) -> Line:
    curves = {str(run.seed): dict(run.curve) for run in row.group.runs if run.curve}
    places = thinned(sorted({place for curve in curves.values() for place in curve}), most)
    values = np.array([[curve.get(place, np.nan) for place in places] for curve in curves.values()])
    mean, deviation = over_runs(values)
    several = len(curves) > 1
    single = {seed: _scaled(each, metric) for seed, each in zip(curves, values, strict=True)} if several else None
    return Line(
        row.label,
        row.mark,
        shown,
        tuple(places),
        _numbers(mean, metric),
        _numbers(mean - deviation, metric) if several else (),
        _numbers(mean + deviation, metric) if several else (),
        single,
        row.key,
    )


def over_runs(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Mean and sample deviation over the runs that have a number at each place; NaN marks those that have none. With
    one run there the deviation is 0."""
    known = ~np.isnan(values)
    count = known.sum(0)
    mean = np.where(known, values, 0).sum(0) / count
    squares = (np.where(known, values - mean, 0) ** 2).sum(0)
    return mean, np.sqrt(squares / np.maximum(count - 1, 1))


def _numbers(values: np.ndarray, metric: Metric) -> tuple[float, ...]:
    return tuple(scaled(value, metric) for value in values.tolist())


def _scaled(values: np.ndarray, metric: Metric) -> tuple[float | None, ...]:
    return tuple(None if value != value else scaled(value, metric) for value in values.tolist())


def _sent(row: Labelled, places: Sequence[int]) -> tuple[float, ...]:
    """Megabytes until each of some rounds, in the mean over the runs that came so far."""
    by_run = [
        dict(zip((place for place, _ in run.curve), detail.megabytes, strict=False))
        for run, detail in zip(row.group.runs, row.details, strict=True)
    ]
    found = [[sent[place] for sent in by_run if place in sent] for place in places]
    if not all(found):
        return ()
    # Where some runs end sooner than others the mean could step back, which no traffic does.
    sent, so_far = [], 0.0
    for values in found:
        so_far = max(so_far, statistics.fmean(values))
        sent.append(float(f"{so_far:.5g}"))
    return tuple(sent)
