"""Two methods compared seed by seed: the mean difference, its 95 % interval, and a sentence that says what it means."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

from fewfed.metric import Metric
from fewfed.report.rendering import fixed

CONFIDENCE = 0.95

_ROUNDING = 1e-6
"""What computing leaves of nothing is smaller."""
_NO_REASONS: Mapping[str, Sequence[int]] = MappingProxyType({})

Verdict = Literal["better", "worse", "alike", "one seed", "no pair"]


@dataclass(frozen=True)
class Paired:
    """A method less the baseline, over the seeds that both have."""

    differences: tuple[float, ...]
    """One a common seed, in the order of seeds. Larger is more of the metric, which may be worse."""
    half: float | None
    """Half the width of the interval; None with fewer than two seeds."""
    unpaired: tuple[int, ...] = ()
    """Seeds that only one of the two has, which are left out."""
    lower_is_better: bool = False

    @property
    def seeds(self) -> int:
        return len(self.differences)

    @property
    def mean(self) -> float:
        """NaN where no seed is common."""
        return statistics.fmean(self.differences) if self.differences else math.nan

    @property
    def interval(self) -> tuple[float, float] | None:
        return None if self.half is None else (self.mean - self.half, self.mean + self.half)

    @property
    def gain(self) -> float:
        """By how much the method is better: the mean difference with the sign that a reader expects."""
        return -self.mean if self.lower_is_better else self.mean

    @property
    def won(self) -> int:
        """Seeds on which the method is the better of the two."""
        return sum((one < 0) if self.lower_is_better else (one > 0) for one in self.differences)

    @property
    def lost(self) -> int:
        return sum((one > 0) if self.lower_is_better else (one < 0) for one in self.differences)

    @property
    def verdict(self) -> Verdict:
        """Whether the interval leaves zero out. Nobody is better by what rounding makes of nothing, however often."""
        if self.seeds < 2 or self.half is None:
            return "one seed" if self.seeds else "no pair"
        if abs(self.mean) <= max(self.half, _ROUNDING):
            return "alike"
        return "better" if self.gain > 0 else "worse"


def paired(method: Mapping[int, float], baseline: Mapping[int, float], metric: Metric) -> Paired:
    """Compare values by seed. Student's t on the differences: seeds share split, cohorts and first weights, so that
    much of what varies between them cancels."""
    common = sorted(method.keys() & baseline.keys())
    differences = tuple(method[seed] - baseline[seed] for seed in common)
    alone = tuple(sorted(method.keys() ^ baseline.keys()))
    return Paired(differences, half_width(differences), alone, metric.lower_is_better)


def half_width(values: tuple[float, ...], confidence: float = CONFIDENCE) -> float | None:
    """Half the width of the interval of a mean by Student's t; None with fewer than two values."""
    if len(values) < 2:
        return None
    from scipy.stats import t

    quantile = float(t.ppf((1 + confidence) / 2, len(values) - 1))
    return quantile * statistics.stdev(values) / math.sqrt(len(values))


def sentence(
    method: str, baseline: str, found: Paired, metric: Metric, reasons: Mapping[str, Sequence[int]] = _NO_REASONS
) -> str:
    """One plain sentence: who is better, by how much, on how many seeds. `reasons`: seeds that are left out, by the
    words for why; of all others one of the two has no run."""
    explained = {seed for seeds in reasons.values() for seed in seeds}
    alone = tuple(seed for seed in found.unpaired if seed not in explained)
    why = {**reasons, "only one of the two has": alone}
    left = ", and ".join(f"{words} {_seeds(seeds)}" for words, seeds in why.items() if seeds)
    told = _told(method, baseline, found, metric)
    return f"{told}; {left}, left out." if left else f"{told}."


def _seeds(seeds: Sequence[int]) -> str:
    return f"seed{'s' if len(seeds) > 1 else ''} {', '.join(str(seed) for seed in seeds)}"


def _told(method: str, baseline: str, found: Paired, metric: Metric) -> str:
    if found.verdict == "no pair":
        return f"{method} and {baseline} have no seed in common, so they cannot be compared"
    size = amount(abs(found.mean), metric)
    if found.verdict == "one seed":
        if abs(found.mean) <= _ROUNDING:
            return f"{method} and {baseline} came to the same; one seed, no interval"
        way = "is ahead of" if found.gain > 0 else "is behind"
        return f"{method} {way} {baseline} by {size}{_unit(metric)}; one seed, no interval"
    assert found.half is not None
    if not any(found.differences):  # To the last digit: a method that changed nothing here, more likely than a tie.
        return f"{method} and {baseline} came to the same on each of {found.seeds} seeds"
    margin = f"{size} ± {amount(found.half, metric)}{_unit(metric)}"
    if found.verdict == "better":
        return f"{method} beats {baseline} by {margin}, {found.won} of {found.seeds} seeds"
    if found.verdict == "worse":
        return f"{method} is behind {baseline} by {margin}, {found.lost} of {found.seeds} seeds"
    signed = f"{shown(found.mean, metric)} ± {amount(found.half, metric)}{_unit(metric)}"
    return (
        f"{method} and {baseline} cannot be told apart: a difference of {signed}, {method} better on {found.won} of "
        f"{found.seeds} seeds"
    )


def amount(value: float, metric: Metric) -> str:
    """A size without its sign, in points of a percentage where the metric is a share. What is little is not nothing."""
    scaled, digits = (100 * value, 1) if metric.is_share else (value, 3)
    told = fixed(scaled, digits)
    return f"{scaled:.2g}" if scaled > _ROUNDING and not float(told) else told


def shown(value: float, metric: Metric) -> str:
    """A difference with its sign."""
    sign = "−" if value < 0 else "+"
    return f"{sign}{amount(abs(value), metric)}"


def _unit(metric: Metric) -> str:
    if metric.name == "accuracy":
        return " points"
    return f" points of {metric.title}" if metric.is_share else f" in {metric.title}"
