"""Which rows of a report can be compared: those that differ in nothing but what was tried."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

from fewfed.data.readers.options import DataOptions
from fewfed.errors import ConfigError, did_you_mean
from fewfed.metric import metric_of
from fewfed.report.overview import Group, Overview, text_of
from fewfed.report.page.detail import Detail
from fewfed.runs.experiment import Experiment

BASELINE = "fedavg"
"""What others are compared with, unless somebody says otherwise."""
_TRIED = ("network", "start_from", "epsilon", "delta", "policy", "robust", "robust_attackers", "robust_clip",
          "norm_bound", "row_filter", "row_margin", "evaluate_clients", "exact", "metric")  # fmt: skip
"""Settings of an experiment that are tried out like a method; all others make another task of it."""
_GIVEN = (
    {field.name for part in (Experiment, DataOptions) for field in dataclasses.fields(part)}
    | {"content of data", "content of split"}
) - set(_TRIED)


@dataclass(frozen=True)
class Labelled:
    """One row: what it is called, its runs, and what their folders hold."""

    label: str
    group: Group
    details: tuple[Detail, ...]
    mark: int = 0
    is_baseline: bool = False

    @property
    def key(self) -> str:
        """Its label without how far it came, which changes with every round."""
        remark = self.group.remark
        return self.label.replace(remark, self.group.first.state) if remark else self.label

    @property
    def rank(self) -> float:
        """The larger the better."""
        spread = self.group.spread("last10")
        if spread is None:
            return float("-inf")
        return -spread.mean if metric_of(self.group.first.metric).lower_is_better else spread.mean

    @property
    def is_finished(self) -> bool:
        return self.group.first.state == "finished"

    def by_seed(self, name: str) -> dict[int, float]:
        """`best`, `last` or `last10` of each seed."""
        return {
            run.seed: getattr(run.summary, name)
            for run in self.group.runs
            if run.summary is not None and run.seed is not None
        }


@dataclass(frozen=True)
class Setting:
    """Rows with the same data, split, clients, rounds and metric."""

    title: str
    rows: tuple[Labelled, ...]
    wanted: str = ""
    """The baseline that somebody asked for."""

    @property
    def baseline(self) -> Labelled | None:
        return next((row for row in self.rows if row.is_baseline), None)

    @cached_property
    def overview(self) -> Overview:
        return Overview(tuple(row.group for row in self.rows))


def settings_of(seen: Overview, details: dict[str, Detail], baseline: str) -> list[Setting]:
    """Rows that can be compared, together. Damaged runs are in none of them. `details`: by folder."""
    sorted_out: dict[str, list[Group]] = {}
    for group in seen.groups:
        if group.first.state != "damaged":
            sorted_out.setdefault(_task(group), []).append(group)
    refuse_unknown(baseline, [group for groups in sorted_out.values() for group in groups])
    marks: dict[str, int] = {}
    made = [_setting(groups, details, baseline, marks) for groups in sorted_out.values()]
    return [dataclasses.replace(one, title=_told_apart(one, made)) for one in made]


def refuse_unknown(baseline: str, groups: Sequence[Group]) -> None:
    names = list(dict.fromkeys(group.first.method for group in groups))
    if baseline and baseline not in names:
        raise ConfigError(did_you_mean("baseline", baseline, names), key="baseline")


def _setting(groups: list[Group], details: dict[str, Detail], baseline: str, marks: dict[str, int]) -> Setting:
    seen = Overview(tuple(groups))
    chosen = _chosen(groups, baseline)
    rows = tuple(
        Labelled(
            label,
            group,
            tuple(details[str(run.folder)] for run in group.runs),
            marks.setdefault(label, len(marks)),
            group is chosen,
        )
        for label, group in zip(seen.labels, groups, strict=True)
    )
    return Setting(seen.title, rows, baseline)


def _told_apart(setting: Setting, all_of_them: Sequence[Setting]) -> str:
    """Its title; with the settings in which it differs from others of the same title."""
    alike = [one.rows[0].group.first for one in all_of_them if one.title == setting.title]
    own = setting.rows[0].group.first
    names = [
        name for name in own.settings if name in _GIVEN and len({text_of(run.settings, name) for run in alike}) > 1
    ]
    said = [f"{name.replace('_', ' ')} {text_of(own.settings, name)}" for name in names if text_of(own.settings, name)]
    judged = [f"judged by {metric_of(own.metric).title}"] if len({run.metric for run in alike}) > 1 else []
    return ", ".join((setting.title, *said, *judged))


def _chosen(groups: Sequence[Group], baseline: str) -> Group | None:
    """The first finished row of the baseline; where none was named and fedavg is not there, the first of all."""
    finished = [group for group in groups if group.first.state == "finished"]
    wanted = [group for group in finished if group.first.method == (baseline or BASELINE)]
    return next(iter(wanted), None if baseline else next(iter(finished), None))


def _task(group: Group) -> str:
    """What rows have in common that can be compared."""
    first = group.first
    given = {name: str(value) for name, value in first.settings.items() if name in _GIVEN}
    return json.dumps([first.data, first.split, first.rounds, first.metric, given], sort_keys=True)
