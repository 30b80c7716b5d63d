"""What fits into a time budget: how many rounds, seeds, settings and methods, from what a round of each costs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

MOST_SEEDS = 5
MARGIN = 1.25
"""What runs may take longer than was measured at the beginning."""
_TIMES = 2.0
"""What a method that exchanges nothing may cost in all, in runs of the baseline: it trains every site in every round,
and gets fewer rounds where that is much."""
_FEWEST_ROUNDS = 5


@dataclass(frozen=True)
class Cost:
    """Seconds that a run of one method takes, in a process of its own beside others."""

    start: float
    first: float
    """The first round, with what happens once."""
    each: float
    """Every other."""

    def run(self, rounds: int) -> float:
        return self.start + self.first + (rounds - 1) * self.each


@dataclass(frozen=True)
class Shape:
    """How thorough a comparison is."""

    rounds: int
    seeds: int
    settings: int
    """Of each method, tried on a seed of their own; 1: nothing is searched."""


SHAPES: Sequence[Shape] = (
    Shape(100, 5, 3),
    Shape(50, 5, 3),
    Shape(30, 5, 3),
    Shape(30, 5, 1),
    Shape(30, 3, 1),
    Shape(20, 3, 1),
)
"""Of all methods, from the best on. Where none fits, methods are given up before the rest gets too little."""
SHORT: Sequence[Shape] = (Shape(20, 2, 1), Shape(10, 3, 1), Shape(10, 2, 1))
"""Of the few that are left then, before the last of them are given up too."""
KEPT = 2
"""Methods beside those that are never given up that count as few."""
LAST_RESORTS: Sequence[Shape] = (Shape(10, 1, 1), Shape(5, 2, 1), Shape(5, 1, 1), Shape(2, 1, 1), Shape(1, 1, 1))
"""With nothing left to give up."""


@dataclass(frozen=True)
class Plan:
    """What is run."""

    rounds: Mapping[str, int]
    """By method, in the order in which they are run."""
    settings: int
    given_up: tuple[str, ...]
    """Methods for which there is no time."""


def plan_of(
    costs: Mapping[str, Cost],
    always: Sequence[str],
    alone: Sequence[str],
    baseline: str,
    *,
    seconds: float,
    at_once: int,
    rounds: int | None = None,
    searches: bool = True,
) -> Plan:
    """The most thorough comparison that fits; the least one where nothing does.

    `always`: methods that are not given up. `alone`: those that exchange nothing, so that every site trains in every
    round. `rounds`: as the user wants; None leaves it open. `searches`: whether settings may be searched.
    """
    fewer = list(costs)
    optional = [spec for spec in costs if spec not in always]
    steps: list[tuple[list[str], Sequence[Shape]]] = [(list(costs), SHAPES)]
    for left in range(len(optional) - 1, -1, -1):
        fewer = [spec for spec in fewer if spec in always or spec in optional[:left]]
        steps.append((fewer, SHAPES[-1:] if left > KEPT else (*SHAPES[-1:], *SHORT) if left == KEPT else SHORT[-1:]))
    steps.append((fewer, (*SHORT, *LAST_RESORTS)))
    for tried, shapes in steps:
        for shape in shapes:
            shape = Shape(shape.rounds if rounds is None else rounds, shape.seeds, shape.settings if searches else 1)
            lengths = {spec: _rounds(spec, costs, alone, baseline, shape.rounds) for spec in tried}
            plan = Plan(lengths, shape.settings, tuple(spec for spec in costs if spec not in tried))
            if needed(plan, costs, shape.seeds, at_once) <= seconds:
                return plan
    return plan


def needed(plan: Plan, costs: Mapping[str, Cost], seeds: int, at_once: int) -> float:
    """Seconds that a plan takes with so many seeds."""
    each = [costs[spec].run(length) for spec, length in plan.rounds.items()]
    runs = seeds + (plan.settings if plan.settings > 1 else 0)
    # No run can be parted: the longest may be the last to begin.
    return MARGIN * (sum(each) * runs / max(1, min(at_once, runs * len(each))) + max(each) * (at_once > 1))


def _rounds(spec: str, costs: Mapping[str, Cost], alone: Sequence[str], baseline: str, rounds: int) -> int:
    if spec not in alone:
        return rounds
    room = _TIMES * costs[baseline].run(rounds) - costs[spec].start - costs[spec].first
    affordable = 1 + int(room / max(costs[spec].each, 1e-9))
    return max(min(rounds, _FEWEST_ROUNDS), min(rounds, affordable))
