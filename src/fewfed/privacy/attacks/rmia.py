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
_TEMPERATURE, _MARGIN = 2.0, 0.6
"""The released code's."""


def confidence(said: Tensor, labels: Tensor) -> Tensor:
    """How likely models that say this (..., rows, classes) find the labels, by a softmax that is slow to be sure.

    Logits are halved, and the label must win by a margin: one of the signals of the released code. Under a plain
    softmax all rows that a model has learnt are equally certain, and nothing tells them apart. The code's usual signal,
    with a polynomial for the exponential, is stronger on a large network, and misleads where logits are large.
    """
    logits = said / _TEMPERATURE
    label = labels.expand(logits.shape[:-1])[..., None]
    less = logits.scatter_add(-1, label, torch.full_like(logits[..., :1], -_MARGIN))
    return less.softmax(-1).gather(-1, label).squeeze(-1)


def evidence(of_target: Tensor, of_references: Tensor, seen: Tensor | None = None, a: float = OFFLINE) -> Tensor:
    """p(x | model) / p(x) of every row, from how likely it is: (rows) under the model, (references, rows) under others.

    `seen`: which references were trained on which rows; these are left out of that row's mean. NaN where all were.
    """
    kept = torch.ones_like(of_references) if seen is None else (~seen).to(of_references.dtype)
    out = (of_references * kept).sum(0) / kept.sum(0)
    return of_target / (0.5 * ((1 + a) * out + (1 - a)))


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
