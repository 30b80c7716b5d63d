"""The picture of a comparison: its metric by round, mean over seeds with the range between them."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from fewfed.errors import ConfigError
from fewfed.metric import METRICS, Metric, metric_of
from fewfed.runs.folder import RunFolder

Curve = Sequence[tuple[int, float]]
"""Evaluated rounds, and what a metric was in them."""


def curve_of(folder: Path, metric: str = "accuracy") -> tuple[list[int], list[float]]:
    """Rounds of one run in which a metric was measured, and what it was."""
    records = [record for record in RunFolder(folder).metrics() if metric in record]
    return [record["round"] for record in records], [record[metric] for record in records]


def require_matplotlib() -> None:
    """Raise before work is done whose picture could not be drawn."""
    if importlib.util.find_spec("matplotlib") is None:
        raise ConfigError("drawing needs matplotlib: install fewfed[plot], or leave --plot out")


def plot_curves(runs: Mapping[str, Sequence[Path]], path: Path, title: str) -> None:
    """Draw one line a method into a PNG, SVG or PDF: the metric that the first of the runs is judged by."""
    require_matplotlib()
    metric = _metric_of(next(folder for folders in runs.values() for folder in folders))
    curves = {
        method: [list(zip(*curve_of(folder, metric.name), strict=True)) for folder in folders]
        for method, folders in runs.items()
    }
    draw_curves(curves, path, title, metric)


def draw_curves(
    curves: Mapping[str, Sequence[Curve]], path: Path, title: str, metric: Metric = METRICS["accuracy"]
) -> None:
    """Draw one line a name: the mean over its curves, and the range between them."""
    require_matplotlib()
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    scale, unit = (100, ", %") if metric.is_share else (1, "")
    figure, axes = pyplot.subplots(figsize=(7.5, 4.5), constrained_layout=True)
    for name, found in curves.items():
        shortest = min(len(curve) for curve in found)
        rounds = [round for round, _ in found[0][:shortest]]
        values = scale * np.array([[value for _, value in curve[:shortest]] for curve in found])
        (line,) = axes.plot(rounds, values.mean(0), label=name)
        if len(values) > 1:
            axes.fill_between(rounds, values.min(0), values.max(0), color=line.get_color(), alpha=0.15, linewidth=0)
    seeds = max((len(found) for found in curves.values()), default=1)
    axes.set_xlabel("round")
    axes.set_ylabel(f"test {metric.title}{unit}")
    axes.set_title(title)
    axes.grid(alpha=0.3)
    axes.legend(title=f"mean and range, {seeds} seed{'s' if seeds > 1 else ''}")
    figure.savefig(path, dpi=150)
    pyplot.close(figure)


def _metric_of(folder: Path) -> Metric:
    result = RunFolder(folder).result() or {}
    return metric_of(result.get("metric", "accuracy"))
