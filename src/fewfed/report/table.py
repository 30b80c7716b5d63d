"""The table of a comparison: best, last, last-10 mean and the round of best validation over seeds, never best alone."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fewfed.metric import Metric, metric_of
from fewfed.report.leak import EXPLAINED, cell
from fewfed.report.rendering import fixed
from fewfed.report.spreadsheet import lines_as_csv
from fewfed.runs.results import Result, joined_notes

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    deviation: float | None
    """None with one seed: nothing is known about it."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else None)

    @classmethod
    def of_all(cls, values: Sequence[float | None]) -> Spread | None:
        """None where a value is missing."""
        there = [value for value in values if value is not None]
        return cls.of(there) if len(there) == len(values) else None

    def percent(self) -> str:
        return self._shown(100, 1)

    def shown(self, metric: Metric) -> str:
        """As numbers of a metric are shown, without their unit."""
        return self.percent() if metric.is_share else self._shown(1, 3)

    def _shown(self, times: int, digits: int) -> str:
        mean = fixed(times * self.mean, digits)
        if self.deviation is None:
            return mean
        return f"{mean} ±{fixed(times * self.deviation, digits):>{digits + 3}}"


@dataclass(frozen=True)
class Row:
    """One method over its seeds."""

    method: str
    seeds: int
    best: Spread
    last: Spread
    last10: Spread
    mb_up: float
    mb_down: float
    steps: float
    seconds: float
    failed: int
    note: str = ""
    """What is said about its data and splits."""
    best_validation: Spread | None = None
    """On the test part in the round that was best on the validation rows; None where a run has no such rows."""
    metric: str = "accuracy"
    """What the spreads are of."""
    leak_r2: float | None = None
    leak_reidentified: float | None = None
    """Of shared rows, as last measured, in the mean over seeds; None where none were shared."""

    @property
    def rank(self) -> float:
        """The larger the better."""
        return -self.last10.mean if metric_of(self.metric).lower_is_better else self.last10.mean


def rows(results: Sequence[tuple[str, Result]]) -> list[Row]:
    """One row a method, in the order methods first appear; several where its runs are judged by different metrics."""
    kinds = list(dict.fromkeys((name, result.metric) for name, result in results))
    return [_row(*kind, [result for name, result in results if (name, result.metric) == kind]) for kind in kinds]


def rich_table(table: Sequence[Row], title: str) -> Table:
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    # Every number fits into 80 columns: names of methods are what a narrow terminal folds.
    made = Table(
        title=escape(title),
        caption=caption(
            (row.metric for row in table),
            any(row.seeds > 1 for row in table),
            leaks=any(row.leak_r2 is not None for row in table),
        ),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    made.add_column("method", overflow="fold", min_width=8)
    judged = len({row.metric for row in table}) > 1
    validated = any(row.best_validation for row in table)
    spreads = ("best", "last", "last 10", *(["best valid."] if validated else []))
    for column in (*(["metric"] if judged else []), *spreads, "seeds", "MB up", "down", "steps", "s"):
        made.add_column(column, justify="right", no_wrap=True)
    leaks = any(row.leak_r2 is not None for row in table)
    if leaks:
        made.add_column("leak", justify="right", no_wrap=True)
    failures = any(row.failed for row in table)
    if failures:
        made.add_column("left out", justify="right")
    for row in table:
        metric = metric_of(row.metric)
        cells = [
            escape(row.method),
            *([metric.title] if judged else []),
            row.best.shown(metric),
            row.last.shown(metric),
            row.last10.shown(metric),
            *([row.best_validation.shown(metric) if row.best_validation else ""] if validated else []),
            str(row.seeds),
            f"{row.mb_up:.1f}",
            f"{row.mb_down:.1f}",
            f"{row.steps:.0f}",
            f"{row.seconds:.0f}",
            *([cell(row.leak_r2, row.leak_reidentified)] if leaks else []),
        ]
        top = max(other.rank for other in table if other.metric == row.metric)
        made.add_row(*cells, *([str(row.failed)] if failures else []), style="bold" if row.rank == top else "")
    return made


def to_csv(table: Sequence[Row]) -> str:
    """The same rows for other programs; accuracies and the like as fractions, no deviation with one seed."""
    spreads = ("best", "last", "last10", "best_validation")
    plain = ("mb_up", "mb_down", "steps", "seconds", "failed", "metric", "leak_r2", "leak_reidentified", "note")
    columns = ["method", "seeds", *(f"{name}_{part}" for name in spreads for part in ("mean", "sd")), *plain]
    lines = []
    for row in table:
        numbers = [
            "" if number is None else f"{number:.6f}" for name in spreads for number in _parts(getattr(row, name))
        ]
        lines.append([row.method, row.seeds, *numbers, *(getattr(row, name) for name in plain)])  # None is empty.
    return lines_as_csv(columns, lines)


def caption(metrics: Iterable[str], several: bool, *, leaks: bool = False) -> str:
    """What the numbers of a table are. `several`: whether any row has more than one seed; `leaks`: whether any shared
    rows."""
    found = [metric_of(name) for name in dict.fromkeys(metrics)]
    what = ", ".join(f"{metric.title} in %" if metric.is_share else metric.title for metric in found)
    lower = [metric.title for metric in found if metric.lower_is_better]
    parts = [
        f"{what}, {'mean ± standard deviation over seeds' if several else 'one seed'}",
        *([f"lower is better ({', '.join(lower)})" if len(found) > 1 else "lower is better"] if lower else []),
        "MB of a whole run",
        *([EXPLAINED] if leaks else []),
    ]
    return "; ".join(parts)


def _row(name: str, metric: str, results: Sequence[Result]) -> Row:
    return Row(
        method=name,
        seeds=len(results),
        best=Spread.of([result.chosen.best for result in results]),
        last=Spread.of([result.chosen.last for result in results]),
        last10=Spread.of([result.chosen.last10 for result in results]),
        mb_up=statistics.fmean(result.bytes["up"] for result in results) / 1e6,
        mb_down=statistics.fmean(result.bytes["down"] for result in results) / 1e6,
        steps=statistics.fmean(result.steps for result in results),
        seconds=statistics.fmean(result.seconds for result in results),
        failed=sum(result.failed for result in results),
        note=joined_notes(result.note for result in results),
        best_validation=Spread.of_all([result.chosen.best_validation for result in results]),
        metric=metric,
        leak_r2=mean_of_known([result.leak.r2 if result.leak else None for result in results]),
        leak_reidentified=mean_of_known([result.leak.reidentified if result.leak else None for result in results]),
    )


def mean_of_known(values: Iterable[float | None]) -> float | None:
    """None where no value is known."""
    known = [value for value in values if value is not None]
    return statistics.fmean(known) if known else None


def _parts(spread: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (spread.mean, spread.deviation)
