"""One method at many settings, to see what accuracy each gives for what it leaks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from fewfed.data.reading import Reading
from fewfed.runs.cells import Cell, Explain, LoadedData, Update, explained_plainly, run_cells
from fewfed.runs.comparison import planned
from fewfed.runs.identity import content_of, refuse_other_runs
from fewfed.runs.naming import DEFAULT_OUT
from fewfed.runs.packing import Packing
from fewfed.runs.results import Result
from fewfed.runs.tuning import Axis, Trial, grid, refuse_axes

DEFAULT_FOLDER = DEFAULT_OUT / "frontier"


@dataclass(frozen=True)
class Frontier:
    """The runs behind a frontier, none of them begun: every setting over the same seeds."""

    method: str
    trials: tuple[Trial, ...]
    root: Path

    @property
    def cells(self) -> list[Cell]:
        return [cell for trial in self.trials for cell in trial.runs.cells]

    @property
    def data(self) -> LoadedData:
        return self.trials[0].runs.data

    def refuse_unready(self) -> Reading | None:
        """Raise for what can be wrong with any setting, before anything is written."""
        own = self.data.own
        known = None if own.data is None else content_of(own.data)
        refuse_other_runs(((cell.folder, cell.resolved) for cell in self.cells), known)
        reading = None
        for trial in self.trials:  # Each: a defence may fit the network at one setting and not at another.
            reading = trial.runs.refuse_unready()
        return reading

    def run(
        self, packing: Packing, report: Callable[[Update], None], explain: Explain = explained_plainly
    ) -> list[Update]:
        """Run what is not finished yet; how every run ended."""
        return run_cells(self.cells, packing, report, explain, data=self.data)

    def results(self, endings: Sequence[Update]) -> list[tuple[Trial, tuple[Result, ...]]]:
        """The finished runs of every setting."""
        found = {update.cell.name: update.result for update in endings if update.result is not None}
        return [
            (trial, tuple(found[cell.name] for cell in trial.runs.cells if cell.name in found)) for trial in self.trials
        ]


def frontier(
    method: str,
    values: Mapping[str, Any],
    axes: Sequence[Axis],
    *,
    seeds: int = 1,
    root: Path = DEFAULT_FOLDER,
    data: LoadedData | None = None,
) -> Frontier:
    """The runs of one method at every combination of settings."""
    refuse_axes(axes, values)
    data = data or LoadedData()
    # What is wrong with a name is said here; values are looked at setting by setting.
    planned([method], {**values, **{axis.name: axis.values[0] for axis in axes}}, 1, root, data)
    return Frontier(method, tuple(grid(method, values, axes, seeds, 0, root, data)), root)
