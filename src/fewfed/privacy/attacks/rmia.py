"""RMIA: is a row likelier under the model, against what it would be anyway, than rows of the population are?

Zarifzadeh, Liu and Shokri, Low-Cost High-Power Membership Inference Attacks, ICML 2024, in its offline form: reference
models have not seen the row.
"""

from __future__ import annotations

import torch
from torch import Tensor

GAMMA = 2.0
"""By how much a row must stand out against a row of the population; the paper's."""
OFFLINE = 0.3
"""The paper's a for CIFAR-10: p(x) = ((1 + a) p_out(x) + (1 - a)) / 2 guesses how models that saw x answer."""


def evidence(of_target: Tensor, of_references: Tensor, seen: Tensor | None = None, a: float = OFFLINE) -> Tensor:
    """p(x | model) / p(x) of every row, from losses: (rows) under the model, (references, rows) under references.

    `seen`: which references were trained on which rows; these are left out of that row's mean. NaN where all were.
    """
    likely = (-of_references).exp()
    kept = torch.ones_like(likely) if seen is None else (~seen).to(likely.dtype)
    out = (likely * kept).sum(0) / kept.sum(0)
    return (-of_target).exp() / (0.5 * ((1 + a) * out + (1 - a)))


def scores(rows: Tensor, population: Tensor, gamma: float = GAMMA) -> Tensor:
    """The share of the population whose evidence that of a row exceeds `gamma` times, of every row.

    With few rows of a population many shares are equal, and with the share at 0 or 1 nothing orders them; the evidence
    itself, far below one step of the share, does.
    """
    population = population[torch.isfinite(population)]
    if not len(population):
        raise ValueError("no row of the population that some reference model has not seen")
    below = torch.searchsorted((gamma * population).sort().values, rows, side="left").double()
    tie = rows / (1 + rows) / (2 * len(population))
    return below / len(population) + tie
