"""What several rounds say together: the likelihoods of candidates multiplied, and reconstructions of one row averaged.

Numbers only. Nothing here knows which rows of two rounds belong together: that is a part of what is estimated.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from fewfed.privacy.attacks.matching import Directions, Likeness

_LEAST = 1e-6
"""What is left of a variance at least."""


def ratios(likeness: Likeness, rebuilt: Tensor, candidates: Tensor) -> Tensor:
    """Of each reconstruction (rows) and candidate (columns) log p(candidate | it is behind it) − log p(candidate)."""
    guess = likeness.slope * likeness.along.coordinates(rebuilt)
    alone = 0.5 * ((likeness.spread / likeness.rest).log().sum() - guess.square() @ (1 / likeness.rest))
    return likeness.scores(rebuilt, candidates) + alone[:, None]


def evidence(ratio: Tensor, inside: float) -> Tensor:
    """Of each candidate the log of how much likelier it makes all that a site sent in a round that the site has it.

    `ratio`: one row for each row sent. `inside`: how probably a row that a site has is behind something it sends in a
    round; then it is as probably behind any of it.
    """
    some = torch.logsumexp(ratio, 0) - math.log(len(ratio))
    never = torch.full_like(some, math.log1p(-inside)) if inside < 1 else torch.full_like(some, -torch.inf)
    return torch.logaddexp(never, math.log(inside) + some)


@dataclass(frozen=True)
class Blur:
    """How a reconstruction follows from its source along each axis: u = b x + e, with x around 0."""

    along: Directions
    slope: Tensor
    noise: Tensor
    """The variance of e."""
    spread: Tensor
    """The variance of x."""

    @classmethod
    def of(cls, rebuilt: Tensor, sources: Tensor, along: Directions) -> Blur:
        """From reconstructions whose sources are known."""
        u, x = along.coordinates(rebuilt), along.coordinates(sources)
        spread = x.square().mean(0).clamp(min=1e-300)
        slope = (u * x).mean(0) / spread
        noise = (u - slope * x).square().mean(0)
        return cls(along, slope, torch.maximum(noise, _LEAST * slope.square() * spread).clamp(min=1e-300), spread)


def same(first: Tensor, one: Blur, others: Tensor, other: Blur) -> Tensor:
    """Of each two reconstructions (coordinates) from two rounds the log of how much likelier they are if they have one
    source than if they have two."""
    a, b, spread = one.slope, other.slope, one.spread
    va, vb = a.square() * spread + one.noise, b.square() * spread + other.noise
    both = a * b * spread
    rest = (va * vb - both.square()).clamp(min=1e-300)
    # The densities of a normal pair with this covariance, and of one without.
    squares = -0.5 * (first.square() @ (vb / rest - 1 / va))[:, None] - 0.5 * (others.square() @ (va / rest - 1 / vb))
    crossed = (first * (both / rest)) @ others.T
    return squares + crossed + 0.5 * (va * vb / rest).log().sum()


def averaged(rebuilt: Tensor, blur: Blur, others: Sequence[tuple[Tensor, Blur]], in_place: float) -> Tensor:
    """The expected sources of one round's reconstructions, given those of other rounds too (one entry a round).

    Each of another round counts as much as it is probable that it has the same source, and as its round is exact.
    `in_place`: how probably the row that is at the same place in another round has it, before anything is seen; the
    others, or none of them, are as probable as each other. Across the axes a reconstruction stays as it is.
    """
    along, u = blur.along, blur.along.coordinates(rebuilt)
    precision = 1 / blur.spread + blur.slope.square() / blur.noise
    total = u * blur.slope / blur.noise
    for guesses, other in others:
        v = along.coordinates(guesses)
        likely = same(u, blur, v, other)
        prior = torch.full((len(u), len(v) + 1), math.log((1 - in_place) / max(1, len(v))), dtype=u.dtype)
        prior[:, :-1].fill_diagonal_(math.log(in_place))
        prior = prior.to(u.device)
        prior[:, :-1] += likely
        weight = torch.softmax(prior, 1)[:, :-1]
        total = total + (weight @ v) * other.slope / other.noise
        precision = precision + weight.sum(1, keepdim=True) * other.slope.square() / other.noise
    return (rebuilt.double() + (total / precision - u) @ along.axes).to(rebuilt.dtype)
