"""Folders that are watched: what is in them now, as the two texts that a live page is made from."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from fewfed.engine.storage import digest_of
from fewfed.report.live.finding import Below, look_below
from fewfed.report.live.standing import Comparisons
from fewfed.report.live.watched_run import Clock, WatchedRun
from fewfed.report.rendering import printable

Compose = Callable[[Sequence[WatchedRun]], str]
"""What the page shows of runs beside their progress: one JSON object."""


@dataclass(frozen=True)
class Snapshot:
    """What a page is told at one moment."""

    contents: str
    """The report, a JSON object."""
    live: str
    """Progress and sites, a JSON object."""

    @property
    def tag(self) -> str:
        """Equal for equal snapshots."""
        return digest_of([self.contents.encode(), b"\0", self.live.encode()])


@dataclass
class Watcher:
    """Looks again and again, at what has changed."""

    folders: Sequence[Path]
    compose: Compose
    clock: Clock = time.monotonic
    _runs: dict[str, WatchedRun] = field(default_factory=dict)
    _comparisons: Comparisons = field(init=False)
    _live: str = "{}"
    _report: str = "{}"
    _composed: tuple[tuple[str, int], ...] | None = None
    """The runs that the report was composed from, each with its revision."""

    def __post_init__(self) -> None:
        self._comparisons = Comparisons(self.clock)

    def look(self, seconds: float) -> Snapshot:
        """Progress as it is now, above the report as it was last composed. What has not been read after so many seconds
        is read at the next look."""
        half, until = self.clock() + seconds / 2, self.clock() + seconds
        below = look_below(self.folders)
        places = {os.path.realpath(folder): folder for folder in below.runs}
        self._runs = {
            place: self._runs.get(place) or WatchedRun(folder, self.clock) for place, folder in places.items()
        }
        # Every run has its turn: those that are known, the longest not read first; then new ones, long files last.
        for run in sorted(self._runs.values(), key=lambda run: (not run.whole_at, run.whole_at, run.part)):
            run.look(half if run.whole_at else until)
        self._live = json.dumps(self._told(below))
        return self._snapshot

    @property
    def is_behind(self) -> bool:
        """Whether there are files that have not been read to their end."""
        return any(run.is_behind for run in self._runs.values())

    @property
    def is_stale(self) -> bool:
        """Whether runs have changed since the report was composed."""
        return self._revisions() != self._composed

    def catch_up(self) -> Snapshot:
        """The report composed again, from what was read so far."""
        revisions = self._revisions()
        self._report = self.compose([self._runs[place] for place, _ in revisions])
        self._composed = revisions
        return self._snapshot

    @property
    def _snapshot(self) -> Snapshot:
        return Snapshot(self._report, self._live)

    def _revisions(self) -> tuple[tuple[str, int], ...]:
        return tuple((place, run.revision) for place, run in self._runs.items() if run.part == 1.0)

    def _told(self, below: Below) -> dict[str, Any]:
        standings = self._comparisons.standings(self._runs, below.comparisons)
        federations = [run.federation for run in self._runs.values() if run.federation]
        return {
            **standings.as_json(),
            "federations": [each.as_json() for each in federations],
            "remarks": list(below.remarks),
            "folders": [printable(folder) for folder in self.folders],
        }
