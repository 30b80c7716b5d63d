"""How far runs are, and how long they may still take: one by one, side by side, and those that wait their turn."""

from __future__ import annotations

import heapq
import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

State = Literal["running", "waiting", "not begun", "stopped", "damaged", "finished"]
"""Waiting: it has its place in a comparison that goes on. Not begun: nobody runs that comparison now."""
STATES: tuple[State, ...] = ("running", "waiting", "not begun", "stopped", "damaged", "finished")
"""In the order in which they are shown."""

RECENT = 20
"""Rounds by which a run's pace is judged."""
_PATIENCE, _LEAST_PATIENCE = 5.0, 60.0
"""A run that shows no round for so many times its pace, and so many seconds, may be stuck: its end is not foretold."""


@dataclass(frozen=True)
class Pace:
    """How far one run is, and how fast."""

    group: str
    """The comparison it belongs to; runs of one take turns on the machine."""
    method: str
    state: State
    done: int = 0
    asked: int | None = None
    seconds: float | None = None
    """Of a round, lately; None before there was one."""
    quiet: float = 0.0
    """Seconds since its last round was seen, by a clock that never jumps."""


def pace_of(seconds: Sequence[float]) -> float | None:
    """The seconds of a round, by the last ones. The first of a run is left out where there are others: it warms up."""
    usual = [each for each in seconds[1:] or seconds if math.isfinite(each) and each >= 0]
    return statistics.fmean(usual[-RECENT:]) if usual else None


def left_of(run: Pace) -> float | None:
    """How many seconds a run that goes on may still take; None where nobody can know."""
    if run.state != "running" or run.asked is None or run.seconds is None:
        return None
    return None if is_quiet(run) else max(0.0, (run.asked - run.done) * run.seconds - min(run.quiet, run.seconds))


def is_quiet(run: Pace) -> bool:
    """Whether a run that goes on has shown no round for longer than its pace explains."""
    return run.quiet > max(_PATIENCE * (run.seconds or 0.0), _LEAST_PATIENCE)


def outlook(run: Pace) -> str:
    """The time left to a run that goes on, in words, or what keeps anybody from knowing it."""
    if run.state == "running" and run.done and is_quiet(run):
        return f"no round for {in_words(run.quiet)}"
    return in_words(left_of(run))


def left_of_all(runs: Sequence[Pace]) -> float | None:
    """How many seconds until the last of all runs that go on or wait is finished; None where nobody can know.

    Runs that wait start when one that goes on is finished, as many at a time as go on now, in the order given here.
    """
    groups: dict[str, list[Pace]] = {}
    for run in runs:
        groups.setdefault(run.group, []).append(run)
    found = [_left_of_group(group) for group in groups.values() if any(run.state == "running" for run in group)]
    known = [each for each in found if each is not None]
    return max(known) if known and len(known) == len(found) else None


def _left_of_group(runs: Sequence[Pace]) -> float | None:
    lanes = []
    for run in runs:
        if run.state == "running":
            left = left_of(run) if run.seconds is not None else _whole(run, runs)
            if left is None:
                return None
            lanes.append(left)
    heapq.heapify(lanes)
    for run in runs:
        if run.state == "waiting":
            takes = _whole(run, runs)
            if takes is None:
                return None
            heapq.heappush(lanes, heapq.heappop(lanes) + takes)
    return max(lanes)


def _whole(run: Pace, others: Sequence[Pace]) -> float | None:
    """What a run without a pace of its own may take: by runs of the same method, else by all of its comparison."""
    known = [other for other in others if other.seconds is not None]
    alike = [other for other in known if other.method == run.method] or known
    pace = run.seconds if run.seconds is not None else _mean(alike)
    return None if pace is None or run.asked is None else max(0, run.asked - run.done) * pace


def _mean(runs: Sequence[Pace]) -> float | None:
    return statistics.fmean(run.seconds for run in runs if run.seconds is not None) if runs else None


def in_words(seconds: float | None) -> str:
    """A time as roughly as it is known: "about 40 s", "about 4 min", "about 3 h"; nothing where it is not."""
    if seconds is None or not math.isfinite(seconds):
        return ""
    if seconds < 10:
        return "a few seconds"
    if seconds < 95:
        return f"about {10 * round(seconds / 10)} s"
    if seconds < 90 * 60:
        return f"about {round(seconds / 60)} min"
    if seconds < 36 * 3600:
        return f"about {round(seconds / 3600)} h"
    return f"about {round(seconds / 86400)} days"
