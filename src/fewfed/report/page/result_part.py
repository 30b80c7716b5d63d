"""The tables of results: means and deviations, differences to the baseline, classes and sites."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

from fewfed.metric import Metric, metric_of
from fewfed.report import paired
from fewfed.report.leak import cell as leak_cell
from fewfed.report.overview import AXES, text_of
from fewfed.report.page.detail import Score
from fewfed.report.page.figures import intervals_figure
from fewfed.report.page.setting import Labelled, Setting
from fewfed.report.page.sheets import Cell, Sheet, begun, shade, with_names
from fewfed.report.rendering import fixed
from fewfed.report.table import Spread, caption

NAMES = {"best": "best", "last": "last", "last10": "last 10"}
JUDGED = "last10"
"""What differences are said of: the mean of the last ten evaluations, since the best round flatters."""
_DIVERGED = "came to a {} that is no number"
_LAST = 10
_LITTLE = 0.1  # Megabytes.
MOST_CLASSES, MOST_SITES = 40, 60
"""Columns and rows on the page; the files have all of them."""


def results(setting: Setting) -> Sheet:
    """One row a method (or setting of one), over its seeds."""
    seen = setting.overview
    metric = metric_of(setting.rows[0].group.first.metric)
    axes = [axis for axis in AXES if axis not in ("rounds", "data", "split") and axis not in seen.common]
    extra = [name for name in seen.differing if name != "metric"]
    leaks = any(row.group.leak("r2") is not None for row in setting.rows)
    states = any(not row.is_finished for row in setting.rows)
    best = {name: _best([row for row in setting.rows if row.is_finished], name, metric) for name in NAMES}
    rows = []
    for row in setting.rows:
        group = row.group
        rows.append((
            Cell(group.first.method),
            *(Cell(group.axis(axis)) for axis in axes),
            *(Cell(text_of(group.first.settings, name)) for name in extra),
            *(spread_cell(group.spread(name), metric, row.label in best[name]) for name in NAMES),
            _seeds(row),
            *(_megabytes(group.megabytes(name)) for name in ("mb_up", "mb_down")),
            _seconds(row),
            *([Cell(leak_cell(group.leak("r2"), group.leak("reidentified")), group.leak("r2"))] if leaks else []),
            *([Cell("" if row.is_finished else group.remark)] if states else []),
        ))  # fmt: skip
    columns = ("method", *axes, *extra, *NAMES.values(), "seeds", "MB up", "MB down", "seconds",
               *(["leak"] if leaks else []), *(["state"] if states else []))  # fmt: skip
    said = caption([metric.name], any(len(row.group.runs) > 1 for row in setting.rows), leaks=leaks)
    plain = tuple({**row, "metric": metric.name} for row in seen.table)
    return Sheet("results", begun(said), columns, tuple(rows), plain, words=1 + len(axes) + len(extra),
                 note=_noted(setting.rows))  # fmt: skip


def differences(setting: Setting) -> tuple[Sheet | None, tuple[str, ...], str]:
    """The table of differences to the baseline, a sentence each, and a figure; nothing where there is nobody to
    compare."""
    baseline = setting.baseline
    finished = [row for row in setting.rows if row.is_finished and row is not baseline]
    others = [row for row in finished if row.by_seed(JUDGED)]
    if baseline is None:
        return None, _without_baseline(setting) if finished else (), ""
    metric = metric_of(baseline.group.first.metric)
    if not baseline.by_seed(JUDGED):
        lost = f"{baseline.label} {_unscored(baseline, metric)}, so that nothing can be compared with it."
        return None, (lost,) if finished and _diverged(baseline) else (), ""
    # As between sites whose policies keep scores at home.
    unscored = tuple(
        f"{row.label} {_unscored(row, metric)} and cannot be compared." for row in finished if row not in others
    )
    if not others:
        return None, unscored, ""
    found = {
        row.label: {name: paired.paired(row.by_seed(name), baseline.by_seed(name), metric) for name in NAMES}
        for row in others
    }
    rows, plain, sentences, drawn = [], [], [], []
    for row in others:
        judged = found[row.label][JUDGED]
        reasons = _reasons(setting, row, baseline, judged, metric)
        sentences.append(paired.sentence(row.label, baseline.label, judged, metric, reasons))
        cells = [difference_cell(found[row.label][name], metric) for name in NAMES]
        seeds = f"{judged.won} of {judged.seeds}"
        rows.append((Cell(row.label), Cell(_verdict(judged)), *cells, Cell(seeds, judged.won)))
        plain.append(_plain(row.label, baseline.label, metric, found[row.label]))
        if judged.seeds:
            drawn.append((row.label, _scaled(judged.mean, metric), _scaled(judged.half, metric), row.mark))
    sentences += unscored
    unit = f"difference in {metric.title}{', points' if metric.is_share else ''}; mean of the last ten evaluations"
    columns = ("method", "by last 10", *NAMES.values(), "better on")
    several = any(half is not None for _, _, half, _ in drawn)
    note = (
        "± is half of a 95 % interval by Student's t over the differences of runs with the same seed, each interval "
        "for itself; of several methods one may pass for different by chance."
    )
    note = note if several else "One seed, no interval: nothing is known about how differences vary."
    sheet = Sheet("differences", f"Difference to {baseline.label}, paired by seed", columns, tuple(rows), tuple(plain),
                  words=2, note=note)  # fmt: skip
    figure = intervals_figure(drawn, unit, " ".join(sentences)) if several else ""
    return sheet, tuple(sentences), figure


def _without_baseline(setting: Setting) -> tuple[str, ...]:
    """Why nothing is compared with the baseline that was asked for."""
    is_begun = any(row.group.first.method == setting.wanted for row in setting.rows)
    why = "has not finished" if is_begun else "was not run here"
    return (f"{setting.wanted} {why}, so that nothing can be compared with it.",) if setting.wanted else ()


VERDICTS = {
    "better": "better",
    "worse": "behind",
    "alike": "cannot be told apart",
    "one seed": "one seed, no interval",
    "no pair": "no common seed",
}


def _verdict(judged: paired.Paired) -> str:
    if judged.seeds > 1 and not any(judged.differences):
        return "the same"
    return VERDICTS[judged.verdict]


def _reasons(
    setting: Setting, row: Labelled, baseline: Labelled, judged: paired.Paired, metric: Metric
) -> dict[str, list[int]]:
    """Seeds of a comparison that are left out although there are runs of them, by the words for why: that a method
    diverged must not read as if it had not been tried."""
    seeds = {run.seed for run in row.group.runs}
    found: dict[str, list[int]] = {}
    for one in (row, baseline):
        diverged = [run.seed for run in one.group.runs if run.summary is None and run.without_number]
        found[f"{one.label} {_DIVERGED.format(metric.title)} on"] = [
            seed for seed in diverged if seed is not None and (one is row or seed in seeds)
        ]
        under_way = {run.seed for other in setting.rows if _is_rest_of(one, other) for run in other.group.runs}
        found[f"{one.label} has not finished"] = [seed for seed in judged.unpaired if seed in under_way]
    return found


def _is_rest_of(row: Labelled, other: Labelled) -> bool:
    """Whether these are the unfinished seeds of what stands finished in another row."""
    one, rest = row.group.first, other.group.first
    alike = (one.method, one.preset, one.settings) == (rest.method, rest.preset, rest.settings)
    return alike and not other.is_finished


def _unscored(row: Labelled, metric: Metric) -> str:
    return _DIVERGED.format(metric.title) if _diverged(row) else "was not scored"


def _diverged(row: Labelled) -> bool:
    return any(run.without_number for run in row.group.runs)


def by_class(setting: Setting) -> Sheet | None:
    """The last model, class by class: rows are methods."""
    rows = [row for row in setting.rows if any(detail.per_class for detail in row.details)]
    if not rows:
        return None
    tables = [_means([detail.per_class for detail in row.details]) for row in rows]
    names = list(dict.fromkeys(name for table in tables for name in table))
    shown = names[:MOST_CLASSES]
    cells = tuple(
        (Cell(row.label), *(_share(table.get(name)) for name in shown)) for row, table in zip(rows, tables, strict=True)
    )
    plain = tuple(with_names({"method": row.label}, table, "class") for row, table in zip(rows, tables, strict=True))
    more = len(names) - len(shown)
    note = f"{more} more classes are in the CSV file of this table." if more else ""
    measure = next(detail.class_measure for row in rows for detail in row.details if detail.per_class)
    said = f"{begun(measure)} of each class, last model, %{_over_seeds(rows)}"
    told = "Recall of a class is the part of its test rows that were recognised." if measure == "recall" else ""
    note = f"{told} {note}".strip()
    return Sheet("classes", said, ("method", *shown), cells, plain, note=note)


def by_site(setting: Setting) -> Sheet | None:
    """The last model, site by site: rows are sites, the smallest first."""
    rows = [row for row in setting.rows if any(detail.per_site for detail in row.details)]
    if not rows:
        return None
    metric = metric_of(rows[0].group.first.metric)
    tables = {row.label: _means([detail.per_site for detail in row.details]) for row in rows}
    sites = {score.name: score for row in rows for detail in row.details for score in detail.per_site}
    ordered = sorted(sites.values(), key=lambda site: (site.train_rows or 0, site.name))
    cells = tuple(
        (
            Cell(site.name), _whole(site.train_rows), _whole(site.test_rows),
            *(_share(table.get(site.name), metric) for table in tables.values()),
        )
        for site in ordered[:MOST_SITES]
    )  # fmt: skip
    plain = tuple(
        with_names(
            {"site": site.name, "train_rows": site.train_rows, "test_rows": site.test_rows},
            {label: table.get(site.name) for label, table in tables.items()},
            "method",
        )
        for site in ordered
    )
    more = len(ordered) - len(cells)
    note = f"These are the smallest; all {len(ordered)} are in the CSV file of this table." if more else ""
    said = f"{begun(metric.title)} of the last model at each site{', %' if metric.is_share else ''}{_over_seeds(rows)}"
    return Sheet("sites", said, ("site", "training rows", "test rows", *tables), cells, plain, note=note)


def _over_seeds(rows: Sequence[Labelled]) -> str:
    return ", mean over seeds" if any(len(row.group.runs) > 1 for row in rows) else ""


def _noted(rows: Sequence[Labelled]) -> str:
    """All that is said below the results."""
    unfinished = any(not row.is_finished for row in rows)
    partly = any(0 < _scored(row) < len(row.group.runs) and _diverged(row) for row in rows)
    own = [row.label for row in rows if any(detail.own_models for detail in row.details)]
    told = [
        _averaged(rows),
        "Unfinished runs are shown as far as they came." if unfinished else "",
        "Seeds such as '2 of 3': the others came to no number, and means are without them." if partly else "",
        f"Each client has a model of its own in {', '.join(own)}: its numbers are means over clients' models, each on "
        f"the whole test part, whose rows may be of classes that the client has none of." if own else "",
    ]  # fmt: skip
    return " ".join(filter(None, told))


def _averaged(rows: Sequence[Labelled]) -> str:
    """What "last 10" is. In short runs it is the mean of everything, the first rounds too."""
    counts = sorted({len(run.curve) for row in rows for run in row.group.runs if run.curve and run.summary})
    if not counts:
        return ""
    few = f" Runs with fewer, as here with {counts[0]}, have all of them in it, the first too."
    return f"Last 10 is the mean of the last ten evaluations.{few if counts[0] < _LAST else ''}"


def _means(tables: Sequence[Sequence[Score]]) -> dict[str, float | None]:
    found: dict[str, list[float]] = {}
    for table in tables:
        for score in table:
            values = found.setdefault(score.name, [])
            if score.value is not None:
                values.append(score.value)
    return {name: statistics.fmean(values) if values else None for name, values in found.items()}


def _best(rows: Sequence[Labelled], name: str, metric: Metric) -> set[str]:
    """Labels of the best rows: several where they came to the same; none where there is nobody to be better than."""
    there = {row.label: spread.mean for row in rows if (spread := row.group.spread(name)) is not None}
    if len(there) < 2:
        return set()
    best = (min if metric.lower_is_better else max)(there.values())
    alike = {label for label, mean in there.items() if mean == best}
    return alike if len(alike) < len(there) else set()


def _seeds(row: Labelled) -> Cell:
    """How many runs; where some have no number, of how many the means are."""
    runs, scored = len(row.group.runs), _scored(row)
    return Cell(str(runs) if scored in (0, runs) else f"{scored} of {runs}", runs)


def _scored(row: Labelled) -> int:
    return sum(run.summary is not None for run in row.group.runs)


def spread_cell(spread: Spread | None, metric: Metric, strong: bool = False) -> Cell:
    if spread is None:
        return Cell("")
    return Cell(" ".join(spread.shown(metric).replace("±", "± ").split()), spread.mean, strong)


def difference_cell(found: paired.Paired, metric: Metric) -> Cell:
    if not found.seeds:
        return Cell("")
    half = "" if found.half is None else f" ± {paired.amount(found.half, metric)}"
    return Cell(f"{paired.shown(found.mean, metric)}{half}", found.mean)


def _plain(label: str, baseline: str, metric: Metric, found: dict[str, paired.Paired]) -> dict[str, Any]:
    made: dict[str, Any] = {"method": label, "baseline": baseline, "metric": metric.name}
    for name, one in found.items():
        low, high = one.interval or (None, None)
        made |= {f"{name}_difference": one.mean if one.seeds else None, f"{name}_low": low, f"{name}_high": high}
    judged = found[JUDGED]
    return {**made, "seeds": judged.seeds, "won": judged.won, "verdict": judged.verdict,
            "unpaired_seeds": " ".join(str(seed) for seed in judged.unpaired)}  # fmt: skip


def _megabytes(value: float | None) -> Cell:
    """What is little is not nothing: logistic regression sends a few kilobytes."""
    if value is None:
        return Cell("")
    return Cell(f"{value:.2g}" if 0 < value < _LITTLE else f"{value:.1f}", value)


def _seconds(row: Labelled) -> Cell:
    mean = statistics.fmean(detail.seconds for detail in row.details)
    return Cell(f"{mean:.0f}", mean)


def _share(value: float | None, metric: Metric | None = None) -> Cell:
    if value is None:
        return Cell("")
    if metric is not None and not metric.is_share:
        return Cell(fixed(value, 3), value)
    dark = 1 - value if metric is not None and metric.lower_is_better else value
    return Cell(f"{100 * value:.0f}", value, shade=shade(dark))


def _whole(value: int | None) -> Cell:
    return Cell("") if value is None else Cell(str(value), value)


def _scaled(value: float | None, metric: Metric) -> Any:
    return None if value is None else 100 * value if metric.is_share else value
