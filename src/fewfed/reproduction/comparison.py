"""Our numbers beside the paper's: one row a setting and method, over its seeds."""

from __future__ import annotations

import csv
import io
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewfed.report.curves import accuracy_curve
from fewfed.report.table import Spread
from fewfed.reproduction.coordinates import Coordinates, Value
from fewfed.reproduction.curve import CurveCheck, check_curve
from fewfed.reproduction.published import PublishedValue
from fewfed.reproduction.study import Planned, Study
from fewfed.runs.folder import RunFolder
from fewfed.runs.results import Result

if TYPE_CHECKING:
    from rich.table import Table


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


def compared(study: Study, finished: Sequence[tuple[Planned, Result]]) -> list[Row]:
    """Rows in the order of the study; settings without a finished run are left out."""
    by_setting: dict[tuple[tuple[str, Value], ...], list[tuple[Planned, Result]]] = {}
    for run, result in finished:
        by_setting.setdefault(run.setting, []).append((run, result))
    order = dict.fromkeys(run.setting for run in study.runs)
    return [_row(study, by_setting[setting]) for setting in order if setting in by_setting]


def curve_checks(study: Study, finished: Sequence[tuple[Planned, Result]]) -> list[CurveCheck]:
    """The study's published curve, if it has one, against the finished runs."""
    if not study.curve or not finished:
        return []
    return check_curve(study.curve, [accuracy_curve(Path(result.folder))[1] for _, result in finished])


def to_csv(study: Study, rows: Sequence[Row]) -> str:
    """The comparison for other programs. Every accuracy is in percent, as the papers print it."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    spreads = ("best", "last", "last10")
    accuracies = [f"{name}_{part}" for name in spreads for part in ("mean", "sd")]
    against = ("published_mean", "published_sd", "difference")
    writer.writerow([*study.axes, "seeds", "rounds", *accuracies, *study.terms, *against, "note"])
    for row in rows:
        ours = [_two(100 * number) for name in spreads for number in _parts(getattr(row, name), row.seeds)]
        theirs = (row.published.mean, row.published.sd) if row.published else (None, None)
        terms = [f"{row.terms[term]:.4f}" if term in row.terms else "" for term in study.terms]
        axes = [row.at.get(axis, "") for axis in study.axes]
        writer.writerow(
            [*axes, row.seeds, row.rounds, *ours, *terms, *map(_two, theirs), _two(row.difference), row.note]
        )
    return out.getvalue()


def as_json(row: Row) -> dict[str, Any]:
    """A row as plain values; accuracies in percent."""
    accuracies = {
        name: {"mean": 100 * spread.mean, "sd": 100 * spread.deviation if row.seeds > 1 else None}
        for name, spread in (("best", row.best), ("last", row.last), ("last10", row.last10))
    }
    published = {"mean": row.published.mean, "sd": row.published.sd} if row.published else None
    return {
        **row.at, "seeds": row.seeds, "rounds": row.rounds, **accuracies, "terms": dict(row.terms),
        "published": published, "difference": row.difference, "note": row.note,
    }  # fmt: skip


def rich_table(study: Study, rows: Sequence[Row]) -> Table:
    """The same for people. An axis on which all rows agree stands in the title."""
    from rich import box
    from rich.markup import escape
    from rich.table import Table

    shown = [axis for axis in study.axes if axis == "method" or len({row.at.get(axis) for row in rows}) > 1]
    common = ", ".join(_named(axis, rows[0].at[axis]) for axis in study.axes if axis not in shown)
    rounds = "/".join(str(count) for count in sorted({row.rounds for row in rows}))
    made = Table(
        title=escape(f"{study.name}: {common + ', ' if common else ''}{rounds} rounds"),
        caption="accuracy in %, mean ± standard deviation over seeds",
        box=box.SIMPLE_HEAD,
        pad_edge=False,
        collapse_padding=True,
    )
    for axis in shown:
        made.add_column(axis, overflow="fold")
    compare = study.published.compare if study.published else "best"
    numbers = ("seeds", "best", "last", "last 10", *study.terms, "published", f"Δ {compare.replace('t1', 't 1')}")
    for name in numbers:
        made.add_column(name, justify="right", no_wrap=True)
    for row in rows:
        made.add_row(
            *(escape(str(row.at.get(axis, ""))) for axis in shown),
            str(row.seeds),
            *(_percent(spread, row.seeds) for spread in (row.best, row.last, row.last10)),
            *(f"{row.terms[term]:.3f}" if term in row.terms else "" for term in study.terms),
            _printed(row.published),
            f"{row.difference:+.1f}" if row.difference is not None else "",
        )
    return made


def _row(study: Study, runs: Sequence[tuple[Planned, Result]]) -> Row:
    first, results = runs[0][0], [result for _, result in runs]
    at = dict(first.setting)
    spreads = {
        name: Spread.of([getattr(result.accuracy, name) for result in results]) for name in ("best", "last", "last10")
    }
    printed = study.published.value_of(at) if study.published else None
    ours = 100 * spreads[study.published.compare].mean if study.published else 0.0
    return Row(
        at=at,
        seeds=len(results),
        rounds=results[0].rounds,
        **spreads,
        terms=_terms(study.terms, [Path(result.folder) for result in results]),
        published=printed,
        difference=ours - printed.mean if printed else None,
        note="; ".join(dict.fromkeys(result.note for result in results if result.note)),
    )


def _terms(names: Sequence[str], folders: Sequence[Path]) -> dict[str, float]:
    """Mean over rounds, then over seeds, of observed loss terms."""
    if not names:
        return {}
    found: dict[str, list[float]] = {}
    for folder in folders:
        records = [phase.get("terms", {}) for r in RunFolder(folder).metrics() for phase in r["phases"].values()]
        for name in names:
            values = [record[name] for record in records if name in record]
            if values:
                found.setdefault(name, []).append(statistics.fmean(values))
    return {name: statistics.fmean(values) for name, values in found.items()}


def _named(axis: str, value: Value) -> str:
    return f"{value} clients" if axis == "clients" else str(value) if axis in ("data", "split") else f"{axis} {value}"


def _printed(value: PublishedValue | None) -> str:
    if value is None:
        return ""
    return f"{value.mean:.1f}" if value.sd is None else f"{value.mean:.1f} ±{value.sd:4.1f}"


def _percent(spread: Spread, seeds: int) -> str:
    return spread.percent() if seeds > 1 else f"{100 * spread.mean:.1f}"


def _parts(spread: Spread, seeds: int) -> tuple[float, float]:
    return spread.mean, spread.deviation if seeds > 1 else float("nan")


def _two(number: float | None) -> str:
    return "" if number is None or number != number else f"{number:.2f}"
