"""How near a reconstruction is to the row it is of."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

_WINDOW = 7
_MOST_DB = 100.0
_AT_ONCE = 500


def squared_errors(rebuilt: Tensor, truth: Tensor) -> Tensor:
    """The mean squared error of each row."""
    return (rebuilt.double() - truth.double()).square().flatten(1).mean(1)


def psnr(errors: Tensor, peak: float) -> Tensor:
    """The peak signal-to-noise ratio of each row in decibels, at most 100, which is taken as perfect."""
    least = peak**2 * 10 ** (-_MOST_DB / 10)
    return 10 * torch.log10(peak**2 / errors.double().clamp(min=least))


def ssim(first: Tensor, second: Tensor, peak: float) -> Tensor:
    """The structural similarity of each pair of pictures (Wang et al. 2004), mean over places and channels.

    Plain windows of 7x7 pixels, smaller for smaller pictures, without weights; variances are those of a sample.
    """
    window = min(_WINDOW, *first.shape[2:])
    pixels = window * window
    c1, c2 = (0.01 * peak) ** 2, (0.03 * peak) ** 2

    def mean(values: Tensor) -> Tensor:
        return functional.avg_pool2d(values, window, 1)

    x, y = first.double(), second.double()
    mx, my, sample = mean(x), mean(y), pixels / max(1, pixels - 1)
    vx = sample * (mean(x * x) - mx * mx)
    vy = sample * (mean(y * y) - my * my)
    both = sample * (mean(x * y) - mx * my)
    found: Tensor = ((2 * mx * my + c1) * (2 * both + c2)) / ((mx * mx + my * my + c1) * (vx + vy + c2))
    return found.flatten(1).mean(1)


def re_identified(rebuilt: Tensor, candidates: Tensor, origins: Tensor) -> Tensor:
    """Of each reconstruction whether the nearest of all candidates is a source of it; twins of a source count as it.

    `origins`: the numbers of the sources among the candidates, -1 where there are fewer.
    """
    hits = []
    others = candidates.flatten(1).double()
    guesses = torch.split(rebuilt.flatten(1).double(), _AT_ONCE)
    for guess, sources in zip(guesses, torch.split(origins, _AT_ONCE), strict=True):
        # Not by the shortcut over products, which rounds where rows are near each other.
        distances = torch.cdist(guess, others, compute_mode="donot_use_mm_for_euclid_dist")
        own = distances.gather(1, sources.clamp(min=0)).masked_fill(sources < 0, torch.inf)
        hits.append(own.amin(1) <= distances.amin(1))
    return torch.cat(hits) if hits else torch.zeros(0, dtype=torch.bool)


def chance_of(origins: Tensor, candidates: int) -> float:
    """The share that guessing any candidate re-identifies."""
    sources = torch.tensor([len({one for one in row if one >= 0}) for row in origins.tolist()], dtype=torch.double)
    return float(sources.mean()) / candidates
