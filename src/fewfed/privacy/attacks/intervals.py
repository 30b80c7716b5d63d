"""95 % intervals: of a share by Wilson, of a mean by resampling, which few rows make too narrow: they are widened to
what Student's distribution gives. One row says nothing of how far others may be: its interval has no ends."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_Z = 1.959963984540054
_FEW = 10
"""Below so many rows there is nothing to resample: then the interval is Student's."""
_STUDENT = (12.7062, 4.3027, 3.1824, 2.7764, 2.5706, 2.4469, 2.3646, 2.3060, 2.2622)
"""97.5 % quantiles of Student's distribution with 1, 2, ... degrees of freedom; for more they follow from a series."""


def of_share(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's interval for the probability behind so many hits; sound at 0 % and 100 % too."""
    if trials <= 0:
        raise ValueError(f"{trials} trials: expected at least one")
    return _wilson(hits / trials, trials)


def _wilson(share: float, trials: int) -> tuple[float, float]:
    z2 = _Z * _Z
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    # At the ends the formula gives exactly 0 and 1, but for rounding.
    return (0.0 if share == 0 else max(0.0, centre - half)), (1.0 if share == 1 else min(1.0, centre + half))


def of_mean(
    values: Tensor, *, least: float = -math.inf, most: float = math.inf, times: int = 1000, seed: int = 0
) -> tuple[float, float]:
    """The interval for a mean over rows, whose values can be nothing below `least` or above `most`."""
    values = values.detach().double().cpu().flatten()
    if len(values) == 1:
        return least, most
    if bool((values == values[0]).all()) and math.isfinite(most - least):
        # The sample does not know its spread: a number between two ends differs no more than a yes or no does.
        share = (float(values[0]) - least) / (most - least)
        low, high = _wilson(share, len(values))
        return least + low * (most - least), least + high * (most - least)
    random = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), (times, len(values)), generator=random)
    low, high = _widened(float(values.mean()), values[picks].mean(1), values)
    return max(least, low), min(most, high)


def of_ratio(above: Tensor, below: Tensor, *, times: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The interval for a ratio of two sums over the same rows, none of which is negative, by resampling the rows."""
    above, below = (values.detach().double().cpu().flatten() for values in (above, below))
    if len(above) == 1:
        return 0.0, math.inf
    tiny = torch.finfo(torch.double).tiny
    whole = below.sum().clamp(min=tiny)
    ratio = above.sum() / whole
    picks = torch.randint(len(above), (times, len(above)), generator=torch.Generator().manual_seed(seed))
    ratios = above[picks].sum(1) / below[picks].sum(1).clamp(min=tiny)
    # To first order it is a mean over rows of how far each is from the ratio.
    low, high = _widened(float(ratio), ratios, ratio + (above - ratio * below) * len(above) / whole)
    return max(0.0, low), high


def _widened(value: float, resampled: Tensor, rows: Tensor) -> tuple[float, float]:
    """The interval around a value from what it is in samples of the rows, of each of which it is nearly the mean."""
    count = len(rows)
    if count < _FEW:
        half = _STUDENT[count - 2] * float(rows.std()) / math.sqrt(count)
        return value - half, value + half
    low, high = torch.quantile(resampled, torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    # Resampling takes the rows for all there are, and their spread for known.
    wider = student(count - 1) / _Z * math.sqrt(count / (count - 1))
    return value - wider * (value - low), value + wider * (high - value)


def student(degrees: int) -> float:
    """The 97.5 % quantile of Student's distribution (Abramowitz & Stegun 26.7.5)."""
    if degrees <= len(_STUDENT):
        return _STUDENT[degrees - 1]
    z, v = _Z, degrees
    terms = (
        (z**3 + z) / 4,
        (5 * z**5 + 16 * z**3 + 3 * z) / 96,
        (3 * z**7 + 19 * z**5 + 17 * z**3 - 15 * z) / 384,
    )
    return float(z + sum(term / v**power for power, term in enumerate(terms, 1)))
