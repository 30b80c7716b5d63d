"""Which method a bake-off speaks for: the simplest of those that the best does not beat.

Simple is what sends less: first by what leaves a site, as methods declare it, then by bytes.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from fewfed.metric import Metric
from fewfed.privacy.sharing import Leaves
from fewfed.report.paired import Paired, half_width, paired

WORTH = 0.01
"""What a share metric must gain for it to be worth sending more: a point."""
FAR = 5
"""So many times as much is far ahead; of a metric that is no share, so many percent of what the other has."""
MOST = 0.75
"""The part of the seeds on which it must be ahead then."""
TELLING_SEEDS = 3
"""With fewer, intervals tell nothing."""


@dataclass(frozen=True)
class Evidence:
    """What is known of one method after a bake-off."""

    spec: str
    label: str
    why: str
    leaves: Leaves
    is_reference: bool
    is_alone: bool
    lr: float
    rounds: int
    validation: Mapping[int, float]
    """By seed."""
    test: Mapping[int, float]
    bytes_up: float
    """Of all sites in a round, in the mean over rounds and seeds."""
    bytes_down: float
    leak_r2: float | None
    leak_reidentified: float | None
    seconds: float
    """Of a run."""
    rises: bool
    """Whether it was still getting better at the end."""

    @property
    def simplicity(self) -> tuple[int, float]:
        """Smaller sends less."""
        return int(self.leaves.share), self.bytes_up

    def interval(self, values: Mapping[int, float]) -> tuple[float, float | None]:
        """The mean over seeds, and half the width of its 95 % interval; None with one seed."""
        return statistics.fmean(values.values()), half_width(tuple(values.values()))


@dataclass(frozen=True)
class Choice:
    """What is recommended, and why not another."""

    chosen: Evidence
    best: Evidence
    """The best on the validation rows, which may be another."""
    differences: Mapping[str, Paired]
    """Of every method to the chosen one on the validation rows, by its spec."""

    def unsure(self, found: Sequence[Evidence]) -> list[Evidence]:
        """Methods that send less, were far behind, and may be as good all the same."""
        simpler = [each for each in found if not each.is_reference and each.simplicity < self.chosen.simplicity]
        return [each for each in simpler if each.spec in self.differences and self._may_do(each)]

    def _may_do(self, each: Evidence) -> bool:
        return self.differences[each.spec].verdict != "worse"

    @property
    def is_simpler(self) -> bool:
        """Whether another was ahead, but not by enough."""
        return self.chosen.spec != self.best.spec


def choose(found: Sequence[Evidence], metric: Metric) -> Choice:
    """Decide on validation rows alone. References are never chosen.

    A method that was stopped has fewer seeds than others. All are therefore put in order by how far they are from one
    that has the most, over the seeds that both have: seeds that are easy for everybody flatter nobody.
    """
    open_to_choice = [each for each in found if not each.is_reference and _is_known(each)]
    common = max(open_to_choice, key=lambda each: len(each.validation))
    distances = [paired(each.validation, common.validation, metric).mean for each in open_to_choice]
    best = open_to_choice[metric.place_of_best(distances)]
    alike = [each for each in open_to_choice if each is best or not _is_beaten(each, best, metric)]
    chosen = min(alike, key=lambda each: each.simplicity)
    known = [each for each in found if _is_known(each) and each is not chosen]
    return Choice(chosen, best, {each.spec: paired(each.validation, chosen.validation, metric) for each in known})


def _is_known(each: Evidence) -> bool:
    return bool(each.validation) and all(math.isfinite(value) for value in each.validation.values())


def _is_beaten(each: Evidence, best: Evidence, metric: Metric) -> bool:
    """Whether the best is better beyond chance and by as much as is worth while, or so far ahead on most seeds that
    it would be odd to wait for certainty: with few rows and few seeds nothing is ever certain."""
    difference = paired(best.validation, each.validation, metric)
    if difference.verdict == "better":
        return difference.gain > (WORTH if metric.is_share else 0.0)
    far = FAR * WORTH
    if not metric.is_share:  # In units that nobody knows.
        other = statistics.fmean(abs(value) for value in each.validation.values())
        far = math.inf if difference.seeds >= TELLING_SEEDS else far * other
    return difference.gain > far and difference.won >= MOST * difference.seeds
