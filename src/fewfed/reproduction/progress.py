"""What a study has come to on this machine: finished runs, missing data, settings that changed underneath."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from fewfed.data.sources import available
from fewfed.reproduction.study import Planned
from fewfed.runs.cells import Cell
from fewfed.runs.folder import RunFolder
from fewfed.runs.identity import refuse_other_runs


def missing_data(runs: Sequence[Planned]) -> dict[str, str]:
    """Data the runs need and this machine lacks, with how to get it."""
    known = {item.name: item for item in available()}
    missing: dict[str, str] = {}
    for name in dict.fromkeys(run.resolved.experiment.data for run in runs):
        if name in known:
            if not known[name].present:
                missing[name] = known[name].obtain
        elif not Path(name).expanduser().exists():
            missing[name] = "there is no such file or folder"
    return missing


def with_rounds(run: Planned, rounds: int | None) -> Planned:
    """The same run, shorter or longer."""
    if rounds is None:
        return run
    experiment = replace(run.resolved.experiment, rounds=rounds)
    return replace(run, resolved=replace(run.resolved, experiment=experiment))


def in_reading_order(cells: Sequence[Cell]) -> list[Cell]:
    """Runs on the same data one after another: it is read once for each seed, and few are kept in memory."""
    return sorted(cells, key=lambda cell: (cell.resolved.experiment.data, cell.resolved.experiment.seed))


def rounds_done(cell: Cell) -> int:
    """Rounds whose metrics are written."""
    return len(RunFolder(cell.folder).metrics())


def is_finished(cell: Cell) -> bool:
    return RunFolder(cell.folder).result() is not None


def refuse_other_settings(cells: Sequence[Cell]) -> None:
    """A finished run counts only for the configuration and the inputs it was made with."""
    refuse_other_runs((cell.folder, cell.resolved) for cell in cells)
