"""Settings searched for several methods, with the same budget for each, on rows that nobody trains or is tested on."""

from __future__ import annotations

import dataclasses
import itertools
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from fewfed.data.reading import Reading
from fewfed.errors import ConfigError, RunError, did_you_mean
from fewfed.metric import metric_of
from fewfed.runs.cells import Cell, Explain, LoadedData, Update, explained_plainly, run_cells
from fewfed.runs.comparison import Planned, planned, unused, values_for
from fewfed.runs.identity import content_of, refuse_other_runs
from fewfed.runs.naming import DEFAULT_OUT, file_name, labels_of
from fewfed.runs.packing import Packing
from fewfed.runs.results import Result

DEFAULT_FOLDER = DEFAULT_OUT / "tune"
SEARCH, FINAL = "search", "final"
VALIDATION = 0.2
"""The part of every client's rows that settings are judged by, where nobody says."""
MOST_SETTINGS = 10_000
NOT_SEARCHED = frozenset({"seed", "validation", "metric", "data", "split", "clients", "volume", "leave_out"})
"""What decides which rows a setting is judged on, and by what."""

By = Literal["best", "last", "last10"]
BY: tuple[By, ...] = ("best", "last", "last10")
"""Which number of a run's curve on the validation rows a setting is judged by."""


@dataclass(frozen=True)
class Axis:
    """A setting that is searched, and the values it may have, as `--set` takes them."""

    name: str
    values: tuple[Any, ...]


@dataclass(frozen=True)
class Trial:
    """One setting of one method, over some seeds."""

    spec: str
    values: Mapping[str, Any]
    """Of the settings that are searched and concern this method."""
    runs: Planned


@dataclass(frozen=True)
class Tried:
    """What became of a trial."""

    trial: Trial
    score: float | None
    """The mean over seeds on the validation rows; None where a run failed."""
    results: tuple[Result, ...]


@dataclass(frozen=True)
class Search:
    """All trials of a search, none of them begun, and how the best is found."""

    methods: tuple[str, ...]
    values: Mapping[str, Any]
    """What was set beside what is searched."""
    trials: tuple[Trial, ...]
    root: Path
    by: By
    validation: float
    """The part of every client's rows that settings are judged by."""

    @property
    def cells(self) -> list[Cell]:
        return [cell for trial in self.trials for cell in trial.runs.cells]

    def of(self, spec: str) -> list[Trial]:
        return [trial for trial in self.trials if trial.spec == spec]

    def refuse_unready(self) -> Reading | None:
        """Raise for what can be wrong with any method, and for folders that hold other runs, before anything is
        written. How the user's own data were read."""
        first = {trial.spec: trial for trial in reversed(self.trials)}
        reading = None
        for trial in first.values():
            reading = trial.runs.refuse_unready()
        own = self.data.own.data
        refuse_other_runs(
            ((cell.folder, cell.resolved) for cell in self.cells), None if own is None else content_of(own)
        )
        return reading

    @property
    def data(self) -> LoadedData:
        """What has been read to plan it; the same for all trials."""
        return self.trials[0].runs.data

    def run(
        self, packing: Packing, report: Callable[[Update], None], explain: Explain = explained_plainly
    ) -> list[Update]:
        """Run what is not finished yet; how every run ended."""
        return run_cells(self.cells, packing, report, explain, data=self.data)

    def judged(self, endings: Sequence[Update]) -> list[Tried]:
        """What became of every trial."""
        results = {update.cell.name: update.result for update in endings if update.result is not None}
        found = []
        for trial in self.trials:
            theirs = [results[cell.name] for cell in trial.runs.cells if cell.name in results]
            whole = len(theirs) == len(trial.runs.cells)
            found.append(Tried(trial, _score(theirs, self.by) if whole else None, tuple(theirs)))
        return found

    def final(self, tried: Sequence[Tried], seeds: int) -> Planned:
        """The comparison of all methods, each with the setting that was best on the validation rows.

        Nothing is held back any more, and only now is the test part looked at.
        """
        runs = [self._final_of(spec, best(spec, tried), seeds) for spec in self.methods]
        cells = tuple(cell for one in runs for cell in one.cells)
        return dataclasses.replace(runs[0], cells=cells, labels=labels_of(self.methods))

    def _final_of(self, spec: str, chosen: Tried, seeds: int) -> Planned:
        values = {**values_for(spec, self.values), **chosen.trial.values, "validation": 0.0}
        return planned([spec], values, seeds, self.root / FINAL, self.data)


def axes_of(texts: Sequence[str], flag: str = "--over") -> tuple[Axis, ...]:
    """`lr=0.001,0.01,epochs=1,5`, or several such: a part with a sign of equality begins the next setting."""
    found: dict[str, list[str]] = {}
    for text in texts:
        name = ""
        for part in text.split(","):
            begins, separator, value = part.partition("=")
            if separator:
                name, part = begins.strip(), value
                if name in found:
                    raise ConfigError(f"{flag} {text[:80]}: '{name}' stands there twice: expected every setting once")
                found[name] = []
            if not name or not part.strip():
                raise ConfigError(f"{flag} {text[:80]}: expected NAME=VALUE,VALUE,..., as in lr=0.001,0.01,epochs=1,5")
            found[name].append(part.strip())
    if not found:
        raise ConfigError(f"which settings? Say it, as in {flag} lr=0.001,0.01,epochs=1,5")
    for name, values in found.items():
        if len(set(values)) < len(values):
            raise ConfigError(f"{flag} {name}={','.join(values)[:80]}: expected every value once")
    return tuple(Axis(name, tuple(values)) for name, values in found.items())


def refuse_axes(axes: Sequence[Axis], values: Mapping[str, Any]) -> None:
    """Raise for what cannot differ between runs that are compared, and for what is set already."""
    for axis in axes:
        if axis.name.rpartition(".")[2] in NOT_SEARCHED:
            raise ConfigError(
                f"'{axis.name}' is no setting of a method, and runs that differ in it are judged on different rows: "
                "expected what methods are trained with, such as lr, epochs or fedprox.mu",
                key=axis.name,
            )
        if axis.name in values:
            raise ConfigError(f"'{axis.name}' is both set and searched: expected one of them", key=axis.name)


def by_of(text: str) -> By:
    """What a user wrote, checked."""
    if text not in BY:
        raise ConfigError(did_you_mean("number of a curve", text, BY))
    return BY[BY.index(text)]


def best(spec: str, tried: Sequence[Tried]) -> Tried:
    """The best setting of a method by its score on the validation rows, the first of equals."""
    theirs = [each for each in tried if each.trial.spec == spec]
    scored = [(each.score, each) for each in theirs if each.score is not None and math.isfinite(each.score)]
    if not scored:
        raise RunError(f"no setting of '{spec}' could be run: the lines above say why; nothing can be chosen")
    lower = metric_of(scored[0][1].results[0].metric).lower_is_better
    return min(scored, key=lambda pair: pair[0] if lower else -pair[0])[1]


def search(
    methods: Sequence[str],
    values: Mapping[str, Any],
    axes: Sequence[Axis],
    *,
    seeds: int = 1,
    most: int = 0,
    validation: float = VALIDATION,
    by: By = "last10",
    root: Path = DEFAULT_FOLDER,
    data: LoadedData | None = None,
) -> Search:
    """The trials of a search: every setting, or `most` of them drawn at random, for every method.

    A method that fewer settings concern tries all of its own; what it is given is never more than others are.
    """
    if not axes:
        raise ConfigError("nothing is searched: expected a setting and its values, such as lr and 0.001, 0.01")
    refuse_axes(axes, values)
    # What is wrong with a name or with the methods is said here; values are looked at trial by trial.
    data = data or LoadedData()
    planned(methods, {**values, **{axis.name: axis.values[0] for axis in axes}}, 1, root / SEARCH, data)
    held_back = {**values, "validation": validation}
    found = [trial for spec in methods for trial in grid(spec, held_back, axes, seeds, most, root / SEARCH, data)]
    return Search(tuple(methods), dict(values), tuple(found), root, by, validation)


def grid(
    spec: str,
    values: Mapping[str, Any],
    axes: Sequence[Axis],
    seeds: int,
    most: int,
    root: Path,
    data: LoadedData,
) -> list[Trial]:
    """Every combination of settings that concern one method, or `most` of them drawn at random."""
    mine = [axis for axis in axes if values_for(spec, {axis.name: axis.values[0]})]
    count = math.prod(len(axis.values) for axis in mine)
    if count > MOST_SETTINGS:
        raise ConfigError(f"{count} settings of '{spec}' are too many: expected at most {MOST_SETTINGS}")
    settings = list(itertools.product(*(axis.values for axis in mine)))
    if most and count > most:
        # The same places in every call, and for every method with as many settings: what they share is searched alike.
        places = np.sort(np.random.default_rng(count).choice(count, most, replace=False))
        settings = [settings[place] for place in places]
    trials: dict[str, Trial] = {}
    for setting in settings:
        chosen = dict(zip((axis.name for axis in mine), setting, strict=True))
        place = unused(file_name(",".join(f"{name}={value}" for name, value in chosen.items()) or "as it is"), trials)
        runs = planned([spec], values_for(spec, values) | chosen, seeds, root / place, data)
        # Equal settings of several methods share a folder, and their runs have names of their own.
        cells = tuple(dataclasses.replace(cell, name=f"{place}/{cell.name}") for cell in runs.cells)
        trials[place] = Trial(spec, chosen, dataclasses.replace(runs, cells=cells))
    return list(trials.values())


def _score(results: Sequence[Result], by: By) -> float:
    held_back = [result.validation for result in results if result.validation is not None]
    return statistics.fmean(getattr(each, by) for each in held_back)
