"""One run folder that is looked at again and again: only what has changed is read."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from pathlib import Path

from fewfed.deploy.status import STATUS
from fewfed.engine.evaluation import BESIDE
from fewfed.engine.own_folder import PART, OwnFolder
from fewfed.errors import RunError
from fewfed.metric import METRICS
from fewfed.report.live.progress import Pace, State, pace_of
from fewfed.report.live.rounds_file import Record, RoundsFile, Stamp
from fewfed.report.live.sites import Federation, federation_in
from fewfed.report.survey import Found, look_at
from fewfed.runs.folder import BEFORE, CHECKPOINT, CLIENTS, CONFIG, LOCK, is_held

_UNSEEN = {CHECKPOINT, f"{CHECKPOINT}.new", BEFORE, CLIENTS, LOCK}
"""What a run writes for itself alone."""
_KEPT = ("round", "failed", "leak", "davies_bouldin", "seconds", "evaluated_clients", *METRICS)
"""Of every round, beside its traffic."""
_TRIES = 3

Clock = Callable[[], float]


@dataclass
class WatchedRun:
    """What is known of a run so far."""

    folder: Path
    clock: Clock = time.monotonic
    """A clock that never jumps, whatever the machine's does."""
    found: Found = field(init=False)
    federation: Federation | None = None
    going_on: bool = False
    """Whether a process is at work in the folder."""
    revision: int = 0
    """Counts how often something else was found than before."""
    whole_at: float = 0.0
    """When it was last read to its end; 0 before."""
    _rounds: RoundsFile = field(init=False)
    _seen: frozenset[tuple[str, Stamp]] | None = None
    _grown: float = 0.0
    """When the last round was first seen."""

    def __post_init__(self) -> None:
        self.found = Found(self.folder, "unfinished")
        self._rounds = RoundsFile(slim)

    @property
    def part(self) -> float:
        """How much of it was read. What was known of all of it is shown until what was added has been read as well."""
        if self.whole_at:
            return 1.0
        return 0.0 if self._seen is None else min(self._rounds.part, 0.99)

    @property
    def is_behind(self) -> bool:
        """Whether there is more to be read, as far as is known."""
        return self._seen is None or self._rounds.part < 1.0

    @property
    def records(self) -> list[Record]:
        return self._rounds.records

    @property
    def is_shown(self) -> bool:
        """Whether there is a run to report, and not only a coordinator that waits for its sites."""
        return bool(self.found.method) or self.found.state == "damaged"

    @property
    def state(self) -> State:
        """As far as its own folder tells."""
        if self.found.state == "finished":
            return "finished"
        if self.going_on:
            return "running"
        return "damaged" if self.found.state == "damaged" else "stopped"

    def look(self, until: float) -> bool:
        """Read what has changed, until a time of the clock; whether there is something new."""
        going_on, before = is_held(self.folder), self.revision
        if going_on != self.going_on:
            self.going_on, self.revision = going_on, self.revision + 1
        seen = _stamps(self.folder)
        if seen != self._seen or self.is_behind:
            self._read(until)
            for _ in range(_TRIES):  # What is written between two glances may look damaged, and is not.
                self._seen, seen = seen, _stamps(self.folder)
                if self.found.state != "damaged" or seen == self._seen:
                    break
                self._read(until)
        elif self.federation is not None and self.revision > before:
            self.federation = federation_in(self.folder, self.going_on)
        return self.revision > before

    def pace(self, group: str) -> Pace:
        seconds = [float(one["seconds"]) for one in self.records[-64:] if isinstance(one.get("seconds"), (int, float))]
        found, quiet = self.found, max(0.0, self.clock() - self._grown)
        return Pace(group, found.method, self.state, len(self.records), found.rounds, pace_of(seconds), quiet)

    def _read(self, until: float) -> None:
        done = len(self.records)
        found = self._looked_at(until)
        has_status = os.path.lexists(self.folder / STATUS)
        self.federation = federation_in(self.folder, self.going_on) if has_status else None
        if has_status and not os.path.lexists(self.folder / CONFIG):
            found = Found(self.folder, "unfinished")  # A coordinator that waits for its sites.
        if len(self.records) != done or not self._grown:
            self._grown = self.clock()
        if self._rounds.part < 1.0 and self.whole_at:
            return
        self.whole_at = self.clock() if self._rounds.part == 1.0 else 0.0
        self.found, self.revision = found, self.revision + 1

    def _looked_at(self, until: float) -> Found:
        def read_on(own: OwnFolder, start: str) -> tuple[list[Record], str]:
            read = self._rounds.read_on(own, start, until)
            if self._rounds.part < 1.0:
                raise RunError("not read to its end yet")
            return read

        found = look_at(self.folder, read_on)
        if self._rounds.part < 1.0:  # It is not damaged: what it is can be said when all of it has been read.
            return replace(found, state="unfinished", problem="", done=len(self.records))
        return found


def slim(record: Record) -> Record:
    """A round without what no page shows. Names are the same objects in all rounds, which are many."""
    kept = {name: record[name] for name in _KEPT if record.get(name) not in (None, [])}
    traffic, phases, beside = record.get("bytes"), record.get("phases"), record.get(BESIDE)
    if isinstance(traffic, dict):
        kept["bytes"] = {name: traffic[name] for name in ("up", "down") if name in traffic}
    if isinstance(phases, dict):
        kept["phases"] = {
            sys.intern(name): {"bytes_up": phase.get("bytes_up", 0)}
            for name, phase in phases.items()
            if isinstance(phase, dict)
        }
    if isinstance(beside, dict):
        kept[BESIDE] = {
            sys.intern(name): {metric: numbers[metric] for metric in METRICS if metric in numbers}
            for name, numbers in beside.items()
            if isinstance(numbers, dict)
        }
    return kept


def _stamps(folder: Path) -> frozenset[tuple[str, Stamp]]:
    """All files a page is made from, by what tells that they have changed."""
    found: list[tuple[str, Stamp]] = []
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.name not in _UNSEEN and not entry.name.endswith(PART):
                    facts = entry.stat(follow_symlinks=False)
                    found.append((entry.name, (facts.st_ino, facts.st_size, facts.st_mtime_ns)))
    except (OSError, ValueError):
        pass  # It has just been deleted, or must not be looked into: what can be read says so.
    return frozenset(found)
