"""One table of any runs: grouped over seeds where all else is equal, with a column for each setting that differs."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from fewfed.metric import metric_of
from fewfed.report.curves import Curve, draw_curves
from fewfed.report.leak import cell
from fewfed.report.rendering import as_html, as_text, printable
from fewfed.report.spreadsheet import as_csv
from fewfed.report.survey import Found
from fewfed.report.table import Spread, caption, mean_of_known

if TYPE_CHECKING:
    from rich.table import Table

AXES = ("preset", "data", "split", "clients", "rounds")
"""Columns that stand in the title of a printed table where all rows agree."""
_MOST_SETTINGS = 5
"""Settings with a printed column of their own; more of them share one."""
_PEERS = {"content of data": "data", "content of split": "split"}
"""Settings that not every run has are compared among runs of one method, or among those that agree in this."""
_ATTACKS = ("attack", "attackers")
"""Settings that are shown wherever clients attacked, also if they did so in all rows."""
_MISSING = object()
_WHOLE = 1e15
"""Whole numbers below it are written without an exponent."""


@dataclass(frozen=True)
class Group:
    """Runs of one state that differ in their seeds alone; what is damaged stands by itself."""

    runs: tuple[Found, ...]

    @property
    def first(self) -> Found:
        return self.runs[0]

    @property
    def clients(self) -> str:
        """How many, or from how many to how many where the split decides."""
        counts = sorted({run.clients for run in self.runs if run.clients is not None})
        return " to ".join(str(count) for count in dict.fromkeys((*counts[:1], *counts[-1:])))

    @property
    def rounds(self) -> str:
        """How many were asked for; of unfinished runs, how many of them are done."""
        asked = "?" if self.first.rounds is None else str(self.first.rounds)
        done = sorted(run.done for run in self.runs)
        so_far = " to ".join(str(count) for count in dict.fromkeys((done[0], done[-1])))
        return asked if self.first.state == "finished" else f"{so_far}/{asked}"

    @property
    def remark(self) -> str:
        """Where it is not finished, how far it came."""
        return "" if self.first.state == "finished" else f"{self.first.state} {self.rounds}"

    def spread(self, name: str) -> Spread | None:
        found = [getattr(run.summary, name) for run in self.runs if run.summary is not None]
        return Spread.of(found) if found else None

    def shown(self, name: str) -> str:
        spread = self.spread(name)
        return "" if spread is None else spread.shown(metric_of(self.first.metric))

    def megabytes(self, name: str) -> float | None:
        found = [value for run in self.runs if (value := getattr(run, name)) is not None]
        return sum(found) / len(found) if found else None

    def leak(self, name: str) -> float | None:
        """`r2` or `reidentified` of shared rows, in the mean over runs; None where none were shared."""
        return mean_of_known(getattr(run.leak, name) if run.leak else None for run in self.runs)

    def axis(self, name: str) -> str:
        return str(getattr(self if name in ("clients", "rounds") else self.first, name))


@dataclass(frozen=True)
class Overview:
    """Groups of runs as one table. Prints as such, in a notebook too."""

    groups: tuple[Group, ...]
    repeated: tuple[Path, ...] = ()
    """Folders that were left out, because another holds a run of the same settings and seed."""

    @cached_property
    def differing(self) -> list[str]:
        """Settings that the rows do not share: any but a method's own; those where rows of one method differ. And who
        attacked, where somebody did."""
        names = dict.fromkeys(name for group in self.groups for name in group.first.settings if name not in AXES)
        return [name for name in names if self._differs(name) or (name in _ATTACKS and self._attacked)]

    @property
    def _attacked(self) -> bool:
        """Whether clients attacked in any of the runs."""
        return any(group.first.settings.get("attackers") for group in self.groups)

    def _differs(self, name: str) -> bool:
        """Whether rows that could be taken for alike differ in a setting."""
        known = [group for group in self.groups if group.first.settings]
        everywhere = all(name in group.first.settings for group in known)
        alike: dict[str, set[str]] = {}
        for group in known:
            peers = "" if everywhere else group.axis(_PEERS.get(name, "method"))
            alike.setdefault(peers, set()).add(_text(group.first.settings.get(name, _MISSING)))
        return any(len(values) > 1 for values in alike.values())

    @property
    def table(self) -> list[dict[str, Any]]:
        """Plain values, which pandas takes: `pandas.DataFrame(overview.table)`. Accuracies are fractions."""
        return [self._plain(group) for group in self.groups]

    def _plain(self, group: Group) -> dict[str, Any]:
        first = group.first
        made: dict[str, Any] = {name: getattr(first, name) for name in ("method", "preset", "data", "split")}
        clients = group.clients
        made |= {"clients": int(clients) if clients.isdigit() else clients, "rounds": first.rounds, "done": first.done}
        made |= {"seeds": len({run.seed for run in group.runs})}
        for name in ("best", "last", "last10"):
            spread = group.spread(name)
            made[f"{name}_mean"] = spread.mean if spread else None
            made[f"{name}_sd"] = spread.deviation if spread and len(group.runs) > 1 else None
        made |= {name: group.megabytes(name) for name in ("mb_up", "mb_down")}
        made |= {f"leak_{name}": group.leak(name) for name in ("r2", "reidentified")}
        made |= {name: first.settings.get(name) for name in self.differing}
        return {**made, "state": first.state, "problem": first.problem, "folder": _folders(group)}

    def as_json(self) -> dict[str, Any]:
        """The table, and beside each row its seeds and folders one by one."""
        rows = [
            {**row, "seed": [run.seed for run in group.runs], "folders": [str(run.folder) for run in group.runs]}
            for row, group in zip(self.table, self.groups, strict=True)
        ]
        return {"rows": rows, "differing": self.differing, "repeated": [str(folder) for folder in self.repeated]}

    def to_csv(self) -> str:
        table = self.table
        return as_csv(list(dict.fromkeys(name for row in table for name in row)), table)

    def plot(self, path: Path) -> None:
        """Draw the metric of the first row by round: a line for each row with that metric, over its seeds."""
        curves: dict[str, list[Curve]] = {}
        for label, group in zip(self.labels, self.groups, strict=True):
            if group.first.curve and group.first.metric == self.groups[0].first.metric:
                curves[label] = [run.curve for run in group.runs if run.curve]
        draw_curves(curves, path, self.title, metric_of(self.groups[0].first.metric))

    @cached_property
    def labels(self) -> list[str]:
        """What each row is called in a picture; with its settings where it would be called like another, and with its
        folder where these do not tell them apart either."""
        axes = [axis for axis in AXES if axis not in self.common and axis != "rounds"]
        short = [
            _joined(group.first.method, *(group.axis(axis) for axis in axes), group.remark) for group in self.groups
        ]
        labels = []
        for label, group in zip(short, self.groups, strict=True):
            alike = [other for other, name in zip(self.groups, short, strict=True) if name == label]
            settings = [
                name for name in self.differing if len({text_of(one.first.settings, name) for one in alike}) > 1
            ]
            told = [
                f"{name}={text_of(group.first.settings, name) or 'none'}"
                for name in settings
                if name in group.first.settings
            ]
            label = _joined(label, *told)
            labels.append(label if label not in labels else _joined(label, printable(group.first.folder)))
        return labels

    @cached_property
    def common(self) -> dict[str, str]:
        """Axes on which all rows agree."""
        values = {axis: {group.axis(axis) for group in self.groups} for axis in AXES}
        return {axis: found.pop() for axis, found in values.items() if len(found) == 1}

    @property
    def title(self) -> str:
        """What all rows share."""
        words = {"clients": "{} clients", "rounds": "{} rounds", "preset": "preset {}"}
        shared = {axis: value for axis, value in self.common.items() if value and (axis, value) != ("preset", "paper")}
        asked = {group.first.rounds for group in self.groups}
        if "rounds" not in shared and len(asked) == 1 and None not in asked:  # However far some of them have come.
            shared["rounds"] = str(asked.pop())
        told = (words.get(axis, "{}").format(value) for axis, value in shared.items())
        return ", ".join({"1 clients": "1 client", "1 rounds": "1 round"}.get(each, each) for each in told)

    def rich_table(self) -> Table:
        """For people. What all rows share stands in the title."""
        from rich import box
        from rich.markup import escape
        from rich.table import Table

        leaks = any(group.leak("r2") is not None for group in self.groups)
        several = any(len(group.runs) > 1 for group in self.groups)
        said = caption((group.first.metric for group in self.groups), several, leaks=leaks)
        made = Table(title=escape(self.title), caption=said, box=box.SIMPLE_HEAD, pad_edge=False, collapse_padding=True)
        axes = [axis for axis in AXES if axis not in self.common]
        settings = _columns(self.differing)
        for name in ("method", *axes, *settings):
            made.add_column(escape(name), overflow="fold")
        for name in ("best", "last", "last 10", "seeds", "MB up", "down", *(["leak"] if leaks else [])):
            made.add_column(name, justify="right", no_wrap=True)
        made.add_column("state", no_wrap=True)
        for group in self.groups:
            made.add_row(
                escape(group.first.method),
                *(escape(group.axis(axis)) for axis in axes),
                *(escape(_cell(group.first.settings, names)) for names in settings.values()),
                *(group.shown(name) for name in ("best", "last", "last10")),
                str(len({run.seed for run in group.runs})),
                *("" if (size := group.megabytes(name)) is None else f"{size:.1f}" for name in ("mb_up", "mb_down")),
                *([cell(group.leak("r2"), group.leak("reidentified"))] if leaks else []),
                group.first.state,
            )
        return made

    @property
    def remarks(self) -> list[str]:
        """What is to be said below the table."""
        damaged = [run for group in self.groups for run in group.runs if run.problem]
        said = [f"damaged: {run.folder}: {run.problem}" for run in damaged]
        said += [
            f"no number: {run.folder}: its {metric_of(run.metric).title} was NaN or infinite in "
            f"{run.without_number} of {len(run.curve) + run.without_number} evaluations, so that it has no mean"
            for group in self.groups
            for run in group.runs
            if run.without_number
        ]
        said += [f"left out: {folder}: the same settings and seed as another run" for folder in self.repeated]
        return said

    def __str__(self) -> str:
        return as_text(self.rich_table(), self.remarks)

    def _repr_html_(self) -> str:
        """For notebooks."""
        return as_html(self.table, self.title, self.remarks)


def overview(found: Iterable[Found], *, unfinished_together: bool = False) -> Overview:
    """Runs as a table, in the order they were found. `unfinished_together`: seeds that are still under way share a row,
    too."""
    groups: dict[str, dict[int | None, Found]] = {}
    repeated: list[Path] = []
    for run in found:
        together = run.state == "finished" or (run.state == "unfinished" and unfinished_together)
        key = f"{run.state} {_identity(run)}" if together else str(run.folder)
        seeds = groups.setdefault(key, {})
        if run.seed in seeds:
            repeated.append(run.folder)
        else:
            seeds[run.seed] = run
    made = (Group(tuple(sorted(seeds.values(), key=lambda run: run.seed or 0))) for seeds in groups.values())
    return Overview(tuple(made), tuple(repeated))


def _identity(run: Found) -> str:
    """What runs have in common that differ in their seeds alone."""
    named = {name: _text(value) for name, value in run.settings.items()}
    return json.dumps([run.method, run.preset, run.data, run.split, run.rounds, named], sort_keys=True)


def _columns(names: Sequence[str]) -> dict[str, list[str]]:
    """Printed columns of settings: one each, or one for all where they are many."""
    return {name: [name] for name in names} if len(names) <= _MOST_SETTINGS else {"settings": list(names)}


def _cell(settings: Mapping[str, Any], names: Sequence[str]) -> str:
    if len(names) == 1:
        return text_of(settings, names[0])
    return ", ".join(f"{name}={_text(settings[name])}" for name in names if name in settings)


def text_of(settings: Mapping[str, Any], name: str) -> str:
    """A setting as it is shown; empty where a run has none of this name."""
    return _text(settings.get(name, _MISSING))


def _text(value: Any) -> str:
    """A value as it is shown and compared: whole numbers are alike whether they were written as such or not."""
    if value is _MISSING:
        return ""
    if isinstance(value, float) and value.is_integer() and abs(value) < _WHOLE:
        return str(int(value))
    return printable(value)


def _joined(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _folders(group: Group) -> str:
    return "; ".join(str(run.folder) for run in group.runs)
