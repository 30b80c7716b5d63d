"""The picture: every simulator's time as a multiple of the bare loop, one panel a setting."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping, Sequence
from pathlib import Path

from ratios import Ratios

from peers.tables import Entry


def plot(results: Mapping[str, Sequence[Entry]], path: Path) -> bool:
    """Draw a PNG, SVG or PDF; False when matplotlib is not there."""
    if importlib.util.find_spec("matplotlib") is None:
        return False
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, panels = pyplot.subplots(
        1, len(results), figsize=(4.2 * len(results), 3.4), constrained_layout=True, squeeze=False
    )
    for axes, (setting, entries) in zip(panels[0], results.items(), strict=True):
        shown = sorted((entry for entry in entries if entry.measured), key=lambda entry: -entry.rounds_ratio.median)
        for offset, label, color in ((0.2, "rounds", "tab:blue"), (-0.2, "whole command", "tab:orange")):
            spreads: list[Ratios] = [entry.rounds_ratio if label == "rounds" else entry.whole_ratio for entry in shown]
            medians = [spread.median for spread in spreads]
            reach = [
                [spread.median - spread.low for spread in spreads],
                [spread.high - spread.median for spread in spreads],
            ]
            places = [place + offset for place in range(len(shown))]
            axes.barh(places, medians, 0.38, xerr=reach, color=color, label=label, error_kw={"linewidth": 0.8})
        axes.set_yticks(range(len(shown)), [entry.title for entry in shown])
        axes.axvline(1, color="black", linewidth=0.8)
        axes.set_title(setting)
        axes.set_xlabel("time / bare loop")
        axes.grid(axis="x", alpha=0.3)
    figure.legend(*panels[0][0].get_legend_handles_labels(), loc="outside lower center", ncols=2)
    figure.savefig(path, dpi=150)
    pyplot.close(figure)
    return True
