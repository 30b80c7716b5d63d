"""Which of several rows is behind a reconstruction, by likelihood and not by distance.

A reconstruction from noise or from an average is drawn towards the mean, so that the row nearest to it is often a
common one. How far it is drawn, and how far off the truth is then, an attacker knows from rows of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.privacy.attacks import similarity

_AXES = (4, 8, 16, 32, 64, 128)
"""Numbers of axes that are tried: few where few rows are known, or where noise leaves nothing along the others."""
_LEAST = 1e-5
"""What is left of a variance at least: more certain nobody is."""
_AT_ONCE = 500


@dataclass(frozen=True)
class Directions:
    """The axes along which some rows differ most, most first."""

    mean: Tensor
    axes: Tensor
    every: Tensor
    """The coordinates of these rows."""

    @classmethod
    def of(cls, rows: Tensor, most: int = max(_AXES)) -> Directions:
        mean = rows.double().mean(0)
        centred = rows.double() - mean
        # By the smaller of the two products: rows may have thousands of columns, of which few axes are wanted.
        if len(rows) <= rows.shape[1]:
            sizes, vectors = torch.linalg.eigh(centred @ centred.T)
            axes = (centred.T @ vectors[:, -most:]).T
            kept = sizes[-most:] > 1e-12 * sizes[-1].clamp(min=1e-300)
            axes = torch.nn.functional.normalize(axes, dim=1) * kept[:, None]
        else:
            axes = torch.linalg.eigh(centred.T @ centred)[1][:, -most:].T
        axes = axes.flip(0)
        return cls(mean, axes, centred @ axes.T)

    def first(self, count: int) -> Directions:
        return Directions(self.mean, self.axes[:count], self.every[:, :count])

    def coordinates(self, rows: Tensor) -> Tensor:
        return (rows.double() - self.mean) @ self.axes.T


@dataclass(frozen=True)
class Likeness:
    """How coordinates of a row follow from those of its reconstruction, along the axes in which rows differ most."""

    along: Directions
    slope: Tensor
    rest: Tensor
    """Variance of a source's coordinates, given its reconstruction."""
    spread: Tensor
    """Variance of any row's coordinates."""

    @classmethod
    def of(cls, rebuilt: Tensor, origins: Tensor, along: Directions) -> Likeness:
        """From reconstructions whose sources are known: `origins` are numbers of the rows that the axes are of, -1
        where there are fewer."""
        every, guess = along.every, along.coordinates(rebuilt)[:, None]
        there = (origins >= 0).to(every)[..., None]
        source = every[origins.clamp(min=0)]
        pairs = there.sum(0).sum(0).clamp(min=1)
        spread = every.square().mean(0).clamp(min=1e-300)
        slope = (there * source * guess).sum((0, 1)) / (there * guess.square()).sum((0, 1)).clamp(min=1e-300)
        left = (there * (source - slope * guess).square()).sum((0, 1)) / pairs
        return cls(along, slope, torch.maximum(left, _LEAST * spread), spread)

    def scores(self, rebuilt: Tensor, candidates: Tensor) -> Tensor:
        """Of each reconstruction (rows) and candidate (columns) how much likelier one is behind the other than any row
        is, but for what is the same in a row."""
        guess, x = self.along.coordinates(rebuilt), self.along.coordinates(candidates)
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


Finds = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Of each reconstruction, given candidates and the numbers of its sources, whether one of these was picked."""


def best_way(rebuilt: Tensor, origins: Tensor, rows: Tensor) -> Finds:
    """How an attacker looks for sources: by likelihood along some number of axes, or by distance, whichever finds most
    of those it knows, each half after learning from the other."""
    half, along = len(rebuilt) // 2, Directions.of(rows)
    parts = (slice(0, half), slice(half, None))

    def hits(count: int) -> int:
        learnt = [Likeness.of(rebuilt[part], origins[part], along.first(count)) for part in parts]
        tested = zip(learnt, reversed(parts), strict=True)
        return sum(int(one.re_identified(rebuilt[part], rows, origins[part]).sum()) for one, part in tested)

    most = min(len(rows) - 1, rows.shape[1])
    found = {count: hits(count) for count in _AXES if count <= max(most, min(_AXES)) and half}
    nearest = int(similarity.re_identified(rebuilt, rows, origins).sum())
    if not found or nearest >= max(found.values()):
        return similarity.re_identified
    best = max(found, key=lambda count: found[count])
    return Likeness.of(rebuilt, origins, along.first(best)).re_identified
