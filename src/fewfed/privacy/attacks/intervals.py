"""95 % intervals: of a share by Wilson, of a mean by resampling."""

from __future__ import annotations

import math

import torch
from torch import Tensor

_Z = 1.959963984540054


def of_share(hits: int, trials: int) -> tuple[float, float]:
    """Wilson's interval for the probability behind so many hits; sound at 0 % and 100 % too."""
    if trials <= 0:
        raise ValueError(f"{trials} trials: expected at least one")
    share, z2 = hits / trials, _Z * _Z
    centre = (share + z2 / (2 * trials)) / (1 + z2 / trials)
    half = _Z * math.sqrt(share * (1 - share) / trials + z2 / (4 * trials * trials)) / (1 + z2 / trials)
    # At the ends the formula gives exactly 0 and 1, but for rounding.
    return (0.0 if hits == 0 else max(0.0, centre - half)), (1.0 if hits == trials else min(1.0, centre + half))


def of_mean(values: Tensor, *, times: int = 1000, seed: int = 0) -> tuple[float, float]:
    """The interval for a mean over rows, by resampling the rows."""
    values = values.detach().double().cpu().flatten()
    random = torch.Generator().manual_seed(seed)
    picks = torch.randint(len(values), (times, len(values)), generator=random)
    means = values[picks].mean(1)
    low, high = torch.quantile(means, torch.tensor([0.025, 0.975], dtype=torch.double)).tolist()
    return low, high
