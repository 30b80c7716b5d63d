"""Our numbers beside the paper's: one row a setting and method, over its seeds."""

from __future__ import annotations

import csv
import io
import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from fewfed.errors import RunError
from fewfed.report.leak import EXPLAINED, cell
from fewfed.report.table import Spread
from fewfed.reproduction.coordinates import Coordinates, Value
from fewfed.reproduction.curve import CurveCheck, check_curve
from fewfed.reproduction.outcome import Outcome
from fewfed.reproduction.published import PublishedValue
from fewfed.reproduction.study import Planned, Study
from fewfed.runs.results import joined_notes

if TYPE_CHECKING:
    from rich.table import Table


HEADINGS = {"best": "best", "last": "last", "last10": "last 10", "best_validation": "best valid."}
"""What a reader sees of the accuracies that a study may compare."""
LEAK = "leak"


@dataclass(frozen=True)
class Row:
    """One setting and method over its finished seeds. Spreads are fractions, `published` and `difference` percent."""

    at: Coordinates
    seeds: int
    rounds: int
    best: Spread
    last: Spread
    last10: Spread
    terms: Mapping[str, float]
    published: PublishedValue | None
    difference: float | None
    """Ours minus the paper's in points, of the accuracy the study compares."""
    note: str
    best_validation: Spread | None = None
    """Test accuracy in the round that was best on the validation rows; None where a run has no such rows."""
    megabytes: tuple[float, float] | None = None
    """What clients sent and received, mean over those seeds of which it is known."""
    leak: tuple[float, float] | None = None
    """R2 of shared rows as an attacker reconstructs them, and the part re-identified; likewise."""

    @property
    def leak_cell(self) -> str:
        return "" if self.leak is None else cell(*self.leak)

    def verdict(self, compare: str) -> str:
        """Whether the difference lies within two deviations, ours and the paper's together."""
        if self.published is None or self.difference is None:
            return ""
        ours: Spread | None = getattr(self, compare)
        if ours is None:
            return ""
        if ours.deviation is None:
            return "one seed"
        if abs(self.difference) <= 2 * math.hypot(100 * ours.deviation, self.published.sd or 0.0):
            return "agrees"
        return "higher" if self.difference > 0 else "lower"


def compared(study: Study, finished: Sequence[tuple[Planned, Outcome]]) -> list[Row]:
    """Rows in the order of the study; settings without a finished run are left out."""
    by_setting: dict[tuple[tuple[str, Value], ...], list[tuple[Planned, Outcome]]] = {}
    for run, outcome in finished:
        by_setting.setdefault(run.setting, []).append((run, outcome))
    order = dict.fromkeys(run.setting for run in study.runs)
    return [_row(study, by_setting[setting]) for setting in order if setting in by_setting]


def accuracies_of(rows: Iterable[Row]) -> list[str]:
    """Which accuracies a table shows: that of best validation where a row has it."""
    validated = any(row.best_validation for row in rows)
    return [name for name in HEADINGS if validated or name != "best_validation"]


def curve_checks(study: Study, finished: Sequence[tuple[Planned, Outcome]]) -> list[CurveCheck]:
    """The study's published curve, if it has one, against the finished runs."""
    if not study.curve or not finished:
        return []
    return check_curve(study.curve, [outcome.values for _, outcome in finished])


def to_csv(study: Study, rows: Sequence[Row]) -> str:
    """The comparison for other programs. Every accuracy is in percent, as the papers print it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    accuracies = [f"{name}_{part}" for name in HEADINGS for part in ("mean", "sd")]
    against = ("published_mean", "published_sd", "difference")
    beside = ("mb_up", "mb_down", "leak_r2", "leak_reidentified")
    writer.writerow([*study.axes, "seeds", "rounds", *accuracies, *study.terms, *against, *beside, "note"])
    for row in rows:
        ours = [_two(number) for name in HEADINGS for number in _percents(getattr(row, name))]
        theirs = (row.published.mean, row.published.sd) if row.published else (None, None)
        terms = [f"{row.terms[term]:.4f}" if term in row.terms else "" for term in study.terms]
        axes = [row.at.get(axis, "") for axis in study.axes]
        costs = [f"{number:.4g}" for number in row.megabytes] if row.megabytes else ["", ""]
        leaks = [f"{number:.4f}" for number in row.leak] if row.leak else ["", ""]
        writer.writerow(
            [
                *(*axes, row.seeds, row.rounds, *ours, *terms, *map(_two, theirs), _two(row.difference)),
                *(*costs, *leaks, row.note),
            ]
        )
    return out.getvalue()


def as_json(row: Row) -> dict[str, Any]:
    """A row as plain values; accuracies in percent."""
    accuracies = {
        name: dict(zip(("mean", "sd"), _percents(spread), strict=True))
        for name in accuracies_of([row])
        if (spread := getattr(row, name))
    }
    published = {"mean": row.published.mean, "sd": row.published.sd} if row.published else None
    return {
        **row.at, "seeds": row.seeds, "rounds": row.rounds, **accuracies, "terms": dict(row.terms),
        "published": published, "difference": row.difference, "megabytes": row.megabytes, "leak": row.leak,
        "note": row.note,
    }  # fmt: skip


def rich_table(study: Study, rows: Sequence[Row]) -> Table:
    """The same for people. An axis on which all rows agree stands in the title."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = [axis for axis in study.axes if axis == "method" or len({row.at.get(axis) for row in rows}) > 1]
    common = ", ".join(_named(axis, rows[0].at[axis]) for axis in study.axes if axis not in shown)
    rounds = "/".join(str(count) for count in sorted({row.rounds for row in rows}))
    seeds = max(row.seeds for row in rows)
    made = Table(
        title=escape(f"{study.name}: {common + ', ' if common else ''}{rounds} rounds"),
        caption=f"accuracy in %, {'mean ± standard deviation over seeds' if seeds > 1 else 'one seed'}"
        + (f"; {EXPLAINED}" if any(row.leak for row in rows) else ""),
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for axis in shown:
        made.add_column(axis, overflow="fold")
    compare = study.published.compare if study.published else "best"
    accuracies = accuracies_of(rows)
    leaks = [LEAK] if any(row.leak for row in rows) else []
    numbers = (
        *("seeds", *(HEADINGS[name] for name in accuracies), *study.terms),
        *("published", f"Δ {HEADINGS[compare]}", *leaks),
    )
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            *(escape(str(row.at.get(axis, ""))) for axis in shown),
            str(row.seeds),
            *(spread.percent() if (spread := getattr(row, name)) else "" for name in accuracies),
            *(f"{row.terms[term]:.3f}" if term in row.terms else "" for term in study.terms),
            _printed(row.published),
            f"{row.difference:+.1f}" if row.difference is not None else "",
            *([row.leak_cell] if leaks else []),
        )
    return made


def _row(study: Study, runs: Sequence[tuple[Planned, Outcome]]) -> Row:
    first, outcomes = runs[0][0], [outcome for _, outcome in runs]
    if len({outcome.metric for outcome in outcomes}) > 1:
        raise RunError(f"{study.name}: runs of {first.name} and its other seeds measured different metrics")
    at = dict(first.setting)
    spreads = {
        name: Spread.of([getattr(outcome.accuracy, name) for outcome in outcomes])
        for name in ("best", "last", "last10")
    }
    validated = Spread.of_all([outcome.accuracy.best_validation for outcome in outcomes])
    printed = study.published.value_of(at) if study.published else None
    against = {**spreads, "best_validation": validated}[study.published.compare] if study.published else None
    return Row(
        at=at,
        seeds=len(outcomes),
        rounds=outcomes[0].rounds,
        **spreads,
        terms={
            name: statistics.fmean(found)
            for name in study.terms
            if (found := [outcome.terms[name] for outcome in outcomes if name in outcome.terms])
        },
        published=printed,
        difference=100 * against.mean - printed.mean if printed and against else None,
        note=joined_notes(outcome.note for outcome in outcomes),
        best_validation=validated,
        megabytes=_means([outcome.megabytes for outcome in outcomes]),
        leak=_means([outcome.leak for outcome in outcomes]),
    )


def _means(pairs: Sequence[tuple[float, float] | None]) -> tuple[float, float] | None:
    known = [pair for pair in pairs if pair is not None]
    return None if not known else (statistics.fmean(a for a, _ in known), statistics.fmean(b for _, b in known))


def _named(axis: str, value: Value) -> str:
    return f"{value} clients" if axis == "clients" else str(value) if axis in ("data", "split") else f"{axis} {value}"


def _printed(value: PublishedValue | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:.1f}" if value.sd is None else f"{value.mean:.1f} ±{value.sd:4.1f}"


def _percents(spread: Spread | None) -> tuple[float | None, float | None]:
    if spread is None:
        return None, None
    return 100 * spread.mean, None if spread.deviation is None else 100 * spread.deviation


def _two(number: float | None) -> str:
    return "" if number is None else f"{number:.2f}"
