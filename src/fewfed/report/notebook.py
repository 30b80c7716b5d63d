"""Results as a notebook shows them: a small table, and the curves as a picture inside the page."""

from __future__ import annotations

import base64
import html
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fewfed.errors import FewfedError
from fewfed.metric import metric_of
from fewfed.report.curves import curve_of
from fewfed.report.page.charts import ROUND, Chart, Line, axis, over_runs, scaled, told
from fewfed.report.page.figures import lines_figure, standing_alone
from fewfed.report.rendering import as_html
from fewfed.runs.results import Result


def result_html(result: Result) -> str:
    """One run: its numbers and its curve."""
    found, metric = result.chosen, metric_of(result.metric)
    row = {"method": result.method, "preset": result.preset, "rounds": result.rounds, "seed": result.seed,
           "best": metric.shown(found.best), "last": metric.shown(found.last), "last 10": metric.shown(found.last10),
           "MB up": result.bytes["up"] / 1e6, "folder": result.folder}  # fmt: skip
    title = f"{result.data}, {result.split}, {result.clients} clients: {metric.title}"
    return as_html([row], title, [result.note] if result.note else []) + picture({result.method: [result]})


def picture(groups: Mapping[str, Sequence[Result]]) -> str:
    """The chosen metric by round, a line a name, with a band over seeds; nothing where the folders are not there.

    As an image, so that its style does not reach the rest of the page.
    """
    try:
        lines = [_line(label, number, results) for number, (label, results) in enumerate(groups.items())]
    except (FewfedError, OSError):  # The folders have been moved: the numbers are still right.
        return ""
    lines = [line for line in lines if line.x]
    if not lines:
        return ""
    metric = metric_of(next(iter(groups.values()))[0].metric)
    said = told(lines, metric, f"{metric.title} by round.")
    chart = Chart("curves", f"{metric.title} by round", ROUND, axis(metric), said, tuple(lines))
    content = base64.b64encode(standing_alone(lines_figure(chart)).encode()).decode()
    return f'<img alt="{html.escape(said)}" style="background:#fff" src="data:image/svg+xml;base64,{content}">'


def _line(label: str, mark: int, results: Sequence[Result]) -> Line:
    metric = metric_of(results[0].metric)
    curves = [dict(zip(*curve_of(Path(result.folder), metric.name), strict=True)) for result in results]
    places = sorted({place for curve in curves for place in curve})
    if not places:
        return Line(label, mark, True, (), ())
    mean, deviation = over_runs(np.array([[curve.get(place, np.nan) for place in places] for curve in curves]))
    low, high = (mean - deviation, mean + deviation) if len(curves) > 1 else (mean[:0], mean[:0])
    middle, below, above = (tuple(scaled(value, metric) for value in each.tolist()) for each in (mean, low, high))
    return Line(label, mark, True, tuple(map(float, places)), middle, below, above)
