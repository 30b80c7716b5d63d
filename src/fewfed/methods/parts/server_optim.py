"""Server steps over trees: momentum, the adaptive rules of FedOpt, and means of models that were kept apart."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import torch
from torch import Tensor

from fewfed import tree
from fewfed.tree import Tree


def step_towards(params: Tree, target: Tree, rate: float) -> Tree:
    """params + rate · (target − params); a rate of 1 is exactly the target."""
    return tree.map(lambda here, there: torch.lerp(here, there, rate), params, target)


def momentum_step(params: Tree, mean: Tree, velocity: Tree, beta: float, rate: float) -> tuple[Tree, Tree]:
    """v ← beta·v + (w − mean), w ← w − rate·v: the new parameters and velocity."""
    # Written as a step to the mean plus what the old velocity adds, so that beta = 0 at rate 1 is exactly the mean.
    carried = tree.scale(velocity, beta)
    moved = tree.sub(step_towards(params, mean, rate), tree.scale(carried, rate))
    return moved, tree.add(carried, tree.sub(params, mean))


def adaptive_step(params: Tree, first: Tree, second: Tree, rate: float, tau: float) -> Tree:
    """w ← w + rate · m / (√v + tau), without bias correction."""
    return tree.map(lambda w, m, v: w + rate * m / (v.sqrt() + tau), params, first, second)


def weighted_mean(trees: Sequence[Tree], weights: Sequence[float]) -> Tree:
    """Σ weight · tree over Σ weight, summed in float64 in the order given; of whole numbers (counters) the largest."""
    share = [weight / sum(weights) for weight in weights]

    def mean(*values: Tensor) -> Tensor:
        if not values[0].is_floating_point():
            return reduce(torch.maximum, values)
        parts = [value.double() * part for value, part in zip(values, share, strict=True)]
        return reduce(torch.add, parts).to(values[0].dtype)

    return tree.map(mean, trees[0], *trees[1:])
