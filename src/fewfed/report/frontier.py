"""A frontier as a table and a picture: accuracy against every measure of what leaks, and against bytes."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewfed.engine import storage
from fewfed.metric import Metric, metric_of
from fewfed.report.spreadsheet import lines_as_csv
from fewfed.report.table import Spread
from fewfed.report.tuned import setting

if TYPE_CHECKING:
    from rich.table import Table

TABLE, PICTURE = "frontier.csv", "frontier.svg"


@dataclass(frozen=True)
class Cost:
    """What a setting costs by one measure, over its seeds."""

    spread: Spread
    larger_is_worse: bool = True

    @property
    def worse(self) -> float:
        """A number that is larger where it is worse."""
        return self.spread.mean if self.larger_is_worse else -self.spread.mean


@dataclass(frozen=True)
class Point:
    """One setting: what it reaches and what it costs."""

    values: Mapping[str, Any]
    score: Spread
    """The chosen metric, mean of the last ten evaluations."""
    costs: Mapping[str, Cost] = field(default_factory=dict)
    """By measure. One that could not be taken at this setting is missing."""

    @property
    def name(self) -> str:
        return setting(self.values)


def costs_of(runs: Sequence[Mapping[str, tuple[float, bool]]]) -> dict[str, Cost]:
    """Costs over the runs of one setting; each run has a number, and whether larger is worse, by measure. A measure
    that a run lacks is left out: a mean over other seeds would not be comparable."""
    names = [name for name in runs[0] if all(name in run for run in runs)] if runs else []
    return {name: Cost(Spread.of([run[name][0] for run in runs]), runs[0][name][1]) for name in names}


def best_points(points: Sequence[Point], measure: str, metric: Metric) -> set[int]:
    """Which points no other beats: none is at least as good in score and cost, and better in one of them."""
    sign = -1.0 if metric.lower_is_better else 1.0
    there = [(n, sign * p.score.mean, p.costs[measure].worse) for n, p in enumerate(points) if measure in p.costs]
    return {
        n
        for n, score, cost in there
        if not any(s >= score and c <= cost and (s > score or c < cost) for _, s, c in there)
    }


def measures_of(points: Sequence[Point]) -> list[str]:
    return list(dict.fromkeys(name for point in points for name in point.costs))


def rich_table(points: Sequence[Point], title: str, metric: str = "accuracy") -> Table:
    """One row a setting; a star marks points that no other beats by that measure."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    judged, measures = metric_of(metric), measures_of(points)
    best = {name: best_points(points, name, judged) for name in measures}
    made = Table(
        title=escape(title),
        caption=f"{judged.title}: last 10; mean and deviation over seeds; * no other setting is better in both",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    made.add_column("setting", overflow="fold", min_width=16)
    for column in (judged.title, *measures):
        made.add_column(column, justify="right", overflow="fold")
    for number, point in enumerate(points):
        cells = [
            f"{_shown(point.costs[name].spread)}{' *' if number in best[name] else ''}" if name in point.costs else ""
            for name in measures
        ]
        made.add_row(escape(point.name), point.score.shown(judged), *cells)
    return made


def to_csv(points: Sequence[Point], metric: str = "accuracy") -> str:
    """The same rows for other programs."""
    judged, measures = metric_of(metric), measures_of(points)
    best = {name: best_points(points, name, judged) for name in measures}
    settings = list(dict.fromkeys(name for point in points for name in point.values))
    costs = [f"{name}{part}" for name in measures for part in ("", " sd", " not beaten")]
    lines = []
    for number, point in enumerate(points):
        row = [point.values.get(name, "") for name in settings] + [*_parts(point.score)]
        for name in measures:
            cost = point.costs.get(name)
            row += ["", "", ""] if cost is None else [*_parts(cost.spread), int(number in best[name])]
        lines.append(row)
    return lines_as_csv([*settings, metric, f"{metric} sd", *costs], lines)


def as_json(points: Sequence[Point], metric: str = "accuracy") -> list[dict[str, Any]]:
    """The same as plain values."""
    judged = metric_of(metric)
    best = {name: best_points(points, name, judged) for name in measures_of(points)}
    return [
        {
            "setting": dict(point.values),
            metric: {"mean": point.score.mean, "sd": point.score.deviation},
            "costs": {
                name: {"mean": cost.spread.mean, "sd": cost.spread.deviation, "not_beaten": number in best[name]}
                for name, cost in point.costs.items()
            },
        }
        for number, point in enumerate(points)
    ]


def write(points: Sequence[Point], root: Path, title: str, metric: str = "accuracy") -> Path | None:
    """The table into a folder, and the picture where it can be drawn; where the picture lies."""
    storage.write(root / TABLE, to_csv(points, metric).encode())
    if importlib.util.find_spec("matplotlib") is None:
        return None
    _draw(points, root / PICTURE, title, metric_of(metric))
    return root / PICTURE


def _draw(points: Sequence[Point], path: Path, title: str, metric: Metric) -> None:
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scale, unit = (100, ", %") if metric.is_share else (1, "")
    measures = measures_of(points)
    columns = min(3, len(measures))
    lines = -(-len(measures) // columns)
    size = (4.6 * columns, 3.8 * lines)
    figure, axes = pyplot.subplots(lines, columns, figsize=size, constrained_layout=True, squeeze=False)
    for place, name in zip(axes.flat, measures, strict=False):
        best = best_points(points, name, metric)
        for number, point in enumerate(points):
            if name not in point.costs:
                continue
            cost = point.costs[name].spread
            place.errorbar(
                cost.mean,
                scale * point.score.mean,
                xerr=cost.deviation or 0.0,
                yerr=scale * (point.score.deviation or 0.0),
                fmt="o" if number in best else "x",
                color="tab:blue" if number in best else "0.6",
            )
            place.annotate(point.name, (cost.mean, scale * point.score.mean), fontsize=6, alpha=0.8)
        chain = sorted((points[n].costs[name].spread.mean, scale * points[n].score.mean) for n in best)
        place.plot([x for x, _ in chain], [y for _, y in chain], color="tab:blue", alpha=0.4)
        place.set_xlabel(name, fontsize=8)
        place.set_ylabel(f"{metric.title}{unit}", fontsize=8)
        place.grid(alpha=0.3)
    for place in list(axes.flat)[len(measures) :]:
        place.set_visible(False)
    figure.suptitle(title, fontsize=9)
    figure.savefig(path)
    pyplot.close(figure)


def _shown(spread: Spread) -> str:
    mean = f"{spread.mean:.3g}"
    return mean if spread.deviation is None else f"{mean} ± {spread.deviation:.2g}"


def _parts(spread: Spread) -> tuple[str, str]:
    return f"{spread.mean:.6g}", "" if spread.deviation is None else f"{spread.deviation:.6g}"
