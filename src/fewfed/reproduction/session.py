"""Running cells of a study, for as long as there is time, and keeping what is finished.

Needs torch, numpy and safetensors alone, so that a machine without the command line can fill a table too.
"""

from __future__ import annotations

import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import torch

from fewfed.engine.executors.workers.executor import cores
from fewfed.errors import FewfedError
from fewfed.reproduction.beside import Answer, answers, as_if_alone, needed
from fewfed.reproduction.kept import Kept
from fewfed.reproduction.outcome import Outcome, outcome_of
from fewfed.reproduction.progress import in_reading_order, refuse_other_settings
from fewfed.reproduction.study import Planned, Study
from fewfed.reproduction.turns import in_turn
from fewfed.runs.cells import Cell, Explain, Update, run_cells
from fewfed.runs.folder import RunFolder
from fewfed.runs.machine import processor
from fewfed.runs.packing import Packing, gpu_names
from fewfed.version import __version__

Finished = list[tuple[Planned, Outcome]]


@dataclass(frozen=True)
class Session:
    """Cells of one study, in the folder of their runs."""

    study: Study
    runs: Sequence[Planned]
    root: Path
    kept: Kept | None = None
    """Where finished cells are kept; None: nowhere."""
    commit: str = ""
    precision: str = ""
    """Of a GPU, where it is not the usual one: records say so."""

    def cells(self, minutes: float | None) -> list[Cell]:
        """What is to be run, in its order: not what another run answers for. With a limit, cells that are kept are not
        run again, and the cheapest and most informative come first; without one, data is read as seldom as
        possible."""
        cells = [run.cell(self.root) for run in self.runs]
        refuse_other_settings(cells)
        if minutes is None:
            return in_reading_order([run.cell(self.root) for run in needed(self.runs, self.runs)])
        return [run.cell(self.root) for run in needed(self.runs, in_turn(self.runs, self.finished()))]

    def finished(self) -> Finished:
        """Cells that came to their end: in their folders, or else kept."""
        records = self.kept.fitting(self.study) if self.kept else {}
        found: Finished = []
        asked = {answer.run.name: (name, answer.name) for name, each in self._answers.items() for answer in each}
        for run in self.runs:
            outcome = self._in_folder(run.name)
            if outcome is None and run.name in asked:
                outcome = self._in_folder(*asked[run.name])
            if outcome is None and run.name in records:
                outcome = records[run.name].outcome
            if outcome is not None:
                found.append((run, outcome))
        return found

    def work(
        self, cells: Sequence[Cell], packing: Packing, report: Callable[[Update], None], explain: Explain,
        minutes: float | None = None,
    ) -> list[Update]:  # fmt: skip
        """Run cells; each is kept as soon as it is finished, so that no end of the program costs it."""
        by_name = {run.name: run for run in self.runs}
        executors = {run.resolved.experiment.executor for run in self.runs}
        made = {name: made_by(self.commit, self.precision, name) for name in executors}

        def keep_and_report(update: Update) -> None:
            if update.result is not None and self.kept is not None:
                run = by_name[update.cell.name]
                self._keep(self.kept, run, made[run.resolved.experiment.executor])
            report(update)

        until = float("inf") if minutes is None else time.monotonic() + 60 * minutes
        return run_cells(cells, packing, keep_and_report, explain, until)

    def _keep(self, kept: Kept, run: Planned, made: Mapping[str, str]) -> None:
        outcome = self._in_folder(run.name)
        if outcome is not None:
            kept.add(self.study, run, outcome, made)
        for answer in self._answers.get(run.name, ()):
            beside = self._in_folder(run.name, answer.name)
            if beside is not None:
                kept.add(self.study, answer.run, beside, {**made, "in": run.name})

    @cached_property
    def _answers(self) -> dict[str, list[Answer]]:
        return answers(self.runs)

    def _in_folder(self, name: str, beside: str = "") -> Outcome | None:
        """What a run came to by its folder; `beside`: with the model of that name, which it scored beside its own."""
        folder = RunFolder(self.root / name)
        try:
            result = folder.result()
            metrics = None if result is None else folder.metrics()
            if metrics is not None and beside:
                metrics = as_if_alone(metrics, beside)
            return None if metrics is None else outcome_of(self.study, metrics, str((result or {}).get("note", "")))
        except (FewfedError, OSError):  # Its own process will say what is wrong with it.
            return None


_ON_CORES = ("sequential", "workers")
"""Executors that leave a GPU alone, also where there is one."""


def made_by(commit: str = "", precision: str = "", executor: str = "") -> dict[str, str]:
    """What a record says of where its numbers come from. `precision`: of a GPU, where it is not the usual one."""
    names = [] if executor in _ON_CORES else gpu_names()
    hardware = ", ".join([*names, precision] if precision else names) or f"{processor()}, {cores()} cores"
    found = {"fewfed": __version__, "torch": torch.__version__, "hardware": hardware, "commit": commit or _commit()}
    return {name: str(value) for name, value in found.items() if value}


def _commit() -> str:
    """The commit of the clone this package lies in, with a + where files differ from it; empty where it is in none."""
    place = str(Path(__file__).parent)
    try:
        asked = [["rev-parse", "--short=12", "HEAD"], ["status", "--porcelain", "--untracked-files=no", "."]]
        commit, changed = (
            subprocess.run(
                ["git", "-C", place, *words], capture_output=True, text=True, timeout=10, check=True
            ).stdout.strip()
            for words in asked
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    return commit + ("+" if changed else "")
