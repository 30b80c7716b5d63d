"""The table of a comparison: best, last, last-10 mean and the round of best validation over seeds, never best alone."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fewfed.runs.results import Result, joined_notes

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class Spread:
    """Mean and sample standard deviation over seeds."""

    mean: float
    deviation: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Spread:
        return cls(statistics.fmean(values), statistics.stdev(values) if len(values) > 1 else 0.0)

    @classmethod
    def of_all(cls, values: Sequence[float | None]) -> Spread | None:
        """None where a value is missing."""
        there = [value for value in values if value is not None]
        return cls.of(there) if len(there) == len(values) else None

    def percent(self) -> str:
        return f"{100 * self.mean:.1f} ±{100 * self.deviation:4.1f}"


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
    """Test accuracy in the round that was best on the validation rows; None where a run has no such rows."""


def rows(results: Sequence[tuple[str, Result]]) -> list[Row]:
    """One row a method, in the order methods first appear."""
    names = list(dict.fromkeys(name for name, _ in results))
    return [_row(name, [result for other, result in results if other == name]) for name in names]


def rich_table(table: Sequence[Row], title: str) -> Table:
    from rich import box
    from rich.table import Table

    caption = "accuracy in %, mean ± standard deviation over seeds; MB of a whole run"
    # Every number fits into 80 columns: names of methods are what a narrow terminal folds.
    made = Table(title=title, caption=caption, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
    made.add_column("method", overflow="fold", min_width=8)
    validated = any(row.best_validation for row in table)
    accuracies = ("best", "last", "last 10", *(["best valid."] if validated else []))
    for column in (*accuracies, "seeds", "MB up", "down", "steps", "s"):
        made.add_column(column, justify="right", no_wrap=True)
    failures = any(row.failed for row in table)
    if failures:
        made.add_column("left out", justify="right")
    top = max((row.last10.mean for row in table), default=0.0)
    for row in table:
        cells = [
            row.method,
            row.best.percent(),
            row.last.percent(),
            row.last10.percent(),
            *([row.best_validation.percent() if row.best_validation else ""] if validated else []),
            str(row.seeds),
            f"{row.mb_up:.1f}",
            f"{row.mb_down:.1f}",
            f"{row.steps:.0f}",
            f"{row.seconds:.0f}",
        ]
        made.add_row(*cells, *([str(row.failed)] if failures else []), style="bold" if row.last10.mean == top else "")
    return made


def to_csv(table: Sequence[Row]) -> str:
    """The same rows for other programs; accuracies as fractions."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spreads = ("best", "last", "last10", "best_validation")
    plain = ("mb_up", "mb_down", "steps", "seconds", "failed", "note")
    writer.writerow(["method", "seeds", *(f"{name}_{part}" for name in spreads for part in ("mean", "sd")), *plain])
    for row in table:
        numbers = [
            "" if number is None else f"{number:.6f}" for name in spreads for number in _parts(getattr(row, name))
        ]
        writer.writerow([row.method, row.seeds, *numbers, *(getattr(row, name) for name in plain)])
    return out.getvalue()


def _row(name: str, results: Sequence[Result]) -> Row:
    return Row(
        method=name,
        seeds=len(results),
        best=Spread.of([result.accuracy.best for result in results]),
        last=Spread.of([result.accuracy.last for result in results]),
        last10=Spread.of([result.accuracy.last10 for result in results]),
        mb_up=statistics.fmean(result.bytes["up"] for result in results) / 1e6,
        mb_down=statistics.fmean(result.bytes["down"] for result in results) / 1e6,
        steps=statistics.fmean(result.steps for result in results),
        seconds=statistics.fmean(result.seconds for result in results),
        failed=sum(result.failed for result in results),
        note=joined_notes(result.note for result in results),
        best_validation=Spread.of_all([result.accuracy.best_validation for result in results]),
    )


def _parts(spread: Spread | None) -> tuple[float | None, float | None]:
    return (None, None) if spread is None else (spread.mean, spread.deviation)
