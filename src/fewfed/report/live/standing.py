"""Where every run stands, those of comparisons that have not begun included."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

from fewfed.errors import FewfedError
from fewfed.report.live.progress import STATES, Pace, State, in_words, left_of_all, outlook
from fewfed.report.live.watched_run import Clock, WatchedRun
from fewfed.report.rendering import printable
from fewfed.runs.cells_file import Listed, read_cells

_BETWEEN = 10.0
"""Seconds after which a comparison without any run that goes on counts as stopped: one ends before the next begins."""


@dataclass(frozen=True)
class Standing:
    """One run."""

    folder: str
    method: str
    seed: int | None
    state: State
    done: int
    asked: int | None
    left: str
    """Time left, in words, or why nobody can know; nothing where that is plain."""
    problem: str = ""
    part: float = 1.0
    """How much of its files was read so far."""


@dataclass(frozen=True)
class Standings:
    """All runs, in the order in which they are shown, and what they come to."""

    runs: tuple[Standing, ...]
    left: str

    def as_json(self) -> dict[str, Any]:
        known = [run for run in self.runs if run.asked is not None]
        read = [run for run in self.runs if run.part == 1.0]
        return {
            "runs": [asdict(run) for run in self.runs],
            "states": {state: count for state in STATES if (count := sum(run.state == state for run in read))},
            "done": sum(min(run.done, run.asked or 0) for run in known),
            "asked": sum(run.asked or 0 for run in known),
            "left": self.left if len(read) == len(self.runs) else "",
            "unread": len(self.runs) - len(read),
        }


@dataclass
class Comparisons:
    """Comparisons that were seen, and how far each was when it was last seen to go on."""

    clock: Clock
    _last: dict[str, tuple[float, int]] = field(default_factory=dict)

    def standings(self, runs: Mapping[str, WatchedRun], roots: Iterable[Path]) -> Standings:
        """`runs`: by their real paths. `roots`: folders with a list of cells."""
        rows: dict[str, tuple[Standing, Pace]] = {}
        for root in roots:
            for place, row in self._rows(root, runs):
                rows.setdefault(place, row)
        for place, run in runs.items():
            if place not in rows:
                pace = run.pace(place)
                rows[place] = (_standing(run, pace), pace)
        paces = [pace for _, pace in rows.values()]
        shown = sorted((row for row, _ in rows.values()), key=lambda row: STATES.index(row.state))
        return Standings(tuple(shown), in_words(left_of_all(paces)))

    def _rows(self, root: Path, runs: Mapping[str, WatchedRun]) -> list[tuple[str, tuple[Standing, Pace]]]:
        listed: list[Listed] = []
        with contextlib.suppress(FewfedError, OSError):  # A damaged list costs what it would have told.
            listed = read_cells(root)
        group = os.path.realpath(root)
        places = [os.path.join(group, *Path(cell.folder).parts) for cell in listed]
        begun = self._begun(group, [runs.get(place) for place in places])
        found = []
        for number, (cell, place) in enumerate(zip(listed, places, strict=True)):
            run = runs.get(place)
            pace = run.pace(group) if run else Pace(group, printable(cell.method), "not begun", 0, cell.rounds)
            if pace.state in ("not begun", "stopped") and begun is not None and number > begun:
                pace = replace(pace, state="waiting")
            row = _standing(run, pace) if run else _planned(root, cell, pace)
            found.append((place, (row, pace)))
        return found

    def _begun(self, group: str, runs: Sequence[WatchedRun | None]) -> int | None:
        """The last cell that has had its turn in a comparison that goes on: cells are begun in their order."""
        running = [number for number, run in enumerate(runs) if run and run.state == "running"]
        if running:
            self._last[group] = (self.clock(), running[-1])
        when, last = self._last.get(group, (-_BETWEEN, 0))
        return last if self.clock() - when < _BETWEEN else None


def _standing(run: WatchedRun, pace: Pace) -> Standing:
    found = run.found
    return Standing(
        printable(run.folder),
        found.method,
        found.seed,
        pace.state,
        pace.done,
        pace.asked,
        outlook(pace),
        found.problem,
        run.part,
    )


def _planned(root: Path, cell: Listed, pace: Pace) -> Standing:
    return Standing(printable(root / cell.folder), pace.method, cell.seed, pace.state, 0, cell.rounds, "")
