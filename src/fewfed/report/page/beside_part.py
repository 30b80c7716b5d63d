"""Models that were scored beside the one a method predicts with, in the same runs: what its own choice gains."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from fewfed.methods.averaged import UNAVERAGED
from fewfed.metric import metric_of
from fewfed.report import paired
from fewfed.report.page.result_part import JUDGED, NAMES, difference_cell, spread_cell
from fewfed.report.page.setting import Labelled, Setting
from fewfed.report.page.sheets import Cell, Sheet, begun
from fewfed.report.table import Spread
from fewfed.runs.results import Summary

_MEANS: Mapping[str, str] = MappingProxyType(
    {UNAVERAGED: "the model as each round left it, without the average over rounds"}
)
"""Names that methods give to other models of theirs, in words."""


def beside(setting: Setting) -> Sheet | None:
    """One row for each such model of each method; nothing where no run has any."""
    metric = metric_of(setting.rows[0].group.first.metric)
    cells, plain = [], []
    several = False
    models = [(row, name) for row in setting.rows for name in _names(row)]
    for row, name in models:
        found = _by_seed(row, name)
        spreads = {which: Spread.of([getattr(summary, which) for summary in found.values()]) for which in NAMES}
        own = {seed: value for seed, value in row.by_seed(JUDGED).items() if seed in found}
        gain = paired.paired(own, {seed: getattr(one, JUDGED) for seed, one in found.items()}, metric)
        several = several or gain.half is not None
        cells.append((
            Cell(row.label), Cell(name), *(spread_cell(spread, metric) for spread in spreads.values()),
            difference_cell(gain, metric), Cell(f"{gain.won} of {gain.seeds}", gain.won),
        ))  # fmt: skip
        plain.append(_plain(row, name, metric.name, spreads, gain))
    if not cells:
        return None
    unit = "%, " if metric.is_share else ""
    many = any(len(row.group.runs) > 1 for row, _ in models)
    over = "mean ± standard deviation over seeds" if many else "one seed"
    said = f"{begun(metric.title)} of other models of the same runs, {unit}{over}"
    means = [f"{begun(name)}: {told}." for name, told in _MEANS.items() if any(one == name for _, one in models)]
    interval = "± is half of a 95 % interval by Student's t" if several else "one seed, no interval"
    note = " ".join([
        *means,
        "The method predicts with another model, whose numbers stand under Results. Difference: that one less this "
        f"one, by last 10, seed by seed; {interval}.",
    ])  # fmt: skip
    columns = ("method", "model", *NAMES.values(), "difference", "method better on")
    return Sheet("beside", said, columns, tuple(cells), tuple(plain), words=2, note=note)


def _names(row: Labelled) -> list[str]:
    return list(dict.fromkeys(name for detail in row.details for name in detail.beside))


def _by_seed(row: Labelled, name: str) -> dict[int, Summary]:
    return {
        run.seed: detail.beside[name]
        for run, detail in zip(row.group.runs, row.details, strict=True)
        if name in detail.beside and run.seed is not None
    }


def _plain(row: Labelled, name: str, metric: str, spreads: Mapping[str, Spread], gain: paired.Paired) -> dict[str, Any]:
    made: dict[str, Any] = {"method": row.label, "model": name, "metric": metric}
    for which, spread in spreads.items():
        made |= {f"{which}_mean": spread.mean, f"{which}_sd": spread.deviation}
    low, high = gain.interval or (None, None)
    return {**made, "last10_difference": gain.mean if gain.seeds else None, "last10_low": low, "last10_high": high,
            "seeds": gain.seeds, "won": gain.won}  # fmt: skip
