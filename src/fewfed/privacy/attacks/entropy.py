"""What no attacker can do better than, if the entropy is right: MSE >= exp(2 h(x|z) / d) / (2 pi e).

Nobody knows h. What is used here is the cross-entropy of the errors that an attacker makes on rows it did not learn
from, under a normal distribution fitted to other such errors. That is never below h in expectation, so that the bound
is an estimate, and too high where errors are not normal or a better attacker makes smaller ones. Of several attackers
the one that gives the least is used.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from fewfed.privacy.attacks import intervals

ESTIMATOR = (
    "the bound is exp(2 h/d)/(2 pi e), with h estimated from above: the least cross-entropy of the attackers' errors "
    "on rows they did not learn from, taken as normal; never above an error that was reached. An estimate, not a "
    "guarantee"
)
_LEAST_ROWS = 8
_MOST_COLUMNS = 4096
_FORMS = tuple((diagonally, evenly) for diagonally in (0.0, 0.5, 1.0) for evenly in (1e-6, 1e-3, 1e-2, 0.1, 1.0))
"""How covariances are drawn to their diagonals, and to that of a ball."""


class Bound(NamedTuple):
    value: float
    low: float
    high: float
    rows: int


def bound(errors: Tensor) -> Bound | None:
    """The bound on the mean squared error from errors on held-out rows; None where there are too few of them.

    Columns without any error are known exactly: the bound is that of the others, in which they count as 0.
    """
    errors = errors.double().flatten(1)
    everything = errors.shape[1]
    errors = errors[:, errors.std(0, correction=0) > 1e-9 * errors.abs().max().clamp(min=1e-300)]
    rows, columns = len(errors), errors.shape[1]
    if rows < _LEAST_ROWS or not columns or columns > _MOST_COLUMNS:
        return None
    half = rows // 2
    # Any distribution gives an entropy that is too high: of several the one that gives the least is the nearest.
    surprise = min(
        (
            torch.cat([_surprise(errors[half:], errors[:half], *form), _surprise(errors[:half], errors[half:], *form)])
            for form in _FORMS
        ),
        key=lambda found: float(found.mean()),
    )
    part, (low, high) = columns / everything, intervals.of_mean(surprise)
    value, low, high = (part * _power(h, columns) for h in (float(surprise.mean()), low, high))
    return Bound(value, low, high, rows)


def _power(entropy: float, columns: int) -> float:
    return math.exp(min(700.0, 2 * entropy / columns)) / (2 * math.pi * math.e)


def _surprise(of: Tensor, fitted_to: Tensor, diagonally: float, evenly: float) -> Tensor:
    """Of each row -log density under the normal distribution of some others, whose covariance is drawn to its diagonal,
    the more so the fewer rows there are for a column, and to that of a ball."""
    rows, columns = fitted_to.shape
    centred = fitted_to - fitted_to.mean(0)
    covariance = centred.T @ centred / rows
    shrink = max(diagonally, columns / (columns + rows))
    diagonal = covariance.diagonal()
    mixed = (1 - shrink) * covariance + torch.diag(shrink * diagonal)
    ball = diagonal.mean().clamp(min=1e-300) * torch.eye(columns, dtype=mixed.dtype, device=mixed.device)
    factor = torch.linalg.cholesky((1 - evenly) * mixed + evenly * ball)
    white = torch.linalg.solve_triangular(factor, (of - fitted_to.mean(0)).T, upper=False)
    log_det: Tensor = 2 * factor.diagonal().log().sum()
    found: Tensor = 0.5 * (white.square().sum(0) + log_det + columns * math.log(2 * math.pi))
    return found
