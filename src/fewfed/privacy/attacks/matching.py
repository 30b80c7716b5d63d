"""Which of several rows is behind a reconstruction, by likelihood and not by distance.

A reconstruction from noise or from an average is drawn towards the mean, so that the row nearest to it is often a
common one. How far it is drawn, and how far off the truth is then, an attacker knows from rows of its own.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

_MOST_AXES = 128
_ROWS_AN_AXIS = 3
_LEAST = 1e-5
"""What is left of a variance at least: more certain nobody is."""
_AT_ONCE = 500


@dataclass(frozen=True)
class Likeness:
    """How coordinates of a row follow from those of its reconstruction, along the axes in which rows differ most."""

    mean: Tensor
    axes: Tensor
    slope: Tensor
    rest: Tensor
    """Variance of a source's coordinates, given its reconstruction."""
    spread: Tensor
    """Variance of any row's coordinates."""

    @classmethod
    def of(cls, rebuilt: Tensor, origins: Tensor, rows: Tensor) -> Likeness:
        """From reconstructions whose sources are known: `origins` are numbers of `rows`, -1 where there are fewer."""
        mean = rows.double().mean(0)
        count = max(1, min(_MOST_AXES, len(rebuilt) // _ROWS_AN_AXIS, len(rows) - 1, rows.shape[1]))
        axes = torch.linalg.svd(rows.double() - mean, full_matrices=False)[2][:count]
        every = (rows.double() - mean) @ axes.T
        guess = ((rebuilt.double() - mean) @ axes.T)[:, None]
        there = (origins >= 0).to(every)[..., None]
        source = every[origins.clamp(min=0)]
        pairs = there.sum(0).sum(0).clamp(min=1)
        spread = every.square().mean(0).clamp(min=1e-300)
        slope = (there * source * guess).sum((0, 1)) / (there * guess.square()).sum((0, 1)).clamp(min=1e-300)
        left = (there * (source - slope * guess).square()).sum((0, 1)) / pairs
        return cls(mean, axes, slope, torch.maximum(left, _LEAST * spread), spread)

    def scores(self, rebuilt: Tensor, candidates: Tensor) -> Tensor:
        """Of each reconstruction (rows) and candidate (columns) how much likelier one is behind the other than any row
        is, but for what is the same in a row."""
        guess, x = (((each.double() - self.mean) @ self.axes.T) for each in (rebuilt, candidates))
        alone = 0.5 * (x.square() @ (1 / self.spread - 1 / self.rest))
        found: Tensor = (guess * self.slope / self.rest) @ x.T + alone
        return found

    def re_identified(self, rebuilt: Tensor, candidates: Tensor, origins: Tensor) -> Tensor:
        """Of each reconstruction whether the likeliest candidate is a source of it."""
        hits = []
        for guess, sources in zip(torch.split(rebuilt, _AT_ONCE), torch.split(origins, _AT_ONCE), strict=True):
            scores = self.scores(guess, candidates)
            own = scores.gather(1, sources.clamp(min=0)).masked_fill(sources < 0, -torch.inf)
            hits.append(own.amax(1) >= scores.amax(1))
        return torch.cat(hits)
