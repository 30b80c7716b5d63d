"""The Gaussian mechanism in closed form.

Noise on several releases, each of which one row moves by so much, is together one Gaussian mechanism: their precisions
add up (the precision of a release is its squared shift over the variance of the noise). So a ledger of such releases is
one number, and exact, however the releases depended on each other (Dong, Roth & Su, Gaussian Differential Privacy,
2022; Balle & Wang, Improving the Gaussian Mechanism, ICML 2018).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import lru_cache

import torch

_HALVINGS = 200


def delta_of(precision: float, epsilon: float) -> float:
    """The smallest delta for an epsilon."""
    if precision <= 0:
        return -math.expm1(min(0.0, epsilon))
    if math.isinf(precision):
        return 1.0
    mu = math.sqrt(precision)
    first = _log_normal(mu / 2 - epsilon / mu)
    second = epsilon + _log_normal(-mu / 2 - epsilon / mu)
    return max(0.0, math.exp(first) * -math.expm1(min(0.0, second - first)))


def epsilon_of(precision: float, delta: float) -> float:
    """The smallest epsilon for a delta."""
    if precision <= 0:
        return 0.0
    if math.isinf(precision):
        return math.inf
    # A tail bound: delta is at most the chance that the loss, normal around precision / 2, exceeds epsilon.
    most = precision / 2 + math.sqrt(2 * precision * math.log(1 / delta))
    return _smallest(lambda epsilon: delta_of(precision, epsilon) <= delta, most)


@lru_cache(maxsize=4096)
def precision_of(epsilon: float, delta: float) -> float:
    """The largest precision that stays within epsilon and delta."""
    most = 1.0
    while delta_of(most, epsilon) <= delta:
        most *= 2
    # The number before the first that is too large: nothing is rounded up.
    return math.nextafter(_smallest(lambda precision: delta_of(precision, epsilon) > delta, most), 0.0)


def _smallest(fits: Callable[[float], bool], most: float) -> float:
    """The least number from 0 on for which something holds that holds for all larger ones, rounded up."""
    low, high = 0.0, most
    if fits(low):
        return low
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if middle in (low, high):
            break
        low, high = (low, middle) if fits(middle) else (middle, high)
    return high


def _log_normal(x: float) -> float:
    """The logarithm of the normal distribution function, far into its tails."""
    return float(torch.special.log_ndtr(torch.tensor(x, dtype=torch.float64)))
