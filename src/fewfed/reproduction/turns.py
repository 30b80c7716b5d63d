"""Which cells come next, where there is time for some of them only."""

from __future__ import annotations

import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from fewfed.reproduction.outcome import Outcome
from fewfed.reproduction.study import Planned
from fewfed.runs.experiment import USUAL_COHORT

_AXES = (("data", "clients", "method"), ("data", "method"), ("data", "clients"), ("data",))
"""Cells that take about as long as one: the more they share with it, the better."""


@dataclass(frozen=True)
class Seconds:
    """How long cells take, by those that are finished."""

    known: Sequence[tuple[Planned, float]]

    @classmethod
    def of(cls, finished: Iterable[tuple[Planned, Outcome]]) -> Seconds:
        return cls([(run, outcome.seconds) for run, outcome in finished])

    def expected(self, run: Planned) -> float | None:
        """Of one cell, by the finished cells that are most like it; None where none is."""
        for axes in _AXES:
            alike = [
                seconds * _work(run) / _work(other)
                for other, seconds in self.known
                if all(other.at.get(axis) == run.at.get(axis) for axis in axes)
            ]
            if alike:
                return statistics.fmean(alike)
        return None


def in_turn(runs: Sequence[Planned], finished: Sequence[tuple[Planned, Outcome]]) -> list[Planned]:
    """Those that are not finished, cheapest and most informative first: every setting once before any has a second
    seed, and among those the ones that take least time."""
    done = {run.name for run, _ in finished}
    seconds = Seconds.of(finished)
    seeds: dict[object, int] = {}
    turn: dict[str, int] = {}
    for run in sorted(runs, key=lambda run: run.name not in done):  # Finished seeds count first.
        turn[run.name] = seeds.get(run.setting, 0)
        seeds[run.setting] = turn[run.name] + 1
    cost = {run.name: seconds.expected(run) for run in runs}
    guess = _scale(runs, cost)
    left = [run for run in runs if run.name not in done]
    return sorted(left, key=lambda run: (turn[run.name], cost[run.name] or guess * _work(run)))


def _scale(runs: Sequence[Planned], cost: Mapping[str, float | None]) -> float:
    """Seconds a step, for cells unlike any that is finished."""
    rates = [known / _work(run) for run in runs if (known := cost[run.name])]
    return statistics.median(rates) if rates else 1.0


def _work(run: Planned) -> float:
    """About how many local epochs a cell has; how long one takes is not known."""
    experiment = run.resolved.experiment
    clients = experiment.clients or 1
    cohort = experiment.cohort or USUAL_COHORT
    members = cohort if cohort >= 1 else cohort * clients
    return max(1.0, experiment.rounds * members * run.resolved.training.epochs)
