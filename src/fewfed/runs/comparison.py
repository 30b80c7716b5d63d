"""Several methods over several seeds on the same splits and cohorts: which runs that takes, and running them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Container, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from fewfed.data.examples import Dataset
from fewfed.data.reading import Reading
from fewfed.engine.executors.registry import plugins
from fewfed.errors import ConfigError, did_you_mean
from fewfed.methods.registry import layers_of
from fewfed.runs import aside
from fewfed.runs.cells import Cell, Explain, LoadedData, Update, explained_plainly, run_cells
from fewfed.runs.executors import refuse_inexact
from fewfed.runs.experiment import Resolved, accepts, known_fields, resolve
from fewfed.runs.identity import content_of, refuse_other_runs
from fewfed.runs.naming import DEFAULT_OUT, file_name, labels_of
from fewfed.runs.own import Own
from fewfed.runs.packing import Packing
from fewfed.runs.prepare import prepare, settled

DEFAULT_FOLDER = DEFAULT_OUT / "compare"

_PARTS = ("experiment", "training", "data_options")


@dataclass(frozen=True)
class Planned:
    """The runs of a comparison, none of them begun."""

    cells: tuple[Cell, ...]
    labels: Mapping[str, str]
    """What each method is called in the table, by the name it was given with."""
    root: Path
    data: LoadedData
    """What has been read to plan them."""

    @property
    def rounds(self) -> int:
        return self.cells[0].resolved.experiment.rounds

    def refuse_unready(self) -> Reading | None:
        """Raise for everything that can be wrong, before anything is written. How the user's own data were read."""
        own = self.data.own
        refuse_other_runs(
            ((cell.folder, cell.resolved) for cell in self.cells), None if own.data is None else content_of(own.data)
        )
        reading = None
        for spec in self.labels:
            first = next(cell.resolved for cell in self.cells if cell.resolved.spec == spec)
            whole = self.data.of(first)
            aside.checked(partial(_refuse_unready, first, own, whole))
            reading = whole.reading
        return reading

    def run(
        self,
        packing: Packing,
        report: Callable[[Update], None],
        explain: Explain = explained_plainly,
        track: Sequence[str] = (),
    ) -> list[Update]:
        """Run what is not finished yet; how every run ended. `track`: programs that are told of their rounds."""
        return run_cells(self.cells, packing, report, explain, data=self.data, track=track)


def _refuse_unready(resolved: Resolved, own: Own, loaded: Dataset) -> None:
    prepared = prepare(resolved, data=own.data, network=own.network, loaded=loaded)
    refuse_inexact(prepared.resolved, prepared.cohort)


def planned(
    methods: Sequence[str], values: Mapping[str, Any], seeds: int, root: Path, data: LoadedData | None = None
) -> Planned:
    """The runs of a comparison. `values` are as `--set` takes them: a plain name goes to every method that has such a
    field, `fedprox.mu` to one method, `training.lr` to a part. `data`: what has been read already, and the user's own
    objects."""
    data = data or LoadedData()
    if not methods:
        raise ConfigError("which methods? Name them, as in 'fewfed compare fedavg flea', or give them in the TOML file")
    if len(set(methods)) < len(methods):
        raise ConfigError("a method is named twice: expected each once")
    labels = labels_of(methods)
    if len(set(labels.values())) < len(methods):
        raise ConfigError("a method is named twice, in two spellings: expected each once")
    _refuse_unused(methods, values)
    cells: list[Cell] = []
    for spec in methods:
        first = resolve(spec, values_for(spec, values))
        if not first.experiment.is_settled:  # Sites are the same for all seeds.
            first = settled(first, data.of(first))
        label = unused(file_name(labels[spec]), {cell.name.rpartition("-")[0] for cell in cells})
        for seed in range(first.experiment.seed, first.experiment.seed + seeds):
            name = f"{label}-seed{seed}"
            experiment = dataclasses.replace(first.experiment, seed=seed)
            cells.append(Cell(name, dataclasses.replace(first, experiment=experiment), root / name))
    return Planned(tuple(cells), labels, root, data)


def unused(name: str, used: Container[str]) -> str:
    """The name, with a number where other folders are called the same."""
    number, found = 2, name
    while found in used:
        found, number = f"{name}-{number}", number + 1
    return found


def values_for(spec: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """The values that concern one of several methods: common ones, its own fields, and `name.field` ones."""
    layers = layers_of(spec)
    mine: dict[str, Any] = {}
    for name, value in values.items():
        owner, _, field = name.partition(".")
        if not field or owner == "method":
            if accepts(spec, field or name):
                mine[name] = value
        elif owner in layers:
            mine[f"method.{layers[owner][0]}{field}"] = value
        elif owner in (*_PARTS, *plugins()) or (owner == "inner" and "(" in spec):
            mine[name] = value
    return mine


def _refuse_unused(methods: Sequence[str], values: Mapping[str, Any]) -> None:
    """Raise for values that concern none of the methods."""
    names = {name for spec in methods for name in layers_of(spec)}
    wrappers = any("(" in spec for spec in methods)
    for name in values:
        owner, _, field = name.partition(".")
        if field and owner not in (*names, "method", *_PARTS, *plugins(), *(("inner",) if wrappers else ())):
            known = {*names, *plugins()}
            raise ConfigError(f"'{name}': {did_you_mean('method of this comparison', owner, known)}", key=name)
        if (not field or owner == "method") and not any(accepts(spec, field or name) for spec in methods):
            known = set().union(*(known_fields(spec) for spec in methods))
            raise ConfigError(did_you_mean("field for any of these methods", field or name, known), key=name)
